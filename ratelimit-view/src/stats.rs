//! `ratelimitd stats`.

use ratelimit_common::verdict::{Action, Reason};

use super::{counted, counting, duration, form, limit, number, table, wait};
use ratelimit_report::snapshot::{Interface, Mode, Outcome, Overload, Rule, Snapshot, State, TopSource, XdpMode};

/// A snapshot for people, several lines.
pub fn stats(snapshot: &Snapshot) -> String {
    let mut out = format!(
        "ratelimitd {}, up {}: {}\n",
        snapshot.version,
        duration(snapshot.uptime_seconds),
        what_it_does(snapshot)
    );
    out += &attention(snapshot).iter().map(|line| format!("{line}\n")).collect::<String>();
    out += "\n";
    out += &interfaces(snapshot);
    for rule in &snapshot.rules {
        out += "\n";
        out += &self::rule(snapshot, rule);
    }
    if !snapshot.counting.is_empty() {
        out += "\n";
        out += &counting(&snapshot.counting);
    }
    out += "\n";
    out += &sources(snapshot);
    for error in snapshot.map_errors.iter().filter(|error| error.count > 0) {
        out += &format!("Map errors: {} {}, {}\n", error.map, error.op, counted(error.count, "time"));
    }
    out
}

/// What wants attention, a line each: what is not attached, holds everything, fell back, is on trial or was not followed.
pub fn attention(snapshot: &Snapshot) -> Vec<String> {
    let mut lines = Vec::new();
    for of in &snapshot.interfaces {
        if let Some(problem) = &of.problem {
            lines.push(format!("{} IS NOT ATTACHED: {problem}; it is tried again all the time", of.name));
        }
    }
    if let Some(hold) = &snapshot.hold {
        let what = if hold.panic { "PANIC" } else { "DRY RUN" };
        let since = hold.since.strftime("%Y-%m-%d %H:%M:%S UTC");
        lines.push(format!("{what} by {} since {since}: `ratelimitd mode enforce` ends it", hold.by));
    }
    for rule in &snapshot.fallen_back {
        lines.push(format!(
            "RULE {rule} FELL BACK TO DRY RUN, as it dropped more than it may: `ratelimitd mode enforce` ends it"
        ));
    }
    if let Some(left) = snapshot.confirm_within_seconds {
        lines.push(format!(
            "A FILE IS ON TRIAL: it is rolled back in {} unless `ratelimitd confirm` follows; `ratelimitd rollback` does it now",
            duration(left)
        ));
    }
    if let Some(of) = &snapshot.config.rolled_back {
        let why = if of.why.is_empty() { String::new() } else { format!(" ({})", of.why) };
        lines.push(format!(
            "ROLLED BACK: what held before {0} holds again{why}; to put it in force: ratelimitd apply {0}",
            of.file
        ));
    }
    if !snapshot.config.last_reload_successful {
        let why = snapshot.config.error.as_deref().unwrap_or("see the log");
        lines.push(format!("THE LAST RELOAD FAILED, and what held before goes on: {why}"));
    }
    for of in &snapshot.dominant {
        lines.push(format!("RULE {}: {}", of.rule, of.words()));
    }
    for list in &snapshot.stale_lists {
        let why = list.error.as_deref().unwrap_or("see the log");
        lines.push(format!("LIST FILE {} IS NOT FOLLOWED, and what it held before holds: {why}", list.file));
    }
    lines
}

/// What pins tell without a daemon: packets by interface, by rule and by what dropped them.
pub fn left(snapshot: &Snapshot) -> String {
    let rule = |of: &Rule| {
        let admitted = number(of.admitted);
        let mode = mode_of(of).to_owned();
        [of.name.clone(), mode, of.ports.clone(), admitted, number(of.dropped), number(of.would_drop)]
    };
    let head = ["RULE", "MODE", "PORTS", "ADMITTED", "DROPPED", "WOULD DROP"];
    let mut out = interfaces(snapshot) + "\n" + &table(head, &[3, 4, 5], snapshot.rules.iter().map(rule));
    let drops = Reason::ALL.iter().filter(|reason| reason.action() == Action::Drop);
    let drops = drops.filter_map(|reason| Some((reason, *snapshot.reasons.get(reason.label())?)));
    let drops: Vec<_> = drops
        .filter(|(_, packets)| *packets > 0)
        .map(|(reason, packets)| format!("{} {}", number(packets), drop_words(reason.label())))
        .collect();
    if !drops.is_empty() {
        out += &format!("\nDropped packets: {}\n", drops.join(", "));
    }
    out
}

