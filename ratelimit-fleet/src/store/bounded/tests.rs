//! Tests of the bound with endless and hostile answers, byte by byte. They need no store.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

use super::*;

const QUESTION: &[u8] = b"*1\r\n$4\r\nPING\r\n";

fn after(asked: u64, parts: &[&[u8]]) -> (Result<(), Excess>, Arc<Notes>) {
    let notes = Arc::new(Notes::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _within = runtime.enter();
    let mut stream = Bounded::new((), Arc::clone(&notes));
    (0..asked).for_each(|_| stream.asks(QUESTION));
    let outcome = parts.iter().try_for_each(|part| stream.is_answered(part));
    (outcome, notes)
}

#[test]
fn answers_of_every_kind_pass_however_they_are_cut() {
    let answers: &[u8] =
        b"+OK\r\n-ERR no\r\n:7\r\n$-1\r\n$0\r\n\r\n$3\r\na\r\n\r\n*-1\r\n*0\r\n*2\r\n*1\r\n:1\r\n$1\r\nx\r\n";
    for cut in 0..answers.len() {
        let (outcome, notes) = after(9, &[&answers[..cut], &answers[cut..]]);
        assert_eq!((outcome, notes.error().as_deref()), (Ok(()), Some("ERR no")), "cut at {cut}");
    }
    let bytes: Vec<&[u8]> = answers.chunks(1).collect();
    assert_eq!(after(9, &bytes).0, Ok(()));
    assert_eq!(after(8, &bytes).0, Err(Excess::Unasked), "nine answers to eight questions");
}

#[test]
fn an_answer_beyond_the_bounds_ends_the_stream() {
    let deep = b"*1\r\n".repeat(DEPTH_MAX + 1);
    let long = [&b"$4194304\r\n"[..], &[b'a'; 100]].concat();
    let text = [&b"+"[..], &[b'a'; LINE_BYTES_MAX + 1]].concat();
    let nested = b"*2\r\n*40000\r\n*40000\r\n".to_vec();
    let numbers = [
        &b"*60000\r\n"[..],
        &b":1000000000000000000000000000000000000000000000000000000000000000000\r\n".repeat(60_000),
    ]
    .concat();
    for (answer, excess) in [
        (&b"$9223372036854775807\r\n"[..], Excess::Bytes),
        (&long, Excess::Bytes),
        (&numbers, Excess::Bytes),
        (b"*9223372036854775807\r\n", Excess::Elements),
        (b"*65537\r\n", Excess::Elements),
        (b"*40000\r\n*40000\r\n", Excess::Elements),
        (&nested, Excess::Elements),
        (&deep, Excess::Depth),
        (&text, Excess::Line),
        (b">3\r\n", Excess::Garbled),
        (b"%1\r\n", Excess::Garbled),
        (b"HTTP/1.1 400 Bad Request\r\n", Excess::Garbled),
        (b"$12x\r\n", Excess::Garbled),
        (b"*11111111111111111111111111", Excess::Garbled),
        (b"\x15\x03\x03\0\x02", Excess::Tls),
    ] {
        assert_eq!(after(1, &[answer]).0, Err(excess), "{}", String::from_utf8_lossy(&answer[..answer.len().min(40)]));
    }
    assert_eq!(after(1, &[b"$4194290\r\n"]).0, Ok(()), "the longest");
    assert_eq!(after(1, &[b"*65536\r\n"]).0, Ok(()), "the most");
}

#[test]
fn a_server_that_takes_no_connection_says_why_without_being_asked_and_nothing_else() {
    let (outcome, notes) = after(0, &[b"-ERR max number of clients reached\r\n"]);
    assert_eq!((outcome, notes.error().as_deref()), (Ok(()), Some("ERR max number of clients reached")));
    assert_eq!(after(0, &[b"+OK\r\n"]).0, Err(Excess::Unasked));
    assert_eq!(after(1, &[b"+OK\r\n", b"-ERR late\r\n"]).0, Err(Excess::Unasked));
}

async fn asked(answer: &[u8]) -> (Bounded<tokio::io::DuplexStream>, tokio::io::DuplexStream, Arc<Notes>) {
    let notes = Arc::new(Notes::default());
    let (ours, mut theirs) = duplex(1 << 20);
    let mut stream = Bounded::new(ours, Arc::clone(&notes));
    stream.write_all(QUESTION).await.unwrap();
    theirs.write_all(answer).await.unwrap();
    (stream, theirs, notes)
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_stands_still_or_trickles_is_ended_in_time() {
    let (mut stream, _theirs, notes) = asked(b"$5\r\nab").await;
    let mut read = [0; 16];
    assert_eq!(stream.read(&mut read).await.unwrap(), 6);
    let began = Instant::now();
    let error = stream.read(&mut read).await.unwrap_err();
    assert_eq!((error.kind(), notes.excess()), (io::ErrorKind::ConnectionAborted, Some(Excess::Slow)));
    assert_eq!(began.elapsed().as_secs(), ANSWER_TAKES_MAX.as_secs());
    assert!(stream.read(&mut read).await.is_err(), "and stays so");

    let (mut stream, mut theirs, notes) = asked(b"$9\r\n").await;
    let trickle = async {
        for _ in 0..100 {
            tokio::time::sleep(ANSWER_TAKES_MAX / 4).await;
            drop(theirs.write_all(b"a").await);
        }
    };
    let reads = async { while stream.read(&mut read).await.is_ok() {} };
    tokio::select! { () = trickle => panic!("it is never ended"), () = reads => {} }
    assert_eq!(notes.excess(), Some(Excess::Slow));
}

#[tokio::test(start_paused = true)]
async fn a_whole_answer_may_be_followed_by_any_silence() {
    let (mut stream, mut theirs, notes) = asked(b"+PONG\r\n").await;
    let mut read = [0; 16];
    assert_eq!(stream.read(&mut read).await.unwrap(), 7);
    let later = async {
        tokio::time::sleep(ANSWER_TAKES_MAX * 100).await;
        theirs.write_all(b"+PONG\r\n").await.unwrap();
    };
    stream.write_all(QUESTION).await.unwrap();
    let (count, ()) = tokio::join!(stream.read(&mut read), later);
    assert_eq!((count.unwrap(), notes.excess()), (7, None));
}

#[tokio::test]
async fn an_error_is_a_farewell_only_where_nothing_else_was_said() {
    for (answers, asked_more, farewell) in [
        (&b"-DENIED no\r\n"[..], 0, Some("DENIED no")),
        (b"+OK\r\n-MOVED 1 a:1\r\n", 1, None),
        (b"-ERR a\r\n+OK\r\n", 1, None),
    ] {
        let (mut stream, theirs, notes) = asked(answers).await;
        for _ in 0..asked_more {
            stream.write_all(QUESTION).await.unwrap();
        }
        drop(theirs);
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        assert_eq!((notes.farewell().as_deref(), all.len()), (farewell, answers.len()));
    }
}
