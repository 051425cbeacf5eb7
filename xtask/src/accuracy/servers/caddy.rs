//! Caddy, which uses Go's net/http and crypto/tls on the server side.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use netlab::{Child, Namespace};

use super::{SINK, answers_for_all, write_config};
use crate::accuracy::rows::{Over, Server};

pub(super) fn start(namespace: &Namespace, directory: &Path) -> Result<Child> {
    let path = write_config(directory, "Caddyfile", &config(directory))?;
    let mut command = namespace.command("caddy");
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(path);
    for (name, place) in [("HOME", "."), ("XDG_DATA_HOME", "caddy-data"), ("XDG_CONFIG_HOME", "caddy-config")] {
        command.env(name, directory.join(place));
    }
    let child = Child::start(command)?;
    answers_for_all(namespace, &child, Server::Caddy)?;
    Ok(child)
}

fn config(directory: &Path) -> String {
    let root = directory.display();
    let mut options = String::new();
    let mut sites = String::new();
    for over in Server::Caddy.listens() {
        let port = Server::Caddy.port(over);
        // A client that connects to an address sends no server name. With client certificates, Caddy would refuse it.
        writeln!(options, "servers :{port} {{\nstrict_sni_host insecure_off\nprotocols {}\n}}", protocols(over)).ok();
        let scheme = if over.is_clear() { "http" } else { "https" };
        writeln!(sites, "{scheme}://:{port} {{\n{}", tls(over, directory)).ok();
        write!(
            sites,
            "log {{\noutput file {root}/caddy.log {{\nroll_disabled\n}}\n}}\nroot * {root}
handle /put/* {{\nreverse_proxy {SINK}\n}}\nhandle /sink {{\nreverse_proxy {SINK}\n}}\nhandle {{\nfile_server\n}}\n}}\n"
        )
        .ok();
    }
    format!("{{\nadmin off\nauto_https off\ndefault_sni server.test\n{options}}}\n{sites}")
}

fn protocols(over: Over) -> &'static str {
    match (over.is_http2(), over.is_clear()) {
        (false, _) if over == Over::Http3 => "h1 h3",
        (false, _) => "h1",
        (true, false) => "h1 h2",
        (true, true) => "h1 h2c",
    }
}

fn tls(over: Over, directory: &Path) -> String {
    if over.is_clear() {
        return String::new();
    }
    let root = directory.display();
    let version = if over.is_tls12() { "tls1.2" } else { "tls1.3" };
    let client = if over.asks_for_certificate() {
        format!("client_auth {{\nmode require_and_verify\ntrusted_ca_cert_file {root}/certificate.pem\n}}\n")
    } else {
        String::new()
    };
    format!("tls {root}/certificate.pem {root}/key.pem {{\nprotocols {version} {version}\n{client}}}\n")
}
