//! Tests of log lines about bans, over a fake datapath with a clock that the test controls.

use std::io;

use ratelimit_common::time::SECOND_NS;
use tracing_subscriber::fmt::format::debug_fn;

use super::lists::root;
use super::*;
use crate::fleet::Reach;
use crate::journal::EVENTS_EACH;
use ratelimit_control::Requester;
use ratelimit_control::proto::{EventsOf, GrantRequest, Problem, SourceRequest};
use ratelimit_datapath::fake::BANS_PART;
use ratelimit_policy::desired::{Bans, Grant, Mode};
use ratelimit_report::event::{Event as Told, EventKind};
use ratelimit_report::snapshot::ListFilter;

/// Engine on eth0 that bans a source for a minute after a second connection in five minutes.
pub(super) struct Site {
    pub(super) directory: TempDir,
    pub(super) kernel: FakeKernel,
    pub(super) engine: Engine<FakeDatapath>,
    started: Instant,
    uptime: Duration,
    wall: Timestamp,
    log: Log,
}

/// Collected log lines, without time and level.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Collects what `act` logs, without its fields.
    fn hear(&self, act: impl FnOnce()) {
        let words =
            debug_fn(|out, field, value| if field.name() == "message" { write!(out, "{value:?}") } else { Ok(()) });
        let (lines, log) = (tracing_subscriber::fmt().without_time().with_level(false), self.clone());
        let lines = lines.with_target(false).with_ansi(false).fmt_fields(words);
        tracing::subscriber::with_default(lines.with_writer(move || log.clone()).finish(), act);
    }

    fn take(&self) -> Vec<String> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

impl Site {
    fn new(mode: Mode) -> Self {
        Self::of(WALL.parse().unwrap(), |config, _| {
            config.policy.rules[0].mode = mode;
            let steps_ns = vec![60 * SECOND_NS, 600 * SECOND_NS];
            config.policy.rules[0].bans = Some(Bans { steps_ns, forget_ns: 3_600 * SECOND_NS, needs_proof: false });
        })
    }

    /// Creates an engine with one connection in five minutes, and with the changes of `adjust`, which receives the
    /// directory.
    pub(super) fn of(wall: Timestamp, adjust: impl FnOnce(&mut Config, &Path)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path(), 1);
        adjust(&mut config, directory.path());
        let (datapath, kernel) = FakeDatapath::new(&["eth0"]);
        let host = Host { store: Store::at(directory.path().join("state")), ..surroundings(None).0.host };
        let started = Instant::now();
        let moment = Moment { at: started, uptime: Duration::ZERO, wall };
        let start = Start {
            config,
            source: ConfigSource::Flags,
            unfinished: None,
            refused: None,
            refused_lists: None,
            fallbacks: Fallbacks::new(),
            rolled_back: None,
        };
        let engine = Engine::start(datapath, start, host, moment).unwrap();
        let mut site = Self { directory, kernel, engine, started, uptime: Duration::ZERO, wall, log: Log::default() };
        site.pass(1);
        site.log.take();
        site
    }

    pub(super) fn moment(&self) -> Moment {
        let wall = self.wall + self.uptime;
        Moment { at: self.started + self.uptime, uptime: self.uptime, wall }
    }

    /// Lets seconds pass with a look after each. Returns the lines logged meanwhile.
    pub(super) fn pass(&mut self, seconds: u64) -> Vec<String> {
        let log = self.log.clone();
        log.hear(|| {
            for _ in 0..seconds {
                self.kernel.advance(SECOND_NS);
                self.uptime += Duration::from_secs(1);
                let moment = self.moment();
                self.engine.observe(moment);
                self.engine.supervise(moment);
            }
        });
        self.log.take()
    }

    /// Sets back only the wall clock.
    pub(super) fn step_back(&mut self, by: Duration) {
        self.wall -= by;
    }

    /// Sends as many connections as it takes to get the source banned.
    pub(super) fn exceed(&self, source: &str) {
        for _ in 0..2 {
            self.kernel.packet("eth0", opening(source));
        }
    }
}

/// Wall clock at the start of a test. The fake's own clock starts in the same second.
const WALL: &str = "2026-01-01T10:00:00Z";

#[test]
fn a_ban_is_logged_when_it_begins_and_when_it_expires() {
    let mut site = Site::new(Mode::Enforce);
    site.exceed("198.51.100.7");
    let began = "198.51.100.7 banned by rule \"default\" until 2026-01-01 10:01:01 UTC: used 1 of 1/5m connections";
    assert_eq!(site.pass(3), [began]);
    assert_eq!(site.pass(56), [""; 0], "nothing is said twice");
    assert_eq!(site.pass(4), ["198.51.100.7: ban by rule \"default\" expired, 0 packets dropped"]);
    assert_eq!(site.pass(10), [""; 0]);
}

