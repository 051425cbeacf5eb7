//! Apache with one virtual host per protocol.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use netlab::{Child, Namespace};

use super::{SINK, answers_for_all, write_config};
use crate::accuracy::rows::{Over, Server};

const MODULES: &str = "/usr/lib/apache2/modules";

pub(super) fn start(namespace: &Namespace, directory: &Path) -> Result<Child> {
    let path = write_config(directory, "apache.conf", &config(directory))?;
    let mut command = namespace.command("apache2");
    command.arg("-DFOREGROUND").arg("-f").arg(path);
    let child = Child::start(command)?;
    answers_for_all(namespace, &child, Server::Apache)?;
    Ok(child)
}

fn config(directory: &Path) -> String {
    let root = directory.display();
    let mut text = String::new();
    for module in ["mpm_event", "authz_core", "ssl", "http2", "proxy", "proxy_http", "dir", "mime", "socache_shmcb"] {
        writeln!(text, "LoadModule {module}_module {MODULES}/mod_{module}.so").ok();
    }
    write!(
        text,
        "ServerRoot {root}\nPidFile {root}/apache.pid\nDefaultRuntimeDir {root}\nServerName server.test
User www-data\nGroup www-data\nErrorLog {root}/apache-error.log\nDocumentRoot {root}\nDirectoryIndex index.html
TypesConfig /dev/null\nAddType text/html .html\nAddType text/css .css
AddType application/javascript .js\nAddType image/png .png
LogFormat \"%h %l %u %t \\\"%r\\\" %>s %O\" common\nCustomLog {root}/apache.log common
SSLSessionCache shmcb:{root}/apache-sessions(512000)\nMaxKeepAliveRequests 0\nKeepAliveTimeout 30
<Directory {root}>\nRequire all granted\n</Directory>\n"
    )
    .ok();
    for over in Server::Apache.listens() {
        let port = Server::Apache.port(over);
        write!(text, "Listen 0.0.0.0:{port}\nListen [::]:{port}\n<VirtualHost *:{port}>\n{}", protocols(over)).ok();
        if !over.is_clear() {
            let version = if over.is_tls12() { "TLSv1.2" } else { "TLSv1.3" };
            write!(
                text,
                "SSLEngine on\nSSLProtocol {version}
SSLCertificateFile {root}/certificate.pem\nSSLCertificateKeyFile {root}/key.pem\n"
            )
            .ok();
        }
        if over.asks_for_certificate() {
            write!(text, "SSLVerifyClient require\nSSLCACertificateFile {root}/certificate.pem\n").ok();
        }
        for path in ["put/", "sink"] {
            writeln!(text, "ProxyPass /{path} http://{SINK}/{path}").ok();
        }
        text += "</VirtualHost>\n";
    }
    text
}

fn protocols(over: Over) -> &'static str {
    match (over.is_http2(), over.is_clear()) {
        (false, _) => "Protocols http/1.1\n",
        (true, false) => "Protocols h2 http/1.1\n",
        (true, true) => "Protocols h2c http/1.1\n",
    }
}
