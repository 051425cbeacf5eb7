//! The benchmark's sender: gives a frame the next source of a flood, and sends it over an interface. Run on live
//! frames (`BPF_PROG_TEST_RUN` with `BPF_F_TEST_XDP_LIVE_FRAMES`) between namespaces of the benchmark's own; it is
//! never attached.
//!
//! `advance` is for a program that is timed alone: it makes the frame the next segment of its connection, and has the
//! program run behind it.
//!
//! What a frame says besides its source is in the frame that it is run on. The globals are set at load, so the
//! verifier takes out what a flood does not need.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod object;

#[cfg(target_arch = "bpf")]
#[expect(clippy::cast_possible_truncation, reason = "words are taken apart")]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "the fields of one header")]
mod entry {
    use aya_ebpf::Global;
    use aya_ebpf::bindings::xdp_action::XDP_ABORTED;
    use aya_ebpf::helpers::generated::bpf_redirect;
    use aya_ebpf::macros::{map, xdp};
    use aya_ebpf::maps::{Array, ProgramArray};
    use aya_ebpf::programs::XdpContext;

    /// Where the flood's sources are taken from a table: entries, a power of two.
    const PICKS_LEN: u32 = 65_536;
    /// Connections that a flood may be of.
    const CONNECTIONS_LEN: u32 = 1024;
    const ETHERNET_LEN: usize = 14;
    const IPV4_LEN: usize = 20;
    const TCP_LEN: usize = 20;
    const RECORD_HEADER_LEN: usize = 5;
    /// Headers of Ethernet, IPv4 and TCP, and two bytes; the loader has it too.
    const HEADERS_LEN: usize = 56;
    /// What a record's payload is filled with, and what begins one in 16 segments of it: of encrypted bytes as many
    /// begin with four below 128.
    const FILLING: u8 = 0xd5;
    const FILLING_BELOW_128: u8 = 0x55;

    /// The interface that frames leave by.
    #[unsafe(no_mangle)]
    static INTERFACE: Global<u32> = Global::new(0);
    /// Whether the frame is IPv6, else IPv4.
    #[unsafe(no_mangle)]
    static IS_IPV6: Global<u8> = Global::new(0);
    /// Whether it is UDP, else TCP.
    #[unsafe(no_mangle)]
    static IS_UDP: Global<u8> = Global::new(0);
    /// Whether sources are picked by the table.
    #[unsafe(no_mangle)]
    static IS_PICKED: Global<u8> = Global::new(0);
    /// Sums of what the checksums cover, without the source's address and port: IPv4's header, and the segment or
    /// datagram.
    #[unsafe(no_mangle)]
    static HEADER_SUM: Global<u32> = Global::new(0);
    #[unsafe(no_mangle)]
    static PAYLOAD_SUM: Global<u32> = Global::new(0);
    /// The first source's address, in host order; of IPv4 in the low half.
    #[unsafe(no_mangle)]
    static BASE_HIGH: Global<u64> = Global::new(0);
    #[unsafe(no_mangle)]
    static BASE_LOW: Global<u64> = Global::new(0);
    /// The sources' numbers less one, a run of ones, and half their length in bits.
    #[unsafe(no_mangle)]
    static MASK: Global<u32> = Global::new(0);
    #[unsafe(no_mangle)]
    static HALF_BITS: Global<u32> = Global::new(0);
    /// Whether a source's number counts IPv6 prefixes of 64 bits, else addresses.
    #[unsafe(no_mangle)]
    static IS_OF_PREFIXES: Global<u8> = Global::new(0);
    /// Whether every other frame is of another, small set of sources: their first address, and their number less one.
    #[unsafe(no_mangle)]
    static IS_MIXED: Global<u8> = Global::new(0);
    #[unsafe(no_mangle)]
    static OTHERS_BASE_HIGH: Global<u64> = Global::new(0);
    #[unsafe(no_mangle)]
    static OTHERS_BASE_LOW: Global<u64> = Global::new(0);
    #[unsafe(no_mangle)]
    static OTHERS_MASK: Global<u32> = Global::new(0);

    /// Whether all frames are of the connections in the table, over IPv4, in turn; `MASK` is their number less one.
    #[unsafe(no_mangle)]
    static IS_OF_CONNECTIONS: Global<u8> = Global::new(0);
    /// Their number is 2 to the power of this.
    #[unsafe(no_mangle)]
    static CONNECTIONS_BITS: Global<u32> = Global::new(0);
    /// By how much a connection's sequence number is more in its next segment.
    #[unsafe(no_mangle)]
    static STEP: Global<u32> = Global::new(0);
    /// Whether the receiver makes answers of the frames, so that each is written anew.
    #[unsafe(no_mangle)]
    static IS_ANSWERED: Global<u8> = Global::new(0);
    /// Of `advance`: the sequence number of the first segment; segments in a TLS record, 0 where there are none; its
    /// length.
    #[unsafe(no_mangle)]
    static SEQUENCE: Global<u32> = Global::new(0);
    #[unsafe(no_mangle)]
    static RECORD_SEGMENTS: Global<u32> = Global::new(0);
    #[unsafe(no_mangle)]
    static RECORD_LEN: Global<u32> = Global::new(0);

