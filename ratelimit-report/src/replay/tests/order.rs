//! Replays of logs with lines that are not in the order of their own times.

use super::*;

/// Returns a policy with one limit of requests per minute, in buckets of 12 seconds.
fn a_minute(amount: u64) -> Policy {
    policy(vec![ratelimit_policy::desired::Limit {
        window_ns: MINUTE_NS,
        bucket_ns: 12 * SECOND_NS,
        ..limit(amount, Unit::Requests)
    }])
}

fn suggested(contents: &[u8], of: &Policy) -> Suggested {
    let input = Named { name: "it".to_owned(), input: Box::new(std::io::Cursor::new(contents.to_vec())) };
    let (replay, read, files) =
        play(vec![input], &asked(of), |kind| Replay::observing(of, kind, Present::Said)).unwrap();
    replay.suggest(read, files, &[]).unwrap()
}

fn busiest_window(of: &Suggested) -> u64 {
    of.report.rules[0].limits[0].observed.as_ref().unwrap().busiest_window.unwrap().max
}

#[test]
fn downloads_that_end_together_are_judged_when_they_began() {
    // The lines are sorted, reversed, or with swapped halves.
    let sorted: Vec<(u64, &str)> = (0..240).map(|number| (number * 5, "192.0.2.7")).collect();
    let falling: Vec<_> = sorted.iter().rev().copied().collect();
    let halves: Vec<_> = sorted[120..].iter().chain(&sorted[..120]).copied().collect();
    let of = a_minute(60);
    for lines in [&sorted, &falling, &halves] {
        let report = replayed(&log(lines), &of).unwrap();
        assert_eq!((numbers(&report.limits[0]), report.input.out_of_order), ((240, 0, 0), 0));
        let busiest = busiest_window(&suggested(&log(lines), &of));
        assert!((14..=15).contains(&busiest), "a minute and one bucket, as a strict window counts: {busiest}");
    }
    assert_eq!(replayed(&log(&falling), &of).unwrap().input.reordered, 239);
    assert_eq!(replayed(&log(&sorted), &of).unwrap().input.reordered, 0);
}

