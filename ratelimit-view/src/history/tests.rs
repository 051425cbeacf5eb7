//! Tests of the history's output, including its fit on a screen.

use super::*;
use crate::Detail;

const CLASSIC: Page = Page { width: 80, rows: Some(23), detail: Detail::Normal };

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + second).unwrap()
}

fn episode(began: i64, ended: Option<i64>, reason: &str, packets: u64) -> Episode {
    Episode {
        source: "198.51.100.7".to_owned(),
        rule: "web".to_owned(),
        limit: "1000/5m requests".to_owned(),
        reason: reason.to_owned(),
        began: at(began),
        ended: ended.map(at),
        packets,
        bytes: packets * 60,
        peak: 1_000 + packets,
        would: reason == "dry_run",
        cause: ended.map(|_| "quiet".to_owned()),
    }
}

fn deny(reason: Option<&str>) -> Act {
    Act {
        time: at(60),
        what: "deny".to_owned(),
        source: Some("198.51.100.0/24".to_owned()),
        by: Some("root (alice)".to_owned()),
        reason: reason.map(str::to_owned),
        detail: "198.51.100.0/24 is denied".to_owned(),
    }
}

fn report(episodes: Vec<Episode>, acts: Vec<Act>) -> HistoryReport {
    let (more, more_episodes, more_acts) = (false, false, false);
    let (source, losses) = ("198.51.100.7".to_owned(), Vec::new());
    HistoryReport { schema: 1, source, episodes, acts, more, more_episodes, more_acts, losses }
}

#[test]
fn the_story_of_an_address_says_when_why_how_much_and_who_did_what() {
    let episodes = vec![
        episode(7_200, None, "banned", 1_234),
        episode(3_600, Some(3_725), "over_limit", 40),
        episode(0, Some(5), "dry_run", 7),
    ];
    let story = history(&report(episodes, vec![deny(Some("scans us")), deny(None)]), at(7_262), CLASSIC);
    assert_eq!(
        story,
        "\
198.51.100.7:
1,274 packets refused in 2 episodes since 2026-01-01 01:00:00 UTC.
7 packets would have been refused in 1 episode of dry run.

BEGAN (UTC)          LASTED   PACKETS   PEAK  REASON      RULE AND LIMIT
2026-01-01 02:00:00  ongoing    1,234  2,234  banned      web 1000/5m requests
2026-01-01 01:00:00  2m 5s         40  1,040  over_limit  web 1000/5m requests
2026-01-01 00:00:00  5s             7  1,007  dry_run     web 1000/5m requests

DONE (UTC)           WHAT  OF, BY, WHY
2026-01-01 00:01:00  deny  198.51.100.0/24 by root (alice): scans us
2026-01-01 00:01:00  deny  198.51.100.0/24 by root (alice): 198.51.100.0/24 is …

It has been refused for 1 min 2 s; `ratelimitd check` shows by what.
"
    );
}

#[test]
fn an_address_without_a_story_is_one_line() {
    let numbers = [999_999, 1_000_000, 12_345_678, u64::MAX].map(short);
    assert_eq!(numbers, ["999,999", "1.0M", "12.3M", "18.4E"]);
    assert_eq!(history(&report(vec![], vec![]), at(0), CLASSIC), "198.51.100.7: nothing is remembered.\n");
}

#[test]
fn an_address_that_dry_run_alone_would_have_refused_was_not_refused() {
    let story = history(&report(vec![episode(0, None, "dry_run", 7)], vec![]), at(60), CLASSIC);
    let said = "198.51.100.7: 7 packets would have been refused in 1 episode of dry run.\n\nBEGAN ";
    assert!(story.starts_with(said) && !story.contains("is refused now"), "{story}");
    let acts = history(&report(vec![], vec![deny(None)]), at(60), CLASSIC);
    assert!(acts.starts_with("198.51.100.7: never refused.\n"), "{acts}");
}

#[test]
fn the_longest_story_is_one_screen_of_80_columns() {
    let mut long = episode(1, None, "new_source_budget", u64::MAX / 60);
    long.rule = "a-rule-with-a-name-of-32-letters".to_owned();
    long.source = "2001:db8:1111:2222:3333:4444:5555:6666".to_owned();
    let mut dry = episode(1, None, "dry_run", 5);
    dry.rule.clone_from(&long.rule);
    let act = deny(Some(&"é".repeat(300)));
    let mut report = report([vec![long; 500], vec![dry; 500]].concat(), vec![act; 700]);
    report.more_episodes = true;
    report.source = "2001:db8:1111:2222:3333:4444:5555:6600/120".to_owned();
    let story = history(&report, at(100_000_000), CLASSIC);
    assert!(story.lines().count() <= 24, "{story}");
    assert!(story.lines().all(|line| line.chars().count() <= 80), "{story}");
    assert!(story.contains("At least 992 episodes more") && story.contains("\n695 acts more"), "{story}");
    report.more_episodes = false;
    report.more_acts = true;
    let story = history(&report, at(100_000_000), CLASSIC);
    assert!(story.contains("\n992 episodes more") && story.contains("At least 695 acts more"), "{story}");
    report.losses = vec![Loss { began: at(0), ended: at(9), events: u64::MAX }; 256];
    let story = history(&report, at(100_000_000), CLASSIC);
    assert!(story.lines().count() <= 24, "{story}");
    assert!(story.lines().all(|line| line.chars().count() <= 80), "{story}");
    assert!(story.contains("\n996 episodes more") && story.contains("\n254 times more"), "{story}");
    assert!(story.contains("It has been refused for"), "{story}");
}

