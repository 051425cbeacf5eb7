//! The benchmark's sender: gives a frame the next source of a flood, and sends it over an interface. It runs on live
//! frames (`BPF_PROG_TEST_RUN` with `BPF_F_TEST_XDP_LIVE_FRAMES`) between the benchmark's own namespaces, and is never
//! attached.
//!
//! `advance` serves measurements of a single program: it turns the frame into the next segment of its connection and
//! tail-calls that program.
//!
//! Everything but the source comes from the frame that the program runs on. The globals are set at load, so the
//! verifier removes code that a flood does not need.
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

    /// Number of entries in the table of sources, a power of two.
    const PICKS_LEN: u32 = 65_536;
    /// Maximum number of connections in a flood.
    const CONNECTIONS_LEN: u32 = 1024;
    const ETHERNET_LEN: usize = 14;
    const IPV4_LEN: usize = 20;
    const TCP_LEN: usize = 20;
    const RECORD_HEADER_LEN: usize = 5;
    /// Length in bytes of the headers of Ethernet, IPv4 and TCP, and two bytes of payload. The loader has the same
    /// constant.
    const HEADERS_LEN: usize = 56;
    /// Bytes that fill a record's payload. One in 16 segments begins with `FILLING_BELOW_128` instead: as many
    /// encrypted segments begin with four bytes below 128.
    const FILLING: u8 = 0xd5;
    const FILLING_BELOW_128: u8 = 0x55;

    /// Index of the interface that sends the frames.
    #[unsafe(no_mangle)]
    static INTERFACE: Global<u32> = Global::new(0);
    /// 1 for IPv6 frames, 0 for IPv4.
    #[unsafe(no_mangle)]
    static IS_IPV6: Global<u8> = Global::new(0);
    /// 1 for UDP frames, 0 for TCP.
    #[unsafe(no_mangle)]
    static IS_UDP: Global<u8> = Global::new(0);
    /// 1 if sources come from the table `PICKS`.
    #[unsafe(no_mangle)]
    static IS_PICKED: Global<u8> = Global::new(0);
    /// Partial checksums, without the source's address and port: of IPv4's header, and of the segment or datagram.
    #[unsafe(no_mangle)]
    static HEADER_SUM: Global<u32> = Global::new(0);
    #[unsafe(no_mangle)]
    static PAYLOAD_SUM: Global<u32> = Global::new(0);
    /// Address of the first source, in host order; an IPv4 address is in the low half.
    #[unsafe(no_mangle)]
    static BASE_HIGH: Global<u64> = Global::new(0);
    #[unsafe(no_mangle)]
    static BASE_LOW: Global<u64> = Global::new(0);
    /// Number of sources minus one, which must be a power of two minus one, and half its length in bits.
    #[unsafe(no_mangle)]
    static MASK: Global<u32> = Global::new(0);
    #[unsafe(no_mangle)]
    static HALF_BITS: Global<u32> = Global::new(0);
    /// 1 if a source's number is added to the IPv6 prefix of 64 bits, 0 if it is added to the address.
    #[unsafe(no_mangle)]
    static IS_OF_PREFIXES: Global<u8> = Global::new(0);
    /// 1 if every other frame comes from a second, small set of sources. The next three hold the first address of that
    /// set and its size minus one.
    #[unsafe(no_mangle)]
    static IS_MIXED: Global<u8> = Global::new(0);
    #[unsafe(no_mangle)]
    static OTHERS_BASE_HIGH: Global<u64> = Global::new(0);
    #[unsafe(no_mangle)]
    static OTHERS_BASE_LOW: Global<u64> = Global::new(0);
    #[unsafe(no_mangle)]
    static OTHERS_MASK: Global<u32> = Global::new(0);

    /// 1 if the frames belong in turn to the IPv4 connections in `CONNECTIONS`. `MASK` is the number of connections
    /// minus one.
    #[unsafe(no_mangle)]
    static IS_OF_CONNECTIONS: Global<u8> = Global::new(0);
    /// Binary logarithm of the number of connections.
    #[unsafe(no_mangle)]
    static CONNECTIONS_BITS: Global<u32> = Global::new(0);
    /// Difference of the sequence numbers of a connection's successive segments.
    #[unsafe(no_mangle)]
    static STEP: Global<u32> = Global::new(0);
    /// 1 if the receiver turns frames into answers, so that each frame must be written anew.
    #[unsafe(no_mangle)]
    static IS_ANSWERED: Global<u8> = Global::new(0);
    /// For `advance`: sequence number of the first segment, segments in a TLS record or 0 without records, and length
    /// of a record in bytes.
    #[unsafe(no_mangle)]
    static SEQUENCE: Global<u32> = Global::new(0);
    #[unsafe(no_mangle)]
    static RECORD_SEGMENTS: Global<u32> = Global::new(0);
    #[unsafe(no_mangle)]
    static RECORD_LEN: Global<u32> = Global::new(0);

    /// Number of frames so far. One CPU at a time runs a loaded generator.
    #[map]
    static SENT: Array<u64> = Array::with_max_entries(1, 0);
    /// For each connection: the client's port, the sequence number of its first segment, and its acknowledgement
    /// number, in host order.
    #[map]
    static CONNECTIONS: Array<[u32; 3]> = Array::with_max_entries(CONNECTIONS_LEN, 0);
    /// Program that `advance` tail-calls.
    #[map]
    static BEHIND: ProgramArray = ProgramArray::with_max_entries(1, 0);
    /// First bytes of each frame.
    #[map]
    static HEADERS: Array<[u64; HEADERS_LEN / 8]> = Array::with_max_entries(1, 0);
    #[map]
    static PICKS: Array<u32> = Array::with_max_entries(PICKS_LEN, 0);

    /// Turns the frame into the next segment and tail-calls the program in `BEHIND`. Returns only if there is none.
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
        // SAFETY: `place` has checked the frame's end.
        unsafe { (*header).sequence = SEQUENCE.load().wrapping_add(at.wrapping_mul(STEP.load())).to_be() };
        let segments = RECORD_SEGMENTS.load();
        if segments != 0 {
            let payload = place::<[u8; RECORD_HEADER_LEN]>(ctx, ETHERNET_LEN + IPV4_LEN + TCP_LEN)?;
            let len = RECORD_LEN.load();
            let filling = if at % 16 == 8 { FILLING_BELOW_128 } else { FILLING };
            // Application data of TLS 1.2 and 1.3.
            let header = [23, 3, 3, (len >> 8) as u8, len as u8];
            let bytes = if at.is_multiple_of(segments) { header } else { [filling; RECORD_HEADER_LEN] };
            // SAFETY: as above.
            unsafe { *payload = bytes };
        }
        Some(())
    }

    /// Returns the number of earlier frames, and counts this one.
    #[inline(always)]
    fn count() -> Option<u64> {
        let sent = SENT.get_ptr_mut(0)?;
        // SAFETY: the element lives as long as the map, and nothing else writes it.
        let at = unsafe { *sent };
        // SAFETY: as above.
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

    /// Restores the first bytes of the frame.
    #[inline(always)]
    fn rewritten(ctx: &XdpContext) -> Option<()> {
        let headers = HEADERS.get(0)?;
        let place = place::<[u64; HEADERS_LEN / 8]>(ctx, 0)?;
        // SAFETY: `place` has checked the frame's end.
        unsafe { place.write_unaligned(*headers) };
        Some(())
    }

    /// Returns the next source's address and port, in host order.
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

    /// Returns a permutation of the numbers up to the mask, in an order that caches cannot follow. Each step is
    /// invertible, so no number comes twice.
    #[inline(always)]
    fn shuffled(at: u32, mask: u32, half_bits: u32) -> u32 {
        let mut number = at.wrapping_mul(0x9e37_79b1) & mask;
        number ^= number >> half_bits;
        number = number.wrapping_mul(0x85eb_ca6b) & mask;
        number ^ number >> half_bits
    }

    /// IPv4 header without options, and the source port behind it.
    #[repr(C, packed)]
    struct V4 {
        before: [u16; 5],
        checksum: u16,
        source: u32,
        destination: u32,
        port: u16,
    }

    /// IPv6 header without extensions, and the source port behind it.
    #[repr(C, packed)]
    struct V6 {
        before: [u32; 2],
        source: [u64; 2],
        destination: [u64; 2],
        port: u16,
    }

    /// Fields of a TCP header in which a connection's segments differ.
    #[repr(C, packed)]
    struct Segment {
        ports: [u16; 2],
        sequence: u32,
        acknowledged: u32,
    }

    /// Writes the next segment of the next connection in turn.
    #[inline(always)]
    fn of_connection(ctx: &XdpContext) -> Option<()> {
        let at = count()? as u32;
        let [port, sequence, acknowledged] = *CONNECTIONS.get(at & MASK.load() & (CONNECTIONS_LEN - 1))?;
        let turn = at >> (CONNECTIONS_BITS.load() & 31);
        let sequence = sequence.wrapping_add(turn.wrapping_mul(STEP.load())).to_be();
        let acknowledged = acknowledged.to_be();
        let segment = place::<Segment>(ctx, ETHERNET_LEN + IPV4_LEN)?;
        // SAFETY: `place` has checked the frame's end.
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

    /// Writes an IPv4 source; `words` are further fields that the payload's checksum covers.
    #[inline(always)]
    fn v4_with(ctx: &XdpContext, address: u32, port: u16, words: u64) -> Option<()> {
        let (address, port) = (address.to_be(), port.to_be());
        let sum = u64::from(address);
        let header = place::<V4>(ctx, ETHERNET_LEN)?;
        // SAFETY: `place` has checked the frame's end.
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
        // SAFETY: `place` has checked the frame's end.
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
            // SAFETY: `place` has checked the frame's end.
            unsafe { *place = checksum };
        } else {
            let place = place::<u16>(ctx, header + 6)?;
            // SAFETY: `place` has checked the frame's end. A UDP checksum of 0 would mean that there is none.
            unsafe { *place = if checksum == 0 { 0xffff } else { checksum } };
        }
        Some(())
    }

    /// Returns RFC 1071's checksum of a sum of words, which may have any width and any byte order.
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
