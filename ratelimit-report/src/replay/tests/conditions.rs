//! Replays with limits of requests that meet conditions, for which a log has more facts than packets.

use super::*;
use ratelimit_policy::config::limit::parse_condition;
use ratelimit_policy::desired::Limit;

/// Returns a limit of requests that meet these conditions.
fn conditioned(amount: u64, conditions: &str, slot: u32) -> Limit {
    Limit { condition: Some(parse_condition(conditions).unwrap()), slot, ..limit(amount, Unit::Requests) }
}

/// Returns log lines of one source, a second apart.
fn lines(requests: &[(&str, u16)]) -> Vec<u8> {
    let line = |(second, (request, status)): (usize, &(&str, u16))| {
        let at = jiff::Timestamp::from_second(START as i64 / SECOND_NS as i64 + second as i64).unwrap();
        let time = at.strftime("%d/%b/%Y:%H:%M:%S +0000");
        format!("198.51.100.7 - - [{time}] \"{request} HTTP/2.0\" {status} 5\n")
    };
    requests.iter().enumerate().map(line).collect::<String>().into_bytes()
}

#[test]
fn a_limit_with_conditions_counts_the_lines_that_meet_them() {
    let of = policy(vec![
        limit(100, Unit::Requests),
        conditioned(2, "path=/login method=POST", 71),
        conditioned(9, "status=404", 72),
    ]);
    let page = [("GET /login", 200), ("POST /login", 200), ("GET /nothing", 404), ("POST /other", 200)];
    let report = replayed(&lines(&page.repeat(2)), &of).unwrap();
    assert_eq!(report.limits.iter().map(numbers).collect::<Vec<_>>(), [(8, 0, 0), (2, 0, 0), (2, 0, 0)]);
}

#[test]
fn only_requests_that_meet_the_conditions_are_refused_beyond_the_limit() {
    let of = policy(vec![limit(100, Unit::Requests), conditioned(2, "path=/login method=POST", 71)]);
    let asked = [("POST /login", 401), ("POST /login", 401), ("GET /", 200), ("POST /login", 401), ("GET /", 200)];
    let report = replayed(&lines(&asked), &of).unwrap();
    assert_eq!(report.limits.iter().map(numbers).collect::<Vec<_>>(), [(4, 0, 0), (2, 1, 1)]);
    assert_eq!(report.limits[1].limited[0].first_refused, after(3.0));
}

#[test]
fn a_limit_with_conditions_alone_remembers_who_meets_them() {
    let of = policy(vec![conditioned(5, "status=401,403", 71)]);
    let report = replayed(&lines(&[("GET /", 200), ("GET /", 401), ("GET /", 403), ("GET /", 200)]), &of).unwrap();
    assert_eq!((numbers(&report.limits[0]), report.sources, report.input.judged), ((2, 0, 0), 1, 4));
}

#[test]
fn limits_with_conditions_are_suggested_by_what_meets_them() {
    let of = policy(vec![conditioned(1_000, "path=/login", 71)]);
    let requests: Vec<_> = (0..40).map(|at| if at % 4 == 0 { ("POST /login", 401) } else { ("GET /", 200) }).collect();
    let contents = lines(&requests);
    let inputs = vec![Named { name: "it".to_owned(), input: Box::new(std::io::Cursor::new(contents)) }];
    let begin = |kind| Replay::observing(&of, kind, Present::Said);
    let (replay, read, files) = play(inputs, &asked(&of), begin).unwrap();
    let said = serde_json::to_value(replay.suggest(read, files, &[]).unwrap()).unwrap();
    let wanted = said.pointer("/rules/0/limits/0/observed/wanted").and_then(serde_json::Value::as_u64);
    assert_eq!(wanted, Some(10), "{said:#}");
}

#[test]
fn a_capture_is_refused_where_a_limit_has_conditions() {
    let of = policy(vec![limit(10, Unit::Requests), conditioned(5, "status=401", 71)]);
    let refused = replayed(&pcap(1, &asking(CLIENT, SERVER, 2)), &of).unwrap_err().to_string();
    assert!(refused.contains("the limit 5/5m requests") && refused.contains("status=401"), "{refused}");
}

#[test]
fn lines_that_do_not_tell_what_a_condition_asks_are_said() {
    let of = policy(vec![conditioned(5, "status=401", 71)]);
    let iis = "#Fields: date time c-ip cs-method cs-uri-stem sc-status\n2027-01-15 08:00:00 198.51.100.7 GET / 401\n";
    let report = replayed(iis.as_bytes(), &of).unwrap();
    let words = "1 line has no status, path or method that is read, so no condition is met";
    assert!(report.warnings.iter().any(|warning| warning == words), "{:?}", report.warnings);
}
