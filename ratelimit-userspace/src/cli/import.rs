//! `import`: denies what a file or standard input lists, each entry until its own end.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use anyhow::Context as _;
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};

use super::OutputFormat;
use super::ask::{Daemon, client};
use super::each::NAMED_MAX;
use super::run::{block_on, print, print_words};
use crate::error::{Diagnostic, Exit, Place};
use ratelimit_control::client::{Client, ClientError};
use ratelimit_control::proto::{Import, ImportRow, ROWS_MAX, RefusedRow};
use ratelimit_policy::config::file::list_text;
use ratelimit_policy::config::lists;
use ratelimit_policy::safety;
use ratelimit_report::entries::{self, Imported, Refused, Row};
use ratelimit_report::snapshot::{Author, ListFilter};

/// Ends that differ by at most this much are equal: files have whole seconds.
const SAME_END: SignedDuration = SignedDuration::from_secs(2);

/// Result of an import.
#[derive(Debug, Default)]
struct Done {
    all: usize,
    entered: u64,
    unchanged: u64,
    refused: Vec<RefusedRow>,
    /// Lines and sets of the file that cannot be used, in words.
    unread: Vec<String>,
    /// Number of rows of a configuration, which are left out.
    configured: usize,
    /// Number of rows for bans that hold on this host already.
    banned: usize,
    notes: Vec<String>,
}

/// Denies what a file or standard input lists. Rows that come from a configuration are left out: the configuration
/// denies them for as long as it lists them.
pub(super) fn import(file: &Path, owner: Option<&str>, daemon: &Daemon<'_>) -> anyhow::Result<Exit> {
    let text = read(file)?;
    let Imported { rows, refused } = entries::import(&text, Timestamp::now()).map_err(|wrong| Diagnostic {
        problem: format!("{}: {wrong}", file.display()),
        place: Place::CommandLine,
        help: vec![
            "it reads what `ratelimitd list --format` writes: plain, nft, ipset or json".to_owned(),
            "and what `ipset save` and `nft list` print".to_owned(),
        ],
    })?;
    let named = |Refused { line, problem }| format!("{}: line {line}: {problem}", file.display());
    let unread: Vec<String> = refused.into_iter().map(named).collect();
    block_on(daemon.global, async {
        let client = client(&daemon.socket);
        let mut done = Done { all: rows.len(), unread, ..Done::default() };
        let rows = without_what_holds_anyway(rows, owner, &client, &mut done).await?;
        let failed = send(rows, owner, &client, &mut done).await.err();
        say(&done, failed.is_none(), daemon)?;
        match failed {
            Some(error) => Err(error.into()),
            None => Ok(exit(&done)),
        }
    })
}

/// Reads the file or standard input. The file may be a pipe, as with `<(command)`.
fn read(file: &Path) -> anyhow::Result<String> {
    let (what, of): (String, Box<dyn io::Read>) = if file == Path::new("-") {
        ("read standard input".to_owned(), Box::new(io::stdin()))
    } else {
        let what = format!("read {}", file.display());
        (what.clone(), Box::new(File::open(file).context(what)?))
    };
    let mut bytes = Vec::new();
    // Read one more byte, to recognise a longer file.
    of.take(lists::LIST_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(|| what.clone())?;
    if bytes.len() as u64 > lists::LIST_BYTES_MAX {
        let most = lists::LIST_BYTES_MAX;
        let problem = format!("{} is longer than {most} bytes, so nothing was denied", file.display());
        let help = vec!["split it into several parts".to_owned()];
        return Err(Diagnostic { problem, place: Place::CommandLine, help }.into());
    }
    list_text(bytes).context(what)
}

/// Leaves out rows of a configuration, bans that hold on this host, and parts of entries that this host has.
async fn without_what_holds_anyway(
    rows: Vec<Row>,
    owner: Option<&str>,
    client: &Client,
    done: &mut Done,
) -> Result<Vec<Row>, ClientError> {
    let (configured, mut rows): (Vec<Row>, Vec<Row>) =
        rows.into_iter().partition(|row| row.by == Author::Configuration);
    done.configured = configured.len();
    if rows.iter().any(|row| row.by == Author::Ban || row.of.is_some()) {
        let held = entries::rows(&client.call(&ListFilter::default()).await?).into_iter();
        let held: HashMap<IpNet, Row> = held.map(|row| (row.prefix, row)).collect();
        let before = |row: &Row| held.get(&row.prefix).filter(|before| lasts(before.until, row.until));
        let all = rows.len();
        rows.retain(|row| row.by != Author::Ban || before(row).is_none());
        done.banned = all - rows.len();
        let all = rows.len();
        let is_part = |row: &Row| {
            let by = owner.or(row.owner.as_deref());
            row.of.is_some() && before(row).is_some_and(|held| held.of == row.of && held.owner.as_deref() == by)
        };
        rows.retain(|row| !is_part(row));
        done.unchanged += (all - rows.len()) as u64;
    }
    Ok(rows)
}

/// Returns true if the held entry ends no sooner than the requested one.
fn lasts(held: Option<Timestamp>, asked: Option<Timestamp>) -> bool {
    match (held, asked) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(held), Some(asked)) => asked.duration_since(held) <= SAME_END,
    }
}

