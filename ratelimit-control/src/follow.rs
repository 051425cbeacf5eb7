//! Streams of events over HTTP: recent events and all that follow. A stream is JSON, one object per line, or
//! server-sent events if the request accepts `text/event-stream`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use http_body_util::channel::{Channel, Sender};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;

use super::feed::{Feed, Following, Wanted};
use super::proto::{EventsOf, Problem, ProblemKind};
use ratelimit_report::event::Event;
use ratelimit_web::SessionEnd;

/// Maximum number of concurrent streams.
const FOLLOWERS_MAX: usize = 64;
/// Interval after which something is sent even without events, so that a closed connection is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Lines that wait for the client, besides those in the kernel.
const LINES_MAX: usize = 16;
const MEDIA_SSE: &str = "text/event-stream";
const MEDIA_LINES: &str = "application/x-ndjson";

/// Flag of a connection with an endless answer, so that the connection may last.
#[derive(Clone, Debug, Default)]
pub(super) struct Lasting(Arc<AtomicBool>);

impl Lasting {
    fn set(&self, is_lasting: bool) {
        self.0.store(is_lasting, Ordering::Relaxed);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Free places for streams.
#[derive(Clone, Debug)]
pub(super) struct Followers(Arc<Semaphore>);

impl Default for Followers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(FOLLOWERS_MAX)))
    }
}

/// Format of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Lines,
    ServerSent,
}

/// Number of events that a slow reader missed.
#[derive(Serialize)]
struct Missed {
    missed: u64,
}

/// Returns true if a request asks for a stream instead of one report.
pub(super) fn is_stream(parts: &Parts, asked: &EventsOf) -> bool {
    asked.follow == Some(true) || Form::asked(&parts.headers) == Form::ServerSent
}

/// Answers a request for a stream of events. Fails if too many streams exist or the daemon stops.
pub(super) fn answer(feed: &Feed, followers: &Followers, parts: &Parts, asked: &EventsOf) -> Result<Response, Problem> {
    let form = Form::asked(&parts.headers);
    let wanted = asked.wanted()?;
    let crowded = || Problem::new(ProblemKind::Conflict, format!("{FOLLOWERS_MAX} clients follow the events already"));
    let place = Arc::clone(&followers.0).try_acquire_owned().map_err(|_| crowded())?;
    let stopping = || Problem::new(ProblemKind::Stopping, "the daemon is stopping");
    let (told, following) = feed.follow(&wanted, asked.most).ok_or_else(stopping)?;
    let lasting = parts.extensions.get::<Lasting>().cloned().unwrap_or_default();
    lasting.set(true);
    let (sender, body) = Channel::new(LINES_MAX);
    let end = parts.extensions.get::<SessionEnd>().cloned();
    let sent = send(sender, form, wanted, told, following);
    tokio::spawn(async move {
        let _place = place;
        tokio::select! {
            biased;
            () = ended(end) => {}
            () = sent => {}
        }
        // Stop waiting for a client that reads nothing.
        lasting.set(false);
    });
    let headers = [(header::CONTENT_TYPE, form.media()), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::new(body)).into_response())
}

/// Waits for the end of the session. A user without a session keeps the stream as long as the connection lasts.
async fn ended(end: Option<SessionEnd>) {
    match end {
        Some(end) => end.wait().await,
        None => std::future::pending().await,
    }
}

/// Sends events until the client is gone or the feed ends. Waits only for this client, and delays no others.
async fn send(mut to: Sender<Bytes>, form: Form, wanted: Wanted, told: Vec<Arc<Event>>, mut following: Following) {
    for event in told {
        if to.send_data(form.event(&event)).await.is_err() {
            return;
        }
    }
    loop {
        let bytes = match timeout(KEEP_ALIVE, following.recv()).await {
            Ok(Ok(event)) if wanted.takes(&event) => form.event(&event),
            Ok(Ok(_)) => continue,
            Ok(Err(RecvError::Lagged(missed))) => form.missed(missed),
            Ok(Err(RecvError::Closed)) => return,
            Err(_) => form.nothing(),
        };
        if to.send_data(bytes).await.is_err() {
            return;
        }
    }
}

impl Form {
    fn asked(headers: &HeaderMap) -> Self {
        let accepted = headers.get(header::ACCEPT).and_then(|of| of.to_str().ok()).unwrap_or_default();
        if accepted.contains(MEDIA_SSE) { Self::ServerSent } else { Self::Lines }
    }

    const fn media(self) -> &'static str {
        match self {
            Self::Lines => MEDIA_LINES,
            Self::ServerSent => MEDIA_SSE,
        }
    }

    fn event(self, event: &Event) -> Bytes {
        self.write("", event)
    }

    fn missed(self, missed: u64) -> Bytes {
        self.write("event: missed\n", &Missed { missed })
    }

    /// Returns a message that readers ignore.
    fn nothing(self) -> Bytes {
        match self {
            Self::Lines => "\n",
            Self::ServerSent => ":\n\n",
        }
        .into()
    }

    fn write(self, name: &str, of: &impl Serialize) -> Bytes {
        // Strings and numbers: serialising cannot fail.
        let text = serde_json::to_string(of).unwrap_or_default();
        match self {
            Self::Lines => format!("{text}\n"),
            Self::ServerSent => format!("{name}data: {text}\n\n"),
        }
        .into()
    }
}
