//! Places for connections. If all are taken, a new connection replaces the oldest one that waits for its client. It is
//! rejected only while all connections that it could replace are being served. Knows callers and numbers; must not know
//! what is asked.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

/// Bits of an IPv6 address that identify a caller. The caller can choose the other bits.
const IPV6_CALLER_BITS: u32 = 64;

/// Caller that places are counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Caller {
    /// Root, or the daemon's own user.
    Privileged,
    /// Another user; `None` if the kernel did not report the UID.
    User(Option<u32>),
    /// A client's address; for IPv6, the first address of its /64.
    Address(IpAddr),
}

impl Caller {
    /// Returns the caller of a connection over the socket.
    pub(super) fn by_uid(uid: Option<u32>, own_uid: u32) -> Self {
        match uid {
            Some(uid) if uid == 0 || uid == own_uid => Self::Privileged,
            other => Self::User(other),
        }
    }

    /// Returns the caller of a connection over TCP.
    pub(super) const fn at(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => Self::Address(IpAddr::V6(Ipv6Addr::from_bits(
                v6.to_bits() & (u128::MAX << (u128::BITS - IPV6_CALLER_BITS)),
            ))),
            v4 => Self::Address(v4),
        }
    }
}

/// Maximum numbers of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Maximum for all callers together.
    pub(super) all: usize,
    /// Maximum for all callers that are not privileged. The difference to `all` is reserved for privileged ones.
    pub(super) others: usize,
    /// Maximum for each caller that is not privileged.
    pub(super) each: usize,
}

/// The places of one listener.
#[derive(Clone, Debug)]
pub(super) struct Places {
    room: Room,
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// Held places, in the order in which the connections were opened.
    held: BTreeMap<u64, Held>,
}

#[derive(Debug)]
struct Held {
    caller: Caller,
    is_served: bool,
    task: Option<AbortHandle>,
}

/// A place, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    id: u64,
    table: Arc<Mutex<Table>>,
}

/// A request that is being answered. Its connection is not replaced until this is dropped.
#[derive(Debug)]
pub(super) struct Served<'a>(&'a Place);

impl Places {
    pub(super) fn new(room: Room) -> Self {
        Self { room, table: Arc::default() }
    }

    /// Takes a place for a new connection, if necessary from another one. Returns `None` if no other connection can be
    /// closed.
    pub(super) fn take(&self, caller: Caller) -> Option<Place> {
        let mut table = lock(&self.table);
        let is_other = |of: Caller| of != Caller::Privileged;
        if is_other(caller) {
            table.make_room(self.room.each, |of| of == caller)?;
            table.make_room(self.room.others, is_other)?;
            table.make_room_among(self.room.all, |_| true, is_other)?;
        } else {
            table
                .make_room_among(self.room.all, |_| true, is_other)
                .or_else(|| table.make_room(self.room.all, |_| true))?;
        }
        let id = table.next;
        table.next += 1;
        table.held.insert(id, Held { caller, is_served: false, task: None });
        Some(Place { id, table: Arc::clone(&self.table) })
    }

    /// Sets the task that is aborted when another connection needs this place.
    pub(super) fn held_by(&self, id: u64, task: AbortHandle) {
        if let Some(held) = lock(&self.table).held.get_mut(&id) {
            held.task = Some(task);
        }
    }
}

impl Table {
    /// Closes one of the counted connections if `most` of them are open. Returns `None` if none can be closed.
    fn make_room(&mut self, most: usize, counts: impl Fn(Caller) -> bool + Copy) -> Option<()> {
        self.make_room_among(most, counts, counts)
    }

    /// Closes one connection for which `may_go` holds if `most` of the counted ones are open. Returns `None` if none
    /// can be closed.
    fn make_room_among(
        &mut self,
        most: usize,
        counts: impl Fn(Caller) -> bool,
        may_go: impl Fn(Caller) -> bool,
    ) -> Option<()> {
        if self.held.values().filter(|held| counts(held.caller)).count() < most {
            return Some(());
        }
        let goes = self.held.iter().find(|(_, held)| !held.is_served && may_go(held.caller)).map(|(id, _)| *id)?;
        if let Some(task) = self.held.remove(&goes).and_then(|held| held.task) {
            task.abort();
        }
        Some(())
    }
}

impl Place {
    pub(super) const fn id(&self) -> u64 {
        self.id
    }