#[test]
fn the_second_ban_in_a_row_says_so() {
    let mut site = Site::new(Mode::Enforce);
    site.exceed("198.51.100.7");
    site.pass(400);
    site.exceed("198.51.100.7");
    let said = site.pass(3);
    assert!(said.len() == 1 && said[0].contains(", ban 2 in a row: used 1 of 1/5m connections"), "{said:?}");
}

#[test]
fn a_flood_of_bans_is_logged_in_few_lines_that_account_for_every_ban() {
    let mut site = Site::new(Mode::Enforce);
    let sources = 60 * BANS_PART;
    for at in 0..sources {
        site.exceed(&format!("198.51.{}.{}", at / 256, at % 256));
    }
    // The number is logged once a minute.
    let said = site.pass(70);
    let singly = said.iter().filter(|line| line.contains(" banned by rule ")).count();
    let number = |line: &String, begin, end| line.strip_prefix(begin)?.split_once(end)?.0.parse::<usize>().ok();
    let untold: usize = said.iter().filter_map(|line| number(line, "and ", " more bans")).sum();
    let lost: usize = said.iter().filter_map(|line| number(line, "EVENTS LOST in the last minute: ", " bans")).sum();
    assert!((50..=50 + 70 * 10).contains(&singly), "{singly}");
    assert_eq!(singly + untold + lost, sources, "{said:#?}");
}

#[test]
fn a_denial_is_logged_however_many_bans_are() {
    let mut site = Site::new(Mode::Enforce);
    for at in 0..200 {
        site.exceed(&format!("198.51.100.{at}"));
    }
    site.pass(5);
    let request =
        GrantRequest { prefix: "192.0.2.7".into(), reason: Some("scraper".into()), ..GrantRequest::default() };
    let target = ratelimit_policy::config::network::Target::parse("192.0.2.7").unwrap();
    let moment = site.moment();
    let log = site.log.clone();
    let alice = Requester::new(0, Some("alice"));
    log.hear(|| {
        site.engine.grant(Grant::Denied, target, &request, &alice, moment).unwrap();
        site.engine.unblock(Some(target), Reach::Host, &root(), moment).unwrap();
        site.engine.reset(&SourceRequest { source: address("192.0.2.7"), fleet: false }, &root(), moment).unwrap();
        site.engine.grant(Grant::Exempt, target, &GrantRequest::default(), &root(), moment).unwrap();
        site.engine.unallow(target, Reach::Host, &alice, moment).unwrap();
    });
    assert_eq!(
        site.log.take(),
        [
            "192.0.2.7/32 denied until 2026-01-01 14:00:06 UTC by root (alice): scraper",
            "192.0.2.7/32 unblocked by root: 1 denial lifted",
            "192.0.2.7/32: counters reset by root, 0 windows and 0 bans removed",
            "192.0.2.7/32 allowed until 2026-01-01 11:00:06 UTC by root",
            "192.0.2.7/32 no longer allowed by root (alice): 1 exemption lifted",
        ]
    );
}

#[test]
fn a_later_run_logs_the_end_of_a_ban_that_an_earlier_one_logged_the_beginning_of() {
    let mut site = Site::new(Mode::Enforce);
    site.exceed("198.51.100.7");
    site.pass(10);
    site.engine.watched.bans = None;
    let said = site.pass(60);
    assert_eq!(said, ["198.51.100.7: ban by rule \"default\" expired, 0 packets dropped"]);
}

#[test]
fn dry_run_logs_and_lists_the_bans_that_would_have_been() {
    let mut site = Site::new(Mode::DryRun);
    site.exceed("198.51.100.7");
    site.kernel.packet("eth0", opening("198.51.100.8"));
    let would = "198.51.100.7 would be banned by rule \"default\" until 2026-01-01 10:01:02 UTC: \
                 used 1 of 1/5m connections (dry run)";
    let refused = "198.51.100.7 would be refused by rule \"default\": used 1 of 1/5m connections (dry run)";
    assert_eq!(site.pass(3), [would, refused]);
    let moment = site.moment();
    let report = site.engine.list(ListFilter::default(), moment).unwrap()();
    assert_eq!(report.entries, []);
    let listed: Vec<_> = report.would_ban.iter().map(|of| (of.prefix.as_str(), of.decides)).collect();
    assert_eq!(listed, [("198.51.100.7", false)]);
    let text = ratelimit_view::list(&report, usize::MAX);
    assert!(text.contains("Dry run bans no source. These would be banned:"), "{text}");
    let stats = site.engine.stats(&stats_at(moment), moment).unwrap();
    let of_rule = stats.rules[0].would_ban.unwrap();
    assert_eq!((of_rule.bans, of_rule.sources, stats.rules[0].bans), (1, 1, 0));
    assert_eq!(site.pass(200), [""; 0], "it is still over its limit, and would not be banned again for the same");
    assert_eq!(site.engine.list(ListFilter::default(), moment).unwrap()().would_ban.len(), 0);
    site.pass(300);
    site.exceed("198.51.100.7");
    let said = site.pass(2);
    assert!(said.iter().any(|line| line.contains(", ban 2 in a row")), "{said:?}");
}

