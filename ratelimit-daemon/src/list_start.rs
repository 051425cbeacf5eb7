//! The list files of a start. It takes what can be read of each: a damaged file without its bad lines, else the last good
//! version, else nothing. A reload is strict.

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

/// A list file that is not in force as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// What is in force.
    pub(super) state: ListState,
    /// Lines that are left out of what is.
    pub(super) lines_left_out: usize,
    /// What is wrong with the file.
    pub(super) why: String,
    /// The first line that is bad, if it is about one.
    pub(super) line: Option<usize>,
}

/// Fallbacks by the list file's path.
pub type Fallbacks = BTreeMap<PathBuf, Fallback>;

/// A list file as a start has it.
struct Taken {
    prefixes: Arc<[IpNet]>,
    fallback: Option<Fallback>,
}

/// Parses a configuration for a start. `parse` parses it with the contents that its argument has for each list file.
///
/// # Errors
/// Where the configuration is wrong whatever its list files hold.
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
                // Together lists may be more than the kernel has room for, or everyone.
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

/// What a start takes of the file at a path.
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

/// That a file has lost all entries.
pub(super) fn became_empty(path: &Path) -> String {
    format!("{} has become empty; if that is meant, `ratelimitd reload`", path.display())
}

/// The last good version of a file, or nothing where there is none.
fn instead(path: &Path, why: String, line: Option<usize>, copies: &ListCopies) -> Taken {
    let good = copies.last_good(path).filter(|good| !good.is_empty());
    let state = if good.is_some() { ListState::LastGood } else { ListState::LeftOut };
    let fallback = Some(Fallback { state, lines_left_out: 0, why, line });
    Taken { prefixes: good.unwrap_or_else(|| Arc::from([])), fallback }
}

/// Takes the last good version of the largest file that is in force, or else leaves the largest file out. Returns whether
/// there was one.
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

/// Files whose version is beyond the bounds of lists of `deny` and was not accepted, and why.
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

/// Why a version of a file is not put in force without being accepted; none where it is within the bounds or accepted.
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

/// The list files of `deny` that are beyond their bounds, and why, by what the state directory has of them. For
/// `check-config`.
pub fn list_objections(config: &Config) -> Vec<(PathBuf, String)> {
    let copies = ListCopies::of(&Store::of_host());
    let of = |file: &lists::ListFile| {
        let why = objection(config, file, copies.last_good(&file.path), &copies)?;
        Some((file.path.clone(), format!("{}: {why}", file.named_by)))
    };
    bounds::bounded(config).filter_map(of).collect()
}
