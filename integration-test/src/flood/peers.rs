//! The other limiters, each with its rules as its manual has them, and whatever is left dropped right behind: so the verdict is
//! measured and not the stack behind it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use netlab::Namespace;
use serde_json::Value;

use super::receiver::{Counts, Kind};
use super::rows::{PORT, Packet, Row};
use super::wire::{Family, RECEIVING};

/// Sources that each has room for.
const ELEMENTS_MAX: u32 = 1 << 20;

/// Why one cannot be measured here, and what would help; none where it can.
pub fn obstacle(kind: Kind) -> Option<String> {
    let (program, package) = match kind {
        Kind::Bare | Kind::Limiter => return None,
        Kind::NftDrop | Kind::NftMeter => ("nft", "nftables"),
        Kind::Hashlimit => ("iptables", "iptables"),
    };
    let is_there = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    (!is_there).then(|| format!("there is no {program}: install {package}"))
}

/// What a program calls itself.
pub fn version(kind: Kind) -> Option<String> {
    let program = match kind {
        Kind::Bare | Kind::Limiter | Kind::NftDrop => return None,
        Kind::NftMeter => "nft",
        Kind::Hashlimit => "iptables",
    };
    let output = Command::new(program).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A table of nftables in a namespace, taken out on drop.
struct Table<'a>(&'a Namespace);

impl<'a> Table<'a> {
    fn load(namespace: &'a Namespace, rules: &str) -> Result<Self> {
        let interface = RECEIVING[0];
        let script = format!(
            "table netdev flood {{\n{rules}\n}}\n",
            rules = rules.replace(
                "INGRESS",
                &format!("type filter hook ingress device \"{interface}\" priority 0; policy drop;")
            )
        );
        let table = Self(namespace);
        feed(namespace.command("nft").args(["-f", "-"]), &script)?;
        Ok(table)
    }

    fn counts(&self) -> Result<Counts> {
        let output = self.0.run(&["nft", "-j", "list", "counters", "table", "netdev", "flood"])?;
        ensure!(output.status.success(), "nft list counters: {}", output.stderr.trim());
        let listed: Value = serde_json::from_str(&output.stdout).context("read what nft lists")?;
        let counter = |name: &str| {
            let all = listed["nftables"].as_array()?;
            all.iter().find(|object| object["counter"]["name"] == name)?["counter"]["packets"].as_u64()
        };
        let over = counter("over").context("nft lists no counter `over`")?;
        Ok(Counts { over, within: counter("within").unwrap_or(0), ..Counts::default() })
    }
}

impl Drop for Table<'_> {
    fn drop(&mut self) {
        // It goes with its namespace at the latest.
        let _gone = self.0.run(&["nft", "delete", "table", "netdev", "flood"]);
    }
}

/// nftables, which drops everything at ingress.
pub struct NftDrop<'a>(Table<'a>);

impl<'a> NftDrop<'a> {
    /// Loads it.
    pub fn load(namespace: &'a Namespace) -> Result<Self> {
        let rules = "counter over { }\nchain ingress { INGRESS\n counter name over drop\n}";
        Ok(Self(Table::load(namespace, rules)?))
    }

    /// Its counters.
    pub fn counts(&self) -> Result<Counts> {
        self.0.counts()
    }
}

/// nftables, with a dynamic set whose elements have a limit each, at ingress.
pub struct NftMeter<'a>(Table<'a>);

