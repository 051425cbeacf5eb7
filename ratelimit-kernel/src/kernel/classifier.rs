//! The program for TCX ingress, from an object of its own, on the maps of the XDP program. Loading takes as long as for
//! XDP, so the program is loaded on first need.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{fs, io, thread};

use anyhow::{Context as _, anyhow};
use aya::programs::links::FdLink;
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions, TcAttachType};
use aya::programs::{LinkOrder, SchedClassifier};
use aya::util::KernelVersion;
use aya::{Ebpf, VerifierLogLevel};
use nix::sys::statfs::{Statfs, statfs};
use ratelimit_common::layout::{self, map};
use ratelimit_crash::{Point, reach};

use super::{Kernel, Options, state};
use crate::interface::Interface;
use crate::{DatapathError, bpf, object, pins, privileges};
use ratelimit_policy::config::HookChoice;

/// First kernel version with TCX.
const SINCE: KernelVersion = KernelVersion::new(6, 6, 0);

/// Interval between checks for interfaces while a program is verified.
const ATTACH_EVERY: Duration = Duration::from_millis(5);

/// Maps that both programs share in addition to the pinned maps.
const SHARED: [&str; 9] = [
    map::CONVERSATIONS_V4,
    map::CONVERSATIONS_V6,
    map::PREFIX_MISSES,
    map::PREFIX_FILTER,
    map::MULTIPLICITIES,
    map::ADMISSION,
    map::NEW_SOURCES,
    map::CHARGE_ORDER,
    map::INJECTED_NOW,
];

/// Header before the IP packets of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkHeader {
    /// An Ethernet header.
    Ethernet,
    /// No header.
    None,
}

impl From<&Interface> for LinkHeader {
    fn from(of: &Interface) -> Self {
        if of.has_ethernet_header() { Self::Ethernet } else { Self::None }
    }
}

/// Loaded programs, one for each link header, which is a constant of the program.
pub(super) struct Classifiers {
    options: Options,
    ethernet: Option<SchedClassifier>,
    headless: Option<SchedClassifier>,
}

impl Classifiers {
    /// Returns the state without a loaded program.
    pub(super) const fn new(options: Options) -> Self {
        Self { options, ethernet: None, headless: None }
    }

    fn of(&mut self, header: LinkHeader) -> &mut Option<SchedClassifier> {
        match header {
            LinkHeader::Ethernet => &mut self.ethernet,
            LinkHeader::None => &mut self.headless,
        }
    }
}

/// Returns whether this kernel has TCX.
#[must_use]
pub fn is_there() -> bool {
    KernelVersion::current().is_ok_and(|now| now >= SINCE)
}

/// Returns the error that this kernel has no TCX.
pub(super) fn missing(interface: &str) -> DatapathError {
    let running = nix::sys::utsname::uname().map(|of| format!("Linux {}", of.release().to_string_lossy()));
    DatapathError::Unsupported {
        what: format!("attach to {interface} by TCX"),
        why: format!(
            "{} lacks TCX, which mainline has since Linux 6.6; if XDP is free there, use `--hook xdp`",
            running.unwrap_or_else(|_| "the kernel".to_owned())
        ),
    }
}

impl Kernel {
    /// Returns the program for this link header. Loads the program if needed.
    pub(super) fn classifier(&mut self, header: LinkHeader) -> Result<&mut SchedClassifier, DatapathError> {
        if self.classifiers.of(header).is_none() {
            let loaded = self.load_classifier(header)?;
            *self.classifiers.of(header) = Some(loaded);
            reach(Point::ProgramLoaded);
        }
        Ok(self.classifiers.of(header).as_mut().context("the program for TCX was loaded just now")?)
    }

