//! Fuzz tests that send arbitrary requests to the real router and a real engine over the fake datapath. A refused
//! request changes nothing. Packets are judged by either the old policy or the new one as a whole, and the daemon
//! knows which.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use ratelimit_common::time::{Nanos, SECOND_NS};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::enforced::Enforced;
use super::overrides::Overrides;
use super::trial::Trials;
use super::*;
use ratelimit_control::proto::Problem;
use ratelimit_control::server::{Peer, router};
use ratelimit_datapath::Trial;
use ratelimit_policy::config::file;
use ratelimit_policy::desired::{DesiredState, Mode, Rule};
use ratelimit_policy::fixture::{Choices, config_text, for_any_bytes};

/// Maximum size in bytes of an answer. The statistics of 64 rules with their limits take a third of this size.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// Maximum number of steps with one daemon.
const STEPS_MAX: usize = 16;
const OWN_UID: u32 = 990;
const START: &str = "interfaces = [\"eth0\"]\n[rule]\nname = \"web\"\nlimits = [\"3/5m\"]\n";
const FILE: &str = "/etc/ratelimitd/ratelimitd.toml";

fn parsed(text: &str) -> anyhow::Result<Config> {
    Ok(file::parse(Path::new(FILE), text, |_| Ok("192.0.2.0/28\n2001:db8:5::/48\n".to_owned()))?)
}

/// Daemon without a socket: the router, and the task that owns the datapath.
struct Subject {
    owner: Owner<FakeDatapath>,
    handle: Handle,
    commands: Commands,
    surroundings: Surroundings,
    kernel: FakeKernel,
    /// Text of the configuration file.
    text: Arc<Mutex<String>>,
    _state: TempDir,
    model: Model,
    is_over: bool,
}

/// Expected state, derived from the answers alone.
struct Model {
    lasting: Config,
    trial: Option<(Config, Nanos)>,
    is_held: bool,
    is_failing: bool,
}

/// Everything that a refused request must leave unchanged.
#[derive(Debug, PartialEq)]
struct State {
    kernel: String,
    belief: String,
}

struct Ask {
    surface: Surface,
    peer: Option<u32>,
    method: &'static str,
    path: String,
    body: Vec<u8>,
}

impl Subject {
    fn new() -> Self {
        let state = tempfile::tempdir().unwrap();
        let text = Arc::new(Mutex::new(START.to_owned()));
        let (datapath, kernel) = FakeDatapath::new(&["eth0", "eth1"]);
        let says = Arc::clone(&text);
        let load = move |path: &Path| {
            if path != Path::new(FILE) {
                return Err(anyhow!("{}: no such file", path.display()));
            }
            let text = says.lock().unwrap().clone();
            Ok(Loaded { config: parsed(&text)?, text })
        };
        let source =
            ConfigSource::file(FILE.into(), START.to_owned(), Fallbacks::new(), load, |_, text, _| parsed(text));
        let (mut surroundings, _) = surroundings(None);
        surroundings.own_uid = OWN_UID;
        surroundings.host = Host {
            look: Around::default,
            attention: ratelimit_view::attention,
            give_back_memory: || {},
            store: Store::at(state.path().join("state")),
        };
        let started = Instant::now();
        let config = parsed(START).unwrap();
        let start = Start::new(config.clone(), source, &surroundings.host.store, Timestamp::now()).unwrap();
        let engine = Engine::start(datapath, start, surroundings.host.clone(), Moment::now(started)).unwrap();
        let (handle, commands) = Handle::channel(ratelimit_control::feed::Feed::default());
        Self {
            owner: Owner { engine: Some(Box::new(engine)), asks: None, log_lines: Arc::default(), started },
            handle,
            commands,
            surroundings,
            kernel,
            text,
            _state: state,
            model: Model { lasting: config, trial: None, is_held: false, is_failing: false },
            is_over: false,
        }
    }

    fn engine(&self) -> &Engine<FakeDatapath> {
        self.owner.engine.as_ref().expect("the engine is there: nothing panicked")
    }

    fn now(&self) -> Nanos {
        self.kernel.peek().read().unwrap().now
    }

    fn trial(&self) -> Trial {
        self.kernel.peek().trial().unwrap()
    }

    fn state(&self) -> State {
        let engine = self.engine();
        let mut windows = Vec::new();
        self.kernel.peek().visit_sources(&mut |source| windows.push(source)).unwrap();
        let bans = self.kernel.peek().bans().unwrap();
        let kernel = format!("{:?} {:?} {bans:?} {windows:?}", self.kernel.policy(), self.kernel.attached());
        let Engine { enforced, overrides, trials, .. } = engine;
        let Enforced { config, desired, .. } = enforced;
        let (Overrides { grants, hold, .. }, Trials { pending, refused, .. }) = (overrides, trials);
        // Each look computes the time of the next expiry again.
        let grants = format!("{grants:?}");
        let grants = grants.rsplit_once(", next_end").unwrap().0;
        let belief = format!("{config:?} {desired:?} {grants} {hold:?} {pending:?} {refused:?}");
        State { kernel, belief }
    }

