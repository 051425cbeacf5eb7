//! Clients in a network namespace of their own, and what is held of their packets.
//!
//! The client's address is decided by the one that it asks: 198.51.100.N is asked from 198.51.100.(N + 100).

use std::process::Child;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::stage::{Stage, json, number};

/// How many requests the configuration of the rows admits, in a window longer than all rows together.
pub(super) const LIMIT: u64 = 20;
pub(super) const LIMITS: &str = r#"limits = ["20/10m"]"#;
/// So many clients there are; each row that enforces takes one that no other row has.
const CLIENTS: u8 = 20;
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// A source of its own.
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

/// The web server's end is web0, the clients' c0.
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
    /// A client that has sent nothing yet gets exactly what the limit admits.
    pub(super) fn is_limited(&mut self, client: Client) -> Result<()> {
        let admitted = self.answered(client, LIMIT, Patience::Enough)?;
        let more = self.answered(client, 3, Patience::Little)?;
        self.say(&format!("{}: {admitted} of {LIMIT} requests answered, then {more} of 3", client.address()));
        ensure!((admitted, more) == (LIMIT, 0), "the limit is {LIMIT}");
        Ok(())
    }

    /// A client over its limit gets nothing.
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

    /// Datagrams to port 80, for as long as this file is there and 60 s at most; returns once they are over the limit. What
    /// proves no connection has a window of its own.
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

    /// Says how many came past the filter that are over the limit.
    pub(super) fn end_flood(&mut self, mut flood: Flood) -> Result<u64> {
        self.ask("rm -f /run/flood")?;
        flood.child.wait().context("wait for the flood")?;
        let unfiltered = self.datagrams_passed()?.saturating_sub(flood.passed);
        self.say(&format!("{unfiltered} datagrams over the limit were not filtered"));
        Ok(unfiltered)
    }

    /// Datagrams that came past the filter: nothing listens on the port.
    fn datagrams_passed(&self) -> Result<u64> {
        let line = "awk '/^Udp:/ && $3 ~ /^[0-9]+$/ { print $3 }' /proc/net/snmp";
        self.ask(line)?.parse().context("read /proc/net/snmp")
    }

    /// From now on every packet of the clients is held to be received by the filter.
    pub(super) fn begin_to_count(&mut self) -> Result<()> {
        let mut last = self.sent_and_not_received()?;
        self.quiet(|stage| {
            let before = std::mem::replace(&mut last, stage.sent_and_not_received()?);
            Ok(before == last)
        })?;
        self.unfiltered = last;
        Ok(())
    }

    /// Neither did a packet come past the filter, nor was a count lost: what the clients sent since is what it counted.
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

    /// The order counts: what is sent between the two readings must not look received.
    fn sent_and_not_received(&self) -> Result<u64> {
        let received = self.number("/interfaces/0/packets/received")?;
        let links = json(&self.ask("ip -netns clients -json -statistics link show dev c0")?)?;
        let sent = number(&links, "/0/stats64/tx/packets")?;
        Ok(sent.saturating_sub(received))
    }
}

/// One that is under way.
pub(super) struct Flood {
    child: Child,
    /// What will have passed when it ends, if it is held to the limit.
    passed: u64,
}

/// How long an answer is waited for.
#[derive(Clone, Copy)]
enum Patience {
    /// One must come.
    Enough,
    /// None should; all are asked for at a time.
    Little,
}
