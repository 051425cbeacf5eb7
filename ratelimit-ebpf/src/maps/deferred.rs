//! The deferred update: what a packet charges, what is cached if it is refused, and what is remembered once it is
//! admitted. Functions pass it on in a per-CPU element. Nothing in it outlasts a packet.

use core::ptr::NonNull;

use aya_ebpf::bindings::BPF_NOEXIST;
use ratelimit_common::choose::Beside;
use ratelimit_common::conversation::{Conversation, Entered};
use ratelimit_common::drop_cache::Key;
use ratelimit_common::flow::Flow;
use ratelimit_common::hold::{Charges, by};
use ratelimit_common::layout::{ConversationKeyV4, ConversationKeyV6, Fault, FlowKeyV4, FlowKeyV6, LIMITS_MAX};
use ratelimit_common::source::Address;
use ratelimit_common::time::Nanos;

use super::words::{clear, copy, read};
use super::{CONVERSATIONS_V4, CONVERSATIONS_V6, DEFERRED, FLOWS_V4, FLOWS_V6, Of, inserted, or_fault};
use crate::charges::Leaves;

/// State of one packet besides the parsed frame: its charges, its drop-cache keys, and its TCP connection or UDP flow,
/// which is stored once the packet is admitted. One element per CPU.
#[repr(C)]
pub(crate) struct Deferred {
    /// New state of the TCP connection.
    pub(crate) conversation: Conversation,
    /// Position of the segment in its connection.
    pub(crate) entered: Entered,
    /// New state of the UDP flow.
    pub(crate) flow: Flow,
    conversation_v4: ConversationKeyV4,
    conversation_v6: ConversationKeyV6,
    flow_v4: FlowKeyV4,
    flow_v6: FlowKeyV6,
    /// The key in use, one of `deferred_is`.
    is: u32,
    /// For a later fragment that may be TCP: the other rules that also judge it.
    pub(crate) beside: Beside,
    /// Drop-cache key for a refusal of the source; none if it is not cached.
    pub(crate) drop_key: Key,
    /// Drop-cache key for a refusal of the connection; none if the connection is not known.
    pub(crate) connection: Key,
    /// Drop-cache key of this packet, cached or not.
    pub(crate) key: Key,
    /// Hash of the keys, [`Key::hash`], which gives their place in the drop cache.
    pub(crate) hash: u64,
    /// Arrival time, by the coarse clock.
    pub(crate) now: Nanos,
    /// 1 if the drop cache may have an entry for unverified traffic of the source, including the guard's. Then its
    /// connections are looked up and counted.
    pub(crate) is_suspect: u32,
    /// 1 if the gate for new sources has passed the packet: its source is known, or was sampled in.
    pub(crate) is_asked: u32,
    /// Limit that found too many connection attempts of the source, as a [`ratelimit_common::hold::At`]; 0 if none did.
    pub(crate) suspect_at: u32,
    /// Key of the source in the maps.
    pub(crate) of: Of,
    /// Flags [`Deferred::CLOSES`] and [`Deferred::REPEATS`], with a reason code where a reset may follow. The code is
    /// the reason of the refusal by a rule that refuses by a reset, or the verdict on a segment that closes its
    /// connection.
    pub(crate) refused: u32,
    /// End of that refusal, if it is known. Read only for segments of rules that answer with a page.
    pub(crate) refused_until: Nanos,
    /// Number of packets merged into the frame, at TCX only; not read at XDP, where it is 1.
    pub(crate) packets: u32,
    /// Number of connections that the frame's datagrams open, at TCX only, and at least 1.
    pub(crate) opened: u32,
    /// Bucket that each limit was charged in, by the limit's position.
    pub(crate) charged: [u64; LIMITS_MAX],
    /// Generation and number of the rule that judges the packet.
    generation: u32,
    rule: u32,
    /// Amounts that the packet charges.
    charges: Charges,
    /// Code of a [`Leaves`] value.
    leaves: u32,
    /// Sequence number of the first byte that the connection had not sent before this segment.
    next: u32,
}

/// Kinds of keys that a [`Deferred`] has.
mod deferred_is {
    pub(super) const CONVERSATION_V4: u32 = 0;
    pub(super) const CONVERSATION_V6: u32 = 1;
    pub(super) const FLOW_V4: u32 = 2;
    pub(super) const FLOW_V6: u32 = 3;
}

/// The kind of work of a CPU: a packet, or an order of the daemon. A packet may interrupt an order, so each kind has
/// its own map elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Work(pub(super) u32);

impl Work {
    pub(crate) const PACKET: Self = Self(0);
    pub(crate) const ORDER: Self = Self(1);
    pub(super) const PLACES: u32 = 2;

    /// Returns the kind of work that a step's `how` belongs to.
    #[inline(always)]
    pub(crate) const fn of(how: u32) -> Self {
        if how & by::ORDER == 0 { Self::PACKET } else { Self::ORDER }
    }
}

