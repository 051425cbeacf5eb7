//! Clients in a separate network namespace, and checks of their packets.
//!
//! The server address determines the client: 198.51.100.N is requested from 198.51.100.(N + 100).

use std::process::Child;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::stage::{Stage, json, number};

/// Number of requests that the rows' configuration admits. Its window is longer than all rows together.
pub(super) const LIMIT: u64 = 20;
pub(super) const LIMITS: &str = r#"limits = ["20/10m"]"#;
/// Number of clients. Each enforcing row uses a client of its own.
const CLIENTS: u8 = 20;
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// Client with its own source address.
#[derive(Clone, Copy)]
pub(super) struct Client(pub(super) u8);

impl Client {
    fn asks(self) -> String {
        format!("198.51.100.{}", self.0)
    }

    pub(super) fn address(self) -> String {
        format!("198.51.100.{}", self.0 + 100)
    }
}

/// Connects the clients to the web server. The server's interface is web0, the clients' is c0.
pub(super) fn connect(stage: &Stage<'_>) -> Result<()> {
    let mut lines = vec![
        "ip netns add clients".to_owned(),
        "ip link add web0 type veth peer name c0 netns clients".to_owned(),
        "ip link set web0 up".to_owned(),
        "ip -netns clients link set c0 up".to_owned(),
    ];
    for client in (1..=CLIENTS).map(Client) {
        let (server, own) = (client.asks(), client.address());
        lines.push(format!("ip address add {server}/24 dev web0"));
        lines.push(format!("ip -netns clients address add {own}/24 dev c0"));
        lines.push(format!("ip -netns clients route add {server}/32 dev c0 src {own}"));
    }
    stage.ask(&lines.join(" && ")).map(drop)
}

impl Stage<'_> {
    /// Checks that a client without earlier requests gets exactly the limit.
    pub(super) fn is_limited(&mut self, client: Client) -> Result<()> {
        let admitted = self.answered(client, LIMIT, Patience::Enough)?;
        let more = self.answered(client, 3, Patience::Little)?;
        self.say(&format!("{}: {admitted} of {LIMIT} requests answered, then {more} of 3", client.address()));
        ensure!((admitted, more) == (LIMIT, 0), "the limit is {LIMIT}");
        Ok(())
    }

    /// Checks that a client over its limit gets no answer.
    pub(super) fn is_refused(&mut self, client: Client) -> Result<()> {
        let more = self.answered(client, 2, Patience::Little)?;
        self.say(&format!("{}, over its limit: {more} of 2 requests answered", client.address()));
        ensure!(more == 0, "a client over its limit was answered");
        Ok(())
    }

    pub(super) fn is_served(&mut self, client: Client, count: u64) -> Result<()> {
        let answered = self.answered(client, count, Patience::Enough)?;
        self.say(&format!("{}: {answered} of {count} requests answered", client.address()));
        ensure!(answered == count, "a request was not answered");
        Ok(())
    }

    fn answered(&self, client: Client, count: u64, patience: Patience) -> Result<u64> {
        let url = format!("http://{}/", client.asks());
        let curl = |seconds: f32| format!("curl -s -o /dev/null -w '%{{http_code}}\\n' --max-time {seconds} {url}");
        let line = match patience {
            Patience::Enough => format!("for i in $(seq {count}); do {} || break; done", curl(10.0)),
            Patience::Little => format!("for i in $(seq {count}); do {} & done; wait", curl(0.7)),
        };
        let said = self.ask(&format!("ip netns exec clients sh -c \"{}\"", line.replace('$', "\\$")))?;
        Ok(said.lines().filter(|line| *line == "200").count() as u64)
    }

    /// Starts a flood of datagrams to port 80, until /run/flood is removed or for at most 60 s. Returns once the flood
    /// is over the limit. Unverified traffic has its own window.
    pub(super) fn flood(&mut self, client: Client) -> Result<Flood> {
        let passed = self.datagrams_passed()? + LIMIT;
        self.ask("touch /run/flood")?;
        let send = format!(
            "exec 3>/dev/udp/{}/80; while [ -e /run/flood ]; do for i in 1 2 3 4 5 6 7 8 9 10; do echo x >&3; done; \
             sleep 0.004; done",
            client.asks()
        );
        let child = self.beside(&format!("ip netns exec clients timeout 60 bash -c '{send}'"))?;
        self.quiet(|stage| Ok(stage.datagrams_passed()? >= passed))?;
        self.say(&format!("a flood of datagrams from {}, {LIMIT} of them admitted", client.address()));
        Ok(Flood { child, passed })
    }

    /// Ends the flood. Returns the number of datagrams over the limit that were not filtered.
    pub(super) fn end_flood(&mut self, mut flood: Flood) -> Result<u64> {
        self.ask("rm -f /run/flood")?;
        flood.child.wait().context("wait for the flood")?;
        let unfiltered = self.datagrams_passed()?.saturating_sub(flood.passed);
        self.say(&format!("{unfiltered} datagrams over the limit were not filtered"));
        Ok(unfiltered)
    }

    /// Returns the number of datagrams that passed the filter, as unreachable ones in the kernel's counters: no process
    /// listens on the port.
    fn datagrams_passed(&self) -> Result<u64> {
        let line = "awk '/^Udp:/ && $3 ~ /^[0-9]+$/ { print $3 }' /proc/net/snmp";
        self.ask(line)?.parse().context("read /proc/net/snmp")
    }

    /// Starts the check that the filter receives every packet of the clients.
    pub(super) fn begin_to_count(&mut self) -> Result<()> {
        let mut last = self.sent_and_not_received()?;
        self.quiet(|stage| {
            let before = std::mem::replace(&mut last, stage.sent_and_not_received()?);
            Ok(before == last)
        })?;
        self.unfiltered = last;
        Ok(())
    }

    /// Checks that the filter counted every packet that the clients sent since [`Stage::begin_to_count`]. Fails if a
    /// packet bypassed the filter or a count was lost. Returns the count.
    pub(super) fn all_are_counted(&mut self) -> Result<u64> {
        let expected = self.unfiltered;
        self.quiet(|stage| Ok(stage.sent_and_not_received()? == expected)).with_context(|| {
            let found = self.sent_and_not_received().unwrap_or_default();
            format!("{} packets of the clients were not counted", i128::from(found) - i128::from(expected))
        })?;
        let received = self.number("/interfaces/0/packets/received")?;
        self.say(&format!("every packet that the clients sent was counted: {received}"));
        Ok(received)
    }

    fn quiet(&self, mut is_so: impl FnMut(&Self) -> Result<bool>) -> Result<()> {
        let start = std::time::Instant::now();
        while !is_so(self)? {
            ensure!(start.elapsed() < SETTLES_WITHIN, "no rest within {} s", SETTLES_WITHIN.as_secs());
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// Returns the number of sent packets that were not received. The received count is read first, so that packets
    /// sent between the readings do not look received.
    fn sent_and_not_received(&self) -> Result<u64> {
        let received = self.number("/interfaces/0/packets/received")?;
        let links = json(&self.ask("ip -netns clients -json -statistics link show dev c0")?)?;
        let sent = number(&links, "/0/stats64/tx/packets")?;
        Ok(sent.saturating_sub(received))
    }
}

/// Running flood.
pub(super) struct Flood {
    child: Child,
    /// Number of datagrams that have passed at its end if the limit holds.
    passed: u64,
}

/// Time to wait for an answer.
#[derive(Clone, Copy)]
enum Patience {
    /// The answer must come.
    Enough,
    /// No answer is expected. All requests run in parallel.
    Little,
}