    async fn answer(&mut self, ask: &Ask) -> Option<(StatusCode, Vec<u8>)> {
        let request =
            Request::builder().method(ask.method).uri(&ask.path).extension(Peer { uid: ask.peer, address: None });
        // The HTTP library rejects an invalid URI.
        let request = request.body(Body::from(ask.body.clone())).ok()?;
        let api = router(self.handle.clone(), ask.surface, OWN_UID);
        let answer = async {
            let response = api.oneshot(request).await.unwrap();
            let status = response.status();
            (status, response.into_body().collect().await.unwrap().to_bytes().to_vec())
        };
        let Self { owner, commands, surroundings, is_over, .. } = self;
        let serve = async {
            while let Some(command) = commands.recv().await {
                *is_over |= owner.answer(command, surroundings).await.expect("the engine does not panic");
            }
        };
        Some(tokio::select! {
            biased;
            answer = answer => answer,
            () = serve => unreachable!("the handle is held"),
        })
    }

    /// Sends a request, and checks the answer and its effects.
    async fn ask(&mut self, ask: &Ask) {
        if ask.path.starts_with("/healthz") {
            // A health request makes the daemon look and do what is due. After a look nothing is due, so the request
            // changes nothing.
            self.pass(0).await;
            self.assert_whole();
        }
        let (before, trial) = (self.state(), self.trial());
        let Some((status, body)) = self.answer(ask).await else { return };
        let shown = format!("{} {} {:?}", ask.method, ask.path, String::from_utf8_lossy(&ask.body));
        let said = String::from_utf8_lossy(&body).into_owned();
        assert!(body.len() <= ANSWER_BYTES_MAX, "{shown}: {} bytes", body.len());
        let expected = [200, 400, 403, 404, 405, 409, 413, 422];
        let is_excused = match status.as_u16() {
            500 => self.model.is_failing,
            503 => ask.path.starts_with("/healthz"),
            _ => false,
        };
        assert!(expected.contains(&status.as_u16()) || is_excused, "{shown}: {status} {said}");
        if ask.surface == Surface::Socket && ask.method == "POST" && ask.body.len() > 4096 && takes_body(&ask.path) {
            assert!([400, 403, 413].contains(&status.as_u16()), "{shown}: {status}");
        }
        if status.is_client_error() && ask.method != "HEAD" {
            let problem: Problem = serde_json::from_slice(&body).expect(&said);
            assert!(!problem.message.is_empty(), "{shown}: {status}");
        }
        let after = self.state();
        // A request that notices the end of a trial also removes what expired meanwhile.
        let is_read = !status.is_success() || ask.method == "GET" || ask.surface == Surface::Tcp;
        if is_read && trial != Trial::Over {
            assert_eq!(after.kernel, before.kernel, "{shown}: {status} {said}");
        }
        // The next request of any kind notices that a trial has expired, even a refused one. A failed request may
        // have ended a trial.
        let is_to_stay = status.is_client_error() || ask.surface == Surface::Tcp;
        let has_failed = status.is_server_error() && trial == Trial::None;
        if (is_to_stay && trial != Trial::Over) || has_failed {
            assert_eq!(after.belief, before.belief, "{shown}: {status} {said}");
        }
        self.learn(ask, status, &body);
    }

    /// Updates the expected state from an answer.
    fn learn(&mut self, ask: &Ask, status: StatusCode, body: &[u8]) {
        let (now, trial) = (self.now(), self.trial());
        let model = &mut self.model;
        if status.is_server_error() {
            // The trial may have been confirmed or abandoned before the request failed.
            match (trial, self.owner.engine.as_ref().is_some_and(|engine| engine.trials.pending.is_some())) {
                (_, true) => {}
                (Trial::None, false) => model.lasting = model.trial.take().map_or(model.lasting.clone(), |of| of.0),
                (Trial::Running(_) | Trial::Over, false) => model.trial = None,
            }
            return;
        }
        if status != StatusCode::OK || ask.method != "POST" {
            return;
        }
        let answer: Value = serde_json::from_slice(body).expect("an answer is JSON");
        assert_eq!(answer["schema"], 1, "{answer}");
        let text = self.text.lock().unwrap().clone();
        match ask.path.split('?').next().unwrap_or_default() {
            "/v1/reload" => model.lasting = parsed(&text).unwrap(),
            "/v1/apply" => match answer["confirm_within_seconds"].as_u64() {
                Some(seconds) => model.trial = Some((parsed(&text).unwrap(), Nanos(now.0 + seconds * SECOND_NS))),
                None if answer["notes"].to_string().contains("nothing to confirm") => {}
                None => model.lasting = parsed(&text).unwrap(),
            },
            "/v1/confirm" => model.lasting = model.trial.take().expect("a trial").0,
            "/v1/mode" => {
                model.is_held = answer["mode"] != "enforce";
                model.trial = model.trial.take().filter(|_| !model.is_held);
            }
            _ => {}
        }
    }