#[test]
fn a_log_of_ends_with_durations_is_judged_by_the_times_of_begin() {
    // 240 downloads begin 5 seconds apart and end in the same second.
    const END: u64 = START / SECOND_NS + 1_200;
    let head = |names: &str| format!("#Version: 1.0\n#Fields: date time c-ip {names}\n");
    let date = jiff::Timestamp::from_second(i64::try_from(END).unwrap()).unwrap();
    let [date, clf] = ["%Y-%m-%d %H:%M:%S", "%d/%b/%Y:%H:%M:%S +0000"].map(|form| date.strftime(form).to_string());
    let of = a_minute(60);
    for (head, line) in [
        (String::new(), format!(r#"{{"time_local":"{clf}","remote_addr":"192.0.2.7","request_time":"{{s}}.000"}}"#)),
        (
            String::new(),
            format!(
                r#"{{"ts":{END}.0,"msg":"handled request","request":{{"remote_ip":"192.0.2.7"}},"duration":{{s}}}}"#
            ),
        ),
        (head("sc-status time-taken"), format!("{date} 192.0.2.7 200 {{s}}000")),
        (head("time-taken cs-method"), format!("{date} 192.0.2.7 {{s}}.000 GET")),
    ] {
        let lines = (0..240).map(|number| line.replace("{s}", &(number * 5).to_string()) + "\n");
        let text = head + &lines.collect::<String>();
        let report = replayed(text.as_bytes(), &of).unwrap();
        assert_eq!((numbers(&report.limits[0]), report.input.out_of_order), ((240, 0, 0), 0), "{line}");
        let busiest = busiest_window(&suggested(text.as_bytes(), &of));
        assert!((14..=15).contains(&busiest), "{busiest}: {line}");
    }
}

#[test]
fn a_request_that_the_window_does_not_hold_is_counted_and_said() {
    let of = policy(vec![limit(2, Unit::Requests)]);
    let mut replay = Replay::new(&of, Kind::AccessLog).unwrap().within(Order::new(3));
    for second in [1, 2, 3, 4, 0, 5] {
        replay.request(Nanos(START + second * SECOND_NS), "192.0.2.7".parse().unwrap(), 0);
    }
    let report = replay.finish(Read::default(), Vec::new(), &[]);
    assert_eq!((report.input.judged, report.input.out_of_order, report.input.reordered), (6, 1, 0));
    let [warning] = report.warnings.as_slice() else { panic!("{:?}", report.warnings) };
    assert!(warning.contains("lines too far behind younger ones") && warning.contains("2097152 requests"), "{warning}");
}

#[test]
fn a_line_with_a_wrong_time_leaves_the_others_in_their_order() {
    let falling: Vec<(u64, &str)> = (0..240).rev().map(|number| (number * 5, "192.0.2.7")).collect();
    // One line has a time a hundred years ahead.
    let wrong = [&[(3_155_760_000, "192.0.2.8")], &falling[..]].concat();
    let report = replayed(&log(&wrong), &a_minute(60)).unwrap();
    assert_eq!((numbers(&report.limits[0]), report.input.out_of_order), ((241, 0, 0), 0));
}

#[test]
fn several_files_are_put_in_order_together() {
    // The log was rotated while downloads ran, so the younger file has lines older than most of the other one.
    let of = a_minute(60);
    let older: Vec<(u64, &str)> = (0..240).filter(|number| number % 3 > 0).map(|n| (n * 5, "192.0.2.7")).collect();
    let mut younger: Vec<(u64, &str)> = vec![(1_300, "192.0.2.8")];
    younger.extend((0..240).filter(|number| number % 3 == 0).map(|n| (n * 5, "192.0.2.7")));
    for files in [[log(&older), log(&younger)], [log(&younger), log(&older)]] {
        let report = replayed_all(&[&files[0], &files[1]], &of).unwrap();
        assert_eq!((numbers(&report.limits[0]), report.input.out_of_order), ((241, 0, 0), 0));
    }
}

proptest! {
    #[test]
    fn any_order_of_lines_within_the_window_is_judged_as_the_sorted_log_is(
        requests in proptest::collection::vec((0_u64..86_000, 0_u8..4, any::<u64>()), 1..150),
        amount in 1_u64..20,
        is_packed in any::<bool>(),
        parts in 1_usize..4,
    ) {
        let of = a_minute(amount);
        let line = |(at, source, _): &(u64, u8, u64)| (*at, format!("192.0.2.{source}"));
        let text = |requests: &[(u64, u8, u64)]| {
            let lines: Vec<(u64, String)> = requests.iter().map(line).collect();
            let lines: Vec<(u64, &str)> = lines.iter().map(|(at, source)| (*at, source.as_str())).collect();
            log(&lines)
        };
        let (mut sorted, mut mixed) = (requests.clone(), requests);
        sorted.sort_by_key(|(at, ..)| *at);
        mixed.sort_by_key(|(.., key)| *key);
        let packed = |text: Vec<u8>| {
            if !is_packed {
                return text;
            }
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            std::io::Write::write_all(&mut encoder, &text).unwrap();
            encoder.finish().unwrap()
        };
        let files: Vec<Vec<u8>> =
            mixed.chunks(mixed.len().div_ceil(parts)).map(|part| packed(text(part))).collect();
        let files: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
        let (one, other) = (replayed(&text(&sorted), &of).unwrap(), replayed_all(&files, &of).unwrap());
        prop_assert_eq!(other.input.out_of_order, 0);
        prop_assert_eq!((one.input.from, one.input.until), (other.input.from, other.input.until));
        let limits = |of: &Report| serde_json::to_value(&of.limits).unwrap();
        prop_assert_eq!(limits(&one), limits(&other));
        let rules = |of: &Suggested| serde_json::to_value(&of.report.rules).unwrap();
        prop_assert_eq!(rules(&suggested(&text(&sorted), &of)), rules(&suggested(&text(&mixed), &of)));
    }
}
