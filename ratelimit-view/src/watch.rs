//! `ratelimitd stats --watch`: the same every second, until Ctrl-C.

use std::io::{self, Write};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use ratelimit_control::client::{Client, ClientError};
use ratelimit_control::proto::Stats;
use ratelimit_report::snapshot::Snapshot;

const EVERY: Duration = Duration::from_secs(1);

/// To the top left corner, and clear from there on.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// What is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    /// A terminal: cleared before each snapshot.
    Terminal,
    /// A pipe or file: one snapshot after another.
    Stream,
}

/// Why watching ended other than by Ctrl-C.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// There was no answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The output took no more.
    #[error("write statistics: {0}")]
    Output(#[from] io::Error),
}

/// Writes a snapshot every second, as `render` has it. Ends well on Ctrl-C, and when the reader of a pipe has gone.
pub async fn watch(
    client: &Client,
    screen: Screen,
    out: &mut impl Write,
    render: impl Fn(&Snapshot) -> String,
) -> Result<(), WatchError> {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stop = tokio::signal::ctrl_c();
    tokio::pin!(stop);
    loop {
        let snapshot = tokio::select! {
            stopped = &mut stop => return Ok(stopped?),
            snapshot = async { ticks.tick().await; client.call(&Stats::now()).await } => snapshot?,
        };
        let clear = match screen {
            Screen::Terminal => CLEAR,
            Screen::Stream => "",
        };
        match write!(out, "{clear}{}", render(&snapshot)).and_then(|()| out.flush()) {
            Err(gone) if gone.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
}
