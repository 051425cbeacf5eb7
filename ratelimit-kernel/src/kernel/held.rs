//! Links that earlier runs left pinned, identified by what they hold. Their interfaces may have another name since, or
//! be gone.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use aya::programs::links::{FdLink, PinnedLink};

use ratelimit_crash::{Point, reach};

use super::classifier::LinkHeader;
use crate::interface::Interface;
use crate::link_info::{self, LinkInfo};
use crate::pins::{self, Earlier, Pins};
use crate::{Attachment, DatapathError};

/// A pinned link.
pub(super) struct Held {
    /// Current name of the interface. Its name at pinning time if the interface is not in this network namespace.
    pub(super) name: String,
    /// Index of the interface, or 0 once the interface is gone.
    interface: u32,
    /// Mode of the attachment, if the interface is in this network namespace.
    pub(super) attached: Option<Attachment>,
    /// Link header of the interface, if it is in this network namespace.
    pub(super) header: LinkHeader,
    pub(super) link: FdLink,
    /// File of the link, if it is in an earlier layout's directory.
    pub(super) earlier: Option<PathBuf>,
}

impl Held {
    /// Moves the file of the link to this layout's directory.
    pub(super) fn moved(self, pins: &Pins) -> Result<Self, DatapathError> {
        let link = pin(pins, self.link, &self.name)?;
        if let Some(path) = &self.earlier {
            pins::remove(path)?;
            reach(Point::MoveLink);
        }
        Ok(Self { link, earlier: None, ..self })
    }

    /// Returns whether the link is attached to the interface with this index in this network namespace.
    pub(super) fn is_on(&self, index: u32) -> bool {
        self.attached.is_some() && self.interface == index
    }
}

/// Returns every link pinned below `root`, of this layout or of an earlier one.
pub(super) fn all(root: &Path, present: &[Interface]) -> Result<Vec<Held>, DatapathError> {
    let (own, is_earlier) = (pins::version_dir(root), |dir: &Path| pins::version_of(dir).is_some_and(pins::is_earlier));
    let dirs = pins::versions(root).into_iter().filter(|dir| *dir == own || is_earlier(dir));
    let links = dirs.flat_map(|dir| pins::links_in(&dir));
    links.map(|(name, path)| open(name, &path, present)).collect()
}

/// Adds the links of an earlier layout that `held` does not contain yet. Removes links whose interface is gone. Other
/// files stay where they are.
pub(super) fn add_earlier(held: &mut Vec<Held>, earlier: &Earlier, present: &[Interface]) -> Result<(), DatapathError> {
    for (name, path) in earlier.links() {
        let link = open(name, &path, present)?;
        if link.interface == 0 || held.iter().any(|of| of.interface == link.interface && of.name == link.name) {
            pins::remove(&path)?;
            reach(Point::MoveGone);
        } else {
            held.push(Held { earlier: Some(path), ..link });
        }
    }
    Ok(())
}

/// Opens this layout's links for a takeover. Removes links whose interface is gone, and renames the other files after
/// the current interface names.
pub(super) fn take(pins: &Pins, root: &Path, present: &[Interface]) -> Result<Vec<Held>, DatapathError> {
    let (gone, held): (Vec<_>, Vec<_>) = pins::pinned_interfaces(root)
        .into_iter()
        .map(|name| Ok((name.clone(), open(name.clone(), &pins::link_path(root, &name), present)?)))
        .collect::<Result<Vec<_>, DatapathError>>()?
        .into_iter()
        .partition(|(_, held)| held.interface == 0);
    for (file, _) in gone {
        pins.remove_link(&file)?;
    }
    // Two interfaces may have swapped names, so all files are moved aside first. Each link always has a file, so that
    // it survives the end of this process.
    let moved: Vec<&(String, Held)> = held.iter().filter(|(file, held)| *file != held.name).collect();
    moved.iter().try_for_each(|(file, held)| pins.rename_link(file, &aside(&held.name)))?;
    reach(Point::LinksAside);
    moved.iter().try_for_each(|(_, held)| pins.rename_link(&aside(&held.name), &held.name))?;
    reach(Point::LinksNamed);
    Ok(held.into_iter().map(|(_, held)| held).collect())
}

/// Returns the temporary name of a link's file during renaming. No interface name has a space (`dev_valid_name`,
/// net/core/dev.c, Linux 6.18). A later start renames a file that it finds under this name.
fn aside(name: &str) -> String {
    format!("{name} aside")
}

/// Pins a link under an interface's name. Removes the pin of an earlier interface with that name.
pub(super) fn pin(pins: &Pins, link: FdLink, name: &str) -> Result<FdLink, DatapathError> {
    pins.remove_link(name)?;
    let path = pins.link(name);
    let link = link.pin(&path).with_context(|| format!("pin {}", path.display()))?.into();
    reach(Point::Pinned);
    Ok(link)
}

fn open(name: String, path: &Path, present: &[Interface]) -> Result<Held, DatapathError> {
    let what = || format!("inspect {}", path.display());
    let LinkInfo { hook, program, interface } = link_info::pinned(path).with_context(what)?;
    let link = PinnedLink::from_pin(path).with_context(what)?.into();
    let on = present
        .iter()
        .filter(|there| there.index == interface)
        .find_map(|there| Some((there.name.clone(), there.attachment(hook, program)?, LinkHeader::from(there))));
    let (name, attached, header) = match on {
        Some((name, attached, header)) => (name, Some(attached), header),
        None => (name, None, LinkHeader::Ethernet),
    };
    Ok(Held { name, interface, attached, header, link, earlier: None })
}
