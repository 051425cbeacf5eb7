//! The servers, each with a log of one line a request: nginx for HTTP/1 and 2, hypercorn for HTTP/2 and 3, one of gRPC.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use netlab::{Child, Namespace};

use super::lab::Family;
use super::programs::Tools;
use super::rows::{Over, Server};
use crate::run;

const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(20);
/// What nginx passes on to, within its own namespace.
const SINK: &str = "127.0.0.1:9000";
const UPLOAD_BYTES: usize = 10_000_000;
const DOWNLOAD_BYTES: usize = 100_000_000;

impl Server {
    /// Its log, in the laboratory's directory.
    pub(super) fn log(self) -> &'static str {
        match self {
            Self::Nginx => "access.log",
            Self::Hypercorn => "hypercorn.log",
            Self::Grpc => "grpc.log",
        }
    }

    pub(super) fn port(self, over: Over) -> u16 {
        match (self, over) {
            (Self::Nginx, Over::Clear) => 80,
            (Self::Nginx, Over::Tls13 | Over::Http3) | (Self::Hypercorn, Over::Http3) => 443,
            (Self::Nginx, Over::Tls12) => 444,
            (Self::Nginx, Over::Http2) => 445,
            (Self::Nginx, Over::Http2Tls12) => 446,
            (Self::Hypercorn, _) => 8443,
            (Self::Grpc, _) => 447,
        }
    }
}

/// What the servers serve: a page of 60 resources (its own file among them), something large, a certificate. Gives the hash of the
/// certificate's public key.
pub(super) fn write_files(directory: &Path) -> Result<String> {
    let page = directory.join("page");
    for made in [&page, &directory.join("put"), &directory.join("bodies")] {
        fs::create_dir_all(made).with_context(|| format!("make {}", made.display()))?;
    }
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.join(name);
        fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))
    };
    let mut html = "<!doctype html><html><head><title>page</title>".to_owned();
    for number in 0..10 {
        html += &format!("<link rel=stylesheet href=/page/{number}.css><script src=/page/{number}.js></script>");
        write(&format!("page/{number}.css"), "body { color: #012 }\n".repeat(40 + number).as_bytes())?;
        write(&format!("page/{number}.js"), "var it = 1;\n".repeat(100 + number).as_bytes())?;
    }
    html += "</head><body>";
    for number in 0..39 {
        html += &format!("<img src=/page/{number}.png>");
        write(&format!("page/{number}.png"), &noise(600 + number * 900))?;
    }
    write("page.html", (html + "</body></html>\n").as_bytes())?;
    write("page/39.png", &noise(400))?;
    write("ten", &noise(UPLOAD_BYTES))?;
    write("hundred", &noise(DOWNLOAD_BYTES))?;
    let [key, certificate] = ["key.pem", "certificate.pem"].map(|name| directory.join(name));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=server.test"]);
    openssl.args(["-addext", "subjectAltName=DNS:server.test", "-keyout"]).arg(&key).arg("-out").arg(certificate);
    run::answer(&mut openssl)?;
    let hash = r#"openssl pkey -in "$0" -pubout -outform der | openssl dgst -sha256 -binary | openssl base64"#;
    run::answer(Command::new("sh").args(["-c", hash]).arg(key))
}

/// Bytes that nothing compresses; the same each time.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

pub(super) fn nginx(namespace: &Namespace, directory: &Path) -> Result<Child> {
    let path = directory.join("nginx.conf");
    fs::write(&path, nginx_config(directory)).with_context(|| format!("write {}", path.display()))?;
    let mut command = namespace.command("nginx");
    command.arg("-c").arg(&path).arg("-e").arg(directory.join("error.log"));
    let child = Child::start(command)?;
    answers(namespace, &child, Server::Nginx.port(Over::Clear))?;
    Ok(child)
}

