//! What the service manager is told.

use sd_notify::NotifyState;

/// One thing to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State<'a> {
    /// Everything is attached that is there, and the socket answers; or a reload is over.
    Ready,
    /// A reload begins.
    Reloading,
    /// The end begins.
    Stopping,
    /// How things are, in one line.
    Line(&'a str),
    /// The watchdog's food.
    Alive,
}

/// Whom to tell.
pub(super) trait Notifier: Send {
    /// Tells. Nothing depends on whether it is heard.
    fn tell(&mut self, state: State<'_>);
}

/// systemd, where it has asked for it.
pub(super) struct Systemd;

impl Notifier for Systemd {
    fn tell(&mut self, state: State<'_>) {
        let told = match state {
            State::Ready => sd_notify::notify(&[NotifyState::Ready]),
            State::Reloading => {
                NotifyState::monotonic_usec_now().and_then(|now| sd_notify::notify(&[NotifyState::Reloading, now]))
            }
            State::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
            State::Line(line) => sd_notify::notify(&[NotifyState::Status(line)]),
            State::Alive => sd_notify::notify(&[NotifyState::Watchdog]),
        };
        if let Err(error) = told {
            tracing::debug!("tell the service manager: {error}");
        }
    }
}
