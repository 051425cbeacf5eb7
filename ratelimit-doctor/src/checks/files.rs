//! Checks of the permissions of important files.

use crate::facts::{FileSeen, Permissions, Rule};
use crate::finding::{Finding, State, Subject};

const ABOUT: &str = "files";

const WRITABLE_BY_GROUP: u32 = 0o020;
const WRITABLE_BY_OTHERS: u32 = 0o002;
const ANY_OF_OTHERS: u32 = 0o007;
const ANY_OF_GROUP: u32 = 0o070;

const STICKY: u32 = 0o1000;

pub(crate) fn all(files: &[FileSeen]) -> Vec<Finding> {
    let is_above = |of: &&FileSeen| matches!(of.rule, Rule::Above | Rule::AboveList);
    let (above, others): (Vec<&FileSeen>, Vec<&FileSeen>) = files.iter().partition(is_above);
    let mut findings: Vec<Finding> = others.into_iter().filter_map(one).collect();
    // Directories that are ok share one line, as there are many of them.
    let (well, unwell): (Vec<Finding>, Vec<Finding>) =
        above.into_iter().filter_map(one).partition(|finding| finding.state == State::Ok);
    if let Some(first) = well.first() {
        let seen = format!("only root can put files into the {} directories that contain them", well.len());
        findings.push(Finding { seen, ..first.clone() });
    }
    findings.extend(unwell);
    findings
}

/// Checks one file. Returns `None` if it does not exist: another check reports that if it matters.
fn one(of: &FileSeen) -> Option<Finding> {
    let id = format!("files.{}", of.what.replace(' ', "_"));
    let subject = Subject::new(ABOUT, &id, why(of.rule));
    let path = of.path.display();
    match &of.seen {
        Ok(None) => None,
        Ok(Some(seen)) => {
            let (what, mode) = (of.what, seen.mode & 0o7777);
            let words = format!("{what} {path}: user {}, mode {mode:04o}", seen.owner);
            Some(match trouble(of.rule, *seen) {
                None => subject.ok(words),
                Some((trouble, mend)) => subject.problem(format!("{words}: {trouble}"), format!("sudo {mend} {path}")),
            })
        }
        Err(why) => Some(subject.unknown(format!("{} {path} cannot be inspected: {why}", of.what), super::AS_ROOT)),
    }
}

const fn why(rule: Rule) -> &'static str {
    match rule {
        Rule::WrittenByRoot | Rule::List => "anyone who can write to it decides what is limited",
        Rule::Secret => "anyone who can read it can impersonate this host, or see who was here",
        Rule::Socket => "anyone who can connect may read who was blocked; only root may make changes",
        Rule::Above | Rule::AboveList => "anyone who can write to a directory can replace any file in it",
        Rule::Directory => "anyone who can reach it may read or change the daemon's records",
    }
}

/// Returns the problem, and the command that corrects it without the path.
fn trouble(rule: Rule, of: Permissions) -> Option<(&'static str, &'static str)> {
    let may = |bits: u32| of.mode & bits != 0;
    if of.owner != 0 && !matches!(rule, Rule::List | Rule::AboveList) {
        return Some(("it is not root's", "chown root"));
    }
    match rule {
        Rule::WrittenByRoot | Rule::List => {
            may(WRITABLE_BY_GROUP | WRITABLE_BY_OTHERS).then_some(("others may write to it", "chmod go-w"))
        }
        // In a sticky directory, users cannot remove each other's files.
        Rule::Above | Rule::AboveList => (may(WRITABLE_BY_GROUP | WRITABLE_BY_OTHERS) && !may(STICKY))
            .then_some(("others may put files into it", "chmod go-w")),
        Rule::Secret => may(ANY_OF_GROUP | ANY_OF_OTHERS).then_some(("others may read or write it", "chmod 0600")),
        Rule::Socket => may(ANY_OF_OTHERS).then_some(("every user may connect", "chmod 0660")),
        Rule::Directory => {
            (may(ANY_OF_OTHERS) || may(WRITABLE_BY_GROUP)).then_some(("others may reach it", "chmod 0750"))
        }
    }
}