fn nginx_config(directory: &Path) -> String {
    let root = directory.display();
    let places = format!(
        "root {root}; location = /ok {{ return 200 \"ok\\n\"; }} location = /favicon.ico {{ return 204; }}
        location /put/ {{ dav_methods PUT; }}
        location /sink {{ proxy_pass http://{SINK}; }}
        location /ws {{
            proxy_pass http://127.0.0.1:9001; proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
        }}
        location /events {{ proxy_pass http://127.0.0.1:9002; proxy_buffering off; proxy_http_version 1.1; }}"
    );
    let of = |over: Over, tls: Option<(&str, &str)>| {
        let port = Server::Nginx.port(over);
        let (options, protocols) = tls.map_or((String::new(), String::new()), |(options, version)| {
            (format!(" {options}"), format!("ssl_protocols {version};"))
        });
        format!(
            "server {{ listen {port}{options}; listen [::]:{port}{options}; {protocols}\n        {places}\n    }}\n    "
        )
    };
    let servers = [
        of(Over::Clear, None),
        of(Over::Tls13, Some(("ssl", "TLSv1.3"))),
        of(Over::Tls12, Some(("ssl", "TLSv1.2"))),
        of(Over::Http2, Some(("ssl http2", "TLSv1.3"))),
        of(Over::Http2Tls12, Some(("ssl http2", "TLSv1.2"))),
    ]
    .concat();
    format!(
        "daemon off;\nmaster_process off;\npid {root}/nginx.pid;\nerror_log {root}/error.log;
events {{ worker_connections 1024; }}
http {{
    log_format lab '$remote_addr $msec $server_port $server_protocol $status \"$request\"';
    access_log {root}/access.log lab;
    types {{ text/html html; text/css css; application/javascript js; image/png png; }}
    keepalive_requests 10000000; client_max_body_size 0; http2_max_concurrent_streams 256;
    client_body_temp_path {root}/bodies; proxy_temp_path {root}/bodies; fastcgi_temp_path {root}/bodies;
    uwsgi_temp_path {root}/bodies; scgi_temp_path {root}/bodies;
    ssl_certificate {root}/certificate.pem; ssl_certificate_key {root}/key.pem;
    {servers}server {{ listen {SINK}; access_log off; location / {{ return 200 \"ok\\n\"; }} }}
}}
"
    )
}

/// Those in Python.
pub(super) fn others(namespace: &Namespace, directory: &Path, tools: &Tools) -> Result<Vec<Child>> {
    let python = |arguments: &[&str]| {
        let mut command = namespace.command("python3");
        command.args(arguments).env("PYTHONPATH", tools.python()).env("ACCURACY_FILES", directory);
        command.current_dir(Tools::programs());
        Child::start(command)
    };
    let [key, certificate, hypercorn_log, grpc_log] =
        ["key.pem", "certificate.pem", Server::Hypercorn.log(), Server::Grpc.log()]
            .map(|name| directory.join(name).display().to_string());
    let addresses = |server: Server, over: Over| Family::ALL.map(|family| family.server_with(server.port(over)));
    let [tcp_v4, tcp_v6] = addresses(Server::Hypercorn, Over::Http2);
    let [udp_v4, udp_v6] = addresses(Server::Hypercorn, Over::Http3);
    let [grpc_v4, grpc_v6] = addresses(Server::Grpc, Over::Http2);
    let backend = python(&["backend.py"])?;
    let hypercorn = python(&[
        "-m",
        "hypercorn",
        "--workers",
        "0",
        "--certfile",
        &certificate,
        "--keyfile",
        &key,
        "--access-logfile",
        &hypercorn_log,
        "--bind",
        &tcp_v4,
        "--bind",
        &tcp_v6,
        "--quic-bind",
        &udp_v4,
        "--quic-bind",
        &udp_v6,
        "asgi:app",
    ])?;
    let grpc = python(&["grpc_server.py", &key, &certificate, &grpc_log, &grpc_v4, &grpc_v6])?;
    answers(namespace, &hypercorn, Server::Hypercorn.port(Over::Http2))?;
    answers(namespace, &grpc, Server::Grpc.port(Over::Http2))?;
    for port in [9001, 9002] {
        answers_on(namespace, &backend, SocketAddr::from(([127, 0, 0, 1], port)))?;
    }
    Ok(vec![backend, hypercorn, grpc])
}

fn answers(namespace: &Namespace, child: &Child, port: u16) -> Result<()> {
    answers_on(namespace, child, SocketAddr::new(Family::V4.server(), port))
}

fn answers_on(namespace: &Namespace, child: &Child, address: SocketAddr) -> Result<()> {
    for _ in 0..ANSWERS_WITHIN.as_millis() / TICK.as_millis() {
        if namespace.inside(|| Ok(TcpStream::connect(address).is_ok()))? {
            return Ok(());
        }
        thread::sleep(TICK);
    }
    bail!("nothing answers on {address}: {}", child.stderr())
}
