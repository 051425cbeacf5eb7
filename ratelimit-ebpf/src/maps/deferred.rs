//! The deferred update: what a packet charges, what is cached if it is refused, and what is remembered of it once it
//! is admitted. A per-CPU element, by which one function tells the next. Nothing here outlasts a packet.

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

/// What is remembered of a packet beside its source, once it is admitted: its TCP connection, or its UDP flow. This
/// CPU's, and of this packet.
#[repr(C)]
pub(crate) struct Deferred {
    /// The connection, as it will be.
    pub(crate) conversation: Conversation,
    /// The segment, as that has taken it in.
    pub(crate) entered: Entered,
    /// The flow, as it will be, of a datagram.
    pub(crate) flow: Flow,
    conversation_v4: ConversationKeyV4,
    conversation_v6: ConversationKeyV6,
    flow_v4: FlowKeyV4,
    flow_v6: FlowKeyV6,
    /// Which of them it is.
    is: u32,
    /// Of a later fragment that may be of TCP, the rules that are to hold it beside the one that judges it.
    pub(crate) beside: Beside,
    /// The drop-cache key for a refusal of its source; none where none is cached.
    pub(crate) drop_key: Key,
    /// The key for a refusal of its connection; none where that cannot be told.
    pub(crate) connection: Key,
    /// The drop-cache key of this packet, cached or not.
    pub(crate) key: Key,
    /// The place of those keys: [`Key::hash`].
    pub(crate) hash: u64,
    /// The time, by the coarse clock.
    pub(crate) now: Nanos,
    /// Whether there may be an entry for unverified traffic, also one of the guard's, so that its connections are
    /// looked up and counted.
    pub(crate) is_suspect: u32,
    /// 1: the gate for new sources has passed it: its source is known, or sampled in.
    pub(crate) is_asked: u32,
    /// Which limit says that it has tried to connect too often, as [`ratelimit_common::hold::At`] has it; 0 is none.
    pub(crate) suspect_at: u32,
    /// Its source.
    pub(crate) of: Of,
    /// [`Deferred::CLOSES`] of a segment that closes its connection; and the reason's code where a reset may come of it:
    /// why it is refused, by a rule that refuses by a reset, or what is so of such a segment.
    pub(crate) refused: u32,
    /// Until when that lasts, where it was found out, of a segment of a rule that says pages. Of others nobody reads it.
    pub(crate) refused_until: Nanos,
    /// How many packets it is, at TCX; at XDP it is one, and this is not read.
    pub(crate) packets: u32,
    /// Likewise, how many connections its datagrams open; 1 where that is none.
    pub(crate) opened: u32,
    /// Which bucket of each limit it was charged to.
    pub(crate) charged: [u64; LIMITS_MAX],
    /// By which generation's rule it is judged, and which that is.
    generation: u32,
    rule: u32,
    /// What it charges.
    charges: Charges,
    /// A [`Leaves`].
    leaves: u32,
    /// The first byte that its connection had not sent yet.
    next: u32,
}

/// What a [`Deferred`] is.
mod deferred_is {
    pub(super) const CONVERSATION_V4: u32 = 0;
    pub(super) const CONVERSATION_V6: u32 = 1;
    pub(super) const FLOW_V4: u32 = 2;
    pub(super) const FLOW_V6: u32 = 3;
}

/// What a CPU is at: a packet, or an order of the daemon's, which a packet may interrupt. Each has a place of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Work(pub(super) u32);

impl Work {
    pub(crate) const PACKET: Self = Self(0);
    pub(crate) const ORDER: Self = Self(1);
    pub(super) const PLACES: u32 = 2;

    /// That of a step which is told by whom.
    #[inline(always)]
    pub(crate) const fn of(how: u32) -> Self {
        if how & by::ORDER == 0 { Self::PACKET } else { Self::ORDER }
    }
}

/// Room for what this packet leaves behind, before it is used; what is missing is counted here.
#[inline(always)]
pub(crate) fn to_defer() -> Option<&'static mut Deferred> {
    or_fault(deferred(), Fault::DeferredLookup)
}

/// The same, for every later function.
#[inline(always)]
pub(crate) fn deferred() -> Option<&'static mut Deferred> {
    deferred_of(Work::PACKET)
}

/// Likewise, of a packet or an order.
#[inline(always)]
pub(crate) fn deferred_of(work: Work) -> Option<&'static mut Deferred> {
    // SAFETY: this CPU's element, which lives as long as the map; each who borrows it is done before the next one does.
    DEFERRED.get_ptr_mut(work.0).map(|deferred| unsafe { &mut *deferred })
}

/// A pointer to it, for repeated use.
#[derive(Clone, Copy)]
pub(crate) struct DeferredRef(NonNull<Deferred>);

impl DeferredRef {
    #[inline(always)]
    pub(crate) fn of(deferred: &'static mut Deferred) -> Self {
        Self(NonNull::from(deferred))
    }

