//! State and counters of one interface.

use std::time::Duration;

use ratelimit_common::layout::Tally;
use ratelimit_common::verdict::Reason;
use ratelimit_datapath::{Attachment, InterfaceReading, Tallies};
use ratelimit_policy::desired::Policy;

use super::{Counter, Interface, Outcome, Samples, Traffic};

/// Returns the state of an interface. `uptime` is the daemon's.
pub(super) fn interface(read: &InterfaceReading, policy: &Policy, samples: &Samples, uptime: Duration) -> Interface {
    let Traffic { packets, bytes } = Traffic::on(read);
    let ruled = policy.rules.iter().map(|rule| rule.name.as_str()).zip(&read.rules);
    let rows = ruled.chain([("", &read.unruled)]);
    Interface {
        name: read.name.clone(),
        hook: read.attached.map(Attachment::hook),
        xdp_mode: read.attached.and_then(Attachment::xdp_mode),
        xdp_holder: read.xdp_holder.clone(),
        attached: read.attached.is_some(),
        problem: None,
        packets,
        bytes,
        per_second: samples.rates(&read.name, packets, uptime),
        counters: rows.flat_map(|(rule, tallies)| counters(rule, tallies)).collect(),
    }
}

fn counters(rule: &str, tallies: &Tallies) -> Vec<Counter> {
    let of = |reason: &Reason| {
        let Tally { packets, bytes } = tallies.of(*reason);
        let verdict = Outcome::from(reason.action());
        Counter { rule: rule.to_owned(), verdict, reason: reason.label().to_owned(), packets, bytes }
    };
    Reason::ALL.iter().map(of).collect()
}
