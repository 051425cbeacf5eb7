//! Reports this host's bans to CrowdSec as alerts without decisions. The local API's profiles and allow lists decide
//! what follows. Sources that CrowdSec already denies are not reported.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::HeaderValue;
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::client::{Api, ClientError, refused};
use ratelimit_control::client::{Client, Followed};
use ratelimit_control::proto::EventsOf;
use ratelimit_report::event::{Event, EventKind};

/// Maximum number of bans queued while the local API is away. The oldest are dropped first. // 1000 x 1 kB
const WAITING_MAX: usize = 1_000;
/// Maximum number of alerts in one request.
const AT_ONCE: usize = 50;
/// Delay before the retry after a failure, doubled up to [`AGAIN_AFTER_MAX`].
const AGAIN_AFTER: Duration = Duration::from_secs(2);
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(60);
/// Remaining lifetime at which a token is renewed.
const RENEWED_BEFORE: SignedDuration = SignedDuration::from_secs(60);
/// Assumed lifetime of a token with an expiry that cannot be parsed.
const TOKEN_LASTS: SignedDuration = SignedDuration::from_mins(10);

/// Credentials of the machine that reports to the local API.
#[derive(Clone, PartialEq, Eq)]
pub struct Machine {
    /// Login name of the machine.
    pub login: String,
    /// Password of the machine.
    pub password: String,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("login", &self.login).finish_non_exhaustive()
    }
}

impl Machine {
    /// Parses a file as `cscli machines add --file` writes it, with lines `login: NAME` and `password: TEXT`. Ignores
    /// other lines.
    pub fn read(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut values =
                text.lines().filter_map(|line| line.trim().strip_prefix(name)?.trim_start().strip_prefix(':'));
            let value = values.next_back()?.trim();
            let quotes = ['"', '\'']
                .into_iter()
                .find(|quote| value.len() >= 2 && value.starts_with(*quote) && value.ends_with(*quote));
            let value = if quotes.is_some() { &value[1..value.len() - 1] } else { value };
            (!value.is_empty()).then(|| value.to_owned())
        };
        Some(Self { login: field("login")?, password: field("password")? })
    }
}

/// Alert in the form that the local API requires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alert {
    scenario: String,
    scenario_hash: String,
    scenario_version: String,
    message: String,
    events_count: u64,
    start_at: Timestamp,
    stop_at: Timestamp,
    capacity: u64,
    leakspeed: String,
    simulated: bool,
    /// Allows profiles to make a decision.
    remediation: bool,
    events: [(); 0],
    source: Source,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Source {
    scope: &'static str,
    value: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    range: Option<String>,
}

/// Returns the alert for a ban by a rule of this host. Returns none for other events and for bans reported by another
/// host.
pub fn alert(event: &Event) -> Option<Alert> {
    if event.kind != EventKind::Ban || event.by.is_some() {
        return None;
    }
    let rule = event.rule.as_deref().unwrap_or("default");
    let value = event.source.clone()?;
    let prefix = prefix_of(&value)?;
    let is_address = prefix.prefix_len() == prefix.max_prefix_len();
    let (amount, window) = event.limit.as_deref().and_then(|limit| limit.split_once('/')).unwrap_or_default();
    Some(Alert {
        scenario: format!("ratelimitd/{rule}"),
        scenario_hash: String::new(),
        scenario_version: env!("CARGO_PKG_VERSION").to_owned(),
        message: event.detail.clone(),
        events_count: event.used.unwrap_or(1).max(1),
        start_at: event.time,
        stop_at: event.time,
        capacity: amount.parse().unwrap_or(0),
        leakspeed: window.split(' ').next().unwrap_or_default().to_owned(),
        simulated: false,
        remediation: true,
        events: [],
        source: Source {
            scope: if is_address { "Ip" } else { "Range" },
            ip: is_address.then(|| prefix.addr().to_string()),
            range: (!is_address).then(|| prefix.to_string()),
            value: if is_address { prefix.addr().to_string() } else { prefix.to_string() },
        },
    })
}

fn prefix_of(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<std::net::IpAddr>().ok().map(IpNet::from))
}

#[derive(Serialize)]
struct Login<'a> {
    machine_id: &'a str,
    password: &'a str,
    scenarios: [&'a str; 0],
}

#[derive(Deserialize)]
struct LoggedIn {
    token: String,
    #[serde(default)]
    expire: Option<String>,
}

/// Authorization header, and the time at which it is renewed.
type Token = (HeaderValue, Timestamp);

/// Sender of alerts with a machine's credentials.
#[derive(Debug)]
pub struct Reporter {
    api: Api,
    machine: Machine,
    token: Option<Token>,
}

