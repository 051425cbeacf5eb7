//! Tests of the keys.

use super::*;

fn sources(state: &State) -> Vec<String> {
    state.rows().iter().map(|row| row.of.source.clone()).collect()
}

fn chosen(state: &State) -> String {
    let rows = state.rows();
    rows[state.chosen(&rows).unwrap()].of.source.clone()
}

#[test]
fn s_sorts_by_what_is_refused_its_rate_the_share_and_the_wait_in_turn() {
    let mut state = busy();
    let orders = [
        (Sort::Refused, ["203.0.113.9", "198.51.100.7", "2001:db8:1:2::/64"]),
        (Sort::Rate, ["198.51.100.7", "2001:db8:1:2::/64", "203.0.113.9"]),
        (Sort::Share, ["198.51.100.7", "2001:db8:1:2::/64", "203.0.113.9"]),
        (Sort::Wait, ["203.0.113.9", "198.51.100.7", "2001:db8:1:2::/64"]),
    ];
    for (sort, order) in orders {
        assert_eq!((state.sort, sources(&state)), (sort, order.map(str::to_owned).to_vec()));
        press(&mut state, KeyCode::Char('s'));
    }
    assert_eq!(state.sort, Sort::Refused);
}

#[test]
fn a_filter_takes_an_address_a_network_and_parts_of_names() {
    for (filter, shown) in [
        ("198.51.100.7", vec!["198.51.100.7"]),
        ("198.51.100.0/24", vec!["198.51.100.7"]),
        ("2001:db8:1:2::7", vec!["2001:db8:1:2::/64"]),
        ("0.0.0.0/0", vec!["203.0.113.9", "198.51.100.7"]),
        ("113", vec!["203.0.113.9"]),
        ("defau", vec!["203.0.113.9", "198.51.100.7", "2001:db8:1:2::/64"]),
        ("198.51.100.8", vec![]),
    ] {
        let mut state = busy();
        write(&mut state, "/");
        write(&mut state, filter);
        assert_eq!(sources(&state), shown, "{filter}");
        press(&mut state, KeyCode::Enter);
        assert_eq!((state.filter.as_str(), state.dialog.as_ref()), (filter, None));
        press(&mut state, KeyCode::Esc);
        assert!(state.filter.is_empty());
    }
    let mut state = busy();
    state.filter = "web".to_owned();
    write(&mut state, "/x");
    press(&mut state, KeyCode::Esc);
    assert_eq!(state.filter, "web", "Esc undoes what was typed");
}

#[test]
fn the_chosen_source_stays_chosen_where_the_order_changes() {
    let mut state = busy();
    assert_eq!(chosen(&state), "203.0.113.9");
    press(&mut state, KeyCode::Down);
    assert_eq!(chosen(&state), "198.51.100.7");
    press(&mut state, KeyCode::Char('s'));
    assert_eq!((chosen(&state).as_str(), sources(&state)[0].as_str()), ("198.51.100.7", "198.51.100.7"));
    for (code, source) in [
        (KeyCode::End, "203.0.113.9"),
        (KeyCode::Char('j'), "203.0.113.9"),
        (KeyCode::PageUp, "198.51.100.7"),
        (KeyCode::Char('k'), "198.51.100.7"),
        (KeyCode::PageDown, "203.0.113.9"),
        (KeyCode::Home, "198.51.100.7"),
    ] {
        press(&mut state, code);
        assert_eq!(chosen(&state), source, "{code:?}");
    }
}

#[test]
fn a_pause_asks_for_nothing_and_its_end_asks_at_once() {
    let mut state = busy();
    assert_eq!(state.due(), [Ask::Read]);
    assert_eq!(press(&mut state, KeyCode::Char('p')), None);
    assert!(state.due().is_empty() && frame(&state, (80, 24)).contains("PAUSED"));
    assert_eq!(press(&mut state, KeyCode::Char('p')), Some(Ask::Read));
    assert_eq!(state.due(), [Ask::Read]);
}

