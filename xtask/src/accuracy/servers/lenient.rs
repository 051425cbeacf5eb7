//! Servers that answer HTTP/1 requests whose first line has no version, or a wrong one. Packets do not show how many of
//! them a segment contains.

use std::fmt;
use std::path::Path;

use anyhow::Result;
use netlab::{Child, Namespace};

use super::answers;
use super::python::{addresses, python};
use crate::accuracy::programs::Tools;
use crate::accuracy::rows::{Over, Server};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::accuracy) enum Lenient {
    Waitress,
    Cheroot,
    Aiohttp,
    Uvicorn,
    Jdk,
}

impl Lenient {
    /// Returns the name of the log, which has a JSON object for each request.
    pub(super) const fn log(self) -> &'static str {
        match self {
            Self::Waitress => "waitress.log",
            Self::Cheroot => "cheroot.log",
            Self::Aiohttp => "aiohttp.log",
            Self::Uvicorn => "uvicorn.log",
            Self::Jdk => "jdk.log",
        }
    }

    pub(super) const fn port(self) -> u16 {
        8600 + self as u16
    }
}

impl fmt::Display for Lenient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waitress => "waitress",
            Self::Cheroot => "cheroot",
            Self::Aiohttp => "aiohttp",
            Self::Uvicorn => "uvicorn",
            Self::Jdk => "JDK HttpServer",
        })
    }
}

pub(super) fn start(namespace: &Namespace, directory: &Path, tools: &Tools, lenient: Lenient) -> Result<Child> {
    let log = directory.join(lenient.log()).display().to_string();
    let [v4, v6] = addresses(Server::Lenient(lenient), Over::Clear);
    let child = match lenient {
        Lenient::Jdk => {
            let mut command = namespace.command("sh");
            command.args(["-c", &format!("exec {} {log} {}", tools.java_server()?, lenient.port())]);
            Child::start(command)?
        }
        Lenient::Waitress | Lenient::Cheroot | Lenient::Aiohttp | Lenient::Uvicorn => {
            python(namespace, directory, tools, &["lenient.py", &lenient.to_string(), &log, &v4, &v6])?
        }
    };
    answers(namespace, &child, lenient.port())?;
    Ok(child)
}
