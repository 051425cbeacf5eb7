//! The terminal, the clock and the daemon: what of `top` does anything. One `stats` a second, and one `check` while a source
//! is open.

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

/// Keys that wait for the next frame: what is typed faster waits in the terminal.
const WAITING_MAX: usize = 64;

/// Why it ended other than by a key.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// There was no answer to the first question.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The terminal failed.
    #[error("draw on the terminal: {0}")]
    Terminal(#[from] io::Error),
}

/// Shows it until a key, SIGINT, SIGTERM or SIGHUP ends it. Standard output is a terminal. `ssh_peer` is where the user
/// came from, whom `deny` is not to lock out.
pub async fn run(client: Client, ssh_peer: Option<IpAddr>, paint: Paint) -> Result<(), TopError> {
    let began = Instant::now();
    let state = State::new(client.call(&Stats::now()).await?, Duration::ZERO);
    match paint {
        Paint::Colours => force_color_output(true),
        Paint::Plain => {}
    }
    // Restores the terminal on a panic too.
    let ended = match ratatui::try_init() {
        Ok(terminal) => {
            let terminal = ManuallyDrop::new(terminal);
            let ended = Top { client, ssh_peer, paint, began, state, terminal, is_reading: false }.show().await;
            ended.and(ratatui::try_restore())
        }
        Err(error) => Err(error),
    };
    match ended {
        // The terminal is gone, and with it everybody who could be told.
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
    /// Never dropped: its drop prints an error where it cannot show the cursor, and to print is a panic where the
    /// terminal is gone.
    terminal: ManuallyDrop<DefaultTerminal>,
    /// A daemon that takes its time is not asked again meanwhile.
    is_reading: bool,
}

/// What wakes the loop.
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
                // This end holds a sender, so there is always a next one.
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
            // Drawing asks for the size.
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

    /// Gives the terminal back, stops this process, and takes the terminal again once it is continued.
    fn suspend(&mut self) -> io::Result<()> {
        self.terminal.show_cursor()?;
        ratatui::try_restore()?;
        kill(Pid::this(), Signal::SIGSTOP)?;
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, Clear(ClearType::All))?;
        // A new one draws all of it; `clear` would ask for the cursor's place, and the thread that reads keys has the answer.
        let again = ManuallyDrop::new(Terminal::new(CrosstermBackend::new(io::stdout()))?);
        // Its cursor is shown already, so that its drop prints nothing.
        drop(ManuallyDrop::into_inner(mem::replace(&mut self.terminal, again)));
        Ok(())
    }
}

/// Has a thread wait for keys: reading a terminal blocks. It ends with the process.
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

/// All that is known of one source, as text: what `check` says. What `history` says of it goes behind that.
async fn story(client: &Client, ip: IpAddr) -> Result<String, ClientError> {
    Ok(ratelimit_view::check(&client.call(&Check { ip }).await?, Detail::Verbose))
}

/// Does what the command of the same name does, and says what came of it.
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

/// What happened and what to do about it.
fn words(error: &ClientError) -> String {
    [vec![error.to_string()], error.help()].concat().join("; ")
}
