//! VLAN tags on the wire that the stacks at its ends do not see, as with VLAN devices, for kernels without those.

use anyhow::Result;

use crate::bpffs::Bpffs;
use crate::namespace::Namespace;
use crate::program::{EXIT, Instruction, Kind};

/// `r0 = TC_ACT_OK`
const OK: Instruction = [0xb7, 0, 0, 0, 0, 0, 0, 0];
/// `r0 = TC_ACT_SHOT`, a verdict
const DROP: Instruction = [0xb7, 0, 0, 0, 2, 0, 0, 0];
/// `r2 = htons(ETH_P_8021Q)`, the protocol of a tag
const KIND: Instruction = [0xb7, 2, 0, 0, 0x81, 0, 0, 0];
/// `call bpf_skb_vlan_push`, of a packet in `r1`, a tag's kind in `r2` and its number in `r3`
const PUSH: Instruction = [0x85, 0, 0, 0, 18, 0, 0, 0];
/// `r2 = vlan_present`, of a packet in `r1`
const IS_TAGGED: Instruction = [0x61, 0x12, 20, 0, 0, 0, 0, 0];
/// Skips three instructions if `r2` is 0.
const UNLESS: Instruction = [0x15, 2, 3, 0, 0, 0, 0, 0];
/// `call bpf_skb_vlan_pop`, of a packet in `r1`
const POP: Instruction = [0x85, 0, 0, 0, 19, 0, 0, 0];
const TAKE_OFF: [Instruction; 7] = [IS_TAGGED, UNLESS, POP, OK, EXIT, DROP, EXIT];

/// Tags every frame that this interface sends, within the frame's bytes, with this VLAN number (1 to 255). Removes the
/// tag of each incoming frame after programs at XDP and TCX have seen it, and drops incoming frames without a tag. The
/// interface at the other end must be set up likewise.
///
/// # Errors
/// Fails if `tc` or `ethtool` fails.
pub fn behind_a_tag(namespace: &Namespace, bpffs: &Bpffs, interface: &str, number: u8) -> Result<()> {
    let number_of_tag = [0xb7, 3, 0, 0, number, 0, 0, 0];
    // With `txvlan` on, the tag would travel outside the frame's bytes.
    namespace.must(&["ethtool", "-K", interface, "txvlan", "off"])?;
    namespace.must(&["tc", "qdisc", "add", "dev", interface, "clsact"])?;
    let put_on = [KIND, number_of_tag, PUSH, OK, EXIT];
    for (way, instructions) in [("egress", &put_on[..]), ("ingress", &TAKE_OFF)] {
        let program = bpffs.pin_program(&format!("{interface}-{way}"), Kind::Classifier, 0, instructions)?;
        let program = program.to_string_lossy();
        let place = ["dev", interface, way];
        let filter = ["bpf", "direct-action", "object-pinned", &program];
        namespace.must(&[&["tc", "filter", "add"][..], &place, &filter].concat())?;
    }
    Ok(())
}
