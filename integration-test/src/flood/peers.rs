//! The other limiters, with rules as their manuals recommend. Packets that they pass are dropped right behind them, so
//! that the verdict is measured and not the network stack.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use netlab::Namespace;
use serde_json::Value;

use super::outside::Outside;
use super::receiver::{Counts, Kind};
use super::rows::{PORT, Packet, Row};
use super::wire::{Family, RECEIVING};

/// Maximum number of sources that each limiter can hold.
const ELEMENTS_MAX: u32 = 1 << 20;

/// Returns the reason why a receiver cannot be measured here and what would help, or `None`.
pub fn obstacle(kind: Kind) -> Option<String> {
    let (program, package) = match kind {
        Kind::Bare | Kind::Limiter => return None,
        Kind::LimiterTcx => {
            return (!ratelimit_kernel::has_tcx()).then(|| "the kernel has no TCX: Linux 6.6 has".to_owned());
        }
        Kind::Outside(_) => return Outside::obstacle(),
        Kind::NftDrop | Kind::NftMeter => ("nft", "nftables"),
        Kind::IptablesDrop | Kind::Hashlimit => ("iptables", "iptables"),
    };
    let is_there = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    (!is_there).then(|| format!("there is no {program}: install {package}"))
}

/// Returns the version of the receiver's program, if it has one.
pub fn version(kind: Kind) -> Option<String> {
    let program = match kind {
        Kind::Bare | Kind::Limiter | Kind::LimiterTcx | Kind::NftDrop | Kind::IptablesDrop | Kind::Outside(_) => {
            return None;
        }
        Kind::NftMeter => "nft",
        Kind::Hashlimit => "iptables",
    };
    let output = Command::new(program).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Last chain at ingress, for packets that no earlier chain has dropped. It has its own table, because nft reads all
/// set elements of a table before it lists anything, which takes minutes.
const BEHIND: &str = "table netdev behind {
    chain ingress { type filter hook ingress device \"INTERFACE\" priority 10; policy drop; counter drop; }
}";

/// Tables of nftables in a namespace, removed on drop.
pub struct Tables<'a>(&'a Namespace);

impl<'a> Tables<'a> {
    /// Loads the last chain and, before it, the tables `before`.
    pub fn load(namespace: &'a Namespace, before: &str) -> Result<Self> {
        let script = format!("{before}\n{BEHIND}\n").replace("INTERFACE", RECEIVING[0]);
        let tables = Self(namespace);
        feed(namespace.command("nft").args(["-f", "-"]), &script)?;
        Ok(tables)
    }

    /// Returns the number of packets that reached the last chain.
    pub fn behind(&self) -> Result<u64> {
        let output = self.0.run(&["nft", "-j", "list", "chain", "netdev", "behind", "ingress"])?;
        ensure!(output.status.success(), "nft list chain: {}", output.stderr.trim());
        let listed: Value = serde_json::from_str(&output.stdout).context("read what nft lists")?;
        let rule = listed["nftables"].as_array().and_then(|all| all.iter().find_map(|object| object.get("rule")));
        let counter = rule.and_then(|rule| rule["expr"].as_array()?.iter().find_map(|part| part.get("counter")));
        counter.and_then(|counter| counter["packets"].as_u64()).context("nft lists no counter")
    }
}

impl Drop for Tables<'_> {
    fn drop(&mut self) {
        // The tables go with their namespace at the latest.
        let _gone = self.0.run(&["nft", "flush", "ruleset"]);
    }
}

/// nftables with a chain at ingress that drops everything.
pub struct NftDrop<'a>(Tables<'a>);

impl<'a> NftDrop<'a> {
    /// Loads the chain that drops everything.
    pub fn load(namespace: &'a Namespace) -> Result<Self> {
        Ok(Self(Tables::load(namespace, "")?))
    }

    /// Returns the number of packets dropped.
    pub fn dropped(&self) -> Result<u64> {
        self.0.behind()
    }
}

/// nftables at ingress with a dynamic set, in which each element has its own limit.
pub struct NftMeter<'a>(Tables<'a>);

impl<'a> NftMeter<'a> {
    /// Loads the set with a limit of `amount` packets per hour and source.
    pub fn load(namespace: &'a Namespace, row: &Row, amount: u64) -> Result<Self> {
        let (kind, source) = match row.family() {
            Family::V4 => ("ipv4_addr", "ip saddr"),
            Family::V6 => ("ipv6_addr", "ip6 saddr & ffff:ffff:ffff:ffff::"),
        };
        let rules = format!(
            "table netdev flood {{\n\
             set sources {{ type {kind}; size {ELEMENTS_MAX}; flags dynamic, timeout; timeout 1h; }}\n\
             chain ingress {{ type filter hook ingress device \"INTERFACE\" priority 0; policy accept;\n\
             {protocol} dport {PORT} update @sources {{ {source} limit rate over {amount}/hour burst {burst} packets }} drop\n\
             }}\n}}",
            protocol = protocol(row),
            burst = burst(amount),
        );
        Ok(Self(Tables::load(namespace, &rules)?))
    }