/// Returns the packet's deferred update before its first use. Counts a fault if it is missing.
#[inline(always)]
pub(crate) fn to_defer() -> Option<&'static mut Deferred> {
    or_fault(deferred(), Fault::DeferredLookup)
}

/// Returns the packet's deferred update.
#[inline(always)]
pub(crate) fn deferred() -> Option<&'static mut Deferred> {
    deferred_of(Work::PACKET)
}

/// Returns the deferred update of a packet or an order.
#[inline(always)]
pub(crate) fn deferred_of(work: Work) -> Option<&'static mut Deferred> {
    // SAFETY: this CPU's element, which lives as long as the map; each borrower is done before the next one borrows it.
    DEFERRED.get_ptr_mut(work.0).map(|deferred| unsafe { &mut *deferred })
}

/// Copyable pointer to a deferred update.
#[derive(Clone, Copy)]
pub(crate) struct DeferredRef(NonNull<Deferred>);

impl DeferredRef {
    #[inline(always)]
    pub(crate) fn of(deferred: &'static mut Deferred) -> Self {
        Self(NonNull::from(deferred))
    }

    /// Returns the deferred update.
    #[inline(always)]
    pub(crate) fn get(self) -> &'static mut Deferred {
        // SAFETY: as in `deferred_of`.
        unsafe { &mut *self.0.as_ptr() }
    }
}

/// Returns the value at a pointer into what [`deferred`] or [`to_parse`] gave; `None` if it is null.
#[inline(always)]
pub(crate) fn place<T>(pointer: *mut T) -> Option<&'static mut T> {
    // SAFETY: a part of this CPU's element, which lives as long as the map.
    unsafe { pointer.as_mut() }
}

impl Deferred {
    /// Flag of [`Deferred::refused`], above all reason codes: the segment closes its connection, or may repeat a
    /// request that was refused long ago.
    pub(crate) const CLOSES: u32 = 1 << 8;
    /// Flag of [`Deferred::refused`]: a request of the connection was refused, and this segment may repeat it.
    pub(crate) const REPEATS: u32 = 1 << 9;

    /// Prevents a refusal of the connection from being cached.
    #[inline(always)]
    pub(crate) fn cache_no_connection(&mut self) {
        clear(&mut self.connection);
    }

    /// Prevents a refusal of the source or the connection from being cached.
    #[inline(always)]
    pub(crate) fn cache_nothing(&mut self) {
        clear(&mut self.drop_key);
        self.cache_no_connection();
    }

    /// Sets the generation and number of the rule that judges the packet.
    #[inline(always)]
    pub(crate) fn judge_by(&mut self, generation: u32, rule: u32) {
        self.generation = generation;
        self.rule = rule;
    }

    /// Returns the generation of the rule that judges the packet.
    #[inline(always)]
    pub(crate) fn generation(&self) -> u32 {
        read!(self.generation)
    }

    /// Returns the number of the rule that judges the packet.
    #[inline(always)]
    pub(crate) fn rule(&self) -> u32 {
        read!(self.rule)
    }

    /// Returns true if the segment closes its connection, or may repeat a request that was refused long ago. With the
    /// final verdict: true if the connection may be ended for it.
    #[inline(always)]
    pub(crate) fn closes(&self) -> bool {
        read!(self.refused) & Self::CLOSES != 0
    }

    /// Returns true if a request of the connection was refused, and this segment may repeat it.
    #[inline(always)]
    pub(crate) fn repeats(&self) -> bool {
        read!(self.refused) & Self::REPEATS != 0
    }

    /// Stores the packet's charges, and what is remembered once it is admitted.
    #[inline(always)]
    pub(crate) fn keep_charges(&mut self, charges: Charges, leaves: Leaves) {
        self.charges = charges;
        self.leaves = leaves as u32;
    }

    /// Stores the connection's next sequence number, as far as it is known, for [`Deferred::went_on`].
    #[inline(always)]
    pub(crate) fn keep_next(&mut self) {
        self.next = self.conversation.next();
    }

    /// Returns true if the connection has advanced since [`Deferred::keep_next`].
    #[inline(always)]
    pub(crate) fn went_on(&self) -> bool {
        read!(self.next) != self.conversation.next()
    }

    /// Returns what is remembered once the packet is admitted.
    #[inline(always)]
    pub(crate) fn leaves(&self) -> Leaves {
        match read!(self.leaves) {
            0 => Leaves::Nothing,
            1 => Leaves::Conversation,
            _ => Leaves::Flow,
        }
    }

    /// Returns the packet's charges.
    #[inline(always)]
    pub(crate) fn charges(&self) -> Charges {
        read!(self.charges)
    }

