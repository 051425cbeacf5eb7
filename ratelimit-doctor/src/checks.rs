//! Checks: what facts come to. Pure: each is a function from facts to findings.

use crate::facts::Facts;
use crate::finding::{Report, SCHEMA};

pub(crate) mod configuration;
pub(crate) mod files;
pub(crate) mod host;
pub(crate) mod interface;
pub(crate) mod kernel;
pub(crate) mod logs;
pub(crate) mod service;

#[cfg(test)]
mod tests;

/// What can be done where a thing could not be seen for want of privilege.
pub(crate) const AS_ROOT: &str = "sudo ratelimitd doctor";

/// The same for root, whom a container or a sandbox keeps from it.
const WITH_ALL: &str =
    "run ratelimitd doctor where root has all capabilities: outside of containers and of a unit's sandbox";

/// Everything that is looked at.
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
    // Who is root already is not mended by becoming it.
    for finding in checks.iter_mut().filter(|of| facts.is_root && of.mend.as_deref() == Some(AS_ROOT)) {
        finding.mend = Some(WITH_ALL.to_owned());
    }
    Report { schema: SCHEMA, checks }
}
