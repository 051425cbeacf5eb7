//! Tests of list files that change while the daemon runs. The files and the parser are real, and time passes by
//! argument.

use super::list_start::with_lists_of;
use super::*;
use ratelimit_control::Requester;
use ratelimit_control::proto::{ApplyRequest, ModeWord, ReloadRequest};
use ratelimit_policy::config::file;
use ratelimit_policy::config::lists::KnownLists;
use ratelimit_policy::desired::{Grant, Mode};
use ratelimit_report::export;

mod bounds;
mod passed_over;
mod start;

const FILE: &str = "interfaces = [\"eth0\"]\ndeny = [\"@bad\", \"file:other.txt\"]\n[lists]\nbad = \"file:bad.txt\"\n[rule]\nlimits = [\"3/5m\"]\n";

pub(super) fn root() -> Requester {
    Requester::new(0, None)
}

pub(super) struct Watched {
    pub(super) directory: TempDir,
    kernel: FakeKernel,
    engine: Engine<FakeDatapath>,
    lines: Lines,
    began: Instant,
    uptime: Duration,
    look: fn() -> Around,
}

/// Starts a daemon with the configuration file of this directory.
fn begin(
    directory: &Path,
    datapath: FakeDatapath,
    moment: Moment,
    look: fn() -> Around,
) -> Result<Engine<FakeDatapath>, DaemonError> {
    let path = directory.join("ratelimitd.toml");
    let load = |path: &Path| {
        let text = file::read_text(path)?;
        Ok(Loaded { config: file::parse_beside(path, &text, &KnownLists::new())?, text })
    };
    let store = Store::at(directory.join("state"));
    let text = file::read_text(&path).unwrap();
    let (config, fallbacks) = with_lists_of(&store, |read| file::parse_by(&path, &text, read)).unwrap();
    let parse = |path: &Path, text: &str, known: &KnownLists| Ok(file::parse_beside(path, text, known)?);
    let source = ConfigSource::file(path, text, fallbacks, load, parse);
    let host = Host { look, store, ..surroundings(None).0.host };
    let start = Start::new(config, source, &host.store, moment.wall)?;
    Ok(Engine::start(datapath, start, host, moment)?)
}

impl Watched {
    /// Creates a daemon with one prefix each in `bad.txt` and `other.txt`.
    pub(super) fn new() -> Self {
        Self::on(Around::default)
    }

    /// Creates the daemon on a host with these surroundings.
    fn on(look: fn() -> Around) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        write("ratelimitd.toml", FILE);
        write("bad.txt", "192.0.2.0/24\n");
        write("other.txt", "198.51.100.0/24\n");
        let (datapath, kernel) = FakeDatapath::new(&["eth0"]);
        let (began, uptime) = (Instant::now(), Duration::ZERO);
        let moment = Moment { at: began, uptime, wall: Timestamp::now() };
        let engine = begin(directory.path(), datapath, moment, look).unwrap();
        let mut watched = Self { directory, kernel, engine, lines: Lines::default(), began, uptime, look };
        // The files are so young that they are read once more.
        watched.look();
        watched
    }

    pub(super) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.directory.path().join(name), text).unwrap();
    }

    fn moment(&self) -> Moment {
        Moment { at: self.began + self.uptime, uptime: self.uptime, wall: Timestamp::now() }
    }

    /// Runs `work`, and returns its result with the log output.
    pub(super) fn said<T>(&mut self, work: impl FnOnce(&mut Engine<FakeDatapath>, Moment) -> T) -> (T, String) {
        let writer = self.lines.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let moment = self.moment();
        let done = tracing::subscriber::with_default(subscriber, || work(&mut self.engine, moment));
        (done, String::from_utf8(std::mem::take(&mut *self.lines.0.lock().unwrap())).unwrap())
    }

    /// Runs a look two seconds later, and returns the log output.
    fn look(&mut self) -> String {
        self.uptime += SUPERVISE_EVERY;
        self.kernel.advance(2 * site::SECOND_NS);
        self.said(Engine::supervise).1
    }

    pub(super) fn two_looks(&mut self) -> String {
        let first = self.look();
        first + &self.look()
    }

    /// Puts the file on trial for 20 s.
    fn try_out(&mut self, file: Option<&str>) {
        let file = file.map(|name| self.directory.path().join(name));
        let request = ApplyRequest { file, confirm_seconds: Some(20), ..ApplyRequest::default() };
        self.said(|engine, moment| engine.apply(&request, &root(), moment).unwrap());
    }

    /// Lets the trial's time pass, and returns the log output.
    fn roll_back(&mut self) -> String {
        (0..12).map(|_| self.look()).collect()
    }

    /// Restarts the daemon as after SIGKILL.
    fn restart(&mut self) -> Result<(), DaemonError> {
        let (moment, datapath) = (self.moment(), self.kernel.reopen());
        self.engine = begin(self.directory.path(), datapath, moment, self.look)?;
        Ok(())
    }

    fn amount(&self) -> u64 {
        self.kernel.policy().unwrap().rules[0].limits[0].amount
    }

    fn denied(&self) -> Vec<String> {
        let policy = self.kernel.policy().unwrap();
        policy.prefixes(Grant::Denied).map(|prefix| prefix.to_string()).collect()
    }

    fn stats(&mut self) -> Arc<ratelimit_report::snapshot::Snapshot> {
        let moment = self.moment();
        self.engine.stats(&stats_at(moment), moment).unwrap()
    }

    fn metric(&mut self, line: &str) -> bool {
        export::metrics(self.stats()).unwrap().lines().any(|other| other == line)
    }
}

