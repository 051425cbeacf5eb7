//! Tests of other programs on the benchmark's receiving end: when they count as ready, and what they leave behind.

use integration_test::flood::outside::{Outside, Running};
use integration_test::flood::wire::{Family, RECEIVING, Wire};
use netlab::{Bpffs, needs_root};

fn outside(command: &str) -> Outside {
    Outside { name: "theirs".into(), command: command.into() }
}

#[test]
fn a_receiver_is_ready_once_it_says_so_or_has_ended_well_and_not_when_it_fails() {
    needs_root!(Outside::obstacle());
    let wire = Wire::new(Family::V4, 1).unwrap();
    for command in
        ["echo starting >&2; sleep 0.2; echo now ready >&2; sleep 60", "ip link show {iface} && test $IFACE = s0"]
    {
        Running::start(&outside(command), &wire.receiver).unwrap().end().unwrap();
    }
    let refused = Running::start(&outside("echo no such thing >&2; exit 3"), &wire.receiver).map(|_| ()).unwrap_err();
    assert!(format!("{refused:#}").contains("no such thing"), "{refused:#}");
}

#[test]
fn a_receiver_that_attaches_a_program_is_ready_with_it_and_gone_with_it() {
    needs_root!(Outside::obstacle());
    let (wire, bpffs) = (Wire::new(Family::V4, 1).unwrap(), Bpffs::mount().unwrap());
    let pinned = bpffs.pin_passing_program("theirs").unwrap();
    let attach = format!("ip link set dev {{iface}} xdpdrv pinned {}; sleep 60", pinned.display());
    let has_program = || wire.receiver.ip(&["link", "show", "dev", RECEIVING[0]]).unwrap().contains("xdp");
    let running = Running::start(&outside(&attach), &wire.receiver).unwrap();
    assert!(has_program());
    running.end().unwrap();
    assert!(!has_program());
}