    /// Frames so far. One CPU at a time runs a loaded generator.
    #[map]
    static SENT: Array<u64> = Array::with_max_entries(1, 0);
    /// Of each connection the client's port, the sequence number of its first segment, and what it acknowledges: in
    /// host order.
    #[map]
    static CONNECTIONS: Array<[u32; 3]> = Array::with_max_entries(CONNECTIONS_LEN, 0);
    /// The program that `advance` has run behind it.
    #[map]
    static BEHIND: ProgramArray = ProgramArray::with_max_entries(1, 0);
    /// What a frame begins with.
    #[map]
    static HEADERS: Array<[u64; HEADERS_LEN / 8]> = Array::with_max_entries(1, 0);
    #[map]
    static PICKS: Array<u32> = Array::with_max_entries(PICKS_LEN, 0);

    /// Never returns where there is a program behind it.
    #[xdp(frags)]
    fn advance(ctx: XdpContext) -> u32 {
        if advanced(&ctx).is_some() {
            // SAFETY: the helper has no preconditions; it returns only where it fails.
            unsafe { BEHIND.tail_call(&ctx, 0) };
        }
        XDP_ABORTED
    }

    #[inline(always)]
    fn advanced(ctx: &XdpContext) -> Option<()> {
        let at = count()? as u32;
        let header = place::<Segment>(ctx, ETHERNET_LEN + IPV4_LEN)?;
        // SAFETY: `place` has held it against the frame's end.
        unsafe { (*header).sequence = SEQUENCE.load().wrapping_add(at.wrapping_mul(STEP.load())).to_be() };
        let segments = RECORD_SEGMENTS.load();
        if segments != 0 {
            let payload = place::<[u8; RECORD_HEADER_LEN]>(ctx, ETHERNET_LEN + IPV4_LEN + TCP_LEN)?;
            let len = RECORD_LEN.load();
            let filling = if at % 16 == 8 { FILLING_BELOW_128 } else { FILLING };
            // Application data of TLS 1.2 and 1.3.
            let header = [23, 3, 3, (len >> 8) as u8, len as u8];
            let bytes = if at.is_multiple_of(segments) { header } else { [filling; RECORD_HEADER_LEN] };
            // SAFETY: likewise.
            unsafe { *payload = bytes };
        }
        Some(())
    }

    /// How many frames there were before this one.
    #[inline(always)]
    fn count() -> Option<u64> {
        let sent = SENT.get_ptr_mut(0)?;
        // SAFETY: the element lives as long as the map, and nothing else writes it.
        let at = unsafe { *sent };
        // SAFETY: likewise.
        unsafe { *sent = at + 1 };
        Some(at)
    }

    #[xdp]
    fn generator(ctx: XdpContext) -> u32 {
        if IS_ANSWERED.load() != 0 && rewritten(&ctx).is_none() {
            return XDP_ABORTED;
        }
        if IS_OF_CONNECTIONS.load() != 0 {
            return match of_connection(&ctx) {
                // SAFETY: the helper has no preconditions.
                Some(()) => unsafe { bpf_redirect(INTERFACE.load(), 0) as u32 },
                None => XDP_ABORTED,
            };
        }
        let Some((high, low, port)) = next_source() else { return XDP_ABORTED };
        let written = if IS_IPV6.load() == 0 { v4(&ctx, low as u32, port) } else { v6(&ctx, high, low, port) };
        match written {
            // SAFETY: the helper has no preconditions.
            Some(()) => unsafe { bpf_redirect(INTERFACE.load(), 0) as u32 },
            None => XDP_ABORTED,
        }
    }

    /// Has the frame begin as the first one did.
    #[inline(always)]
    fn rewritten(ctx: &XdpContext) -> Option<()> {
        let headers = HEADERS.get(0)?;
        let place = place::<[u64; HEADERS_LEN / 8]>(ctx, 0)?;
        // SAFETY: `place` has held it against the frame's end.
        unsafe { place.write_unaligned(*headers) };
        Some(())
    }

    /// Address and port, in host order.
    #[inline(always)]
    fn next_source() -> Option<(u64, u64, u16)> {
        let at = count()?;
        let port = 1024 + (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 49) as u16;
        if IS_MIXED.load() != 0 && at & 1 != 0 {
            let number = (at >> 1) as u32 & OTHERS_MASK.load();
            return Some((OTHERS_BASE_HIGH.load(), OTHERS_BASE_LOW.load() + u64::from(number), port));
        }
        let at = if IS_MIXED.load() != 0 { at >> 1 } else { at } as u32;
        let number = if IS_PICKED.load() != 0 {
            *PICKS.get(shuffled(at, PICKS_LEN - 1, 8) & (PICKS_LEN - 1))?
        } else {
            shuffled(at, MASK.load(), HALF_BITS.load() & 31)
        };
        let (high, low) = (BASE_HIGH.load(), BASE_LOW.load());
        Some(if IS_OF_PREFIXES.load() == 0 {
            (high, low + u64::from(number), port)
        } else {
            (high + u64::from(number), low, port)
        })
    }

