//! Rows in the order of a server's life. Each begins with the state that the previous row left.

mod faults;
mod logs;
mod packages;
mod service;
mod stops;

use anyhow::Result;

use super::stage::Stage;

pub(super) struct Row {
    /// Sentence that states the behaviour.
    pub(super) title: &'static str,
    pub(super) act: fn(&mut Stage<'_>) -> Result<()>,
}

const fn row(title: &'static str, act: fn(&mut Stage<'_>) -> Result<()>) -> Row {
    Row { title, act }
}

pub(super) const ALL: [Row; 22] = [
    row("an installed package enforces nothing", packages::install),
    row("enabled in dry run, a client over its limit is served and counted as would drop", service::dry_run),
    row("the unit is confined as far as recorded, and warns of nothing", service::hardening),
    row("members of the group read the statistics, others do not", service::group),
    row("a server of another user sends its log to the daemon's socket", logs::socket),
    row("enforcing after a reload, a client is limited", service::enforce),
    row("the journal, events, check and history say the same of a limited client", service::told),
    row("a file with a mistake is refused by systemctl reload, and the old policy is enforced", service::bad_file),
    row("a reload under a trial is refused, and the trial goes on", service::trial),
    row("a restart loses no count and leaves no packet unfiltered", service::restart),
    row("a daemon that hangs is restarted by the watchdog, and the filter enforces meanwhile", faults::watchdog),
    row("a killed daemon is restarted, and no count is lost", faults::killed),
    row("a bad file at a start fails the unit once, and the filter goes on", faults::bad_file_at_start),
    row("an interface that comes later is awaited", faults::late_interface),
    row("stop leaves the filter where on_exit is keep", stops::keep),
    row("without our program, stop and rm take the filter off", stops::by_hand),
    row("stop leaves nothing where on_exit is detach", stops::detach),
    row("an upgrade under traffic leaves no packet unfiltered and loses no count", packages::upgrade),
    row("an upgrade does not start a unit that was stopped", packages::upgrade_while_stopped),
    row("remove leaves nothing that enforces, and keeps the configuration", packages::remove),
    row("purge leaves the group alone", packages::purge),
    row("a purge of a stopped unit takes off the filter that it left", packages::purge_while_stopped),
];