    /// Returns the number of packets within their limit. The others were dropped.
    pub fn within(&self) -> Result<u64> {
        self.0.behind()
    }
}

/// The raw table of iptables, the first one that a packet reaches, in a namespace. Its rules are removed on drop.
struct RawTable<'a> {
    namespace: &'a Namespace,
    program: &'static str,
}

impl<'a> RawTable<'a> {
    const fn of(namespace: &'a Namespace, row: &Row) -> Self {
        let program = if row.sources.first.is_ipv4() { "iptables" } else { "ip6tables" };
        Self { namespace, program }
    }

    fn run(&self, arguments: &[&str]) -> Result<String> {
        let output = self.namespace.run(&[&[self.program, "-w", "-t", "raw"], arguments].concat())?;
        ensure!(output.status.success(), "{} {}: {}", self.program, arguments.join(" "), output.stderr.trim());
        Ok(output.stdout)
    }

    /// Adds the last rule, which drops every packet that reaches it.
    fn drop_the_rest(&self) -> Result<()> {
        self.run(&["-A", "PREROUTING", "-i", RECEIVING[0], "-j", "DROP"]).map(|_| ())
    }

    /// Returns the number of packets that each rule matched.
    fn packets<const RULES: usize>(&self) -> Result<[u64; RULES]> {
        let listed = self.run(&["-L", "PREROUTING", "-v", "-n", "-x"])?;
        // Skips the lines with the chain and with the column names.
        let packets = listed.lines().skip(2).map(|line| line.split_whitespace().next()?.parse().ok());
        let packets: Option<Vec<u64>> = packets.collect();
        let packets: Result<[u64; RULES], _> = packets.context("read what iptables lists")?.try_into();
        packets.ok().with_context(|| format!("not {RULES} rules:\n{listed}"))
    }
}

impl Drop for RawTable<'_> {
    fn drop(&mut self) {
        // The rules go with their namespace at the latest.
        let _gone = self.run(&["-F", "PREROUTING"]);
    }
}

/// iptables with one rule in the raw table that drops everything.
pub struct IptablesDrop<'a>(RawTable<'a>);

impl<'a> IptablesDrop<'a> {
    /// Loads the rule that drops everything.
    pub fn load(namespace: &'a Namespace, row: &Row) -> Result<Self> {
        let table = RawTable::of(namespace, row);
        table.drop_the_rest()?;
        Ok(Self(table))
    }

    /// Returns the number of packets dropped.
    pub fn dropped(&self) -> Result<u64> {
        let [dropped] = self.0.packets()?;
        Ok(dropped)
    }
}

/// iptables with hashlimit in the raw table.
pub struct Hashlimit<'a>(RawTable<'a>);

impl<'a> Hashlimit<'a> {
    /// Loads hashlimit with a limit of `amount` packets per hour and source.
    pub fn load(namespace: &'a Namespace, row: &Row, amount: u64) -> Result<Self> {
        let prefix = match row.family() {
            Family::V4 => "32",
            Family::V6 => "64",
        };
        let table = RawTable::of(namespace, row);
        let rule = format!(
            "-A PREROUTING -i {interface} -p {protocol} --dport {PORT} -m hashlimit --hashlimit-name flood \
             --hashlimit-mode srcip --hashlimit-srcmask {prefix} --hashlimit-above {amount}/hour --hashlimit-burst {burst} \
             --hashlimit-htable-size {buckets} --hashlimit-htable-max {ELEMENTS_MAX} --hashlimit-htable-expire 3600000 -j DROP",
            interface = RECEIVING[0],
            protocol = protocol(row),
            burst = burst(amount),
            buckets = ELEMENTS_MAX / 4,
        );
        table.run(&rule.split_whitespace().collect::<Vec<_>>())?;
        table.drop_the_rest()?;
        Ok(Self(table))
    }

    /// Returns the counters of both rules.
    pub fn counts(&self) -> Result<Counts> {
        let [over, within] = self.0.packets()?;
        Ok(Counts { over, within, passed: within, ..Counts::default() })
    }
}

/// Returns the burst: the whole limit at once, as the limiter allows it. Both programs support about a million.
fn burst(amount: u64) -> u64 {
    amount.clamp(1, 1_000_000)
}

fn protocol(row: &Row) -> &'static str {
    match row.packet {
        Packet::Syn | Packet::Data => "tcp",
        Packet::Datagram => "udp",
    }
}

/// Runs a command that must succeed, with `text` as its standard input.
pub fn feed(command: &mut Command, text: &str) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("start {name}"))?;
    child.stdin.take().context("standard input is piped")?.write_all(text.as_bytes()).context("write the rules")?;
    let output = child.wait_with_output().context("wait for it")?;
    ensure!(output.status.success(), "{name}: {}\n{text}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
