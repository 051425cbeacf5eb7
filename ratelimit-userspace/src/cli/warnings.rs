//! Warnings about a configuration that is valid but may not do what is meant.

use std::collections::BTreeSet;
use std::io;

use ratelimit_common::layout::Unit;
use ratelimit_kernel::{interface_names, loses_answers};
use ratelimit_policy::config::lists::written_by_others;
use ratelimit_policy::config::syntax::near_miss;
use ratelimit_policy::config::{Config, HookChoice, XdpModeChoice, lint};
use ratelimit_policy::desired::{AccessLog, RefuseWith, Rule};
use ratelimit_policy::secret;
use ratelimit_view::describe;

use super::host::around;
use super::run::now;

/// Returns warnings about what a configuration enforces, by itself and on this host.
pub(super) fn of_policy(config: &Config) -> Vec<String> {
    let (around, now) = (around().with(config.fleet.as_ref()), now());
    let of_lists = around.passed_over_words(config);
    let prefixes = describe::prefixes_memory(config);
    let of_memory = ratelimit_doctor::available_memory().ok();
    let of_memory = of_memory.and_then(|available| describe::prefixes_warning(&prefixes, available));
    let of_memory = of_memory.into_iter().collect();
    let of_files = written_by_others(&config.list_files);
    [
        lint::warnings(config, now),
        of_files,
        around.warnings(config, now),
        around.listed(config, now),
        of_lists,
        of_memory,
    ]
    .concat()
}

/// Returns the warnings of [`of_policy`], and those about interfaces and files that the configuration names.
pub(super) fn all(config: &Config) -> Vec<String> {
    let mut warnings = of_policy(config);
    // /sys may belong to another network namespace.
    match interface_names() {
        Ok(present) => {
            warnings.extend(config.interfaces.iter().filter_map(|name| absent(name, &config.interfaces, &present)))
        }
        Err(error) => warnings.push(format!("cannot list the interfaces: {error}")),
    }
    warnings.extend(ratelimit_daemon::certificate_trouble(config));
    warnings.extend(config.fleet.iter().flat_map(secret::trouble));
    warnings.extend(lost_answers(config));
    warnings.extend(missing_logs(config));
    warnings
}

/// Returns a warning if rules answer packets and an interface loses what XDP sends back.
fn lost_answers(config: &Config) -> Option<String> {
    let answers = |rule: &Rule| match rule.refuse_with {
        RefuseWith::Page => true,
        RefuseWith::Reset => rule.limits.iter().any(|limit| limit.unit == Unit::Connections),
        RefuseWith::Drop => false,
    };
    let is_native = config.xdp_mode != XdpModeChoice::Generic && config.hook != HookChoice::Tcx;
    if !is_native || !config.policy.rules.iter().any(answers) {
        return None;
    }
    let name = config.interfaces.iter().find(|name| loses_answers(name))?;
    Some(format!(
        "{name} loses packets that XDP sends back, because the other end of the veth pair has no XDP program: requests \
         are refused by a reset, not by a page, and SYNs are dropped. Attach an XDP program there that passes \
         everything"
    ))
}

/// Returns a warning if an interface does not exist, with the likely name. The interface may appear later, so this is
/// no error.
fn absent(name: &str, named: &[String], present: &[String]) -> Option<String> {
    let others = present.iter().filter(|of| !named.contains(of));
    let meant = near_miss(name, others.map(String::as_str));
    let meant = meant.map_or_else(String::new, |meant| format!("did you mean {meant}? "));
    let is_absent = !present.iter().any(|of| of == name);
    is_absent
        .then(|| format!("there is no interface {name} now: {meant}`ip -brief link` lists the existing interfaces"))
}

/// Returns the reasons why access logs cannot be read now. The logs may appear later, so this is no error.
fn missing_logs(config: &Config) -> Vec<String> {
    let logs: BTreeSet<&AccessLog> = config.policy.rules.iter().flat_map(|rule| &rule.access_logs).collect();
    let missing = |log: &&AccessLog| match log {
        AccessLog::File(path) => match std::fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(format!(
                "there is no access log {log} now: it is read once it exists; until then requests are counted without \
                 it"
            )),
            Ok(of) if of.is_dir() => {
                Some(format!("access log {log} is a directory: name the file that the server writes"))
            }
            Ok(_) | Err(_) => None,
        },
        AccessLog::Socket { .. } => None,
    };
    logs.iter().filter_map(missing).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ratelimit_policy::config::file;
    use ratelimit_policy::config::lists::KnownLists;

    use super::*;

    #[test]
    fn an_absent_interface_is_not_taken_for_one_that_is_named_too() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let said = |named: &[&str]| absent("eth9", &names(named), &names(&["lo", "eth0"])).unwrap_or_default();
        assert!(said(&["eth9"]).contains("did you mean eth0?"), "{}", said(&["eth9"]));
        assert!(!said(&["eth0", "eth9"]).contains("did you mean"), "{}", said(&["eth0", "eth9"]));
        assert_eq!(absent("eth0", &names(&["eth0"]), &names(&["lo", "eth0"])), None);
    }

    #[test]
    fn a_log_that_is_missing_or_a_directory_is_said_and_one_that_is_there_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("access.log"), "").unwrap();
        let said = |log: &str| {
            let text = format!("interfaces = [\"eth0\"]\n[rule]\nlimits = [\"300/1m\"]\naccess_log = [\"{log}\"]\n");
            missing_logs(&file::parse_beside(Path::new("ratelimitd.toml"), &text, &KnownLists::new()).unwrap())
        };
        assert_eq!(said(path("access.log").to_str().unwrap()), [""; 0]);
        assert_eq!(said("unix:/run/ratelimitd/none.sock"), [""; 0]);
        assert!(said(path("later.log").to_str().unwrap())[0].contains("there is no access log"));
        assert!(said(directory.path().to_str().unwrap())[0].contains("is a directory"));
    }
}