    /// Sets the map key to this TCP connection.
    #[inline(always)]
    pub(crate) fn set_conversation(&mut self, source: Address, destination: Address, source_port: u16, port: u16) {
        match (source, destination) {
            (Address::V4(source), Address::V4(destination)) => {
                let [source, destination] = [source, destination].map(u32::to_ne_bytes);
                self.conversation_v4 = ConversationKeyV4 { source, destination, source_port, port };
                self.is = deferred_is::CONVERSATION_V4;
            }
            (Address::V6(source), Address::V6(destination)) => {
                let [source, destination] = [source, destination].map(|address| address.map(u64::to_ne_bytes));
                self.conversation_v6 = ConversationKeyV6 { source, destination, source_port, port };
                self.is = deferred_is::CONVERSATION_V6;
            }
            (Address::V4(_), Address::V6(_)) | (Address::V6(_), Address::V4(_)) => {}
        }
    }

    /// Sets the map key to this UDP flow.
    #[inline(always)]
    pub(crate) fn set_flow(&mut self, source: Address, source_port: u16, port: u16) {
        match source {
            Address::V4(address) => {
                self.flow_v4 = FlowKeyV4 { address: address.to_ne_bytes(), source_port, port };
                self.is = deferred_is::FLOW_V4;
            }
            Address::V6(address) => {
                self.flow_v6 = FlowKeyV6 { address: address.map(u64::to_ne_bytes), source_port, port };
                self.is = deferred_is::FLOW_V6;
            }
        }
    }

    /// Returns the stored state of the connection, if any of its packets was admitted.
    #[inline(always)]
    pub(crate) fn known_conversation(&self) -> Option<&'static mut Conversation> {
        self.kept_conversation().filter(|known| !known.is_alone())
    }

    /// Returns the stored state of the connection. Its segments usually arrive on one CPU; otherwise a race loses one
    /// segment's update. The same holds if the kernel reuses the element meanwhile.
    #[inline(always)]
    #[expect(clippy::needless_borrows_for_generic_args, reason = "what is not borrowed is copied onto the stack")]
    pub(crate) fn kept_conversation(&self) -> Option<&'static mut Conversation> {
        let entry = match self.is {
            deferred_is::CONVERSATION_V4 => CONVERSATIONS_V4.get_ptr_mut(&self.conversation_v4),
            _ => CONVERSATIONS_V6.get_ptr_mut(&self.conversation_v6),
        };
        // SAFETY: a whole element, valid for the run of the program.
        entry.map(|known| unsafe { &mut *known })
    }

    /// Returns the stored state of the flow. Its packets usually arrive on one CPU; otherwise a race loses a time
    /// stamp, or one of a handshake's Initials.
    #[inline(always)]
    #[expect(clippy::needless_borrows_for_generic_args, reason = "what is not borrowed is copied onto the stack")]
    pub(crate) fn known_flow(&self) -> Option<&'static mut Flow> {
        let entry = match self.is {
            deferred_is::FLOW_V4 => FLOWS_V4.get_ptr_mut(&self.flow_v4),
            _ => FLOWS_V6.get_ptr_mut(&self.flow_v6),
        };
        // SAFETY: as in `kept_conversation`.
        entry.map(|known| unsafe { &mut *known })
    }

    /// Returns [`Deferred::key`], by a read at the call.
    #[inline(always)]
    pub(crate) fn key(&self) -> Key {
        read!(self.key)
    }

    /// Returns [`Deferred::hash`], by a read at the call.
    #[inline(always)]
    pub(crate) fn hash(&self) -> u64 {
        read!(self.hash)
    }

    /// Returns the packet's arrival time by the coarse clock. Everything but charges uses this time.
    #[inline(always)]
    pub(crate) fn now(&self) -> Nanos {
        read!(self.now)
    }

    /// Writes the new state to its existing entry. Returns false if there is no entry yet.
    #[inline(always)]
    pub(crate) fn renew(&self) -> bool {
        if self.is < deferred_is::FLOW_V4 {
            let Some(known) = self.kept_conversation() else { return false };
            copy(&self.conversation, known);
        } else {
            let Some(known) = self.known_flow() else { return false };
            copy(&self.flow, known);
        }
        true
    }

    /// Adds an entry with the new state.
    #[inline(always)]
    pub(crate) fn insert(&self) {
        macro_rules! insert {
            ($map:ident, $key:expr, $value:expr, $fault:ident) => {{
                let _counted = inserted($map.insert($key, $value, BPF_NOEXIST.into()), Fault::$fault);
            }};
        }
        match self.is {
            deferred_is::CONVERSATION_V4 => {
                insert!(CONVERSATIONS_V4, &self.conversation_v4, &self.conversation, ConversationsV4Insert)
            }
            deferred_is::CONVERSATION_V6 => {
                insert!(CONVERSATIONS_V6, &self.conversation_v6, &self.conversation, ConversationsV6Insert)
            }
            deferred_is::FLOW_V4 => insert!(FLOWS_V4, &self.flow_v4, &self.flow, FlowsV4Insert),
            _ => insert!(FLOWS_V6, &self.flow_v6, &self.flow, FlowsV6Insert),
        }
    }
}
