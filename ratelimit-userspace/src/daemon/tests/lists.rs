//! List files that change under a daemon that runs. What it reads is real, and so is the parser; time passes by argument.

use super::*;
use crate::config::file;
use crate::config::lists::KnownLists;
use crate::control::proto::{ApplyRequest, ModeWord};
use crate::desired::{Grant, Mode};
use crate::export;

const FILE: &str = "interfaces = [\"eth0\"]\ndeny = [\"@bad\", \"file:other.txt\"]\n[lists]\nbad = \"file:bad.txt\"\n[rule]\nlimits = [\"3/5m\"]\n";

struct Watched {
    directory: TempDir,
    kernel: FakeKernel,
    engine: Engine<FakeDatapath>,
    lines: Lines,
    began: Instant,
    uptime: Duration,
}

impl Watched {
    /// A daemon whose `bad.txt` and `other.txt` have one prefix each.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ratelimitd.toml");
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        write("ratelimitd.toml", FILE);
        write("bad.txt", "192.0.2.0/24\n");
        write("other.txt", "198.51.100.0/24\n");
        let load = |path: &Path| {
            let text = file::read_text(path)?;
            Ok(Loaded { config: file::parse_beside(path, &text, &KnownLists::new())?, text })
        };
        let Loaded { config, text } = load(&path).unwrap();
        let parse = |path: &Path, text: &str, known: &KnownLists| Ok(file::parse_beside(path, text, known)?);
        let source = ConfigSource::file(path, text, load, parse);
        let (datapath, kernel) = FakeDatapath::new(&["eth0"]);
        let store = Store::at(directory.path().join("state"));
        let host = Host { look: Around::default, store };
        let start = Start { config, source, pending: None, refused: None };
        let (began, uptime) = (Instant::now(), Duration::ZERO);
        let moment = Moment { at: began, uptime, wall: Timestamp::now() };
        let engine = Engine::start(datapath, start, host, moment).unwrap();
        let mut watched = Self { directory, kernel, engine, lines: Lines::default(), began, uptime };
        // The files are so young that they are read once more.
        watched.look();
        watched
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.directory.path().join(name), text).unwrap();
    }

    fn moment(&self) -> Moment {
        Moment { at: self.began + self.uptime, uptime: self.uptime, wall: Timestamp::now() }
    }

    /// Runs something, and returns it with what was logged by it.
    fn said<T>(&mut self, work: impl FnOnce(&mut Engine<FakeDatapath>, Moment) -> T) -> (T, String) {
        let writer = self.lines.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let moment = self.moment();
        let done = tracing::subscriber::with_default(subscriber, || work(&mut self.engine, moment));
        (done, String::from_utf8(std::mem::take(&mut *self.lines.0.lock().unwrap())).unwrap())
    }

    /// Two seconds later: what is logged.
    fn look(&mut self) -> String {
        self.uptime += SUPERVISE_EVERY;
        self.kernel.advance(2 * site::SECOND_NS);
        self.said(Engine::supervise).1
    }

    fn two_looks(&mut self) -> String {
        let first = self.look();
        first + &self.look()
    }

    fn denied(&self) -> Vec<String> {
        let policy = self.kernel.policy().unwrap();
        policy.prefixes(Grant::Denied).map(|prefix| prefix.to_string()).collect()
    }

    fn stats(&mut self) -> Arc<crate::snapshot::Snapshot> {
        let moment = self.moment();
        self.engine.stats(moment.at, moment).unwrap()
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

    // Of the same size and time, by a rename.
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
        site.write("other.txt", format!("10.0.0.0/8\n10.{octet}.0.0/16\n"));
        assert_eq!(site.look(), "");
    }
    assert!(site.look().contains("deny (") && site.denied().contains(&"10.4.0.0/16".to_owned()));
}

#[tokio::test]
async fn a_broken_list_keeps_the_old_one_is_said_once_and_holds_no_other_back() {
    let mut site = Watched::new();
    let path = site.directory.path().join("bad.txt");
    let lines = || (0..200_001_u32).map(|at| format!("{}\n", std::net::Ipv4Addr::from_bits(at))).collect::<String>();
    for (contents, words) in [
        (
            Some("# x\n192.0.2.0/24\n  192.0.2.300 x\n".to_owned()),
            "bad.txt:3:3: bad line in a list file: `192.0.2.300`",
        ),
        (None, "cannot read the list file: no such file"),
        (Some("# nothing\n".to_owned()), "bad.txt has become empty"),
        (Some("#".repeat((16 << 20) + 1)), "it is longer than 16777216 bytes"),
        (Some(lines()), "more than 200000 entries"),
        (Some("0.0.0.0/1\n128.0.0.0/1\n".to_owned()), "together these are 0.0.0.0/0"),
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
        assert!(crate::view::stats(&stats).contains("bad.txt IS NOT FOLLOWED"));
        assert!(site.metric("ratelimitd_config_last_reload_successful 0"), "{words}");
        assert!(site.metric("ratelimitd_list_files_stale 1"));
    }
    let public = crate::snapshot::Snapshot::clone(&site.stats()).without_sources();
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
async fn a_list_that_the_kernel_does_not_take_keeps_the_old_one() {
    let mut site = Watched::new();
    site.kernel.refuse_apply();
    site.write("bad.txt", "203.0.113.7\n");
    assert!(site.two_looks().contains("write map CONFIG"));
    assert_eq!(site.denied(), ["192.0.2.0/24", "198.51.100.0/24"]);
    assert_eq!(site.engine.config.list_files[0].prefixes.len(), 1);
    assert_eq!(site.engine.config.list_files[0].prefixes[0].to_string(), "192.0.2.0/24");
}

#[tokio::test]
async fn a_trial_is_not_ended_by_a_list_which_is_followed_after_it() {
    let mut site = Watched::new();
    site.write("ratelimitd.toml", FILE.replace("3/5m", "9/5m"));
    let request = ApplyRequest { file: None, confirm_seconds: Some(20), ssh: None };
    site.said(|engine, moment| engine.apply(&request, 0, moment).unwrap());
    site.write("bad.txt", "203.0.113.7\n");
    assert_eq!(site.two_looks(), "");
    assert!(matches!(site.kernel.peek().trial().unwrap(), crate::datapath::Trial::Running(_)));
    assert_eq!(site.denied().len(), 2);
    let said: String = (0..10).map(|_| site.look()).collect();
    assert!(said.contains("ROLLED BACK") && said.contains("list bad ("), "{said}");
    assert_eq!(site.denied(), ["198.51.100.0/24", "203.0.113.7/32"]);
    assert_eq!(site.kernel.policy().unwrap().rules[0].limits[0].amount, 3, "the file on the disk is not read for it");
}

#[tokio::test]
async fn a_hold_holds_on_and_the_configuration_file_is_not_watched() {
    let mut site = Watched::new();
    site.said(|engine, moment| engine.set_mode(ModeWord::Panic, 0, moment).unwrap());
    site.write("ratelimitd.toml", FILE.replace("3/5m", "9/5m"));
    site.write("bad.txt", "203.0.113.7\n");
    assert!(site.two_looks().contains("1 added, 1 removed"));
    let rule = site.kernel.policy().unwrap().rules[0].clone();
    assert_eq!((rule.mode, rule.limits[0].amount), (Mode::DryRun, 3));
    site.said(|engine, moment| engine.reload(None, moment).unwrap());
    assert_eq!(site.kernel.policy().unwrap().rules[0].limits[0].amount, 9);
}
