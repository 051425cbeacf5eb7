//! Access logs in the configuration: `/var/log/nginx/access.log`, `unix:/run/ratelimitd/log.sock`. A group that may
//! write to the socket may follow: `unix:/run/ratelimitd/log.sock group=www-data`.

use std::path::{Path, PathBuf};

use super::syntax::SyntaxError;
use crate::desired::{AccessLog, Limit};

/// Maximum number of access logs of one rule.
pub const LOGS_MAX: usize = 8;
/// Maximum length of a socket's path in bytes: the size of `sun_path` without the terminator.
const SOCKET_PATH_MAX: usize = 107;

/// Parses the name of one log.
///
/// # Errors
/// Fails if the path is not absolute or not a file's, if a socket's path is too long, or if the group's name is
/// invalid.
pub(super) fn parse(text: &str) -> Result<AccessLog, SyntaxError> {
    let (path, is_socket) = match text.strip_prefix("unix:") {
        Some(path) => (path, true),
        None => (text, false),
    };
    let whole = 0..text.len();
    let (path, group) = match path.split_once(" group=").filter(|_| is_socket) {
        Some((path, group)) => (path, Some(group.to_owned())),
        None => (path, None),
    };
    if group.as_deref().is_some_and(|group| group.is_empty() || group.contains([' ', '/', ':', '\0'])) {
        let problem = format!("`{text}` names no group");
        return Err(
            SyntaxError::new(whole, problem).with_help("for example unix:/run/ratelimitd/log.sock group=www-data")
        );
    }
    if !Path::new(path).is_absolute() || path.ends_with('/') || path.contains('\0') {
        let problem = format!("`{text}` is no path of a file that begins with /");
        return Err(SyntaxError::new(whole, problem).with_help("for example /var/log/nginx/access.log"));
    }
    if is_socket && path.len() > SOCKET_PATH_MAX {
        let problem =
            format!("the path of a socket has at most {SOCKET_PATH_MAX} bytes, and this one has {}", path.len());
        return Err(SyntaxError::new(whole, problem).with_help("for example unix:/run/ratelimitd/log.sock"));
    }
    let path = PathBuf::from(path);
    Ok(if is_socket { AccessLog::Socket { path, group } } else { AccessLog::File(path) })
}

/// Returns the error for too many logs. `last` is the last of them.
pub(super) fn too_many(last: &str) -> SyntaxError {
    let problem = format!("there are more than {LOGS_MAX} access logs");
    SyntaxError::new(0..last.len(), problem)
        .with_help("let servers with the same limits write to one socket, unix:/PATH")
}

/// Returns the error for a limit with conditions in a rule without logs. `first` is the text of the rule's first
/// limit.
pub(super) fn no_log(limit: &Limit, first: &str) -> SyntaxError {
    let problem = format!("`{limit}` counts what packets do not show, and the rule has no access_log");
    SyntaxError::new(0..first.len(), problem)
        .with_help("name the server's log: access_log = [\"/var/log/nginx/access.log\"], or --access-log PATH")
}

/// Returns the error for a log in a rule without a limit that it could charge. `last` is the rule's last log.
pub(super) fn no_limit(last: &str) -> SyntaxError {
    let problem = "a log corrects request limits of single sources, and the rule has none without conditions";
    SyntaxError::new(0..last.len(), problem.to_owned())
        .with_help("add one, as \"300/1m\"; `algorithm = \"gcra\"` has no buckets to charge")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_sockets_are_told_apart_and_what_is_neither_is_refused() {
        let file = AccessLog::File("/var/log/nginx/access.log".into());
        assert_eq!(parse("/var/log/nginx/access.log").unwrap(), file);
        let socket = parse("unix:/run/ratelimitd/log.sock").unwrap();
        assert_eq!(socket, AccessLog::Socket { path: "/run/ratelimitd/log.sock".into(), group: None });
        assert_eq!(socket.to_string(), "unix:/run/ratelimitd/log.sock");
        let of_group = "unix:/run/ratelimitd/log.sock group=www-data";
        let socket = parse(of_group).unwrap();
        let group = Some("www-data".to_owned());
        assert_eq!(socket, AccessLog::Socket { path: "/run/ratelimitd/log.sock".into(), group });
        assert_eq!(socket.to_string(), of_group);
        for text in ["unix:/a group=", "unix:/a group=a b", "unix:/a group=a:b"] {
            assert!(parse(text).is_err(), "{text}");
        }
        let long = format!("unix:/{}", "x".repeat(SOCKET_PATH_MAX));
        for text in ["", "access.log", "unix:", "unix:log.sock", "/var/log/", "/a\0b", "file:/a", &long] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&long[..long.len() - 1]).is_ok());
    }
}