/// What is enforced where: in one clause where it is the same everywhere, else of each rule and interface.
pub fn what_it_does(snapshot: &Snapshot) -> String {
    let rules = |mode: Mode| -> Vec<&str> {
        snapshot.rules.iter().filter(|rule| rule.mode == mode).map(|rule| rule.name.as_str()).collect()
    };
    let interfaces = |is_attached: bool| -> String {
        let of = snapshot.interfaces.iter().filter(|of| of.attached == is_attached);
        of.map(|of| of.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let (attached, away) = (interfaces(true), interfaces(false));
    if attached.is_empty() {
        return format!("NOT PROTECTED: {away} not attached, so nothing is counted or dropped");
    }
    let does = match (rules(Mode::Enforce).as_slice(), rules(Mode::DryRun).as_slice()) {
        (_, []) => "enforcing, what is over a limit is dropped".to_owned(),
        ([], _) => "dry run, nothing is dropped and what would be is counted".to_owned(),
        (enforced, dry) => format!("enforcing {}, dry run in {}", names(enforced), names(dry)),
    };
    if away.is_empty() { does } else { format!("{does} on {attached}; NOT PROTECTED: {away} not attached") }
}

/// `rule web`, `rules web, api`.
fn names(rules: &[&str]) -> String {
    format!("rule{} {}", if rules.len() == 1 { "" } else { "s" }, rules.join(", "))
}

fn interfaces(snapshot: &Snapshot) -> String {
    let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), whole);
    let row = |of: &Interface| {
        [
            of.name.clone(),
            attachment(of).to_owned(),
            rate(of.per_second.map(|rates| rates.received)),
            rate(of.per_second.map(|rates| rates.dropped)),
            number(of.packets.received),
            number(of.packets.passed),
            number(of.packets.dropped),
            number(of.packets.would_drop),
        ]
    };
    table(
        ["INTERFACE", "XDP", "PACKETS/S", "DROPPED/S", "RECEIVED", "PASSED", "DROPPED", "WOULD DROP"],
        &[2, 3, 4, 5, 6, 7],
        snapshot.interfaces.iter().map(row),
    )
}

/// How packets are judged on an interface, if they are.
pub fn attachment(interface: &Interface) -> &'static str {
    match interface.xdp_mode {
        Some(XdpMode::Native) => "native, in the driver",
        Some(XdpMode::Generic) => "GENERIC, slow: behind the driver",
        None => "NOT ATTACHED: not protected",
    }
}

/// Whether a rule drops.
pub const fn mode_of(rule: &Rule) -> &'static str {
    match rule.mode {
        Mode::Enforce => "enforced",
        Mode::DryRun => "dry run",
    }
}

fn rule(snapshot: &Snapshot, rule: &Rule) -> String {
    let mut out = format!("Rule {} ({}) on ports {}\n", rule.name, mode_of(rule), rule.ports);
    for of in &rule.limits {
        out += &format!("  limit        {}, {}\n", limit(of), form(of));
    }
    out += &format!("  admitted     {}\n", counted(rule.admitted, "packet"));
    out += &format!("  not counted  {}\n", counted(rule.not_counted, "packet"));
    out += &format!("  dropped      {}{}\n", counted(rule.dropped, "packet"), reasons(snapshot, rule));
    out += &format!("  would drop   {}\n", counted(rule.would_drop, "packet"));
    out += &format!("  over limit   {} now\n", counted(rule.sources_over_limit, "source"));
    if let Some(of) = rule.new_sources {
        out += &format!("  new sources  at most {} in {}\n", number(of.amount), duration(of.window_seconds));
    }
    if rule.bans != 0 {
        out += &format!("  bans         {} begun\n", number(rule.bans));
    }
    if let Some(of) = rule.would_ban {
        let sources = counted(of.sources, "source");
        out += &format!("  would ban    {} since the start; {sources} would be banned now\n", number(of.bans));
    }
    for of in &rule.shadow_limits {
        let (packets, sources) = (counted(of.would_drop, "packet"), counted(of.sources, "source"));
        out += &format!("  shadow       {}: would have dropped {packets} of {sources}\n", limit(&of.limit));
    }
    out
}

