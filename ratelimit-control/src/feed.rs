//! Recent events: a bounded memory, and subscriptions to those that follow. The sender waits for no reader; events that
//! a slow reader misses are counted.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use jiff::Timestamp;
use tokio::sync::broadcast;

use super::proto::{EventsOf, EventsReport, Problem};
use ratelimit_report::event::{Event, EventKind};
use ratelimit_report::snapshot::SCHEMA;

/// Maximum number of events in memory. // 4096 x 1.5 kB = 6 MB, where every text is as long as it may be
pub const EVENTS_MAX: usize = 4096;
/// Maximum bytes of an event's detail text in memory.
const DETAIL_BYTES_MAX: usize = 1024;
/// Maximum number of events that a reader may lag behind.
const BEHIND_MAX: usize = 1024;

/// Recent events. Clones share one memory.
#[derive(Clone, Debug, Default)]
pub struct Feed(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    recent: VecDeque<Arc<Event>>,
    overwritten: u64,
    /// Sender to the followers; `None` once the feed is closed.
    followers: Option<broadcast::Sender<Arc<Event>>>,
}

impl Default for State {
    fn default() -> Self {
        Self { recent: VecDeque::new(), overwritten: 0, followers: Some(broadcast::channel(BEHIND_MAX).0) }
    }
}

/// Filter of recent and following events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) source: Option<IpNet>,
    pub(super) rule: Option<String>,
    pub(super) kind: Option<EventKind>,
    pub(super) since: Option<Timestamp>,
}

/// Receiver of the following events.
pub(super) type Following = broadcast::Receiver<Arc<Event>>;

impl Feed {
    /// Adds an event and sends it to the followers, without waiting.
    pub fn tell(&self, mut event: Event) {
        let end = (0..=event.detail.len().min(DETAIL_BYTES_MAX)).rev().find(|at| event.detail.is_char_boundary(*at));
        event.detail.truncate(end.unwrap_or(0));
        let event = Arc::new(event);
        let mut state = self.lock();
        if state.recent.len() >= EVENTS_MAX {
            state.recent.pop_front();
            state.overwritten += 1;
        }
        state.recent.push_back(Arc::clone(&event));
        if let Some(followers) = &state.followers {
            // There may be no followers.
            let _ = followers.send(event);
        }
    }

    /// Returns the recent events that match the request.
    pub fn report(&self, asked: &EventsOf) -> Result<EventsReport, Problem> {
        Ok(self.recent(&asked.wanted()?, asked.most))
    }

    /// Erases the events of a source, or of all sources in a prefix. Returns their number.
    pub fn forget(&self, prefix: IpNet) -> u64 {
        let mut state = self.lock();
        let before = state.recent.len();
        state.recent.retain(|event| !source(event).is_some_and(|of| prefix.contains(&of)));
        (before - state.recent.len()) as u64
    }

    /// Returns the number of overwritten events.
    pub fn overwritten(&self) -> u64 {
        self.lock().overwritten
    }

    /// Closes the feed: followers see its end.
    pub fn close(&self) {
        self.lock().followers = None;
    }

    /// Returns the recent events that match the filter, at most the newest `most`.
    pub(super) fn recent(&self, wanted: &Wanted, most: Option<usize>) -> EventsReport {
        let state = self.lock();
        let events = state.recent(wanted, most);
        let overwritten = state.overwritten;
        drop(state);
        EventsReport { schema: SCHEMA, events: events.iter().map(|event| Event::clone(event)).collect(), overwritten }
    }

