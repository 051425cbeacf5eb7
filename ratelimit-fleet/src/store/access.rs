//! How to reach the store: addresses, user, and files with what is secret. What the files say is read anew for each
//! connection, so that a changed password or certificate needs no restart, and is never printed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use redis::{ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates};

/// The longest file with a password, key or certificate.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where the store is, and who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// One server, or two or more nodes of a cluster.
    pub urls: Vec<String>,
    /// The ACL user; without one `default`.
    pub username: Option<String>,
    /// A file whose first line is the password.
    pub password_file: Option<PathBuf>,
    /// The certificates that the store's is to be signed by; without it those of the system.
    pub ca_file: Option<PathBuf>,
    /// The certificate to show, with `key_file`.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
}

/// Why it cannot be reached this way.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// No address.
    #[error("no address of the store: give `url`")]
    NoUrl,
    /// One that is none.
    #[error("`{0}` is no address of a store: write redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH")]
    BadUrl(String),
    /// The text of the address is not repeated.
    #[error("the address of the store has a password in it: give it by `password_file`")]
    PasswordInUrl,
    /// A cluster of sockets, or of TLS and plain nodes.
    #[error("the nodes of a cluster are all redis://, or all rediss://")]
    MixedUrls,
    /// Certificates for a connection without TLS.
    #[error("`ca_file`, `cert_file` and `key_file` are for TLS: write rediss:// in `url`")]
    TlsFilesWithoutTls,
    /// One without the other.
    #[error("`cert_file` and `key_file` belong together")]
    HalfACertificate,
    /// A file.
    #[error("read {path}: {error}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// An empty password.
    #[error("{0} has no password in its first line")]
    NoPassword(PathBuf),
}

/// What a connection is made from. Has secrets: no part of it is printed.
pub(crate) struct Opened {
    pub(crate) nodes: Vec<ConnectionInfo>,
    pub(crate) certificates: Option<TlsCertificates>,
}

impl Access {
    /// Whether it is a cluster.
    pub const fn is_cluster(&self) -> bool {
        self.urls.len() > 1
    }

    /// Whether what it says fits together. Reads no file.
    pub fn check(&self) -> Result<(), AccessError> {
        self.nodes().map(drop)
    }

    fn nodes(&self) -> Result<Vec<ConnectionInfo>, AccessError> {
        if self.urls.is_empty() {
            return Err(AccessError::NoUrl);
        }
        let mut nodes = Vec::new();
        for url in &self.urls {
            // A password may stand in what does not parse too.
            let shown = if url.contains('@') { "the address with an @ in it".to_owned() } else { url.clone() };
            let info = url.as_str().into_connection_info().map_err(|_| AccessError::BadUrl(shown))?;
            if info.redis_settings().password().is_some() {
                return Err(AccessError::PasswordInUrl);
            }
            nodes.push(info);
        }
        let tls = nodes.iter().filter(|node| is_tls(node)).count();
        let sockets = nodes.iter().filter(|node| matches!(node.addr(), ConnectionAddr::Unix(_))).count();
        if (tls != 0 && tls != nodes.len()) || (sockets != 0 && nodes.len() > 1) {
            return Err(AccessError::MixedUrls);
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            return Err(AccessError::HalfACertificate);
        }
        if tls == 0 && (self.ca_file.is_some() || self.cert_file.is_some()) {
            return Err(AccessError::TlsFilesWithoutTls);
        }
        Ok(nodes)
    }

    /// Reads the files.
    pub(crate) fn open(&self) -> Result<Opened, AccessError> {
        let nodes = self.nodes()?;
        let password = self.password_file.as_deref().map(password).transpose()?;
        let is_tls = nodes.iter().any(is_tls);
        let with_user = |info: ConnectionInfo| {
            let mut settings = info.redis_settings().clone().set_skip_set_lib_name();
            if let Some(user) = &self.username {
                settings = settings.set_username(user);
            }
            if let Some(password) = &password {
                settings = settings.set_password(password);
            }
            info.set_redis_settings(settings)
        };
        let client_tls = match (&self.cert_file, &self.key_file) {
            (Some(cert), Some(key)) => Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? }),
            (Some(_), None) | (None, Some(_)) => return Err(AccessError::HalfACertificate),
            (None, None) => None,
        };
        let root_cert = self.ca_file.as_deref().map(read).transpose()?;
        let certificates = is_tls.then_some(TlsCertificates { client_tls, root_cert });
        Ok(Opened { nodes: nodes.into_iter().map(with_user).collect(), certificates })
    }
}

fn is_tls(node: &ConnectionInfo) -> bool {
    matches!(node.addr(), ConnectionAddr::TcpTls { .. })
}

fn password(path: &Path) -> Result<String, AccessError> {
    let bytes = read(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().next().unwrap_or_default().trim_end_matches('\r');
    if line.is_empty() { Err(AccessError::NoPassword(path.to_owned())) } else { Ok(line.to_owned()) }
}

fn read(path: &Path) -> Result<Vec<u8>, AccessError> {
    let fail = |error| AccessError::File { path: path.to_owned(), error };
    let size = fs::metadata(path).map_err(fail)?.len();
    if size > FILE_BYTES_MAX {
        return Err(fail(io::Error::other("more than 1 MB")));
    }
    fs::read(path).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(urls: &[&str]) -> Access {
        Access { urls: urls.iter().map(|url| (*url).to_owned()).collect(), ..Access::default() }
    }

    #[test]
    fn a_password_in_an_address_is_refused_and_not_repeated() {
        for url in ["redis://:hunter2@192.0.2.1:6379", "redis://rl:hunter2@192.0.2.1", "redis:// :hunter2@x y"] {
            let error = access(&[url]).check().unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
        assert!(access(&["redis://192.0.2.1:6379"]).check().is_ok());
    }

    #[test]
    fn addresses_that_do_not_fit_together_are_refused() {
        let tls = Access { ca_file: Some("ca".into()), ..access(&["redis://192.0.2.1"]) };
        let half = Access { cert_file: Some("cert".into()), ..access(&["rediss://192.0.2.1"]) };
        for (access, words) in [
            (access(&[]), "no address"),
            (access(&["http://192.0.2.1"]), "is no address of a store"),
            (access(&["redis://192.0.2.1", "rediss://192.0.2.2"]), "all redis://, or all rediss://"),
            (access(&["unix:///run/a", "unix:///run/b"]), "all redis://, or all rediss://"),
            (tls, "write rediss://"),
            (half, "belong together"),
        ] {
            let error = access.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn the_password_is_the_first_line_of_its_file_and_an_error_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        fs::write(&file, "hunter2\r\nmore\n").unwrap();
        let with = |path: &Path| Access { password_file: Some(path.to_owned()), ..access(&["redis://127.0.0.1"]) };
        let opened = with(&file).open().unwrap();
        assert_eq!(opened.nodes[0].redis_settings().password(), Some("hunter2"));
        fs::write(&file, "\n").unwrap();
        assert!(with(&file).open().err().unwrap().to_string().contains("no password in its first line"));
        let error = with(&dir.path().join("none")).open().err().unwrap().to_string();
        assert!(error.contains("none: No such file"), "{error}");
        assert!(!format!("{:?}", with(&file)).contains("hunter2"));
    }
}
