//! Loading of list files at the start. The start takes whatever can be read of each file: a damaged file without its
//! bad lines, else the last good version, else nothing. A reload is strict instead.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;

use super::list_copies::{ListCopies, version};
use super::store::Store;
use ratelimit_policy::config::Config;
use ratelimit_policy::config::file::read_list;
use ratelimit_policy::config::lists::{self, Contents, bounds};
use ratelimit_policy::diagnostic::Diagnostics;
use ratelimit_report::snapshot::ListState;

/// Deviation of a list file from its current content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// State of the list's content in force.
    pub(super) state: ListState,
    /// Number of bad lines left out of the content in force.
    pub(super) lines_left_out: usize,
    /// Description of what is wrong with the file.
    pub(super) why: String,
    /// Number of the first bad line, if the problem concerns a line.
    pub(super) line: Option<usize>,
}

/// Fallbacks by the list file's path.
pub type Fallbacks = BTreeMap<PathBuf, Fallback>;

/// List file as the start takes it.
struct Taken {
    prefixes: Arc<[IpNet]>,
    fallback: Option<Fallback>,
}

/// Parses a configuration for a start. `parse` receives a function that returns the contents of each list file.
///
/// # Errors
/// Fails if the configuration is invalid regardless of its list files.
pub fn with_lists(
    parse: impl Fn(&dyn Fn(&Path) -> Contents) -> Result<Config, Diagnostics>,
) -> Result<(Config, Fallbacks), Diagnostics> {
    with_lists_of(&Store::of_host(), parse)
}

pub(super) fn with_lists_of(
    store: &Store,
    parse: impl Fn(&dyn Fn(&Path) -> Contents) -> Result<Config, Diagnostics>,
) -> Result<(Config, Fallbacks), Diagnostics> {
    let copies = ListCopies::of(store);
    let taken: RefCell<BTreeMap<PathBuf, Taken>> = RefCell::default();
    let resolve = |path: &Path| {
        let mut taken = taken.borrow_mut();
        let of = taken.entry(path.to_owned()).or_insert_with(|| take(path, &copies));
        Contents::Known(Arc::clone(&of.prefixes))
    };
    loop {
        let config = match parse(&resolve) {
            Ok(config) => config,
            Err(wrong) => {
                // Several lists together may exceed the kernel's capacity, or cover everyone.
                let is_its_own = parse(&|_| Contents::Known(Arc::from([]))).is_err();
                let why = format!("with it the configuration cannot be used: {}", wrong.first().problem);
                if is_its_own || !demote_largest(&mut taken.borrow_mut(), &why, &copies) {
                    return Err(wrong);
                }
                continue;
            }
        };
        let beyond = beyond(&config, &taken.borrow(), &copies);
        if beyond.is_empty() {
            let fallbacks = taken.into_inner().into_iter().filter_map(|(path, of)| Some((path, of.fallback?)));
            return Ok((config, fallbacks.collect()));
        }
        for (path, why) in beyond {
            if let Some(of) = taken.borrow_mut().get_mut(&path) {
                *of = instead(&path, why, None, &copies);
            }
        }
    }
}

/// Returns what the start takes of a list file.
fn take(path: &Path, copies: &ListCopies) -> Taken {
    let text = match read_list(path) {
        Ok(text) => text,
        Err(reason) => {
            return instead(path, format!("{}: cannot read the list file: {reason}", path.display()), None, copies);
        }
    };
    let wrong = match lists::parse(path, &text) {
        Ok(prefixes) if prefixes.is_empty() => {
            let good = copies.last_good(path).filter(|good| !good.is_empty());
            return match good {
                Some(_) => instead(path, became_empty(path), None, copies),
                None => Taken { prefixes: prefixes.into(), fallback: None },
            };
        }
        Ok(prefixes) => return Taken { prefixes: prefixes.into(), fallback: None },
        Err(wrong) => wrong,
    };
    match lists::parse_tolerant(path, &text) {
        Some(of) => {
            let (line, why) = (of.first.line(), of.first.to_string());
            let fallback = Fallback { state: ListState::InForce, lines_left_out: of.lines_left_out, why, line };
            Taken { prefixes: of.prefixes.into(), fallback: Some(fallback) }
        }
        None => instead(path, wrong.to_string().replace('\n', "; "), wrong.first().line(), copies),
    }
}