#[tokio::test]
async fn a_list_that_has_changed_and_come_to_rest_is_followed_and_said() {
    let mut site = Watched::new();
    assert_eq!(site.denied(), ["192.0.2.0/24", "198.51.100.0/24"]);
    let applied = site.kernel.calls().iter().filter(|call| *call == "apply").count();
    assert_eq!(site.two_looks(), "", "nothing has changed");
    site.write("bad.txt", "192.0.2.0/25\n203.0.113.7\n2001:db8::/32\n");
    assert_eq!(site.look(), "", "it may still be written");
    assert_eq!(site.denied().len(), 2);
    let said = site.look();
    let path = site.directory.path().join("bad.txt");
    let line = format!("list bad ({}): 3 added, 1 removed", path.display());
    assert!(said.contains(&line), "{said}");
    assert_eq!(site.denied(), ["192.0.2.0/25", "198.51.100.0/24", "203.0.113.7/32", "2001:db8::/32"]);
    assert_eq!(site.two_looks(), "");
    let after = site.kernel.calls().iter().filter(|call| *call == "apply").count();
    assert_eq!(after, applied + 1, "once");

    // The replacement has the same size and time, and arrives by a rename.
    let modified = path.metadata().unwrap().modified().unwrap();
    site.write("new", "192.0.2.0/26\n203.0.113.8\n2001:db8::/32\n");
    let new = site.directory.path().join("new");
    std::fs::File::options().write(true).open(&new).unwrap().set_modified(modified).unwrap();
    std::fs::rename(&new, &path).unwrap();
    assert!(site.two_looks().contains("list bad (") && site.denied().contains(&"203.0.113.8/32".to_owned()));
}

#[tokio::test]
async fn a_file_that_goes_on_changing_is_read_once_it_rests() {
    let mut site = Watched::new();
    for octet in 1..5 {
        site.write("other.txt", format!("10.0.0.0/24\n10.{octet}.0.0/24\n"));
        assert_eq!(site.look(), "");
    }
    assert!(site.look().contains("deny (") && site.denied().contains(&"10.4.0.0/24".to_owned()));
}

#[tokio::test]
async fn a_file_that_never_rests_is_reported_once_and_followed_when_it_rests() {
    let mut site = Watched::new();
    let mut said = String::new();
    for octet in 1..40 {
        site.write("other.txt", format!("10.0.0.0/24\n10.{octet}.0.0/24\n"));
        said += &site.look();
    }
    assert_eq!(said.matches("NOT FOLLOWED").count(), 1, "{said}");
    assert!(said.contains("it changes all the time"), "{said}");
    let said = site.two_looks();
    assert!(said.contains("is followed again") && site.denied().contains(&"10.39.0.0/24".to_owned()), "{said}");
}

#[tokio::test]
async fn the_packet_path_waits_longer_while_lists_are_read() {
    let mut site = Watched::new();
    site.write("ratelimitd.toml", FILE.replace("[rule]", "[safety]\nwithout_daemon = \"dry-run after 1h\"\n[rule]"));
    site.said(|engine, moment| engine.reload(ReloadRequest::default(), moment)).0.unwrap();
    let lapses_in = |site: &mut Watched| {
        let mut kernel = site.kernel.peek();
        (kernel.lapse().unwrap().unwrap().0 - kernel.now().unwrap().0) / site::SECOND_NS
    };
    assert_eq!(lapses_in(&mut site), 3600, "after a reload as before");
    site.write("bad.txt", "192.0.2.0/25\n");
    site.two_looks();
    assert_eq!(lapses_in(&mut site), 3660);
    site.said(|engine, _| engine.beat());
    assert_eq!(lapses_in(&mut site), 3600);
}

