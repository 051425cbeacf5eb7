//! The terminal, clock and daemon access of `top`. Calls `stats` once per second, and `check` too while a source is
//! open.

use std::io;
use std::mem::{self, ManuallyDrop};
use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::style::force_color_output;
use ratatui::crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, enable_raw_mode};
use ratatui::{DefaultTerminal, Terminal};
use ratelimit_control::client::{Client, ClientError};
use ratelimit_control::proto::{Allow, Check, Deny, GrantRequest, Stats, UnblockRequest};
use ratelimit_view::Detail;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::order::{Order, Verb};
use crate::state::{Ask, Heard, State};
use crate::view::{self, Paint};

const EVERY: Duration = Duration::from_secs(1);

/// Capacity of the event queue between two frames. Further input waits in the terminal.
const WAITING_MAX: usize = 64;

/// Failure that ends `top`.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// The first `stats` call failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Drawing on the terminal or reading it failed.
    #[error("draw on the terminal: {0}")]
    Terminal(#[from] io::Error),
}

/// Shows the live view until a key, SIGINT, SIGTERM or SIGHUP ends it. Standard output must be a terminal. `ssh_peer`
/// is the address of the user's SSH client. The daemon uses it to stop `deny` from locking the user out.
pub async fn run(client: Client, ssh_peer: Option<IpAddr>, paint: Paint) -> Result<(), TopError> {
    let began = Instant::now();
    let state = State::new(client.call(&Stats::now()).await?, Duration::ZERO);
    match paint {
        Paint::Colours => force_color_output(true),
        Paint::Plain => {}
    }
    // `try_init` also restores the terminal on a panic.
    let ended = match ratatui::try_init() {
        Ok(terminal) => {
            let terminal = ManuallyDrop::new(terminal);
            let ended = Top { client, ssh_peer, paint, began, state, terminal, is_reading: false }.show().await;
            ended.and(ratatui::try_restore())
        }
        Err(error) => Err(error),
    };
    match ended {
        // The terminal is gone, so nobody can read an error.
        Err(error) if ratelimit_view::is_reader_gone(&error) => Ok(()),
        ended => Ok(ended?),
    }
}

struct Top {
    client: Client,
    ssh_peer: Option<IpAddr>,
    paint: Paint,
    began: Instant,
    state: State,
    /// Never dropped: on drop, the terminal prints an error if it cannot show the cursor, and printing panics once
    /// the terminal is gone.
    terminal: ManuallyDrop<DefaultTerminal>,
    /// True while a `stats` call is in progress. A slow daemon gets no second call meanwhile.
    is_reading: bool,
}

/// Event that wakes the main loop.
enum Woken {
    Terminal(io::Result<Event>),
    Heard(Heard),
}

impl Top {
    async fn show(mut self) -> io::Result<()> {
        let ended = self.draw_until_the_end().await;
        ended.and(self.terminal.show_cursor())
    }