    /// Loads the programs that awaited interfaces may need, because this process cannot load any later. Another thread
    /// verifies each program. Interfaces that appear meanwhile are attached at once.
    pub(super) fn load_for_later(&mut self, interfaces: &[String], meanwhile: &mut dyn FnMut(&mut Self)) {
        let is_attached = |name: &String| self.links.slots().iter().flatten().any(|slot| slot.name() == name);
        if self.links.hook() == HookChoice::Xdp || !self::is_there() || interfaces.iter().all(is_attached) {
            return;
        }
        for header in [LinkHeader::Ethernet, LinkHeader::None] {
            let loaded = match self.classifiers.of(header) {
                Some(_) => continue,
                None => self.load_beside(header, meanwhile),
            };
            match loaded {
                Ok(loaded) => {
                    self.classifiers.of(header).get_or_insert(loaded);
                    reach(Point::ProgramLoaded);
                }
                Err(error) => {
                    tracing::warn!("interfaces that appear later can be limited only at XDP: {error}");
                    break;
                }
            }
        }
        meanwhile(self);
    }

    fn load_beside(
        &mut self,
        header: LinkHeader,
        meanwhile: &mut dyn FnMut(&mut Self),
    ) -> Result<SchedClassifier, DatapathError> {
        let (shared, options) = (self.share_maps()?, self.classifiers.options.clone());
        let loading = thread::Builder::new().spawn(move || load(shared, &options, header));
        let loading = loading.context("start a thread to load the program for TCX")?;
        while !loading.is_finished() {
            meanwhile(self);
            thread::sleep(ATTACH_EVERY);
        }
        loading.join().map_err(|_| anyhow!("the thread that loads the program for TCX panicked"))?
    }

    fn load_classifier(&self, header: LinkHeader) -> Result<SchedClassifier, DatapathError> {
        // The XDP program is loaded, so the capabilities were present then.
        if !privileges::missing().is_empty() {
            return Err(DatapathError::Unsupported {
                what: "load the program for TCX".into(),
                why: "the required capabilities were given up after the start, because no interface needed it; \
                    restart ratelimitd"
                    .into(),
            });
        }
        load(self.share_maps()?, &self.classifiers.options, header)
    }

    /// Pins each shared map to a file, by which the other program finds it.
    fn share_maps(&self) -> Result<Shared, DatapathError> {
        let mut shared = Shared::make(self.pins.as_ref().map(|pins| pins.dir()))?;
        let names = state::EXPECTED.iter().map(|of| of.name).chain(SHARED);
        for name in names {
            shared.add(name, self.map_fd(name)?)?;
        }
        Ok(shared)
    }

    fn map_fd(&self, name: &'static str) -> Result<BorrowedFd<'_>, DatapathError> {
        match name {
            map::EVENTS => Ok(self.events.fd()),
            map::STEPS => Ok(self.steps.fd()),
            _ => Ok(state::data(super::map_ref(&self.ebpf, name)?)?.fd().as_fd()),
        }
    }

    /// Attaches the program to an interface, before all programs of others.
    pub(super) fn attach_classifier(&mut self, found: &Interface) -> Result<FdLink, DatapathError> {
        if !is_there() {
            return Err(missing(&found.name));
        }
        let program = self.classifier(LinkHeader::from(found))?;
        let order = TcAttachOptions::TcxOrder(LinkOrder::first());
        let id = program.attach_with_options(&found.name, TcAttachType::Ingress, order).map_err(|error| {
            let error = anyhow::Error::from(error);
            let what = format!("attach to {} by TCX", found.name);
            match state::errno(&error) {
                Some(libc::EPERM | libc::EACCES) => state::denied(what),
                _ => DatapathError::Other(error.context(what)),
            }
        })?;
        reach(Point::Linked);
        fd_link(program.take_link(id).context("take the link")?)
    }

    /// Replaces the program of the link by ours, between two packets.
    pub(super) fn replace_classifier(&mut self, link: FdLink, header: LinkHeader) -> Result<FdLink, DatapathError> {
        let link = SchedClassifierLink::try_from(link).context("the pinned link is no TCX link")?;
        let program = self.classifier(header)?;
        let id = program.attach_to_link(link).context("replace the program of the pinned link")?;
        reach(Point::Replaced);
        fd_link(program.take_link(id).context("take the link")?)
    }
}

/// Loads the program on the maps in these files and keeps only the program. The kernel keeps the maps as long as a
/// program uses them.
fn load(mut shared: Shared, options: &Options, header: LinkHeader) -> Result<SchedClassifier, DatapathError> {
    let has_link_header: &'static u8 = match header {
        LinkHeader::Ethernet => &1,
        LinkHeader::None => &0,
    };
    let log =
        if tracing::enabled!(tracing::Level::DEBUG) { VerifierLogLevel::DEBUG } else { VerifierLogLevel::DISABLE };
    let mut ebpf = Kernel::with_loader(options, log, |loader| {
        loader.override_global(layout::HAS_LINK_HEADER, has_link_header, true);
        for (name, path) in &shared.files {
            loader.map_pin_path(name, path.clone());
        }
        loader.load(object::CLASSIFIER)
    })
    .map_err(|error| state::load_error("share the maps with the program for TCX", error.into()))?;
    let loaded = program(&mut ebpf)?;
    loaded.load().map_err(|error| state::load_error("load the program for TCX", error.into()))?;
    let path = shared.add(layout::PROGRAM, loaded.fd().context("the program was loaded just now")?.as_fd())?;
    Ok(SchedClassifier::from_pin(path).context("open the program for TCX")?)
}