    /// Marks the place as served, because the whole request has arrived.
    pub(super) fn serve(&self) -> Served<'_> {
        self.set_served(true);
        Served(self)
    }

    fn set_served(&self, is_served: bool) {
        if let Some(held) = lock(&self.table).held.get_mut(&self.id) {
            held.is_served = is_served;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.table).held.remove(&self.id);
    }
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        self.0.set_served(false);
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    // Each change is one call on a map, so no other thread sees a partial change.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROOM: Room = Room { all: 8, others: 5, each: 2 };

    fn places() -> Places {
        Places::new(ROOM)
    }

    fn user(uid: u32) -> Caller {
        Caller::User(Some(uid))
    }

    fn holds(places: &Places, place: &Place) -> bool {
        lock(&places.table).held.contains_key(&place.id)
    }

    #[test]
    fn a_user_at_the_maximum_loses_the_first_connection_not_being_served() {
        let places = places();
        let [first, second, other] = [user(1), user(1), user(2)].map(|caller| places.take(caller).unwrap());
        let served = first.serve();
        let third = places.take(user(1)).unwrap();
        assert_eq!([&first, &second, &third, &other].map(|place| holds(&places, place)), [true, false, true, true]);
        let third_served = third.serve();
        assert!(places.take(user(1)).is_none(), "a connection that is being served is closed for no other");
        drop(served);
        assert!(places.take(user(1)).is_some() && !holds(&places, &first));
        drop(third_served);
    }

    #[test]
    fn places_reserved_for_root_are_given_to_nobody_else() {
        let places = places();
        let others: Vec<Place> = (0..50).filter_map(|uid| places.take(user(uid))).collect();
        assert_eq!(others.iter().filter(|place| holds(&places, place)).count(), ROOM.others);
        assert!(holds(&places, &others[49]), "the newest of them");
        let served: Vec<_> = others.iter().filter(|place| holds(&places, place)).map(Place::serve).collect();
        assert!(places.take(user(99)).is_none());
        let roots: Vec<Place> = (0..3).map(|_| places.take(Caller::Privileged).unwrap()).collect();
        assert_eq!(served.len() + roots.len(), ROOM.all);
        let last = places.take(Caller::Privileged).unwrap();
        assert!(holds(&places, &last) && !holds(&places, &roots[0]), "root's own go last");
        drop(served);
        let _next = places.take(Caller::Privileged).unwrap();
        assert!(holds(&places, &last) && !holds(&places, &others[45]));
        drop((last, roots));
        assert_eq!(lock(&places.table).held.len(), 4 + 1, "a place that is dropped is free");
    }

    #[test]
    fn one_caller_is_a_user_or_an_address_and_of_ipv6_the_64() {
        assert_eq!(Caller::by_uid(Some(0), 990), Caller::Privileged);
        assert_eq!(Caller::by_uid(Some(990), 990), Caller::Privileged);
        assert_eq!(Caller::by_uid(Some(1000), 990), user(1000));
        assert_eq!(Caller::by_uid(None, 990), Caller::User(None));
        let at = |text: &str| Caller::at(text.parse().unwrap());
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:1"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        assert_eq!(at("::ffff:192.0.2.1"), at("192.0.2.1"));
        assert_ne!(at("192.0.2.1"), at("192.0.2.2"));
    }

    proptest! {
        #[test]
        fn no_order_of_callers_has_more_than_the_room_or_keeps_root_out(
            steps in prop::collection::vec((0_u32..6, any::<bool>()), 0..200),
        ) {
            let places = places();
            let mut held: Vec<Place> = Vec::new();
            for (uid, drops) in steps {
                if drops && !held.is_empty() {
                    held.remove(uid as usize % held.len());
                }
                let place = places.take(Caller::by_uid(Some(uid), 0));
                let is_admitted = place.is_some();
                held.extend(place);
                let table = lock(&places.table);
                let count = |is: &dyn Fn(Caller) -> bool| table.held.values().filter(|of| is(of.caller)).count();
                // No connection is being served. So a new one finds no place only if root has all of them.
                prop_assert!(is_admitted || (uid != 0 && count(&|of| of == Caller::Privileged) == ROOM.all));
                prop_assert!(table.held.len() <= ROOM.all);
                prop_assert!(count(&|of| of != Caller::Privileged) <= ROOM.others);
                prop_assert!((1..6).all(|uid| count(&|of| of == user(uid)) <= ROOM.each));
            }
        }
    }
}