    async fn draw_until_the_end(&mut self) -> io::Result<()> {
        let (tell, mut told) = mpsc::channel(WAITING_MAX);
        read_terminal(tell.clone());
        let mut end = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        let [Ok(interrupt), Ok(terminate), Ok(hangup)] = &mut end else {
            return end.into_iter().try_for_each(|signal| signal.map(drop));
        };
        let mut stop = signal(SignalKind::from_raw(Signal::SIGTSTP as i32))?;
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let (state, now, paint) = (&self.state, self.began.elapsed(), self.paint);
            self.terminal.draw(|frame| view::draw(frame, state, now, paint))?;
            let asks = tokio::select! {
                _ = interrupt.recv() => return Ok(()),
                _ = terminate.recv() => return Ok(()),
                _ = hangup.recv() => return Ok(()),
                _ = stop.recv() => vec![Ask::Suspend],
                _ = ticks.tick() => self.state.due(),
                // This function holds a sender, so the channel never closes.
                Some(woken) = told.recv() => self.woken(woken)?.into_iter().collect(),
            };
            for ask in asks {
                match ask {
                    Ask::Quit => return Ok(()),
                    Ask::Suspend => self.suspend()?,
                    Ask::Read if self.is_reading => {}
                    Ask::Read => {
                        self.is_reading = true;
                        let (client, tell) = (self.client.clone(), tell.clone());
                        tokio::spawn(async move {
                            let read = client.call(&Stats::now()).await.map(Box::new).map_err(|error| words(&error));
                            let _ended = tell.send(Woken::Heard(Heard::Read(read))).await;
                        });
                    }
                    Ask::Look(address) => {
                        let (client, tell) = (self.client.clone(), tell.clone());
                        tokio::spawn(async move {
                            let found = story(&client, address).await.map_err(|error| words(&error));
                            let _ended = tell.send(Woken::Heard(Heard::Looked(address, found))).await;
                        });
                    }
                    Ask::Order(order) => {
                        let (client, peer, tell) = (self.client.clone(), self.ssh_peer, tell.clone());
                        tokio::spawn(async move {
                            let done = carry_out(&client, &order, peer).await.map_err(|error| words(&error));
                            let _ended = tell.send(Woken::Heard(Heard::Ordered(done))).await;
                        });
                    }
                }
            }
        }
    }

    fn woken(&mut self, woken: Woken) -> io::Result<Option<Ask>> {
        match woken {
            Woken::Terminal(Ok(Event::Key(key))) => Ok(self.state.key(key)),
            // The next draw reads the terminal's size.
            Woken::Terminal(Ok(
                Event::Resize(..) | Event::FocusGained | Event::FocusLost | Event::Mouse(_) | Event::Paste(_),
            )) => Ok(None),
            Woken::Terminal(Err(error)) => Err(error),
            Woken::Heard(heard) => {
                if let Heard::Read(_) = heard {
                    self.is_reading = false;
                }
                self.state.heard(heard, self.began.elapsed());
                Ok(None)
            }
        }
    }

    /// Restores the terminal, stops this process, and takes the terminal again once the process continues.
    fn suspend(&mut self) -> io::Result<()> {
        self.terminal.show_cursor()?;
        ratatui::try_restore()?;
        kill(Pid::this(), Signal::SIGSTOP)?;
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, Clear(ClearType::All))?;
        // A new terminal redraws everything. `clear` would query the cursor position, but the key-reading thread
        // would receive the answer.
        let again = ManuallyDrop::new(Terminal::new(CrosstermBackend::new(io::stdout()))?);
        // The old terminal's cursor is already shown, so its drop prints nothing.
        drop(ManuallyDrop::into_inner(mem::replace(&mut self.terminal, again)));
        Ok(())
    }
}

/// Starts a thread that waits for keys, because reading a terminal blocks. The thread ends with the process.
fn read_terminal(tell: mpsc::Sender<Woken>) {
    thread::spawn(move || {
        loop {
            let read = event::read();
            let is_broken = read.is_err();
            if tell.blocking_send(Woken::Terminal(read)).is_err() || is_broken {
                return;
            }
        }
    });
}

/// Returns everything known about one source as text: the verbose output of `check`.
async fn story(client: &Client, ip: IpAddr) -> Result<String, ClientError> {
    Ok(ratelimit_view::check(&client.call(&Check { ip }).await?, Detail::Verbose))
}

/// Carries out the order with the equivalent command and returns the outcome as text.
async fn carry_out(client: &Client, order: &Order, ssh_peer: Option<IpAddr>) -> Result<String, ClientError> {
    let seconds = order.lasts.as_ref().and_then(|lasts| lasts.seconds);
    let grant = GrantRequest {
        prefix: order.source.clone(),
        seconds,
        permanent: order.lasts.is_some() && seconds.is_none(),
        ssh_peer,
        ..GrantRequest::default()
    };
    match order.verb {
        Verb::Allow => Ok(ratelimit_view::granted(&client.call(&Allow(grant)).await?)),
        Verb::Deny => Ok(ratelimit_view::granted(&client.call(&Deny(grant)).await?)),
        Verb::Unblock => {
            let call = UnblockRequest { prefix: Some(order.source.clone()), ..UnblockRequest::default() };
            Ok(ratelimit_view::lifted(&client.call(&call).await?))
        }
    }
}

/// Returns the error and its remedy as one line.
fn words(error: &ClientError) -> String {
    [vec![error.to_string()], error.help()].concat().join("; ")
}