fn fd_link(link: SchedClassifierLink) -> Result<FdLink, DatapathError> {
    Ok(FdLink::try_from(link).context("the kernel made no link of TCX")?)
}

fn program(ebpf: &mut Ebpf) -> Result<&mut SchedClassifier, DatapathError> {
    let program = ebpf.program_mut(layout::PROGRAM).with_context(|| format!("find program {}", layout::PROGRAM))?;
    Ok(program.try_into().context("the program is not a TCX program")?)
}

/// Prefix of the files that share maps while a program is loaded.
const PREFIX: &str = "shared-";

/// Number of directories for such files made by this process.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Files of maps and of the program, which exist while the program is loaded.
struct Shared {
    dir: PathBuf,
    is_own: bool,
    /// Prefix of each file's name, unique to this load.
    prefix: String,
    files: Vec<(&'static str, PathBuf)>,
}

impl Shared {
    /// Creates the files next to the pins, or in a directory of its own without pins. Removes files left by a killed
    /// run.
    fn make(pins: Option<&Path>) -> Result<Self, DatapathError> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let own = format!("{PREFIX}{}-", std::process::id());
        let prefix = format!("{own}{number}-");
        if let Some(dir) = pins {
            for file in fs::read_dir(dir).into_iter().flatten().flatten() {
                let name = file.file_name();
                let name = name.to_string_lossy();
                // Another load of this process may be running.
                if name.starts_with(PREFIX) && (!name.starts_with(&own) || name.starts_with(&prefix)) {
                    fs::remove_file(file.path()).ok();
                }
            }
            return Ok(Self { dir: dir.to_owned(), is_own: false, prefix, files: Vec::new() });
        }
        let is_bpf = |of: Statfs| of.filesystem_type().0 == pins::BPF_FS_MAGIC;
        if !Path::new(pins::ROOT).parent().is_some_and(|parent| statfs(parent).is_ok_and(is_bpf)) {
            return Err(DatapathError::Unsupported {
                what: "share the maps with the program for TCX".into(),
                why: "there is no BPF file system; mount one with `mount -t bpf bpf /sys/fs/bpf`".into(),
            });
        }
        let dir = Path::new(pins::ROOT).with_file_name(format!("ratelimitd-{}-{number}", std::process::id()));
        pins::make_private(&dir).map_err(DatapathError::from)?;
        Ok(Self { dir, is_own: true, prefix, files: Vec::new() })
    }

    fn add(&mut self, name: &'static str, object: BorrowedFd<'_>) -> Result<PathBuf, DatapathError> {
        let path = self.dir.join(format!("{}{name}", self.prefix));
        bpf::pin(object, &path).with_context(|| format!("pin {}", path.display()))?;
        self.files.push((name, path.clone()));
        Ok(path)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let removed = self.files.iter().map(|(_, path)| fs::remove_file(path)).collect::<io::Result<Vec<()>>>();
        let removed = removed.and_then(|_| if self.is_own { fs::remove_dir(&self.dir) } else { Ok(()) });
        if let Err(error) = removed {
            tracing::warn!("remove the files of shared maps in {}: {error}", self.dir.display());
        }
    }
}
