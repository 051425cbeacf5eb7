//! Output of `ratelimitd stats --watch`: a snapshot every second until Ctrl-C. Waits for a daemon that stops answering.

use std::io::{self, Write};
use std::time::Duration;

use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use ratelimit_control::client::{Client, ClientError};
use ratelimit_control::proto::Stats;
use ratelimit_report::snapshot::Snapshot;

const EVERY: Duration = Duration::from_secs(1);

/// Switch to the alternate screen, which preserves the terminal's contents, and hide the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Move to the top left corner, and clear a line's or the screen's remainder.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// Kind of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    /// A terminal: each snapshot replaces the previous one.
    Terminal,
    /// A pipe or file: snapshots follow one another.
    Stream,
}

/// Reason why watching ended, other than Ctrl-C.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The daemon did not answer at the start.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Writing the output failed.
    #[error("write statistics: {0}")]
    Output(#[from] io::Error),
}

/// Error number that a terminal returns once it is gone (EIO).
const INPUT_OUTPUT_ERROR: i32 = 5;

/// Returns whether the reader of a terminal or pipe is gone: the pipe was closed, or the terminal is gone. Nobody is
/// left to report such an error to.
pub fn is_reader_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe || error.raw_os_error() == Some(INPUT_OUTPUT_ERROR)
}

/// Writes a snapshot every second, formatted by `render`. `asked` returns the request for the next one. Ends without an
/// error on Ctrl-C, SIGTERM and SIGHUP, and if the reader of a pipe or the terminal is gone.
///
/// While the daemon does not answer, a terminal shows the last snapshot below a line that says so. For other outputs,
/// `say` is called when the answers stop and when they return.
pub async fn watch(
    client: &Client,
    asked: impl Fn() -> Stats,
    screen: Screen,
    out: &mut impl Write,
    render: impl Fn(Option<&str>, &Snapshot) -> String,
    say: impl Fn(&str),
) -> Result<(), WatchError> {
    let first = client.call(&asked()).await?;
    if screen == Screen::Stream {
        return follow(client, asked, first, say, |shown| match shown {
            Shown::Reading(snapshot) => write!(out, "{}", render(None, snapshot)).and_then(|()| out.flush()),
            Shown::Gone { .. } => Ok(()),
        })
        .await;
    }
    let mut terminal = Terminal { out };
    match terminal.write(ENTER) {
        Err(gone) if is_reader_gone(&gone) => return Ok(()),
        written => written?,
    }
    follow(
        client,
        asked,
        first,
        |_| (),
        |shown| {
            let text = match shown {
                Shown::Reading(snapshot) => render(None, snapshot),
                Shown::Gone { why, since, last } => render(Some(&gone(why, since)), last),
            };
            terminal.write(&frame(&text))
        },
    )
    .await
}

/// State that the terminal shows.
enum Shown<'a> {
    Reading(&'a Snapshot),
    /// No answer since this time, with the last snapshot.
    Gone {
        why: &'a ClientError,
        since: Timestamp,
        last: &'a Snapshot,
    },
}

async fn follow(
    client: &Client,
    asked: impl Fn() -> Stats,
    mut last: Snapshot,
    say: impl Fn(&str),
    mut show: impl FnMut(Shown<'_>) -> io::Result<()>,
) -> Result<(), WatchError> {
    let mut show = move |shown: Shown<'_>| match show(shown) {
        Err(gone) if is_reader_gone(&gone) => Ok(false),
        written => written.map(|()| true),
    };
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    let (mut terminated, mut hung_up) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    let mut gone_since = None;
    let mut is_read = show(Shown::Reading(&last))?;
    while is_read {
        let answer = tokio::select! {
            stopped = &mut interrupted => return Ok(stopped?),
            _ = terminated.recv() => return Ok(()),
            _ = hung_up.recv() => return Ok(()),
            answer = async { ticks.tick().await; client.call(&asked()).await } => answer,
        };
        is_read = match answer {
            Ok(snapshot) => {
                if gone_since.take().is_some() {
                    say("the daemon answers again");
                }
                last = snapshot;
                show(Shown::Reading(&last))?
            }
            Err(why) => {
                let is_new = gone_since.is_none();
                let since = *gone_since.get_or_insert_with(Timestamp::now);
                if is_new {
                    say(&gone(&why, since));
                }
                show(Shown::Gone { why: &why, since, last: &last })?
            }
        };
    }
    Ok(())
}

/// Returns the line above an old snapshot: `NO ANSWER SINCE 10:00:00 UTC: no daemon answers at …; it is asked …`.
fn gone(why: &ClientError, since: Timestamp) -> String {
    let since = since.strftime("%H:%M:%S UTC");
    format!("NO ANSWER SINCE {since}: {why}; it is asked again every second, and this was its last answer")
}

/// Returns control codes and text that replace the previous frame.
fn frame(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| format!("{line}{CLEAR_LINE}")).collect();
    format!("{HOME}{}{CLEAR_BELOW}", lines.join("\n"))
}

/// A terminal that shows the alternate screen until this value is dropped.
struct Terminal<'a, W: Write> {
    out: &'a mut W,
}

impl<W: Write> Terminal<'_, W> {
    fn write(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}

impl<W: Write> Drop for Terminal<'_, W> {
    fn drop(&mut self) {
        // If the terminal is gone, nobody looks at it.
        let _gone = self.write(LEAVE);
    }
}