/// Returns the message for a list file that lost all its entries.
pub(super) fn became_empty(path: &Path) -> String {
    format!("{} has become empty; if that is meant, `ratelimitd reload`", path.display())
}

/// Falls back to the last good version of a file, or to nothing if there is none.
fn instead(path: &Path, why: String, line: Option<usize>, copies: &ListCopies) -> Taken {
    let good = copies.last_good(path).filter(|good| !good.is_empty());
    let state = if good.is_some() { ListState::LastGood } else { ListState::LeftOut };
    let fallback = Some(Fallback { state, lines_left_out: 0, why, line });
    Taken { prefixes: good.unwrap_or_else(|| Arc::from([])), fallback }
}

/// Replaces the largest file in force by its last good version, or else leaves it out. Returns false if no file is
/// left.
fn demote_largest(taken: &mut BTreeMap<PathBuf, Taken>, why: &str, copies: &ListCopies) -> bool {
    let is_own = |of: &Taken| of.fallback.as_ref().is_none_or(|of| of.state == ListState::InForce);
    let largest =
        taken.iter().filter(|(_, of)| !of.prefixes.is_empty()).max_by_key(|(_, of)| (is_own(of), of.prefixes.len()));
    let Some((path, was_own)) = largest.map(|(path, of)| (path.clone(), is_own(of))) else { return false };
    let mut new = instead(&path, why.to_owned(), None, copies);
    let is_same = taken.get(&path).is_some_and(|of| of.prefixes == new.prefixes);
    if !was_own || is_same {
        let fallback = Some(Fallback { state: ListState::LeftOut, lines_left_out: 0, why: why.to_owned(), line: None });
        new = Taken { prefixes: Arc::from([]), fallback };
    }
    taken.insert(path, new);
    true
}

/// Returns the `deny` list files that exceed the bounds without an administrator's acceptance, and the reasons.
fn beyond(config: &Config, taken: &BTreeMap<PathBuf, Taken>, copies: &ListCopies) -> Vec<(PathBuf, String)> {
    let is_own = |path: &Path| {
        let fallback = taken.get(path).and_then(|of| of.fallback.as_ref());
        fallback.is_none_or(|of| of.state == ListState::InForce)
    };
    let files = bounds::bounded(config).filter(|file| is_own(&file.path));
    files
        .filter_map(|file| Some((file.path.clone(), objection(config, file, copies.last_good(&file.path), copies)?)))
        .collect()
}

/// Returns the reason why a version needs acceptance before it may apply. None if it is within the bounds or
/// accepted.
pub(super) fn objection(
    config: &Config,
    file: &lists::ListFile,
    before: Option<Arc<[IpNet]>>,
    copies: &ListCopies,
) -> Option<String> {
    let why = config.list_bounds.objection(&file.prefixes, before.as_deref())?;
    if copies.is_accepted(&file.path, &file.prefixes) {
        return None;
    }
    let (path, version) = (file.path.display(), version(&file.prefixes));
    Some(format!("{why}; if that is meant: ratelimitd lists accept {path} {version}"))
}

/// Returns the `deny` list files that exceed their bounds, and the reasons, judged by the state directory. Used by
/// `check-config`.
pub fn list_objections(config: &Config) -> Vec<(PathBuf, String)> {
    let copies = ListCopies::of(&Store::of_host());
    let of = |file: &lists::ListFile| {
        let why = objection(config, file, copies.last_good(&file.path), &copies)?;
        Some((file.path.clone(), format!("{}: {why}", file.named_by)))
    };
    bounds::bounded(config).filter_map(of).collect()
}
