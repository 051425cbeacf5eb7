//! Host with a daemon that can be stopped, killed and started again. The kernel, the configuration file and the state
//! persist.

use super::*;
use ratelimit_datapath::fake::FakeDatapath;
use ratelimit_policy::config::listing::{Listing, Names};
use ratelimit_policy::config::lists::{KnownLists, ListFile};
use ratelimit_policy::config::{OnExit, Safety};
use ratelimit_policy::desired::Grant;

pub(super) const SECOND_NS: u64 = ratelimit_common::time::SECOND_NS;

type Ended = JoinHandle<Result<(), DaemonError>>;

pub(super) struct Site {
    pub(super) directory: TempDir,
    pub(super) kernel: FakeKernel,
    pub(super) client: Client,
    datapath: Option<FakeDatapath>,
    running: Option<(mpsc::Sender<Event>, Ended)>,
    pub(super) told: mpsc::UnboundedReceiver<String>,
    around: fn() -> Around,
    safety: Safety,
}

impl Site {
    /// Creates a host with a file that allows `amount` connections in five minutes, on eth0, kept over restarts. The
    /// daemon is not started.
    pub(super) fn new(amount: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let client = Client::new(&directory.path().join("control.sock"));
        let (datapath, kernel) = FakeDatapath::new(&["eth0"]);
        let (_, told) = mpsc::unbounded_channel();
        let datapath = Some(datapath);
        let (around, safety) = (Around::default as fn() -> Around, Safety::default());
        let site = Self { directory, kernel, client, datapath, running: None, told, around, safety };
        site.write(&amount.to_string());
        site
    }

    pub(super) fn with_around(mut self, around: fn() -> Around) -> Self {
        self.around = around;
        self
    }

    pub(super) const fn with_safety(mut self, safety: Safety) -> Self {
        self.safety = safety;
        self
    }

    pub(super) fn file(&self) -> std::path::PathBuf {
        self.directory.path().join("ratelimitd.toml")
    }

    pub(super) fn state(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join("state").join(name)
    }

    /// Writes the configuration file. The text is the limit's amount, followed by interfaces, denials of a list file,
    /// and keys of `[safety]` and `[history]`. Example: `3 eth1 deny=192.0.2.0/24 mask=24`.
    pub(super) fn write(&self, text: &str) {
        std::fs::write(self.file(), text).unwrap();
    }

    pub(super) async fn start(&mut self) {
        let (directory, safety) = (self.directory.path().to_owned(), self.safety);
        let parse = move |_: &Path, text: &str, _: &KnownLists| {
            let mut words = text.split_whitespace();
            let amount =
                words.next().and_then(|word| word.parse().ok()).ok_or_else(|| anyhow!("`{text}` is no limit"))?;
            let mut config = config(&directory, amount);
            config.on_exit = OnExit::Keep;
            config.safety = safety;
            for word in words {
                match word.split_once('=') {
                    None => config.interfaces.push(word.to_owned()),
                    Some(("breaker", percent)) => config.safety.breaker = Some(percent.parse()?),
                    Some(("gateway", word)) => config.safety.exempt_gateway = word == "on",
                    Some(("history", word)) => config.history.enabled = word == "on",
                    Some(("mask", bits)) => config.history.mask_ipv4 = bits.parse()?,
                    Some(("file", path)) => config.history.path = Some(path.into()),
                    Some((_, prefix)) => {
                        let prefix = prefix.parse()?;
                        config.policy.access.push(ratelimit_policy::desired::Access::denied(prefix));
                        let (path, named_by) = ("/nonexistent/deny.txt".into(), "deny".to_owned());
                        let names = Names::File("/nonexistent/deny.txt".into());
                        config.listings.push(Listing { grant: Grant::Denied, list: None, names });
                        config.list_files.push(ListFile { path, named_by, prefixes: vec![prefix].into() });
                    }
                }
            }
            Ok(config)
        };
        let load = {
            let parse = parse.clone();
            move |path: &Path| {
                let text = std::fs::read_to_string(path)?;
                Ok(Loaded { config: parse(path, &text, &KnownLists::new())?, text })
            }
        };
        let Loaded { config, text } = load(&self.file()).unwrap();
        let source = ConfigSource::file(self.file(), text, Fallbacks::new(), load, parse);
        let datapath = self.datapath.take().unwrap_or_else(|| self.kernel.reopen());
        let (events, queue) = mpsc::channel(8);
        let (mut surroundings, told) = surroundings(None);
        let store = Store::at(self.directory.path().join("state"));
        surroundings.host = Host { store, look: self.around, ..surroundings.host };
        self.told = told;
        let task = tokio::spawn(drive(config, source, |_| Ok(datapath), |_| {}, queue, surroundings));
        assert_eq!(self.told.recv().await.as_deref(), Some("Ready"));
        self.running = Some((events, task));
    }

    /// Stops the daemon as SIGTERM does.
    pub(super) async fn stop(&mut self) {
        let (events, task) = self.running.take().unwrap();
        events.send(Event::Stop).await.unwrap();
        task.await.unwrap().unwrap();
    }

    /// Kills the daemon as SIGKILL does.
    pub(super) async fn kill(&mut self) {
        let (_, task) = self.running.take().unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        let _ = std::fs::remove_file(self.directory.path().join("control.sock"));
    }

    pub(super) async fn restart(&mut self) {
        self.stop().await;
        self.start().await;
    }

    /// Lets time pass for the kernel and for the daemon.
    pub(super) async fn pass(&self, seconds: u64) {
        self.kernel.advance(seconds * SECOND_NS);
        sleep(Duration::from_secs(seconds) + SUPERVISE_EVERY + Duration::from_millis(1)).await;
    }

    pub(super) fn amount(&self) -> u64 {
        self.kernel.policy().unwrap().rules[0].limits[0].amount
    }

    pub(super) fn reason(&self, source: &str) -> &'static str {
        self.kernel.packet("eth0", opening(source)).unwrap().label()
    }

    /// Returns the problem of a refused request.
    pub(super) fn refusal<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> (ProblemKind, String) {
        let error = answer.unwrap_err();
        let ClientError::Refused(problem) = error else { panic!("no answer: {error}") };
        (problem.kind, problem.message)
    }

    pub(super) fn trial(&self) -> ratelimit_datapath::Trial {
        // This second handle on the same state is used only for this query.
        let mut datapath = self.kernel.peek();
        datapath.trial().unwrap()
    }
}
