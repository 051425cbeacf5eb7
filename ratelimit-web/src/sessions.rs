//! Login sessions. Their number is bounded. They live only in memory, so a restart ends all of them. Time is an
//! argument.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use crate::token::{hex, random};

/// Lifetime of a session.
pub(crate) const SESSION_TIME_MAX: Duration = Duration::from_secs(12 * 3_600);
/// Maximum number of sessions. A further login ends the session that would expire first.
pub(crate) const SESSIONS_MAX: usize = 32;

const SECRET_BYTES: usize = 32;

/// Session of a logged-in browser.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// SHA-256 digest of the CSRF token that every request must repeat.
    csrf: [u8; 32],
    /// Expiry of the session.
    pub(crate) until: Instant,
    end: watch::Receiver<()>,
}

/// Signal that a session ended. Endless answers to a member stop with it.
#[derive(Clone, Debug)]
pub struct SessionEnd {
    until: Instant,
    end: watch::Receiver<()>,
}

impl SessionEnd {
    /// Waits until the session ends: by a logout, by its expiry, or by a newer login that replaces it.
    pub async fn wait(mut self) {
        // Nothing is ever sent. The sender is dropped together with the session.
        let ended = async { while self.end.changed().await.is_ok() {} };
        let _either = tokio::time::timeout_at(self.until.into(), ended).await;
    }
}

impl Session {
    /// Returns true if the text is the session's CSRF token.
    pub(crate) fn repeats(&self, csrf: &str) -> bool {
        digest(csrf) == self.csrf
    }

    pub(crate) fn end(&self) -> SessionEnd {
        SessionEnd { until: self.until, end: self.end.clone() }
    }
}

/// Sessions by the digest of the cookie's value. Because of the digest, the time of a look-up reveals nothing about
/// the cookie.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    held: BTreeMap<[u8; 32], Held>,
}

/// Session, and the sender that signals its end when dropped.
#[derive(Debug)]
struct Held {
    session: Session,
    _alive: watch::Sender<()>,
}

impl Sessions {
    /// Starts a session, and returns the cookie's value and the CSRF token. Returns none if the system has no random
    /// bytes.
    pub(crate) fn begin(&mut self, now: Instant) -> Option<(String, String)> {
        let (id, csrf) = (hex(&random::<SECRET_BYTES>()?), hex(&random::<SECRET_BYTES>()?));
        self.held.retain(|_, held| held.session.until > now);
        if self.held.len() >= SESSIONS_MAX {
            let first = self.held.iter().min_by_key(|(_, held)| held.session.until).map(|(id, _)| *id)?;
            self.held.remove(&first);
        }
        let (alive, end) = watch::channel(());
        let session = Session { csrf: digest(&csrf), until: now + SESSION_TIME_MAX, end };
        self.held.insert(digest(&id), Held { session, _alive: alive });
        Some((id, csrf))
    }

    pub(crate) fn find(&self, id: &str, now: Instant) -> Option<Session> {
        self.held.get(&digest(id)).map(|held| &held.session).filter(|session| session.until > now).cloned()
    }

    pub(crate) fn end(&mut self, id: &str) {
        self.held.remove(&digest(id));
    }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_holds_until_its_time_or_its_end_and_no_other_id_finds_it() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        let [one, other] = [(); 2].map(|()| sessions.begin(now).unwrap().0);
        let last = now + SESSION_TIME_MAX - Duration::from_secs(1);
        assert!(sessions.find(&one, last).is_some() && sessions.find(&one, now + SESSION_TIME_MAX).is_none());
        assert!(sessions.find("", now).is_none() && sessions.find(&one[1..], now).is_none());
        sessions.end(&one);
        assert!(sessions.find(&one, now).is_none() && sessions.find(&other, now).is_some());
    }

    #[test]
    fn sessions_never_exceed_their_maximum_and_the_first_to_end_is_removed() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        let begin =
            |of: u32, sessions: &mut Sessions| sessions.begin(now + Duration::from_secs(u64::from(of))).unwrap().0;
        let ids: Vec<String> = (0..40).map(|of| begin(of, &mut sessions)).collect();
        assert_eq!(sessions.held.len(), SESSIONS_MAX);
        let holds: Vec<bool> = ids.iter().map(|id| sessions.find(id, now).is_some()).collect();
        assert!(holds[..8].iter().all(|holds| !holds) && holds[8..].iter().all(|holds| *holds));
        sessions.begin(now + 2 * SESSION_TIME_MAX).unwrap();
        assert_eq!(sessions.held.len(), 1, "those that have ended are removed");
    }

    #[test]
    fn a_csrf_token_is_its_sessions_own() {
        let (mut sessions, now) = (Sessions::default(), Instant::now());
        let [(one, csrf), (_, others)] = [(); 2].map(|()| sessions.begin(now).unwrap());
        let session = sessions.find(&one, now).unwrap();
        assert!(session.repeats(&csrf) && !session.repeats(&others) && !session.repeats(&one) && !session.repeats(""));
    }
}
