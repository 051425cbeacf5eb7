//! Tests of rendered frames.

use super::*;
use ratelimit_report::fleet::{Fleet, FleetState};

const USUAL: (u16, u16) = (80, 24);

/// Output of `check` for one source.
const CHECKED: &str = "198.51.100.7 is blocked on ports 80,443.\n\nRule default on ports 80,443: drops new requests\n  decided \
     by  rule default, limit 1000/5m requests\n  until       2026-01-01 12:15:13 UTC. Passes again in 2 min 13 s\n  undo       \
     ratelimitd unblock 198.51.100.7\n\nRule default: 1,000 of 1,000 requests used in 5m, 0 left; 40 packets refused\n  \
     2026-01-01 12:12:00 UTC  900\n  2026-01-01 12:13:00 UTC  100\n";

fn changed(change: impl Fn(&mut Snapshot)) -> State {
    let mut of = reading(0);
    change(&mut of);
    State::new(of, at(10))
}

#[test]
fn a_busy_limiter_fits_80_columns_and_uses_120() {
    insta::assert_snapshot!("busy_80x24", frame(&busy(), USUAL));
    insta::assert_snapshot!("busy_120x40", frame(&busy(), (120, 40)));
}

#[test]
fn a_source_refused_by_its_group_says_so_and_a_wide_terminal_names_the_group() {
    let of = changed(|of| {
        let top = &mut of.top.as_mut().unwrap()[0];
        (top.used, top.group) = (20, Some("198.51.100.0/24".to_owned()));
    });
    let (usual, wide) = (frame(&of, USUAL), frame(&of, (120, 40)));
    assert!(usual.contains(" over its group ") && !usual.contains("198.51.100.0/24"), "{usual}");
    assert!(wide.contains(" over its group ") && wide.contains("2m 13s group 198.51.100.0/24"), "{wide}");
}

#[test]
fn a_terminal_without_room_for_a_table_is_told_so() {
    insta::assert_snapshot!("too_small_40x10", frame(&busy(), (40, 10)));
    assert!(frame(&busy(), (72, 14)).contains("SOURCE"));
    for size in [(71, 14), (72, 13)] {
        assert!(frame(&busy(), size).contains("too small"), "{size:?}");
    }
}

#[test]
fn a_limiter_that_nobody_uses_says_that_no_source_is_near_a_limit() {
    let empty = changed(|of| {
        of.top = Some(Vec::new());
        of.interfaces.retain(|interface| interface.attached);
        of.rules.truncate(1);
    });
    insta::assert_snapshot!("empty_80x24", frame(&empty, USUAL));
}

#[test]
fn attention_lines_come_first_in_the_words_of_stats() {
    let troubled = changed(|of| {
        of.interfaces[1].problem = Some("there is no such interface".to_owned());
        of.confirm_within_seconds = Some(42.0);
        of.fallen_back = vec!["api".to_owned()];
        let since = "2026-01-01T10:00:00Z".parse().unwrap();
        of.hold = Some(Hold { panic: true, by: "root".to_owned(), since });
    });
    insta::assert_snapshot!("troubled_120x40", frame(&troubled, (120, 40)));
    let small = frame(&troubled, USUAL);
    assert!(small.contains("(and 4 more: `ratelimitd stats`)"), "{small}");
    let words = ratelimit_view::stats(&troubled.snapshot, ratelimit_view::Page::ENDLESS);
    for line in ratelimit_view::attention(&troubled.snapshot) {
        assert!(words.contains(&line), "{line}");
    }
    let away = changed(|of| of.interfaces.iter_mut().for_each(|of| (of.attached, of.xdp_mode) = (false, None)));
    assert!(frame(&away, USUAL).contains("NOT PROTECTED"));
}

#[test]
fn a_fleet_is_a_word_of_the_head_and_one_that_is_lost_wants_attention() {
    let of = |lost: FleetState| {
        let fleet = Fleet { state: lost, ..ratelimit_report::fixture::fleet() };
        frame(&changed(|of| of.fleet = fleet.clone()), (120, 40))
    };
    assert!(of(FleetState::Connected).contains(" old  fleet of 2"), "{}", of(FleetState::Connected));
    let away = of(FleetState::Away);
    assert!(away.contains(" old  fleet AWAY") && away.contains("FLEET: away: each host holds its limits"), "{away}");
    assert!(!of(FleetState::Off).to_lowercase().contains("fleet"));
}

