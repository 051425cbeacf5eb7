//! Checks: pure functions from facts to findings.

use crate::facts::Facts;
use crate::finding::{Report, SCHEMA};

pub(crate) mod configuration;
mod features;
pub(crate) mod files;
pub(crate) mod host;
pub(crate) mod interface;
pub(crate) mod kernel;
pub(crate) mod logs;
pub(crate) mod service;

#[cfg(test)]
mod tests;

/// Remedy if a fact could not be read without root's privileges.
pub(crate) const AS_ROOT: &str = "sudo ratelimitd doctor";

/// Remedy if a fact could not be read by root, for example in a container or sandbox.
const WITH_ALL: &str =
    "run ratelimitd doctor where root has all capabilities: outside of containers and of a unit's sandbox";

/// Runs all checks on these facts.
pub fn examine(facts: &Facts) -> Report {
    let mut checks = [
        kernel::all(&facts.kernel, &facts.machine, facts.file.config()),
        kernel::bpf_file_system(&facts.bpffs),
        interface::all(facts),
        host::all(facts),
        configuration::all(&facts.file),
        logs::all(facts),
        service::all(facts),
        files::all(&facts.files),
    ]
    .concat();
    // To become root does not help a user who is root already.
    for finding in checks.iter_mut().filter(|of| facts.is_root && of.mend.as_deref() == Some(AS_ROOT)) {
        finding.mend = Some(WITH_ALL.to_owned());
    }
    Report { schema: SCHEMA, checks }
}