#[tokio::test]
async fn a_broken_list_keeps_the_old_one_is_said_once_and_holds_no_other_back() {
    let mut site = Watched::new();
    let path = site.directory.path().join("bad.txt");
    let lines = || (0..2_097_153_u32).map(|at| format!("{}\n", std::net::Ipv4Addr::from_bits(at))).collect::<String>();
    for (contents, words) in [
        (
            Some("# x\n192.0.2.0/24\n  192.0.2.300 x\n".to_owned()),
            "bad.txt:3:3: bad line in a list file: this is no address",
        ),
        (None, "cannot read the list file: no such file"),
        (Some("# nothing\n".to_owned()), "bad.txt has become empty"),
        (Some("#".repeat((64 << 20) + 1)), "it is longer than 67108864 bytes"),
        (Some(lines()), "more than 2097152 entries"),
        (Some((0..=255).map(|at| format!("{at}.0.0.0/8\n")).collect()), "it covers 99.6 % of IPv4"),
        (Some("0.0.0.0/1\n128.0.0.0/1\n".to_owned()), "bad.txt covers more of the Internet than a list should"),
    ] {
        match contents {
            Some(contents) => site.write("bad.txt", contents),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let said = site.two_looks();
        assert!(said.contains("WARN") && said.contains("list bad (") && said.contains(words), "{words}: {said}");
        assert_eq!(site.two_looks(), "", "{words}: once");
        assert_eq!(site.denied(), ["192.0.2.0/24", "198.51.100.0/24"], "{words}");
        let stats = site.stats();
        let [stale] = stats.stale_lists.as_slice() else { panic!("{stats:?}") };
        assert!(stale.file.ends_with("bad.txt") && stale.error.as_ref().unwrap().contains(words), "{stale:?}");
        assert!(ratelimit_view::stats(&stats, ratelimit_view::Page::ENDLESS).contains("bad.txt IS NOT FOLLOWED"));
        assert!(site.metric("ratelimitd_config_last_reload_successful 0"), "{words}");
        assert!(site.metric("ratelimitd_list_files_stale 1"));
    }
    let public = ratelimit_report::snapshot::Snapshot::clone(&site.stats()).without_sources();
    assert!(public.stale_lists[0].error.is_none(), "what is wrong may name a source");
    site.write("other.txt", "203.0.113.0/24\n");
    assert!(site.two_looks().contains("deny ("));
    assert_eq!(site.denied(), ["192.0.2.0/24", "203.0.113.0/24"]);
    site.write("bad.txt", "192.0.2.7\n");
    let said = site.two_looks();
    assert!(said.contains("is followed again") && said.contains("1 added, 1 removed"), "{said}");
    assert_eq!(site.denied(), ["192.0.2.7/32", "203.0.113.0/24"]);
    assert!(site.stats().stale_lists.is_empty() && site.metric("ratelimitd_config_last_reload_successful 1"));
}

#[tokio::test]
async fn untrusted_or_irregular_list_files_are_not_followed_or_quoted() {
    let mut site = Watched::new();
    let path = site.directory.path().join("bad.txt");
    site.write("secret", "root:$y$j9T$SALT$HASH:20000\n");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("secret", &path).unwrap();
    let said = site.two_looks();
    assert!(said.contains("bad.txt:1:1: bad line in a list file: this is no address"), "{said}");
    let shown =
        format!("{said}{:?}{}", site.stats(), ratelimit_view::stats(&site.stats(), ratelimit_view::Page::ENDLESS));
    assert!(!shown.contains("HASH") && !shown.contains("root:"), "{shown}");
    std::fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(site.two_looks().contains("it is a pipe, not a file"));
    std::fs::remove_file(&path).unwrap();
    site.write("good", "203.0.113.7\n");
    std::os::unix::fs::symlink("good", &path).unwrap();
    assert!(site.two_looks().contains("is followed again"), "an administrator's own link is followed");
    if std::os::unix::fs::lchown(&path, Some(65_534), None).is_err() {
        println!("skipped: a link of another user: needs root");
        return;
    }
    site.write("good", "203.0.113.7\n203.0.113.8\n");
    let said = site.two_looks();
    assert!(said.contains("bad.txt is a symbolic link of user 65534, not of root"), "{said}");
    assert_eq!(site.denied(), ["198.51.100.0/24", "203.0.113.7/32"]);
}

#[tokio::test]
async fn a_list_that_the_kernel_does_not_take_keeps_the_old_one() {
    let mut site = Watched::new();
    site.kernel.refuse_apply();
    site.write("bad.txt", "203.0.113.7\n");
    assert!(site.two_looks().contains("write map CONFIG"));
    assert_eq!(site.denied(), ["192.0.2.0/24", "198.51.100.0/24"]);
    assert_eq!(site.engine.enforced.config.list_files[0].prefixes.len(), 1);
    assert_eq!(site.engine.enforced.config.list_files[0].prefixes[0].to_string(), "192.0.2.0/24");
}

#[tokio::test]
async fn a_trial_is_not_ended_by_a_list_which_is_followed_after_it() {
    let mut site = Watched::new();
    site.write("ratelimitd.toml", FILE.replace("3/5m", "9/5m"));
    site.try_out(None);
    site.write("bad.txt", "203.0.113.7\n");
    assert_eq!(site.two_looks(), "");
    assert!(matches!(site.kernel.peek().trial().unwrap(), ratelimit_datapath::Trial::Running(_)));
    assert_eq!(site.denied().len(), 2);
    let said: String = (0..10).map(|_| site.look()).collect();
    assert!(said.contains("ROLLED BACK") && said.contains("list bad ("), "{said}");
    assert_eq!(site.denied(), ["198.51.100.0/24", "203.0.113.7/32"]);
    assert_eq!(site.kernel.policy().unwrap().rules[0].limits[0].amount, 3, "the file on the disk is not read for it");
}

#[tokio::test]
async fn a_hold_holds_on_and_the_configuration_file_is_not_watched() {
    let mut site = Watched::new();
    site.said(|engine, moment| engine.set_mode(ModeWord::Panic, &root(), moment).unwrap());
    site.write("ratelimitd.toml", FILE.replace("3/5m", "9/5m"));
    site.write("bad.txt", "203.0.113.7\n");
    assert!(site.two_looks().contains("1 added, 1 removed"));
    let rule = site.kernel.policy().unwrap().rules[0].clone();
    assert_eq!((rule.mode, rule.limits[0].amount), (Mode::DryRun, 3));
    site.said(|engine, moment| engine.reload(ReloadRequest::default(), moment).unwrap());
    assert_eq!(site.kernel.policy().unwrap().rules[0].limits[0].amount, 9);
}

/// Tries a file with another limit and without the missing list, and lets it be rolled back.
fn refused_without_a_list() -> Watched {
    let mut site = Watched::new();
    site.write("ratelimitd.toml", FILE.replace("3/5m", "9/5m").replace(", \"file:other.txt\"", ""));
    std::fs::remove_file(site.directory.path().join("other.txt")).unwrap();
    site.try_out(None);
    assert_eq!((site.amount(), site.denied().len()), (9, 1));
    assert!(site.roll_back().contains("ROLLED BACK"));
    assert_eq!((site.amount(), site.denied().len()), (3, 2));
    site
}

#[tokio::test]
async fn the_configuration_before_a_trial_survives_a_restart_without_its_list() {
    let mut site = refused_without_a_list();
    site.restart().unwrap();
    assert_eq!((site.amount(), site.denied()), (3, vec!["192.0.2.0/24".to_owned(), "198.51.100.0/24".to_owned()]));
    assert!(site.two_looks().contains("cannot read the list file: no such file"));
    assert_eq!((site.amount(), site.denied().len()), (3, 2));
    site.said(|engine, moment| engine.apply(&ApplyRequest::default(), &root(), moment).unwrap());
    site.restart().unwrap();
    assert_eq!((site.amount(), site.denied().len()), (9, 1), "a reload by name gets it");
}

#[tokio::test]
async fn a_start_that_could_only_take_what_was_refused_fails_and_says_what_to_do() {
    let mut site = refused_without_a_list();
    let record = site.directory.path().join("state/trial.json");
    let mut of: serde_json::Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    of.as_object_mut().unwrap().remove("confirmed_lists");
    std::fs::write(&record, of.to_string()).unwrap();
    let calls = site.kernel.calls();
    let error = site.restart().unwrap_err();
    let words = error.to_string();
    assert!(matches!(error, DaemonError::Refused { .. }), "{error:?}");
    assert!(words.contains("ratelimitd.toml was tried and not confirmed") && words.contains("other.txt"), "{words}");
    assert!(error.help().concat().contains("restore it"), "{error:?}");
    assert_eq!(site.kernel.calls(), calls, "packets are judged as they were");
    site.write("ratelimitd.toml", FILE.replace("3/5m", "7/5m").replace(", \"file:other.txt\"", ""));
    site.restart().unwrap();
    assert_eq!(site.amount(), 7, "a file that was changed is a new one");
}

#[tokio::test]
async fn a_list_that_was_tried_and_not_confirmed_is_not_followed_until_it_changes_again() {
    let before = ["192.0.2.0/24", "198.51.100.0/24"];
    for way in 0..4 {
        let mut site = Watched::new();
        site.write("bad.txt", "192.0.2.0/24\n203.0.113.7\n");
        site.try_out(None);
        assert_eq!(site.denied().len(), 3);
        let said = site.roll_back();
        assert!(said.contains("ROLLED BACK"), "{said}");
        assert_eq!(said.matches("was tried and not confirmed").count(), 1, "{said}");
        assert_eq!(site.denied(), before, "{way}");
        assert_eq!(site.stats().stale_lists.len(), 1);
        match way {
            0 => {
                site.said(|engine, moment| engine.reload(ReloadRequest::default(), moment).unwrap());
                assert_eq!(site.denied().len(), 3, "the text is what always held, and a reload gets the list");
                site.two_looks();
                site.restart().unwrap();
                assert_eq!(site.denied().len(), 3);
            }
            1 => {
                site.write("bad.txt", "192.0.2.0/24\n203.0.113.8\n");
                assert!(site.two_looks().contains("is followed again"));
                assert!(site.denied().contains(&"203.0.113.8/32".to_owned()));
            }
            2 => {
                site.restart().unwrap();
                assert_eq!(site.denied(), before, "a restart does not put it in force silently");
                site.two_looks();
                assert_eq!((site.denied(), site.stats().stale_lists.len()), (before.map(str::to_owned).to_vec(), 1));
            }
            _ => {
                site.write("bad.txt", "192.0.2.0/24\n");
                assert!(site.two_looks().contains("is followed again"));
                assert!(site.stats().stale_lists.is_empty());
            }
        }
    }
}

#[tokio::test]
async fn a_restart_within_a_trial_reads_the_lists_beside_the_file_that_is_tried() {
    for is_confirmed in [true, false] {
        let mut site = Watched::new();
        std::fs::create_dir(site.directory.path().join("new")).unwrap();
        site.write("new/site.toml", FILE);
        site.write("new/bad.txt", "203.0.113.7\n");
        site.write("new/other.txt", "203.0.113.8\n");
        site.try_out(Some("new/site.toml"));
        let tried = ["203.0.113.7/32", "203.0.113.8/32"];
        assert_eq!(site.denied(), tried);
        site.restart().unwrap();
        site.two_looks();
        assert_eq!(site.denied(), tried);
        assert_eq!(site.kernel.policy().as_ref(), Some(&site.engine.enforced.desired.policy), "it believes what is so");
        if is_confirmed {
            site.said(|engine, moment| engine.confirm(&root(), moment).unwrap());
            site.two_looks();
            assert_eq!(site.denied(), tried);
        } else {
            site.roll_back();
            assert_eq!(site.denied(), ["192.0.2.0/24", "198.51.100.0/24"]);
        }
    }
}

#[tokio::test]
async fn a_reload_says_everything_that_is_wrong_and_the_log_in_one_line() {
    let mut site = Watched::new();
    site.write("ratelimitd.toml", FILE.replace("3/5m", "3/5x").replace("interfaces", "interface"));
    site.write("bad.txt", "192.0.2.0/24\nx\n\ny\n");
    let (outcome, log) = site.said(|engine, moment| engine.reload(ReloadRequest::default(), moment));
    let why = outcome.unwrap_err().message;
    let places =
        ["bad.txt:2:1: ", "bad.txt:4:1: ", "ratelimitd.toml:1:1: unknown key `interface`", "ratelimitd.toml:6:15: "];
    assert_eq!(why.lines().count(), places.len(), "{why}");
    assert!(why.lines().zip(places).all(|(line, place)| line.contains(place)), "{why}");
    assert_eq!(log.lines().filter(|line| line.contains("ERROR")).count(), 1, "{log}");
    let error = site.engine.trials.last_reload.error.clone().unwrap();
    assert!(places.iter().all(|place| error.contains(place)) && !error.contains('\n'), "{error}");
    let (outcome, _) =
        site.said(|engine, moment| engine.apply(&ApplyRequest::default(), &Requester::new(0, None), moment));
    assert_eq!(outcome.unwrap_err().message, why);
}