#[test]
fn nothing_is_changed_without_a_yes() {
    for refusal in [KeyCode::Char('n'), KeyCode::Char('q'), KeyCode::Esc] {
        let mut state = busy();
        press(&mut state, KeyCode::Char('u'));
        assert_eq!(state.dialog, Some(Dialog::Question(order(Verb::Unblock, "203.0.113.9"))));
        assert_eq!(press(&mut state, KeyCode::Enter), None);
        assert!(matches!(state.dialog, Some(Dialog::Question(_))), "Enter is no answer");
        assert_eq!(press(&mut state, refusal), None);
        assert_eq!(state.dialog, None);
    }
    let mut state = busy();
    press(&mut state, KeyCode::Char('u'));
    let asked = order(Verb::Unblock, "203.0.113.9");
    assert_eq!(press(&mut state, KeyCode::Char('y')), Some(Ask::Order(asked.clone())));
    assert_eq!(state.dialog, Some(Dialog::Waiting(asked)));
    assert_eq!(press(&mut state, KeyCode::Char('y')), None, "it is asked for once");
    state.heard(Heard::Ordered(Ok("203.0.113.9: ban by rule default lifted\n".to_owned())), at(12));
    assert!(frame(&state, (80, 24)).contains("ban by rule default lifted"));
    press(&mut state, KeyCode::Enter);
    assert_eq!(state.dialog, None);
}

#[test]
fn a_duration_is_that_of_the_command_unless_another_is_typed() {
    for (key, typed, seconds, command) in [
        ('a', "", Some(3600), "ratelimitd allow 203.0.113.9 --for 1h"),
        ('d', "", Some(14_400), "ratelimitd deny 203.0.113.9 --for 4h"),
        ('d', "90s", Some(90), "ratelimitd deny 203.0.113.9 --for 90s"),
        ('a', "permanent", None, "ratelimitd allow 203.0.113.9 --for permanent"),
    ] {
        let mut state = busy();
        press(&mut state, KeyCode::Char(key));
        if !typed.is_empty() {
            state.key(KeyEvent::new(KeyCode::Char('u'), KeyModifiers::CONTROL));
            write(&mut state, typed);
        }
        press(&mut state, KeyCode::Enter);
        let Some(Ask::Order(order)) = press(&mut state, KeyCode::Char('y')) else { panic!("{typed}") };
        assert_eq!((order.lasts.as_ref().unwrap().seconds, order.command().as_str()), (seconds, command));
    }
    let mut state = busy();
    write(&mut state, "dx");
    press(&mut state, KeyCode::Enter);
    let text = frame(&state, (80, 24));
    assert!(matches!(state.dialog, Some(Dialog::Lasts { .. })) && text.contains("write 10m, 12h, 7d or permanent"));
}

#[test]
fn enter_opens_what_is_chosen_or_the_address_that_is_filtered_and_keeps_reading_it() {
    let address = |text: &str| Ask::Look(text.parse().unwrap());
    let mut state = busy();
    assert_eq!(press(&mut state, KeyCode::Enter), Some(address("203.0.113.9")));
    assert_eq!(state.due(), [Ask::Read, address("203.0.113.9")]);
    press(&mut state, KeyCode::Char('u'));
    assert_eq!(state.dialog, Some(Dialog::Question(order(Verb::Unblock, "203.0.113.9"))));
    press(&mut state, KeyCode::Esc);
    press(&mut state, KeyCode::Char('q'));
    assert!(state.whole.is_none());
    write(&mut state, "/192.0.2.77");
    press(&mut state, KeyCode::Enter);
    assert_eq!(press(&mut state, KeyCode::Enter), Some(address("192.0.2.77")));
    state.heard(Heard::Looked("192.0.2.78".parse().unwrap(), Ok("another".to_owned())), at(12));
    assert_eq!(state.whole.unwrap().text, None, "what was asked of another is of no interest");
    let mut state = State::new(Snapshot { top: None, ..reading(0) }, at(0));
    write(&mut state, "adu");
    assert_eq!((press(&mut state, KeyCode::Enter), state.dialog), (None, None));
}

#[test]
fn q_and_the_usual_controls_end_or_suspend_it() {
    let mut state = busy();
    assert_eq!(press(&mut state, KeyCode::Char('q')), Some(Ask::Quit));
    for (key, ask) in [('c', Ask::Quit), ('z', Ask::Suspend)] {
        press(&mut state, KeyCode::Char('u'));
        assert_eq!(state.key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL)), Some(ask));
    }
}