    /// Lets time pass, followed by a look of the daemon.
    async fn pass(&mut self, seconds: u64) {
        self.kernel.advance(seconds * SECOND_NS);
        tokio::time::advance(Duration::from_secs(seconds)).await;
        self.owner.on_datapath(Engine::supervise).await.expect("the engine does not panic");
    }

    /// Asserts that packets are judged by one configuration as a whole, and that the daemon knows which.
    fn assert_whole(&mut self) {
        let now = self.now();
        self.model.trial.take_if(|(_, until)| *until <= now);
        let Model { lasting, trial, is_held, .. } = &self.model;
        let of = trial.as_ref().map_or(lasting, |(config, _)| config);
        let expected: Vec<Rule> = of.policy.rules.iter().cloned().map(|rule| held(rule, *is_held)).collect();
        let in_force = self.kernel.policy().expect("a policy");
        let engine = self.engine();
        if !engine.enforced.must_apply && self.trial() != Trial::Over {
            assert_eq!(in_force, engine.enforced.desired.policy, "the daemon believes what is so");
            assert_eq!((in_force.ipv4_prefix, in_force.ipv6_prefix), (of.policy.ipv4_prefix, of.policy.ipv6_prefix));
            assert_eq!(in_force.rules, expected, "one configuration whole");
        }
        assert_eq!(self.kernel.attached(), engine.enforced.desired.interfaces);
    }

    /// Asserts that everything is in order once nothing fails and no trial is left.
    async fn settle(mut self) {
        self.kernel.permit_apply();
        self.pass(1).await;
        self.assert_whole();
        // Applying anything ends a trial, so other expired state is removed only afterwards.
        if let Trial::Running(until) = self.trial() {
            self.pass((until.0 - self.now().0).div_ceil(SECOND_NS)).await;
            self.assert_whole();
        }
        assert_eq!(self.trial(), Trial::None);
        assert!(!self.engine().enforced.must_apply);
        let Enforced { config, desired, .. } = &self.engine().enforced;
        let policy = self.engine().overrides.policy_of(config, self.now());
        assert_eq!(*desired, DesiredState { interfaces: desired.interfaces.clone(), policy });
    }
}

fn held(rule: Rule, is_held: bool) -> Rule {
    Rule { mode: if is_held { Mode::DryRun } else { rule.mode }, ..rule }
}

fn takes_body(path: &str) -> bool {
    ["/v1/allow", "/v1/deny", "/v1/unblock", "/v1/reset", "/v1/mode", "/v1/apply", "/v1/charge"].contains(&path)
}

const SOURCES: [&str; 10] = [
    "192.0.2.7",
    "198.51.100.9",
    "2001:db8:1::1",
    "::ffff:192.0.2.7",
    "::",
    "0.0.0.0",
    "255.255.255.255",
    "192.0.2.300",
    "fe80::1%eth0",
    "",
];
const PREFIXES: [&str; 10] = [
    "192.0.2.7",
    "192.0.2.0/24",
    "192.0.2.1/24",
    "198.51.100.0/25",
    "2001:db8::/32",
    "::ffff:192.0.2.0/120",
    "10.0.0.0/8",
    "0.0.0.0/0",
    "::/0",
    "192.0.2.0/33",
];
const RULES: [&str; 7] = ["web", "web", "default", "login", "api:partner", "r1", "\u{1f980}"];
const NUMBERS: [u64; 9] = [1, 2, 3, 5, 60, 0, 315_360_000, 315_360_001, u64::MAX];

