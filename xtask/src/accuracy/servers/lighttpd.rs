//! Two lighttpd servers, because HTTP/2 is enabled or disabled for all ports of a server.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use netlab::{Child, Namespace};

use super::{SINK, answers, write_config};
use crate::accuracy::rows::{Over, Server};

/// Main port of each server besides its socket ports. No client uses it.
const MAIN_PORTS: [u16; 2] = [8398, 8399];

pub(super) fn start(namespace: &Namespace, directory: &Path) -> Result<Vec<Child>> {
    let (http2, http1): (Vec<_>, Vec<_>) = Server::Lighttpd.listens().partition(|over| over.is_http2());
    let mut running = Vec::new();
    for (overs, main_port) in [http1, http2].into_iter().zip(MAIN_PORTS) {
        let path =
            write_config(directory, &format!("lighttpd-{main_port}.conf"), &config(directory, &overs, main_port))?;
        let mut command = namespace.command("lighttpd");
        command.arg("-D").arg("-f").arg(path);
        let child = Child::start(command)?;
        for over in overs {
            answers(namespace, &child, Server::Lighttpd.port(over))?;
        }
        running.push(child);
    }
    Ok(running)
}

fn config(directory: &Path, overs: &[Over], main_port: u16) -> String {
    let root = directory.display();
    let sink = SINK.replace("127.0.0.1:", "");
    let http2 = if overs.iter().any(|over| over.is_http2()) { "enable" } else { "disable" };
    // lighttpd writes a piped log at once, but a log file only every four seconds.
    let mut text = format!(
        "server.modules = (\"mod_openssl\", \"mod_accesslog\", \"mod_proxy\")
server.document-root = \"{root}\"\nserver.bind = \"127.0.0.1\"\nserver.port = {main_port}
index-file.names = (\"index.html\")\nserver.max-keep-alive-requests = 1000000
server.feature-flags = (\"server.h2proto\" => \"{http2}\", \"server.h2c\" => \"{http2}\")
mimetype.assign = (\".html\" => \"text/html\", \".css\" => \"text/css\", \".js\" => \"application/javascript\",
\".png\" => \"image/png\")\nserver.upload-dirs = (\"{root}/bodies\")\nserver.errorlog = \"{root}/lighttpd-error.log\"
accesslog.filename = \"|cat >> {root}/lighttpd.log\"\naccesslog.format = \"%h %l %u %t \\\"%r\\\" %>s %b\"
$HTTP[\"url\"] =~ \"^/(put/|sink)\" {{
proxy.server = (\"\" => ((\"host\" => \"127.0.0.1\", \"port\" => {sink})))\n}}\n"
    );
    for &over in overs {
        let port = Server::Lighttpd.port(over);
        for address in ["", "[::]"] {
            writeln!(text, "$SERVER[\"socket\"] == \"{address}:{port}\" {{\n{}}}", tls(over, directory)).ok();
        }
    }
    text
}

fn tls(over: Over, directory: &Path) -> String {
    if over.is_clear() {
        return String::new();
    }
    let root = directory.display();
    let version = if over.is_tls12() { "TLSv1.2" } else { "TLSv1.3" };
    let client = if over.asks_for_certificate() {
        format!(
            "ssl.verifyclient.activate = \"enable\"\nssl.verifyclient.enforce = \"enable\"
ssl.ca-file = \"{root}/certificate.pem\"\n"
        )
    } else {
        String::new()
    };
    format!(
        "ssl.engine = \"enable\"\nssl.pemfile = \"{root}/certificate.pem\"\nssl.privkey = \"{root}/key.pem\"
ssl.openssl.ssl-conf-cmd = (\"MinProtocol\" => \"{version}\", \"MaxProtocol\" => \"{version}\")\n{client}"
    )
}
