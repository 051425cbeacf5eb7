//! nginx: the web server behind the limiter, and the backend that other servers forward some requests to.

use std::path::Path;

use anyhow::Result;
use netlab::{Child, Namespace};

use super::{SINK, answers_for_all, write_config};
use crate::accuracy::rows::{Over, Server};

/// Starts nginx. `/sink` answers after reading the whole body, which a bare `return` does not.
pub(super) fn start(namespace: &Namespace, directory: &Path) -> Result<Child> {
    let path = write_config(directory, "nginx.conf", &config(directory))?;
    let mut command = namespace.command("nginx");
    command.arg("-c").arg(&path).arg("-e").arg(directory.join("error.log"));
    let child = Child::start(command)?;
    answers_for_all(namespace, &child, Server::Nginx)?;
    Ok(child)
}

fn config(directory: &Path) -> String {
    let root = directory.display();
    let servers: String = Server::Nginx.listens().map(|over| server(over, directory)).collect();
    format!(
        "daemon off;\nmaster_process off;\npid {root}/nginx.pid;\nerror_log {root}/error.log;
events {{ worker_connections 1024; }}
http {{
    log_format lab '$remote_addr $msec $server_port $server_protocol $status \"$request\"';
    access_log {root}/access.log lab; access_log {root}/combined.log combined;
    types {{ text/html html; text/css css; application/javascript js; image/png png; }}
    keepalive_requests 10000000; client_max_body_size 0; http2_max_concurrent_streams 256;
    client_body_temp_path {root}/bodies; proxy_temp_path {root}/bodies; fastcgi_temp_path {root}/bodies;
    uwsgi_temp_path {root}/bodies; scgi_temp_path {root}/bodies;
    ssl_certificate {root}/certificate.pem; ssl_certificate_key {root}/key.pem;
    {servers}server {{
        listen {SINK}; access_log off; root {root};
        location /put/ {{ dav_methods PUT; }}
        location /sink {{ proxy_pass http://{SINK}/read; }} location /read {{ return 200 \"ok\\n\"; }}
    }}
}}
"
    )
}

fn server(over: Over, directory: &Path) -> String {
    let (port, root) = (Server::Nginx.port(over), directory.display());
    let mut options = String::new();
    let mut settings = String::new();
    if !over.is_clear() {
        let version = if over.is_tls12() { "TLSv1.2" } else { "TLSv1.3" };
        options += " ssl";
        settings += &format!("ssl_protocols {version};");
    }
    if over.is_http2() {
        options += " http2";
    }
    if over.asks_for_certificate() {
        settings += &format!(" ssl_verify_client on; ssl_client_certificate {root}/certificate.pem;");
    }
    if over == Over::EarlyData {
        settings += " ssl_early_data on;";
    }
    format!(
        "server {{
        listen {port}{options}; listen [::]:{port}{options}; {settings}
        root {root}; location = /ok {{ return 200 \"ok\\n\"; }} location = /favicon.ico {{ return 204; }}
        location /put/ {{ dav_methods PUT; }}
        location /sink {{ proxy_pass http://{SINK}; }}
        location /ws {{
            proxy_pass http://127.0.0.1:9001; proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
        }}
        location /events {{ proxy_pass http://127.0.0.1:9002; proxy_buffering off; proxy_http_version 1.1; }}
    }}
    "
    )
}