#[test]
fn a_filter_an_empty_one_and_help_have_frames() {
    let mut state = busy();
    write(&mut state, "/2001:db8::/32");
    insta::assert_snapshot!("filter_80x24", frame(&state, USUAL));
    let mut state = busy();
    write(&mut state, "/192.0.2.1");
    press(&mut state, KeyCode::Enter);
    assert!(frame(&state, USUAL).contains("192.0.2.1 is not among the sources nearest to a limit: Enter opens it"));
    press(&mut state, KeyCode::Char('?'));
    insta::assert_snapshot!("help_80x24", frame(&state, USUAL));
}

#[test]
fn each_step_of_a_change_names_the_source_the_time_and_the_command() {
    let mut state = busy();
    press(&mut state, KeyCode::Char('d'));
    insta::assert_snapshot!("duration_80x24", frame(&state, USUAL));
    press(&mut state, KeyCode::Enter);
    insta::assert_snapshot!("question_80x24", frame(&state, USUAL));
    let why = "203.0.113.9 is your own address: --force insists".to_owned();
    state.heard(Heard::Ordered(Err(why)), at(10));
    insta::assert_snapshot!("refused_80x24", frame(&state, USUAL));
}

#[test]
fn one_source_has_what_check_says_of_it_and_is_scrolled() {
    let mut state = busy();
    press(&mut state, KeyCode::Down);
    press(&mut state, KeyCode::Enter);
    assert!(frame(&state, USUAL).contains("…"));
    let address = "198.51.100.7".parse().unwrap();
    state.heard(Heard::Looked(address, Ok(CHECKED.to_owned())), at(10));
    insta::assert_snapshot!("one_source_80x24", frame(&state, USUAL));
    press(&mut state, KeyCode::Down);
    let scrolled = frame(&state, USUAL);
    assert!(!scrolled.contains("is blocked on ports") && scrolled.contains("drops new requests"));
    state.heard(Heard::Looked(address, Err("no daemon answers".to_owned())), at(10));
    assert!(frame(&state, USUAL).contains("NO ANSWER, what follows is older: no daemon answers"));
}

#[test]
fn a_daemon_that_is_gone_leaves_the_last_reading_with_its_age_and_comes_back() {
    let mut state = busy();
    state.heard(Heard::Read(Err("no daemon answers at /run/ratelimitd/control.sock".to_owned())), at(11));
    insta::assert_snapshot!("gone_80x24", frame(&state, USUAL));
    state.heard(Heard::Read(Ok(Box::new(reading(12)))), at(11));
    let back = frame(&state, USUAL);
    assert!(!back.contains("NO ANSWER") && back.contains("reading 0s old"), "{back}");
}

#[test]
fn without_colours_there_is_none_and_with_them_the_words_are_the_same() {
    let mut state = busy();
    state.heard(Heard::Read(Err("gone".to_owned())), at(11));
    let plain = terminal(&state, USUAL, Paint::Plain);
    let plain = &plain.backend().buffer().content;
    assert!(plain.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    let coloured = terminal(&state, USUAL, Paint::Colours);
    let coloured = &coloured.backend().buffer().content;
    assert!(coloured.iter().any(|cell| cell.fg == Color::Red) && coloured.iter().any(|cell| cell.fg == Color::Yellow));
    assert!(plain.iter().zip(coloured).all(|(plain, coloured)| plain.symbol() == coloured.symbol()));
}

#[test]
fn names_cannot_send_commands_to_the_terminal() {
    let state = changed(|of| of.config.error = Some("\x1b[2Jgone".to_owned()));
    let mut state = State::new(Snapshot { config: of_failed(&state), ..state.snapshot }, at(10));
    state.heard(Heard::Ordered(Err("\x1b]0;title\x07".to_owned())), at(10));
    assert!(!frame(&state, USUAL).contains(['\x1b', '\x07']));
}

fn of_failed(state: &State) -> ratelimit_report::snapshot::ConfigState {
    let mut config = state.snapshot.config.clone();
    config.last_reload_successful = false;
    config
}