impl Reporter {
    /// Creates a reporter, without connecting.
    pub const fn new(api: Api, machine: Machine) -> Self {
        Self { api, machine, token: None }
    }

    /// Sends alerts. Logs in first if there is no valid token. If the API refuses an existing token, logs in again
    /// once.
    pub async fn send(&mut self, alerts: &[Alert]) -> Result<(), ClientError> {
        let body = serde_json::to_vec(alerts).map_err(|error| ClientError::Unintelligible(error.to_string()))?;
        let had_token = self.token.is_some();
        let token = self.token().await?;
        let (status, answer) = self.api.post("/v1/alerts", Some(&token), body.clone()).await?;
        let (status, answer) = if status == StatusCode::UNAUTHORIZED && had_token {
            self.token = None;
            let token = self.token().await?;
            self.api.post("/v1/alerts", Some(&token), body).await?
        } else {
            (status, answer)
        };
        if status.is_success() {
            return Ok(());
        }
        if status == StatusCode::UNAUTHORIZED {
            self.token = None;
        }
        Err(refused(status, &answer))
    }

    async fn token(&mut self) -> Result<HeaderValue, ClientError> {
        let now = Timestamp::now();
        if let Some((token, until)) = &self.token
            && now < *until
        {
            return Ok(token.clone());
        }
        let Machine { login, password } = &self.machine;
        let body = serde_json::to_vec(&Login { machine_id: login, password, scenarios: [] });
        let body = body.map_err(|error| ClientError::Unintelligible(error.to_string()))?;
        let (status, answer) = self.api.post("/v1/watchers/login", None, body).await?;
        if !status.is_success() {
            return Err(refused(status, &answer));
        }
        let wrong = |error: String| ClientError::Unintelligible(error);
        let LoggedIn { token, expire } = serde_json::from_slice(&answer).map_err(|error| wrong(error.to_string()))?;
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|error| wrong(error.to_string()))?;
        value.set_sensitive(true);
        let expire = expire.and_then(|text| text.parse::<Timestamp>().ok());
        let until = match expire {
            Some(expire) => expire.saturating_sub(RENEWED_BEFORE),
            None => now.saturating_add(TOKEN_LASTS),
        };
        self.token = Some((value.clone(), until.unwrap_or(now)));
        Ok(value)
    }
}

/// Bans that wait to be sent.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Alert>,
    lost: u64,
    last: Option<Timestamp>,
    /// Source and scenario of the bans queued with time `last`. A reopened stream repeats these events.
    told: BTreeSet<(String, String)>,
}