/// Why a rule dropped, where that is not the limit alone: `: 1,285 over the limit, 270 by the guard`.
fn reasons(snapshot: &Snapshot, rule: &Rule) -> String {
    let counters = || snapshot.interfaces.iter().flat_map(|interface| &interface.counters);
    let drops = || counters().filter(|of| of.rule == rule.name && of.verdict == Outcome::Drop && of.packets != 0);
    if drops().all(|of| of.reason == Reason::OverLimit.label()) {
        return String::new();
    }
    let mut reasons: Vec<(&str, u64)> = Vec::new();
    for of in drops() {
        match reasons.iter_mut().find(|(reason, _)| *reason == of.reason) {
            Some((_, packets)) => *packets = packets.saturating_add(of.packets),
            None => reasons.push((&of.reason, of.packets)),
        }
    }
    let words: Vec<_> =
        reasons.iter().map(|(reason, packets)| format!("{} {}", number(*packets), drop_words(reason))).collect();
    format!(": {}", words.join(", "))
}

/// A reason to drop, as what follows a number of packets; one of a later daemon is told as it is.
fn drop_words(reason: &str) -> &str {
    match Reason::ALL.iter().find(|of| of.label() == reason) {
        Some(Reason::OverLimit) => "over the limit",
        Some(Reason::Contended) => "whose count other CPUs changed at every try",
        Some(Reason::Banned) => "of banned sources",
        Some(Reason::Denied) => "of denied sources",
        Some(Reason::NewSourceBudget) => "of new sources over their budget",
        Some(Reason::TooManyTags) => "behind too many tags",
        Some(Reason::Guard) => "by the guard",
        Some(Reason::TooManyHeaders) => "behind headers that cannot be parsed",
        Some(_) | None => reason,
    }
}

fn sources(snapshot: &Snapshot) -> String {
    let of = &snapshot.sources;
    let mut out =
        format!("Sources: {} tracked, at most {} IPv4 and as many IPv6\n", number(of.tracked), number(of.capacity));
    if of.banned > 0 {
        out += &format!("  {} banned; `ratelimitd list` names them\n", counted(of.banned, "source"));
    }
    if of.not_admitted > 0 {
        out += &format!("  {} of sources that could not be remembered\n", counted(of.not_admitted, "packet"));
    }
    out += &new_sources(snapshot);
    let top = snapshot.top.as_deref().unwrap_or_default();
    if top.is_empty() {
        return out;
    }
    out + "\n" + &self::top(top)
}

/// Sources nearest to or over a limit, a line each.
pub(super) fn top(top: &[TopSource]) -> String {
    let row = |of: &TopSource| {
        let (state, again) = standing(of);
        [
            of.source.clone(),
            of.rule.clone(),
            format!(
                "{} of {} {} in {}",
                number(of.used),
                number(of.limit),
                of.unit.label(),
                duration(of.window_seconds)
            ),
            number(of.dropped),
            number(of.would_drop),
            state.to_owned(),
            again,
        ]
    };
    let head = ["SOURCE", "RULE", "USED", "DROPPED", "WOULD DROP", "STATE", "PASSES AGAIN"];
    table(head, &[3, 4], top.iter().map(row))
}

/// Whether more new sources come than can be remembered, and what helps.
pub fn new_sources(snapshot: &Snapshot) -> String {
    let of = &snapshot.sources;
    let is_bounded = snapshot.rules.iter().any(|rule| rule.new_sources.is_some());
    match of.pressure {
        Overload::Sampling => {
            let advice = if is_bounded { "" } else { "; `new_sources` in a rule bounds them" };
            format!(
                "  MORE NEW SOURCES COME THAN CAN BE REMEMBERED: 1 in {} of their packets is sampled, \
                 the rest pass{advice}\n",
                number(of.sampled_one_in)
            )
        }
        Overload::None if of.pressed_periods > 0 => {
            let periods = counted(of.pressed_periods, "time");
            format!("  {periods} a CPU was met by more new sources than it could remember; now it is not\n")
        }
        Overload::None => String::new(),
    }
}

/// How a source stands, and when it passes again.
pub fn standing(of: &TopSource) -> (&'static str, String) {
    let again = || {
        if of.never && of.state == State::Denied {
            "never: `ratelimitd check` says what undoes it".to_owned()
        } else if of.never {
            "never: the limit is 0".to_owned()
        } else {
            format!("in {}", wait(of.retry_after_seconds))
        }
    };
    match of.state {
        State::Ok => ("ok", "-".to_owned()),
        State::OverLimit if of.reason == Reason::Guard.label() => ("over the guard", again()),
        State::OverLimit => ("over the limit", again()),
        State::Banned => ("banned", again()),
        State::Denied => ("denied", again()),
        State::Exempt => ("allowed", "-".to_owned()),
    }
}

fn whole(rate: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and no rate is below 0")]
    let whole = rate.round() as u64;
    number(whole)
}
