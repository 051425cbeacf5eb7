//! Tests of the example applications in Python and PHP with the real daemon: their requests, the client that they
//! charge, and their work without the daemon.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use integration_test::lab::{CLIENTS, CLIENTS_V6, Daemon, HANGS_AFTER, Lab, ask, once};
use netlab::{Child, needs_root};
use nix::sys::signal::Signal;

const PORT: u16 = 8080;
/// Time for which the Python client does not contact a daemon that did not answer.
const PAUSE: Duration = Duration::from_secs(1);

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("examples")
}

/// Timeout in seconds of a copy that must receive all answers, long enough for any busy machine.
const PATIENT_SECONDS: &str = "60.0";
/// Timeout in seconds of a copy with a stopped daemon, which never answers.
const BRIEF_SECONDS: &str = "3.0";

/// Copies an example and changes its timeout for the daemon's answers. The shipped tenth of a second is a bound of real
/// time, which a busy machine exceeds.
fn copy_that_waits(lab: &Lab, directory: &str, seconds: &str) -> PathBuf {
    let copy = lab.directory().join(format!("{directory}-{seconds}"));
    fs::create_dir(&copy).unwrap();
    let mut has_timeout = false;
    for file in fs::read_dir(examples().join(directory)).unwrap().map(Result::unwrap) {
        let Ok(text) = fs::read_to_string(file.path()) else { continue };
        let changed = text.replace("TIMEOUT_SECONDS = 0.1", &format!("TIMEOUT_SECONDS = {seconds}"));
        has_timeout |= changed != text;
        fs::write(copy.join(file.file_name()), changed).unwrap();
    }
    assert!(has_timeout, "{directory} has no TIMEOUT_SECONDS");
    copy
}

fn application(lab: &Lab, program: &str, args: &[&str], directory: &str, seconds: &str) -> Child {
    let mut command = lab.command(program);
    command.args(args).current_dir(copy_that_waits(lab, directory, seconds));
    let child = Child::start(command).unwrap();
    // Connects over an interface that is not limited.
    once(|| lab.server.inside(|| Ok(TcpStream::connect((Ipv6Addr::LOCALHOST, PORT))?)).ok())
        .unwrap_or_else(|| panic!("{program} does not listen: {}", child.stderr()));
    child
}

fn limit(lab: &Lab) -> Daemon {
    let config = fs::read_to_string(examples().join("login.toml")).unwrap().replace("\"eth0\"", "\"s0\"");
    let path = lab.directory().join("login.toml");
    fs::write(&path, format!("max_sources = 4096\nsocket = \"{}\"\n{config}", lab.socket().display())).unwrap();
    lab.start(&["run", "--config", path.to_str().unwrap()])
}

fn log_in(lab: &Lab, from: &str, password: &str) -> String {
    let mut stream = lab.open(from, PORT);
    let body = format!("password={}", password.replace(' ', "+"));
    let length = body.len();
    let head =
        "POST /login HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded";
    write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns an answer's status, and its headers about limits.
fn of(answer: &str) -> (u16, Vec<String>) {
    let (head, _) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap();
    let is_of_limits = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        name.starts_with("ratelimit") || name == "retry-after"
    };
    (status, head.lines().filter(is_of_limits).map(str::to_owned).collect())
}

fn with_left(left: u64) -> Vec<String> {
    vec!["RateLimit-Policy: \"login\";q=20;w=3600".to_owned(), format!("RateLimit: \"login\";r={left}")]
}

fn get(lab: &Lab, from: &str) -> (u16, Vec<String>) {
    of(&lab.http(from, PORT))
}

fn charges_and_says_so(lab: &Lab, client: &str) {
    assert_eq!(get(lab, client), (200, with_left(19)));
    assert_eq!(of(&log_in(lab, client, "correct horse")), (200, with_left(18)));
    let mut held = lab.open(client, PORT);
    for left in [11, 5] {
        assert_eq!(of(&log_in(lab, client, "guess")), (401, with_left(left)), "{client}: one and five more");
    }
    let (status, fields) = of(&log_in(lab, client, "another guess"));
    assert_eq!((status, &fields[0]), (401, &with_left(0)[0]));
    lab.assert_blocked(client, PORT);
    let (status, fields) = of(&ask(&mut held, "/"));
    assert_eq!((status, fields.len(), &fields[0]), (429, 3, &with_left(0)[0]), "what is open is told why");
    let seconds: u64 = fields[2].strip_prefix("Retry-After: ").unwrap().parse().unwrap();
    assert!((1..=4200).contains(&seconds), "{fields:?}");
    assert!(fields[1].starts_with("RateLimit: \"login\";r=0;t="), "{fields:?}");
}

/// Asserts that the application serves its page without any header about limits.
fn goes_on_alone(lab: &Lab, client: &str) {
    // The client would otherwise give up, because a stopped daemon never answers.
    assert_eq!(get(lab, client), (200, Vec::new()));
    assert_eq!(of(&log_in(lab, client, "guess")), (401, Vec::new()));
}

fn does_as_it_says(program: &str, args: &[&str], directory: &str) {
    let lab = Lab::new();
    let mut daemon = limit(&lab);
    let patient = application(&lab, program, args, directory, PATIENT_SECONDS);
    for client in [CLIENTS[0], CLIENTS_V6[0]] {
        charges_and_says_so(&lab, client);
    }
    for neighbour in [CLIENTS[1], CLIENTS_V6[2]] {
        assert_eq!(get(&lab, neighbour), (200, with_left(19)), "{neighbour} has done nothing");
    }
    drop(patient);
    let _brief = application(&lab, program, args, directory, BRIEF_SECONDS);
    daemon.child.signal(Signal::SIGSTOP).unwrap();
    goes_on_alone(&lab, CLIENTS[1]);
    daemon.child.signal(Signal::SIGCONT).unwrap();
    // Each attempt uses one of the twenty allowed connections.
    let is_asked = (0..10).any(|_| {
        thread::sleep(PAUSE);
        let (status, fields) = get(&lab, CLIENTS[1]);
        (status, fields.len()) == (200, 2)
    });
    assert!(is_asked, "it is asked again once it answers");
    daemon.child.signal(Signal::SIGTERM).unwrap();
    daemon.child.wait(HANGS_AFTER).unwrap();
    goes_on_alone(&lab, CLIENTS[0]);
}

#[test]
fn the_python_application_charges_a_guesser_and_goes_on_without_a_daemon() {
    needs_root!();
    does_as_it_says("python3", &["-B", "demo.py", "::", "8080"], "python");
}

#[test]
fn the_php_application_charges_a_guesser_and_goes_on_without_a_daemon() {
    needs_root!();
    does_as_it_says("php", &["-S", "[::]:8080", "index.php"], "php");
}
