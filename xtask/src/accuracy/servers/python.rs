//! Python servers: hypercorn for HTTP/2 and 3, grpcio, and the backend of nginx.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use netlab::{Child, Namespace};

use super::{answers, answers_on};
use crate::accuracy::lab::Family;
use crate::accuracy::programs::Tools;
use crate::accuracy::rows::{Over, Server};

/// Starts nginx's backend: an echoing WebSocket and an event stream.
pub(super) fn backend(namespace: &Namespace, directory: &Path, tools: &Tools) -> Result<Child> {
    let child = python(namespace, directory, tools, &["backend.py"])?;
    for port in [9001, 9002] {
        answers_on(namespace, &child, SocketAddr::from(([127, 0, 0, 1], port)))?;
    }
    Ok(child)
}

pub(super) fn hypercorn(namespace: &Namespace, directory: &Path, tools: &Tools) -> Result<Child> {
    let [key, certificate, log] = files(directory, Server::Hypercorn);
    let [tcp_v4, tcp_v6] = addresses(Server::Hypercorn, Over::Http2);
    let [udp_v4, udp_v6] = addresses(Server::Hypercorn, Over::Http3);
    let arguments = [
        "-m",
        "hypercorn",
        "--workers",
        "0",
        "--certfile",
        &certificate,
        "--keyfile",
        &key,
        "--access-logfile",
        &log,
        "--bind",
        &tcp_v4,
        "--bind",
        &tcp_v6,
        "--quic-bind",
        &udp_v4,
        "--quic-bind",
        &udp_v6,
        "asgi:app",
    ];
    let child = python(namespace, directory, tools, &arguments)?;
    answers(namespace, &child, Server::Hypercorn.port(Over::Http2))?;
    Ok(child)
}

pub(super) fn grpc(namespace: &Namespace, directory: &Path, tools: &Tools) -> Result<Child> {
    let [key, certificate, log] = files(directory, Server::Grpc);
    let [v4, v6] = addresses(Server::Grpc, Over::Http2);
    let child = python(namespace, directory, tools, &["grpc_server.py", &key, &certificate, &log, &v4, &v6])?;
    answers(namespace, &child, Server::Grpc.port(Over::Http2))?;
    Ok(child)
}

pub(super) fn python(namespace: &Namespace, directory: &Path, tools: &Tools, arguments: &[&str]) -> Result<Child> {
    let mut command = namespace.command("python3");
    command.args(arguments).env("PYTHONPATH", tools.python()).env("ACCURACY_FILES", directory);
    command.current_dir(Tools::programs());
    Child::start(command)
}

fn files(directory: &Path, server: Server) -> [String; 3] {
    ["key.pem", "certificate.pem", server.log()].map(|name| directory.join(name).display().to_string())
}

pub(super) fn addresses(server: Server, over: Over) -> [String; 2] {
    Family::ALL.map(|family| family.server_with(server.port(over)))
}
