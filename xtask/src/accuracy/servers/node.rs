//! Node's own servers, without a framework: `node:http`, `node:https` and `node:http2`.

use std::path::Path;

use anyhow::Result;
use netlab::{Child, Namespace};

use super::answers_for_all;
use crate::accuracy::programs::Tools;
use crate::accuracy::rows::{Over, Server};

/// Protocols that the program listens for, in the order of its arguments.
pub(super) const LISTENS: [Over; 3] = [Over::Clear, Over::Tls13, Over::Http2];

pub(super) fn start(namespace: &Namespace, directory: &Path) -> Result<Child> {
    let mut command = namespace.command("node");
    command.arg(Tools::programs().join("node_server.js")).arg(directory).arg(directory.join(Server::Node.log()));
    command.args(LISTENS.map(|over| Server::Node.port(over).to_string()));
    let child = Child::start(command)?;
    answers_for_all(namespace, &child, Server::Node)?;
    Ok(child)
}