/// Sends the rows in requests of at most [`ROWS_MAX`].
async fn send(rows: Vec<Row>, owner: Option<&str>, client: &Client, done: &mut Done) -> Result<(), ClientError> {
    let ssh_peer = safety::ssh_session_of_this_process().map(|session| session.peer);
    for chunk in rows.chunks(ROWS_MAX) {
        let row = |row: &Row| ImportRow {
            prefix: row.prefix.to_string(),
            until: row.until,
            reason: row.reason.clone(),
            owner: owner.or(row.owner.as_deref()).map(str::to_owned),
        };
        let report = client.call(&Import { rows: chunk.iter().map(row).collect(), ssh_peer }).await?;
        done.entered += report.entered;
        done.unchanged += report.unchanged;
        done.refused.extend(report.refused);
        done.notes.extend(report.notes);
    }
    Ok(())
}

/// Returns the exit code: 3 if some rows are denied and others refused, 2 if all are refused.
const fn exit(done: &Done) -> Exit {
    match (done.refused.is_empty() && done.unread.is_empty(), done.entered + done.unchanged) {
        (true, _) => Exit::Done,
        (false, 0) => Exit::Usage,
        (false, _) => Exit::Blocked,
    }
}

fn say(done: &Done, is_whole: bool, daemon: &Daemon<'_>) -> anyhow::Result<()> {
    let rows = done.refused.iter().map(|RefusedRow { prefix, why }| format!("{prefix} is not denied: {why}"));
    for why in done.unread.iter().cloned().chain(rows).take(NAMED_MAX) {
        crate::error::report(&anyhow::Error::msg(why));
    }
    let refused = done.refused.len() + done.unread.len();
    let more = refused.saturating_sub(NAMED_MAX);
    if more > 0 {
        crate::error::report(&anyhow::anyhow!("{more} more are not denied"));
    }
    super::run::warn(&done.notes, daemon.global);
    let denied = done.entered + done.unchanged;
    match daemon.global.format() {
        OutputFormat::Human => {
            let mut words = format!("{denied} prefixes are denied");
            for (count, what) in [
                (usize::try_from(done.unchanged).unwrap_or(usize::MAX), "of them were already"),
                (refused, "are refused"),
                (done.configured, "come from a configuration's lists and are left out"),
                (done.banned, "are banned here already"),
            ] {
                if count > 0 {
                    words += &format!("; {count} {what}");
                }
            }
            if !is_whole {
                let all = done.all;
                words += &format!("; the import stopped early, so the others of the {all} in the file are not denied");
            }
            print_words(&(words + "\n"))?;
        }
        OutputFormat::Json => {
            let (unchanged, configured, banned) = (done.unchanged, done.configured, done.banned);
            let line = format!(
                "{{\"schema\":1,\"denied\":{denied},\"unchanged\":{unchanged},\"refused\":{refused},\
                 \"of_configuration\":{configured},\"banned_already\":{banned},\"whole\":{is_whole}}}\n"
            );
            print(line.as_bytes())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_says_whether_all_some_or_none_are_denied() {
        let refused = vec![RefusedRow { prefix: "0.0.0.0/1".to_owned(), why: "wide".to_owned() }];
        for (entered, unchanged, refused, expected) in [
            (0, 0, vec![], Exit::Done),
            (2, 0, vec![], Exit::Done),
            (1, 0, refused.clone(), Exit::Blocked),
            (0, 1, refused.clone(), Exit::Blocked),
            (0, 0, refused, Exit::Usage),
        ] {
            assert_eq!(exit(&Done { entered, unchanged, refused: refused.clone(), ..Done::default() }), expected);
            let unread = refused.iter().map(|of| of.why.clone()).collect();
            assert_eq!(exit(&Done { entered, unchanged, unread, ..Done::default() }), expected);
        }
    }

    #[test]
    fn a_ban_holds_already_where_it_ends_no_sooner() {
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        for (held, asked, expected) in [
            (None, None, true),
            (None, at(9), true),
            (at(9), None, false),
            (at(9), at(11), true),
            (at(9), at(12), false),
            (at(9), at(3), true),
        ] {
            assert_eq!(lasts(held, asked), expected, "{held:?} {asked:?}");
        }
    }
}