#[test]
fn the_worst_of_a_period_are_a_line_each() {
    let source = |source: &str, packets, ended: Option<i64>, would| WorstSource {
        source: source.to_owned(),
        episodes: 2,
        rules: vec!["ssh".to_owned(), "web".to_owned()],
        reasons: vec![if would { "dry_run" } else { "over_limit" }.to_owned()],
        began: at(0),
        ended: ended.map(at),
        packets,
        bytes: 0,
        would,
    };
    let sources = vec![source("192.0.2.1", 5_000, None, false), source("2001:db8::/64", 70, Some(9), true)];
    let report = WorstReport { schema: 1, since: at(0), until: at(86_400), sources, omitted: 3, losses: vec![] };
    assert_eq!(
        worst(&report, CLASSIC),
        "\
Refused from 2026-01-01 00:00:00 to 2026-01-02 00:00:00 UTC, most packets first:
Rows with the reason dry_run would have been refused: nothing was dropped.
SOURCE         PACKETS  EPISODES  LAST (UTC)           REASONS (RULES)
192.0.2.1        5,000         2  ongoing              over_limit (ssh, web)
2001:db8::/64       70         2  2026-01-01 00:00:09  dry_run (ssh, web)
3 sources more; --json and --csv have them all
"
    );
    let dry = WorstReport { sources: vec![report.sources[1].clone()], ..report.clone() };
    assert!(
        worst(&dry, CLASSIC).starts_with("Would have been refused from 2026-01-01 00:00:00 to "),
        "{}",
        worst(&dry, CLASSIC)
    );
    let nothing = WorstReport { sources: vec![], omitted: 0, ..report };
    assert_eq!(worst(&nothing, CLASSIC), "Nothing was refused from 2026-01-01 00:00:00 to 2026-01-02 00:00:00 UTC.\n");
}

#[test]
fn history_names_what_it_lost_and_when() {
    let mut report = report(vec![], vec![]);
    report.losses = vec![
        Loss { began: at(3_600), ended: at(3_670), events: 12_000 },
        Loss { began: at(0), ended: at(2), events: 345 },
        Loss { began: at(-9), ended: at(-8), events: 1 },
    ];
    assert_eq!(
        history(&report, at(7_200), CLASSIC),
        "\
198.51.100.7: no refusal is remembered; the history is NOT COMPLETE.

NOT COMPLETE: events lost: 12,346. What was refused then may be missing.
LOST FROM (UTC)      TO (UTC)             EVENTS
2026-01-01 01:00:00  2026-01-01 01:01:10  12,000
2026-01-01 00:00:00  2026-01-01 00:00:02  345
1 time more; --json and --csv have them all

`ratelimitd check 198.51.100.7` shows whether it is refused now.
"
    );
    let (sources, losses) = (vec![], report.losses[..1].to_vec());
    let nothing = WorstReport { schema: 1, since: at(0), until: at(86_400), sources, omitted: 0, losses };
    assert_eq!(
        worst(&nothing, CLASSIC),
        "\
No refusal is remembered from 2026-01-01 00:00:00 to 2026-01-02 00:00:00 UTC.

NOT COMPLETE: events lost: 12,000. What was refused then may be missing.
LOST FROM (UTC)      TO (UTC)             EVENTS
2026-01-01 01:00:00  2026-01-01 01:01:10  12,000
"
    );
}

#[test]
fn a_pipe_gets_every_row_and_no_line_is_cut() {
    let mut long = episode(1, None, "over_limit", 40);
    long.source = "2001:db8:1111:2222:3333:4444:5555:6666".to_owned();
    long.rule = "a-rule-with-a-name-of-32-letters".to_owned();
    let act = deny(Some(&"why ".repeat(100)));
    let mut report = report(vec![long; 30], vec![act; 40]);
    report.losses = vec![Loss { began: at(0), ended: at(9), events: 1 }; 9];
    let story = history(&report, at(60), Page::ENDLESS);
    assert!(!story.contains('…') && !story.contains(" more"), "{story}");
    let whole = "2001:db8:1111:2222:3333:4444:5555:6666: a-rule-with-a-name-of-32-letters 1000/5m requests";
    assert_eq!(story.matches(whole).count(), 30);
    assert_eq!(story.matches(&*"why ".repeat(100).trim_end().to_owned()).count(), 40);
    assert_eq!(story.matches("2026-01-01 00:00:00  2026-01-01 00:00:09  1").count(), 9);
}

#[test]
fn a_larger_terminal_shows_wider_lines_and_more_episodes() {
    let mut long = episode(1, Some(9), "over_limit", 40);
    long.rule = "a-rule-with-a-name-of-32-letters".to_owned();
    let report = report(vec![long; 30], vec![]);
    let large = history(&report, at(60), Page { width: 120, rows: Some(33), ..CLASSIC });
    assert_eq!(large.matches("a-rule-with-a-name-of-32-letters 1000/5m requests").count(), 18, "{large}");
    assert!(large.contains("\n12 episodes more"), "{large}");
    let classic = history(&report, at(60), CLASSIC);
    assert!(classic.contains('…') && classic.contains("\n22 episodes more"), "{classic}");
}