impl Queue {
    /// Queues the alert of an event, unless the event was taken before or CrowdSec already denies the source.
    fn take(&mut self, event: &Event, covers: impl Fn(&IpNet) -> bool) {
        let Some(alert) = alert(event) else { return };
        let told = (alert.source.value.clone(), alert.scenario.clone());
        if self.last.is_some_and(|last| event.time < last)
            || (self.last == Some(event.time) && self.told.contains(&told))
        {
            return;
        }
        if self.last != Some(event.time) {
            self.told.clear();
        }
        self.last = Some(event.time);
        self.told.insert(told);
        if prefix_of(&alert.source.value).is_some_and(|prefix| covers(&prefix)) {
            return;
        }
        if self.waiting.len() >= WAITING_MAX {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back(alert);
    }
}

/// Follows the daemon's bans and sends them, until the future is dropped. `covers` says which prefixes CrowdSec
/// already denies.
pub(crate) async fn run(mut reporter: Reporter, socket: &Path, covers: impl Fn(&IpNet) -> bool) {
    let queue = RefCell::new(Queue::default());
    let more = Notify::new();
    let began = Timestamp::now();
    let following = async {
        let client = Client::new(socket);
        let mut is_away = false;
        loop {
            let since = queue.borrow().last.unwrap_or(began);
            let asked = EventsOf { kind: Some(EventKind::Ban), since: Some(since), ..EventsOf::default() };
            let take = |followed| {
                match followed {
                    Followed::Event(event) => queue.borrow_mut().take(&event, &covers),
                    Followed::Missed { missed } => tracing::warn!("{missed} events were missed"),
                }
                more.notify_one();
                ControlFlow::Continue(())
            };
            if let Err(error) = client.follow(&asked, take).await
                && !std::mem::replace(&mut is_away, true)
            {
                tracing::warn!("bans are not reported meanwhile: {error}");
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    };
    let sending = async {
        let mut pause = AGAIN_AFTER;
        loop {
            let alerts: Vec<Alert> = queue.borrow().waiting.iter().take(AT_ONCE).cloned().collect();
            if alerts.is_empty() {
                more.notified().await;
                continue;
            }
            let lost_before = queue.borrow().lost;
            let sent = reporter.send(&alerts).await;
            let is_done = match &sent {
                Ok(()) => {
                    tracing::info!("{} reported to CrowdSec", ban_words(alerts.len()));
                    true
                }
                // The API rejects these alerts. A retry would fail too.
                Err(ClientError::Status(status @ 400..=499, why)) if *status != 429 => {
                    tracing::warn!("{} rejected by CrowdSec: HTTP {status}: {why}", ban_words(alerts.len()));
                    true
                }
                Err(error) => {
                    tracing::warn!("{} not reported to CrowdSec yet: {error}", ban_words(alerts.len()));
                    false
                }
            };
            if is_done {
                let mut queue = queue.borrow_mut();
                // The full queue may have dropped some of the alerts that were just sent.
                let gone = usize::try_from(queue.lost - lost_before).unwrap_or(usize::MAX);
                let done = alerts.len().saturating_sub(gone).min(queue.waiting.len());
                queue.waiting.drain(..done);
                pause = AGAIN_AFTER;
            } else {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(AGAIN_AFTER_MAX);
            }
        }
    };
    let _: (std::convert::Infallible, std::convert::Infallible) = tokio::join!(following, sending);
}

fn ban_words(count: usize) -> String {
    if count == 1 { "1 ban is".to_owned() } else { format!("{count} bans are") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ban(source: &str, second: i64) -> Event {
        Event {
            source: Some(source.to_owned()),
            rule: Some("login".to_owned()),
            limit: Some("10/1m requests".to_owned()),
            used: Some(12),
            ..Event::new(Timestamp::from_second(second).unwrap(), EventKind::Ban, "banned".to_owned())
        }
    }

    #[test]
    fn an_alert_has_what_the_local_api_requires_and_no_decision() {
        let json = serde_json::to_value(alert(&ban("198.51.100.7", 9)).unwrap()).unwrap();
        let expected = serde_json::json!({
            "scenario": "ratelimitd/login", "scenario_hash": "", "scenario_version": env!("CARGO_PKG_VERSION"),
            "message": "banned", "events_count": 12, "start_at": "1970-01-01T00:00:09Z", "stop_at": "1970-01-01T00:00:09Z",
            "capacity": 10, "leakspeed": "1m", "simulated": false, "remediation": true, "events": [],
            "source": { "scope": "Ip", "value": "198.51.100.7", "ip": "198.51.100.7" },
        });
        assert_eq!(json, expected);
        let range = serde_json::to_value(alert(&ban("2001:db8:1:2::/64", 9)).unwrap().source).unwrap();
        assert_eq!(
            range,
            serde_json::json!({ "scope": "Range", "value": "2001:db8:1:2::/64", "range": "2001:db8:1:2::/64" })
        );
    }

    #[test]
    fn only_bans_of_this_host_are_told() {
        assert_eq!(alert(&Event { kind: EventKind::Deny, ..ban("198.51.100.7", 9) }), None);
        assert_eq!(alert(&Event { by: Some("fleet (other)".to_owned()), ..ban("198.51.100.7", 9) }), None);
        assert_eq!(alert(&Event { source: None, ..ban("198.51.100.7", 9) }), None);
    }

    #[test]
    fn a_ban_is_told_once_and_not_where_crowdsec_denies_it() {
        let mut queue = Queue::default();
        let denied: IpNet = "203.0.113.0/24".parse().unwrap();
        for (source, second) in [
            ("198.51.100.7", 9),
            ("198.51.100.7", 9),
            ("198.51.100.8", 9),
            ("198.51.100.9", 8),
            ("203.0.113.1", 10),
            ("198.51.100.7", 20),
        ] {
            queue.take(&ban(source, second), |prefix| denied.contains(prefix));
        }
        let told: Vec<String> = queue.waiting.iter().map(|of| of.source.value.clone()).collect();
        assert_eq!(told, ["198.51.100.7", "198.51.100.8", "198.51.100.7"]);
        (21..2_021).for_each(|second| queue.take(&ban("198.51.100.7", second), |_| false));
        assert_eq!((queue.waiting.len(), queue.lost), (WAITING_MAX, 1_003));
    }

    #[test]
    fn credentials_read_as_cscli_writes_them() {
        let text = "url: http://127.0.0.1:8080\nlogin: ratelimitd\npassword: \"a: b'\"\n";
        assert_eq!(Machine::read(text), Some(Machine { login: "ratelimitd".into(), password: "a: b'".into() }));
        for text in ["", "login: a", "password: b", "login:\npassword: b"] {
            assert_eq!(Machine::read(text), None, "{text}");
        }
        assert!(!format!("{:?}", Machine::read("login: a\npassword: secret")).contains("secret"));
    }
}