    /// Returns the matching recent events and a receiver of later ones, without a gap or duplicates. Returns `None` if
    /// the feed is closed.
    pub(super) fn follow(&self, wanted: &Wanted, most: Option<usize>) -> Option<(Vec<Arc<Event>>, Following)> {
        let state = self.lock();
        let following = state.followers.as_ref()?.subscribe();
        Some((state.recent(wanted, most), following))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change leaves a consistent state, so a poisoned lock is harmless.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the matching events, oldest first.
    fn recent(&self, wanted: &Wanted, most: Option<usize>) -> Vec<Arc<Event>> {
        let newest = self.recent.iter().rev().filter(|event| wanted.takes(event)).take(most.unwrap_or(EVENTS_MAX));
        let mut events: Vec<Arc<Event>> = newest.cloned().collect();
        events.reverse();
        events
    }
}

impl Wanted {
    /// Returns true if an event matches.
    pub(super) fn takes(&self, event: &Event) -> bool {
        let is_touched = |wanted: IpNet| source(event).is_some_and(|of| wanted.contains(&of) || of.contains(&wanted));
        self.source.is_none_or(is_touched)
            && self.rule.as_ref().is_none_or(|rule| event.rule.as_ref() == Some(rule))
            && self.kind.is_none_or(|kind| event.kind == kind)
            && self.since.is_none_or(|since| event.time >= since)
    }
}

/// Returns the source of an event.
fn source(event: &Event) -> Option<IpNet> {
    let text = event.source.as_deref()?;
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(source: &str, kind: EventKind, second: i64) -> Event {
        let time = Timestamp::from_second(second).unwrap();
        let of = Event::new(time, kind, "x".repeat(5_000));
        Event { source: Some(source.to_owned()), rule: Some("web".to_owned()), ..of }
    }

    #[test]
    fn events_are_filtered_by_source_rule_kind_and_time() {
        let feed = Feed::default();
        feed.tell(event("198.51.100.7", EventKind::Refused, 1));
        feed.tell(event("2001:db8:0:1::/64", EventKind::Ban, 2));
        feed.tell(event("198.51.100.8", EventKind::Ban, 3));
        let seconds = |wanted: Wanted, most| {
            let events = feed.recent(&wanted, most).events;
            events.iter().map(|event| event.time.as_second()).collect::<Vec<_>>()
        };
        let of = |source: &str| Wanted { source: Some(source.parse().unwrap()), ..Wanted::default() };
        assert_eq!(seconds(Wanted::default(), None), [1, 2, 3]);
        assert_eq!(seconds(Wanted::default(), Some(2)), [2, 3], "the newest");
        assert_eq!(seconds(of("198.51.100.0/24"), None), [1, 3]);
        assert_eq!(seconds(of("2001:db8:0:1::7/128"), None), [2], "an address within the source");
        assert_eq!(seconds(Wanted { kind: Some(EventKind::Ban), ..Wanted::default() }, None), [2, 3]);
        assert_eq!(seconds(Wanted { rule: Some("ssh".into()), ..Wanted::default() }, None), [0; 0]);
        let since = Some(Timestamp::from_second(2).unwrap());
        assert_eq!(seconds(Wanted { since, ..Wanted::default() }, None), [2, 3]);
        assert_eq!(feed.forget("198.51.100.8/32".parse().unwrap()), 1);
        assert_eq!(seconds(Wanted::default(), None), [1, 2]);
        assert_eq!(feed.recent(&Wanted::default(), None).events[0].detail.len(), DETAIL_BYTES_MAX);
    }

    #[test]
    fn a_flood_is_remembered_up_to_a_bound_and_the_rest_is_counted() {
        let feed = Feed::default();
        let (told, mut following) = feed.follow(&Wanted::default(), None).unwrap();
        assert!(told.is_empty());
        for second in 0..10_000 {
            feed.tell(event("198.51.100.7", EventKind::Refused, second));
        }
        let report = feed.recent(&Wanted::default(), None);
        assert_eq!((report.events.len(), report.overwritten), (EVENTS_MAX, 10_000 - EVENTS_MAX as u64));
        assert_eq!(report.events.last().unwrap().time.as_second(), 9_999);
        let missed = following.try_recv().unwrap_err();
        assert_eq!(missed, broadcast::error::TryRecvError::Lagged(10_000 - BEHIND_MAX as u64));
        assert_eq!(following.try_recv().unwrap().time.as_second(), 10_000 - BEHIND_MAX as i64);
        feed.close();
        assert!(feed.follow(&Wanted::default(), None).is_none());
    }
}