/// Returns a request that is probably valid.
fn order(choices: &mut Choices<'_>) -> Ask {
    let (source, prefix) = (choices.pick(&SOURCES), choices.pick(&PREFIXES));
    let (rule, number) = (choices.pick(&RULES), choices.pick(&NUMBERS));
    let post = |path: &str, body: Value| ("POST", path.to_owned(), body.to_string().into_bytes());
    let (method, path, body) = match choices.below(20) {
        0 => post("/v1/allow", json!({ "prefix": prefix, "seconds": number })),
        1 => post("/v1/allow", json!({ "prefix": prefix, "forever": true, "reason": source })),
        2 => post("/v1/deny", json!({ "prefix": prefix, "seconds": number, "force": number == 3 })),
        3 => post("/v1/deny", json!({ "prefix": prefix, "forever": number == 5, "ssh_peer": source })),
        4 => post("/v1/unblock", json!({ "prefix": prefix })),
        5 => post("/v1/reset", json!({ "source": source })),
        6 | 7 => post("/v1/charge", json!({ "source": source, "rule": rule, "amount": number })),
        8 => post("/v1/mode", json!({ "mode": choices.pick(&["enforce", "dry-run", "panic", "off"]) })),
        9 => post("/v1/mode", json!({ "mode": "enforce" })),
        10 => post("/v1/apply", json!({})),
        11 | 12 => post("/v1/apply", json!({ "confirm_seconds": choices.pick(&[5, 60, 0, 86_401]) })),
        13 => post("/v1/apply", json!({ "file": choices.pick(&[FILE, "/etc/passwd", "../x", ""]) })),
        14 => post("/v1/confirm", json!({})),
        15 => post("/v1/reload", json!({})),
        16 => post(choices.pick(&["/v1/detach?interface=eth1", "/v1/detach?interface=eth9"]), json!({})),
        17 => ("GET", format!("/v1/check/{source}?rule={rule}"), Vec::new()),
        18 => ("GET", format!("/api/v1/explain/{source}?to={number}%2Fudp&address={source}"), Vec::new()),
        _ => {
            let path = choices.pick(&["/metrics", "/healthz", "/api/v1/stats", "/api/v1/list", "/api/v1/check/"]);
            ("GET", if path.ends_with('/') { format!("{path}{source}") } else { path.to_owned() }, Vec::new())
        }
    };
    Ask { surface: Surface::Socket, peer: Some(0), method, path, body }
}

/// Returns a mutated version of a probably valid request.
fn mutated(choices: &mut Choices<'_>) -> Ask {
    let mut ask = order(choices);
    for _ in 0..=choices.below(3) {
        match choices.below(8) {
            0 => ask.method = choices.pick(&["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"]),
            1 => ask.peer = choices.pick(&[None, Some(OWN_UID), Some(1000), Some(u32::MAX)]),
            2 => ask.surface = Surface::Tcp,
            3 => ask.path += choices.pick(&["/", "?", "?rule=", "&to=x", "%ff", "%00", "/../..", "?rule=a&rule=b"]),
            4 => ask.body = choices.bytes(64).to_vec(),
            5 if !ask.body.is_empty() => {
                let at = choices.below(ask.body.len());
                ask.body[at] = choices.byte();
            }
            6 if ask.body.len() < 4096 => ask.body = ask.body.repeat(1 << choices.below(12)),
            _ => ask.body.truncate(choices.below(ask.body.len() + 1)),
        }
    }
    ask
}

fn live<F: Future<Output = ()>>(life: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(life);
}

#[test]
fn any_request_is_answered_and_a_refused_one_changes_nothing() {
    for_any_bytes(|bytes| {
        live(async {
            let mut choices = Choices::new(bytes);
            let mut subject = Subject::new();
            for _ in 0..STEPS_MAX {
                if choices.is_over() || subject.is_over {
                    return;
                }
                let ask = mutated(&mut choices);
                subject.ask(&ask).await;
                subject.assert_whole();
            }
        });
    });
}

#[test]
fn packets_are_judged_by_the_old_or_new_policy_whatever_orders_come() {
    for_any_bytes(|bytes| {
        live(async {
            let mut choices = Choices::new(bytes);
            let mut subject = Subject::new();
            for _ in 0..STEPS_MAX {
                if choices.is_over() || subject.is_over {
                    break;
                }
                match choices.below(16) {
                    0 | 1 => *subject.text.lock().unwrap() = config_text(&mut choices),
                    2 | 3 => {
                        let amount = choices.below(4) + 1;
                        *subject.text.lock().unwrap() = START.replace("3/5m", &format!("{amount}/5m"));
                    }
                    4 => {
                        let seconds = choices.pick(&[1, 5, 59, 60, 400_000]);
                        subject.pass(seconds).await;
                    }
                    // The daemon does not look.
                    5 => subject.kernel.advance(choices.pick(&[1, 5, 60]) * SECOND_NS),
                    6 => {
                        subject.kernel.refuse_apply();
                        subject.model.is_failing = true;
                    }
                    7 => {
                        subject.kernel.permit_apply();
                        subject.model.is_failing = false;
                    }
                    8 => subject.ask(&mutated(&mut choices)).await,
                    _ => subject.ask(&order(&mut choices)).await,
                }
                if !subject.is_over {
                    subject.assert_whole();
                }
            }
            if !subject.is_over {
                subject.settle().await;
            }
        });
    });
}