    /// It.
    #[inline(always)]
    pub(crate) fn get(self) -> &'static mut Deferred {
        // SAFETY: as in `deferred_of`.
        unsafe { &mut *self.0.as_ptr() }
    }
}

/// What is at this pointer, into what [`deferred`] or [`to_parse`] gave; none if it is null.
#[inline(always)]
pub(crate) fn place<T>(pointer: *mut T) -> Option<&'static mut T> {
    // SAFETY: a part of this CPU's element, which lives as long as the map.
    unsafe { pointer.as_mut() }
}

impl Deferred {
    /// Above all reasons' codes in [`Deferred::refused`].
    pub(crate) const CLOSES: u32 = 1 << 8;
    /// Likewise: a request of its connection was refused, which this segment may repeat.
    pub(crate) const REPEATS: u32 = 1 << 9;

    /// No refusal of the connection is cached.
    #[inline(always)]
    pub(crate) fn cache_no_connection(&mut self) {
        clear(&mut self.connection);
    }

    /// No refusal of its source or its connection is cached.
    #[inline(always)]
    pub(crate) fn cache_nothing(&mut self) {
        clear(&mut self.drop_key);
        self.cache_no_connection();
    }

    /// Has the packet judged by this rule of this generation.
    #[inline(always)]
    pub(crate) fn judge_by(&mut self, generation: u32, rule: u32) {
        self.generation = generation;
        self.rule = rule;
    }

    /// By which generation's rule it is judged.
    #[inline(always)]
    pub(crate) fn generation(&self) -> u32 {
        read!(self.generation)
    }

    /// Which rule that is.
    #[inline(always)]
    pub(crate) fn rule(&self) -> u32 {
        read!(self.rule)
    }

    /// Whether it is a segment that closes its connection, or may repeat a request that was refused long ago; and in the
    /// end, whether its connection may be ended for it.
    #[inline(always)]
    pub(crate) fn closes(&self) -> bool {
        read!(self.refused) & Self::CLOSES != 0
    }

    /// Whether a request of its connection was refused, and it may be the one that repeats that.
    #[inline(always)]
    pub(crate) fn repeats(&self) -> bool {
        read!(self.refused) & Self::REPEATS != 0
    }

    /// Keeps what it charges, and what it leaves.
    #[inline(always)]
    pub(crate) fn keep_charges(&mut self, charges: Charges, leaves: Leaves) {
        self.charges = charges;
        self.leaves = leaves as u32;
    }

    /// Keeps where its connection goes on, as far as it is known.
    #[inline(always)]
    pub(crate) fn keep_next(&mut self) {
        self.next = self.conversation.next();
    }

    /// Whether it does, since that was kept.
    #[inline(always)]
    pub(crate) fn went_on(&self) -> bool {
        read!(self.next) != self.conversation.next()
    }

    /// What it leaves.
    #[inline(always)]
    pub(crate) fn leaves(&self) -> Leaves {
        match read!(self.leaves) {
            0 => Leaves::Nothing,
            1 => Leaves::Conversation,
            _ => Leaves::Flow,
        }
    }

    /// What it charges.
    #[inline(always)]
    pub(crate) fn charges(&self) -> Charges {
        read!(self.charges)
    }

    /// Makes it the place of this connection.
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

    /// Makes it the place of this flow.
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

    /// What is remembered of the connection, where something of it was admitted.
    #[inline(always)]
    pub(crate) fn known_conversation(&self) -> Option<&'static mut Conversation> {
        self.kept_conversation().filter(|known| !known.is_alone())
    }

    /// What is remembered of the connection. A connection's segments arrive on one CPU, and where they do not, what a
    /// race loses is one segment's part; so it is where the kernel reuses the element meanwhile.
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

    /// What is remembered of the flow: a flow's packets arrive on one CPU, and where they do not, what a race loses is
    /// a time stamp, or one of a handshake's Initials.
    #[inline(always)]
    #[expect(clippy::needless_borrows_for_generic_args, reason = "what is not borrowed is copied onto the stack")]
    pub(crate) fn known_flow(&self) -> Option<&'static mut Flow> {
        let entry = match self.is {
            deferred_is::FLOW_V4 => FLOWS_V4.get_ptr_mut(&self.flow_v4),
            _ => FLOWS_V6.get_ptr_mut(&self.flow_v6),
        };
        // SAFETY: likewise.
        entry.map(|known| unsafe { &mut *known })
    }

    /// Its [`Deferred::key`], read where it is needed.
    #[inline(always)]
    pub(crate) fn key(&self) -> Key {
        read!(self.key)
    }

    /// Its [`Deferred::hash`], likewise.
    #[inline(always)]
    pub(crate) fn hash(&self) -> u64 {
        read!(self.hash)
    }

    /// The time when it came, by the coarse clock. All but charges go by it.
    #[inline(always)]
    pub(crate) fn now(&self) -> Nanos {
        read!(self.now)
    }

    /// Remembers it in its entry; false where there is none yet.
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

    /// Remembers what has no entry yet.
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