    /// Each number of the mask's once, in no order that a cache could follow: steps that can be undone, so no two meet.
    #[inline(always)]
    fn shuffled(at: u32, mask: u32, half_bits: u32) -> u32 {
        let mut number = at.wrapping_mul(0x9e37_79b1) & mask;
        number ^= number >> half_bits;
        number = number.wrapping_mul(0x85eb_ca6b) & mask;
        number ^ number >> half_bits
    }

    /// An IPv4 header without options, and the one behind it.
    #[repr(C, packed)]
    struct V4 {
        before: [u16; 5],
        checksum: u16,
        source: u32,
        destination: u32,
        port: u16,
    }

    /// An IPv6 header without extensions, and the one behind it.
    #[repr(C, packed)]
    struct V6 {
        before: [u32; 2],
        source: [u64; 2],
        destination: [u64; 2],
        port: u16,
    }

    /// A TCP header as far as a connection's segments differ in it.
    #[repr(C, packed)]
    struct Segment {
        ports: [u16; 2],
        sequence: u32,
        acknowledged: u32,
    }

    /// The next segment of the connection whose turn it is: `v4`, with its numbers.
    #[inline(always)]
    fn of_connection(ctx: &XdpContext) -> Option<()> {
        let at = count()? as u32;
        let [port, sequence, acknowledged] = *CONNECTIONS.get(at & MASK.load() & (CONNECTIONS_LEN - 1))?;
        let turn = at >> (CONNECTIONS_BITS.load() & 31);
        let sequence = sequence.wrapping_add(turn.wrapping_mul(STEP.load())).to_be();
        let acknowledged = acknowledged.to_be();
        let segment = place::<Segment>(ctx, ETHERNET_LEN + IPV4_LEN)?;
        // SAFETY: `place` has held it against the frame's end.
        unsafe {
            (*segment).sequence = sequence;
            (*segment).acknowledged = acknowledged;
        }
        v4_with(ctx, BASE_LOW.load() as u32, port as u16, u64::from(sequence) + u64::from(acknowledged))
    }

    #[inline(always)]
    fn v4(ctx: &XdpContext, address: u32, port: u16) -> Option<()> {
        v4_with(ctx, address, port, 0)
    }

    /// The same, where the payload's checksum is of these words too.
    #[inline(always)]
    fn v4_with(ctx: &XdpContext, address: u32, port: u16, words: u64) -> Option<()> {
        let (address, port) = (address.to_be(), port.to_be());
        let sum = u64::from(address);
        let header = place::<V4>(ctx, ETHERNET_LEN)?;
        // SAFETY: `place` has held it against the frame's end.
        unsafe {
            (*header).checksum = inverted(sum + u64::from(HEADER_SUM.load()));
            (*header).source = address;
            (*header).port = port;
        }
        payload_checksum(ctx, ETHERNET_LEN + IPV4_LEN, sum + u64::from(port) + words)
    }

    #[inline(always)]
    fn v6(ctx: &XdpContext, high: u64, low: u64, port: u16) -> Option<()> {
        const LEN: usize = 40;
        let (high, low, port) = (high.to_be(), low.to_be(), port.to_be());
        let header = place::<V6>(ctx, ETHERNET_LEN)?;
        // SAFETY: `place` has held it against the frame's end.
        unsafe {
            (*header).source = [high, low];
            (*header).port = port;
        }
        let sum = (high >> 32) + (high & 0xffff_ffff) + (low >> 32) + (low & 0xffff_ffff);
        payload_checksum(ctx, ETHERNET_LEN + LEN, sum + u64::from(port))
    }

    #[inline(always)]
    fn payload_checksum(ctx: &XdpContext, header: usize, sum: u64) -> Option<()> {
        let checksum = inverted(sum + u64::from(PAYLOAD_SUM.load()));
        if IS_UDP.load() == 0 {
            let place = place::<u16>(ctx, header + 16)?;
            // SAFETY: `place` has held it against the frame's end.
            unsafe { *place = checksum };
        } else {
            let place = place::<u16>(ctx, header + 6)?;
            // SAFETY: `place` has held it against the frame's end. 0 would say that there is none.
            unsafe { *place = if checksum == 0 { 0xffff } else { checksum } };
        }
        Some(())
    }

    /// RFC 1071's checksum from a sum of words, which may be of any width and in any byte order.
    #[inline(always)]
    fn inverted(sum: u64) -> u16 {
        let sum = (sum >> 32) + (sum & 0xffff_ffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        !(sum as u16)
    }

    #[inline(always)]
    fn place<T>(ctx: &XdpContext, offset: usize) -> Option<*mut T> {
        let at = ctx.data() + offset;
        (at + size_of::<T>() <= ctx.data_end()).then_some(at as *mut T)
    }
}

#[cfg(not(target_arch = "bpf"))]
fn main() {}