const BANNED: &str = "198.51.100.7";

fn unblock(site: &mut Site, target: Option<&str>) -> Result<(), Problem> {
    let target = target.map(|target| ratelimit_policy::config::network::Target::parse(target).unwrap());
    let moment = site.moment();
    site.engine.unblock(target, Reach::Host, &root(), moment).map(drop)
}

fn reset(site: &mut Site, source: &str) -> Result<(), Problem> {
    let moment = site.moment();
    site.engine.reset(&SourceRequest { source: address(source), fleet: false }, &root(), moment).map(drop)
}

fn recent(site: &Site) -> Vec<Told> {
    site.engine.journal.feed().report(&EventsOf::default()).unwrap().events
}

#[test]
fn nothing_is_told_to_be_lifted_before_it_is_and_a_removal_that_fails_is_said() {
    let one: fn(&mut Site) -> Result<(), Problem> = |site| unblock(site, Some(BANNED));
    let all: fn(&mut Site) -> Result<(), Problem> = |site| unblock(site, None);
    let counters: fn(&mut Site) -> Result<(), Problem> = |site| reset(site, BANNED);
    for (free, act) in [(one, EventKind::Unblock), (all, EventKind::Unblock), (counters, EventKind::Reset)] {
        let mut site = Site::new(Mode::Enforce);
        site.exceed(BANNED);
        site.pass(3);
        // The first event reports that the interface was attached.
        let kinds = |site: &Site| recent(site).iter().map(|of| of.kind).skip(1).collect::<Vec<_>>();
        let log = site.log.clone();
        site.kernel.refuse_removal();
        log.hear(|| assert!(free(&mut site).is_err()));
        let said = log.take();
        let [line] = said.as_slice() else { panic!("{said:?}") };
        assert!(line.starts_with("remove counters and bans, by command of root: "), "{line}");
        assert_eq!(kinds(&site), [EventKind::Ban]);
        site.kernel.permit_removal();
        free(&mut site).unwrap();
        assert_eq!(kinds(&site), [EventKind::Ban, EventKind::BanEnd, act]);
    }
}

#[test]
fn a_source_without_a_ban_is_freed_without_a_look_at_the_bans_of_others() {
    let mut site = Site::new(Mode::Enforce);
    (0..100).for_each(|last| site.exceed(&format!("198.51.100.{last}")));
    site.kernel.packet("eth0", opening("203.0.113.9"));
    site.pass(3);
    let before = site.kernel.visits_of_bans();
    reset(&mut site, "203.0.113.9").unwrap();
    unblock(&mut site, Some("203.0.113.9")).unwrap();
    unblock(&mut site, Some("203.0.113.0/24")).unwrap();
    assert_eq!(site.kernel.visits_of_bans(), before);
    reset(&mut site, BANNED).unwrap();
    assert!(site.kernel.visits_of_bans() > before);
}

#[test]
fn lifted_bans_beyond_the_maximum_are_reported_as_a_number() {
    let mut site = Site::new(Mode::Enforce);
    let bans = EVENTS_EACH + 3;
    for at in 0..bans {
        site.exceed(&format!("198.51.{}.{}", at / 256, at % 256));
    }
    site.pass(3);
    unblock(&mut site, None).unwrap();
    let said = recent(&site).pop().unwrap().detail;
    let lifted = "4099 bans by rule \"default\" lifted (3 of them without an event each)";
    assert_eq!(said, format!("everything unblocked by root: {lifted}, counters of 4099 sources removed"));
}

#[test]
fn a_later_local_command_outlives_an_earlier_fleet_act_heard_again() {
    let mut site = Site::new(Mode::Enforce);
    let request = || GrantRequest { prefix: "192.0.2.7".into(), ..GrantRequest::default() };
    let prefix = "192.0.2.7/32".parse().unwrap();
    let target = ratelimit_policy::config::network::Target::parse("192.0.2.7").unwrap();
    let moment = site.moment();
    let undeny = |at_ns, by: &str| ratelimit_fleet::acts::Act {
        at_ns,
        said_ns: at_ns,
        host: [2; 8],
        prefix,
        what: ratelimit_fleet::acts::What::Undeny { by: by.to_owned() },
    };
    let denied = |site: &mut Site| site.engine.overrides.grants.ledger.entries().count();
    let now = u64::try_from(moment.wall.as_nanosecond()).unwrap();
    site.engine.grant(Grant::Denied, target, &request(), &root(), moment).unwrap();
    site.engine.hear(undeny(now - SECOND_NS, "root"), moment);
    assert_eq!(denied(&mut site), 1, "it was said before");
    site.engine.hear(undeny(now + SECOND_NS, "root"), moment);
    assert_eq!(denied(&mut site), 0);
}
