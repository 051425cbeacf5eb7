//! Events from outside the API: signals and link changes.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::netlink::LinkEvents;

/// Capacity of the event queue. Link changes are dropped if it is full, because one is already queued. Signals wait
/// for room.
const EVENTS_MAX: usize = 8;

/// Minimum interval between two announcements of link changes. A flapping link is reattached once within it. A new
/// interface has no packets before something sets it up, which is a further change.
const LINKS_PAUSE: Duration = Duration::from_millis(5);

/// Event that the daemon reacts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// SIGINT or SIGTERM.
    Stop,
    /// SIGHUP.
    Reload,
    /// Some interface came, went or changed.
    LinksChanged,
}

/// Watches signals and links until the tasks are dropped.
pub(super) fn watch() -> io::Result<(mpsc::Receiver<Event>, JoinSet<()>)> {
    let (sender, receiver) = mpsc::channel(EVENTS_MAX);
    let mut tasks = JoinSet::new();
    for (kind, event) in [
        (SignalKind::interrupt(), Event::Stop),
        (SignalKind::terminate(), Event::Stop),
        (SignalKind::hangup(), Event::Reload),
    ] {
        tasks.spawn(forward(signal(kind)?, event, sender.clone()));
    }
    match LinkEvents::open() {
        Ok(links) => {
            tasks.spawn(announce(links, sender));
        }
        Err(error) => tracing::warn!("watch links: {error}; looking at them every two seconds only"),
    }
    Ok((receiver, tasks))
}

async fn forward(mut signal: Signal, event: Event, sender: mpsc::Sender<Event>) {
    while signal.recv().await.is_some() && sender.send(event).await.is_ok() {}
}

async fn announce(mut links: LinkEvents, sender: mpsc::Sender<Event>) {
    loop {
        if let Err(error) = links.changed().await {
            tracing::warn!("watch links: {error}; looking at them every two seconds only");
            return;
        }
        // If the queue is full, the owner will look anyway.
        if let Err(mpsc::error::TrySendError::Closed(_)) = sender.try_send(Event::LinksChanged) {
            return;
        }
        tokio::time::sleep(LINKS_PAUSE).await;
    }
}
