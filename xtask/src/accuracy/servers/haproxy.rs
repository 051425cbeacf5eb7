//! HAProxy, which answers small requests itself and forwards the others.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use netlab::{Child, Namespace};

use super::{SINK, answers_for_all, write_config};
use crate::accuracy::rows::{Over, Server};

pub(super) fn start(namespace: &Namespace, directory: &Path) -> Result<Child> {
    let path = write_config(directory, "haproxy.conf", &config(directory))?;
    // HAProxy logs to a log collector or to its stdout, which is appended to the log file.
    let mut command = namespace.command("sh");
    command.args(["-c", "exec haproxy -db -f \"$0\" >> \"$1\""]).arg(path).arg(directory.join(Server::Haproxy.log()));
    let child = Child::start(command)?;
    answers_for_all(namespace, &child, Server::Haproxy)?;
    Ok(child)
}

fn config(directory: &Path) -> String {
    let mut binds = String::new();
    for over in Server::Haproxy.listens() {
        let (port, options) = (Server::Haproxy.port(over), options(over, directory));
        writeln!(binds, "bind 0.0.0.0:{port}{options}\nbind [::]:{port}{options} v6only").ok();
    }
    format!(
        "global\nlog stdout format raw daemon\ntune.h2.max-concurrent-streams 256
defaults\nmode http\ntimeout connect 5s\ntimeout client 60s\ntimeout server 60s
frontend lab\n{binds}log global\noption dontlognull\noption httplog
http-request return status 200 content-type text/plain file {root}/ok if {{ path /ok }}
default_backend sink\nbackend sink\nserver nginx {SINK}\n",
        root = directory.display()
    )
}

fn options(over: Over, directory: &Path) -> String {
    let root = directory.display();
    if over.is_clear() {
        return if over.is_http2() { " proto h2".to_owned() } else { String::new() };
    }
    let protocols = if over.is_http2() { "h2,http/1.1" } else { "http/1.1" };
    let version = if over.is_tls12() { "force-tlsv12" } else { "force-tlsv13" };
    let client = if over.asks_for_certificate() {
        format!(" verify required ca-file {root}/certificate.pem")
    } else {
        String::new()
    };
    let early = if over == Over::EarlyData { " allow-0rtt" } else { "" };
    format!(" ssl crt {root}/both.pem alpn {protocols} {version}{client}{early}")
}
