//! Notifications to the service manager.

use sd_notify::NotifyState;

/// Notification to the service manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State<'a> {
    /// Every existing interface is attached and the socket answers, or a reload has ended.
    Ready,
    /// A reload begins.
    Reloading,
    /// The daemon begins to stop.
    Stopping,
    /// Status in one line.
    Line(&'a str),
    /// Keep-alive for the watchdog.
    Alive,
}

/// Receiver of notifications.
pub(super) trait Notifier: Send {
    /// Sends a notification. Failures have no consequence.
    fn tell(&mut self, state: State<'_>);
}

/// systemd's notification socket, if systemd provided one.
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
