//! Table of interfaces: the attachment of the program, and the received packets.

use super::columns::{Column, fitting};
use super::{counted, number};
use crate::short;
use ratelimit_report::snapshot::{Hook, Interface, Snapshot, XdpMode};

/// Maximum number of interfaces on a bounded screen.
const SHOWN_MAX: usize = 4;

/// Returns the lines of the table.
pub(super) fn lines(snapshot: &Snapshot, width: usize, rows: usize) -> Vec<String> {
    let all = snapshot.interfaces.as_slice();
    let shown = if rows == usize::MAX { all } else { all.get(..SHOWN_MAX).unwrap_or(all) };
    let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), whole);
    let begin = |attached: fn(&Interface) -> &'static str| {
        vec![
            Column::left("INTERFACE", shown, |of| of.name.clone()),
            Column::left("XDP", shown, move |of| attached(of).to_owned()),
            Column::right("PACKETS/S", shown, |of| rate(of.per_second.map(|rates| rates.received))),
            Column::right("DROPPED/S", shown, |of| rate(of.per_second.map(|rates| rates.dropped))),
        ]
    };
    let full = || {
        let mut columns = begin(attachment);
        columns.extend([
            Column::right("RECEIVED", shown, |of| number(of.packets.received)),
            Column::right("PASSED", shown, |of| number(of.packets.passed)),
            Column::right("DROPPED", shown, |of| number(of.packets.dropped)),
            Column::right("WOULD DROP", shown, |of| number(of.packets.would_drop)),
        ]);
        columns
    };
    let narrow = || {
        let mut columns = begin(attachment_short);
        columns.extend([
            Column::right("RECEIVED", shown, |of| short(of.packets.received)),
            Column::right("DROPPED", shown, |of| short(of.packets.dropped)),
            Column::right("WOULD DROP", shown, |of| short(of.packets.would_drop)),
        ]);
        columns
    };
    let mut out = fitting(&[&full, &narrow], width);
    if shown.len() < all.len() {
        let more = counted((all.len() - shown.len()) as u64, "more interface");
        out.push(format!("{more}: ratelimitd stats --all"));
    }
    out
}

/// Describes the attachment of the program to an interface.
pub const fn attachment(interface: &Interface) -> &'static str {
    match (interface.xdp_mode, interface.hook) {
        (Some(XdpMode::Native), _) => "native, in the driver",
        (Some(XdpMode::Generic), _) => "GENERIC, slow: behind the driver",
        (None, Some(Hook::Tcx)) => "by TCX, slower: in the stack",
        (None, Some(Hook::Xdp) | None) => "NOT ATTACHED: not protected",
    }
}

const fn attachment_short(interface: &Interface) -> &'static str {
    match (interface.xdp_mode, interface.hook) {
        (Some(XdpMode::Native), _) => "native",
        (Some(XdpMode::Generic), _) => "GENERIC",
        (None, Some(Hook::Tcx)) => "TCX",
        (None, Some(Hook::Xdp) | None) => "NONE",
    }
}

fn whole(rate: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and no rate is below 0")]
    let whole = rate.round() as u64;
    short(whole)
}