impl<'a> NftMeter<'a> {
    /// Loads it, for so many packets an hour of each source.
    pub fn load(namespace: &'a Namespace, row: &Row, amount: u64) -> Result<Self> {
        let (kind, source) = match row.family() {
            Family::V4 => ("ipv4_addr", "ip saddr"),
            Family::V6 => ("ipv6_addr", "ip6 saddr & ffff:ffff:ffff:ffff::"),
        };
        let protocol = protocol(row);
        let rules = format!(
            "counter over {{ }}\ncounter within {{ }}\n\
             set sources {{ type {kind}; size {ELEMENTS_MAX}; flags dynamic, timeout; timeout 1h; }}\n\
             chain ingress {{ INGRESS\n \
             {protocol} dport {PORT} update @sources {{ {source} limit rate over {amount}/hour burst {burst} packets }} \
             counter name over drop\n counter name within drop\n}}",
            burst = burst(amount),
        );
        Ok(Self(Table::load(namespace, &rules)?))
    }

    /// Its counters.
    pub fn counts(&self) -> Result<Counts> {
        self.0.counts()
    }
}

/// iptables, with hashlimit in the raw table, the first that a packet comes to. Taken out on drop.
pub struct Hashlimit<'a> {
    namespace: &'a Namespace,
    program: &'static str,
}

impl<'a> Hashlimit<'a> {
    /// Loads it, for so many packets an hour of each source.
    pub fn load(namespace: &'a Namespace, row: &Row, amount: u64) -> Result<Self> {
        let (program, prefix) = match row.family() {
            Family::V4 => ("iptables", "32"),
            Family::V6 => ("ip6tables", "64"),
        };
        let hashlimit = Self { namespace, program };
        let rule = format!(
            "-A PREROUTING -i {interface} -p {protocol} --dport {PORT} -m hashlimit --hashlimit-name flood \
             --hashlimit-mode srcip --hashlimit-srcmask {prefix} --hashlimit-above {amount}/hour --hashlimit-burst {burst} \
             --hashlimit-htable-size {buckets} --hashlimit-htable-max {ELEMENTS_MAX} --hashlimit-htable-expire 3600000 -j DROP",
            interface = RECEIVING[0],
            protocol = protocol(row),
            burst = burst(amount),
            buckets = ELEMENTS_MAX / 4,
        );
        hashlimit.raw(&rule.split_whitespace().collect::<Vec<_>>())?;
        hashlimit.raw(&["-A", "PREROUTING", "-i", RECEIVING[0], "-j", "DROP"])?;
        Ok(hashlimit)
    }

    /// The counters of its two rules.
    pub fn counts(&self) -> Result<Counts> {
        let listed = self.raw(&["-L", "PREROUTING", "-v", "-n", "-x"])?;
        // A line for the chain and one for the columns' names come first.
        let packets = listed.lines().skip(2).map(|line| line.split_whitespace().next()?.parse().ok());
        let packets: Option<Vec<u64>> = packets.collect();
        let [over, within] = packets.context("read what iptables lists")?[..] else {
            bail!("not two rules:\n{listed}")
        };
        Ok(Counts { over, within, ..Counts::default() })
    }

    fn raw(&self, arguments: &[&str]) -> Result<String> {
        let output = self.namespace.run(&[&[self.program, "-w", "-t", "raw"], arguments].concat())?;
        ensure!(output.status.success(), "{} {}: {}", self.program, arguments.join(" "), output.stderr.trim());
        Ok(output.stdout)
    }
}

impl Drop for Hashlimit<'_> {
    fn drop(&mut self) {
        // It goes with its namespace at the latest.
        let _gone = self.raw(&["-F", "PREROUTING"]);
    }
}

/// As much as the limit at once, as the limiter allows too; both programs end at about a million.
fn burst(amount: u64) -> u64 {
    amount.clamp(1, 1_000_000)
}

fn protocol(row: &Row) -> &'static str {
    match row.packet {
        Packet::Syn | Packet::Data => "tcp",
        Packet::Datagram => "udp",
    }
}

fn feed(command: &mut Command, text: &str) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("start {name}"))?;
    child.stdin.take().context("standard input is piped")?.write_all(text.as_bytes()).context("write the rules")?;
    let output = child.wait_with_output().context("wait for it")?;
    ensure!(output.status.success(), "nft: {}\n{text}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
