//! Access to the store: addresses, user, and files with secrets. The files are read again for each connection, so a
//! changed password or certificate needs no restart. Their contents are never printed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use ratelimit_policy::config::fleet::Access;
use ratelimit_policy::files;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// Maximum size in bytes of a file with a password, key or certificate.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reason why the access settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// No address is configured.
    #[error("the store has no address: give `url`")]
    NoUrl,
    /// An address is invalid. Its text is not repeated because it may contain a password.
    #[error("store address {0} is invalid: write redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH")]
    BadUrl(usize),
    /// A file cannot be read.
    #[error("read {path}: {error}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the read operation.
        error: io::Error,
    },
    /// A certificate or key file is invalid.
    #[error("{path}: {why}")]
    Certificates {
        /// Path of the file.
        path: PathBuf,
        /// Description of the fault.
        why: String,
    },
    /// The password file has an empty first line.
    #[error("the first line of {0} has no password")]
    NoPassword(PathBuf),
}

/// Nodes and TLS settings of a connection. Contains secrets, so it is never printed.
pub(crate) struct Opened {
    pub(crate) nodes: Vec<ConnectionInfo>,
    pub(crate) tls: Option<TlsConnector>,
}

/// Returns true if the store is a cluster: it has more than one address.
pub(crate) const fn is_cluster(access: &Access) -> bool {
    access.urls.len() > 1
}

/// Checks that the client accepts the addresses. Reads no file. The configuration checks that the other settings fit
/// together.
pub fn check(access: &Access) -> Result<(), AccessError> {
    nodes(access).map(drop)
}

fn nodes(access: &Access) -> Result<Vec<ConnectionInfo>, AccessError> {
    if access.urls.is_empty() {
        return Err(AccessError::NoUrl);
    }
    let info = |(at, url): (usize, &String)| {
        let info = url.as_str().into_connection_info().map_err(|_| AccessError::BadUrl(at))?;
        // Refuses TLS without certificate verification.
        let is_blind = matches!(info.addr(), ConnectionAddr::TcpTls { insecure: true, .. });
        if is_blind { Err(AccessError::BadUrl(at)) } else { Ok(info) }
    };
    (1..).zip(&access.urls).map(info).collect()
}

/// Reads the files and returns what a connection needs.
pub(crate) fn open(access: &Access) -> Result<Opened, AccessError> {
    let nodes = nodes(access)?;
    let password = access.password_file.as_deref().map(password).transpose()?;
    let is_tls = nodes.iter().any(is_tls);
    let with_user = |info: ConnectionInfo| {
        let mut settings = info.redis_settings().clone().set_skip_set_lib_name();
        if let Some(user) = &access.username {
            settings = settings.set_username(user);
        }
        if let Some(password) = &password {
            settings = settings.set_password(password);
        }
        info.set_redis_settings(settings)
    };
    let tls = if is_tls { Some(tls(access)?) } else { None };
    Ok(Opened { nodes: nodes.into_iter().map(with_user).collect(), tls })
}

/// Builds the TLS settings: the trusted roots and this host's certificate.
fn tls(access: &Access) -> Result<TlsConnector, AccessError> {
    let mut roots = RootCertStore::empty();
    match &access.ca_file {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| wrong(path, &error))?;
            }
        }
        None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| wrong(Path::new("TLS"), &error))?.with_root_certificates(roots);
    let config = match (&access.cert_file, &access.key_file) {
        (Some(cert), Some(key)) => {
            let own = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| wrong(key, &error))?;
            config.with_client_auth_cert(certificates(cert)?, own).map_err(|error| wrong(cert, &error))?
        }
        (Some(_), None) | (None, Some(_)) | (None, None) => config.with_no_client_auth(),
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, AccessError> {
    let bytes = read(path)?;
    let all = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(|error| wrong(path, &error))?;
    if all.is_empty() { Err(wrong(path, &"it contains no certificate")) } else { Ok(all) }
}

fn wrong(path: &Path, why: &dyn std::fmt::Display) -> AccessError {
    AccessError::Certificates { path: path.to_owned(), why: why.to_string() }
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
    files::read_of_anyone(path, FILE_BYTES_MAX).map_err(|error| AccessError::File { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn access(urls: &[&str]) -> Access {
        Access { urls: urls.iter().map(|url| (*url).to_owned()).collect(), ..Access::default() }
    }

    #[test]
    fn an_invalid_address_is_named_by_position_and_not_repeated() {
        let error = check(&access(&["redis://192.0.2.1", "hunter2@192.0.2.1"])).unwrap_err();
        assert!(error.to_string().starts_with("store address 2 is invalid") && !format!("{error:?}").contains("hun"));
        assert!(check(&access(&[])).unwrap_err().to_string().contains("no address"));
        assert!(check(&access(&["redis://192.0.2.1:6379", "rediss://[2001:db8::1]"])).is_ok());
        assert!(check(&access(&["unix:///run/redis.sock"])).is_ok());
    }

    #[test]
    fn the_password_is_the_first_line_of_its_file_and_an_error_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        fs::write(&file, "hunter2\r\nmore\n").unwrap();
        let with = |path: &Path| Access { password_file: Some(path.to_owned()), ..access(&["redis://127.0.0.1"]) };
        let opened = open(&with(&file)).unwrap();
        assert_eq!(opened.nodes[0].redis_settings().password(), Some("hunter2"));
        fs::write(&file, "\n").unwrap();
        assert!(open(&with(&file)).err().unwrap().to_string().contains("has no password"));
        let error = open(&with(&dir.path().join("none"))).err().unwrap().to_string();
        assert!(error.contains("none: No such file"), "{error}");
        assert!(!format!("{:?}", with(&file)).contains("hunter2"));
    }

    #[test]
    fn a_path_that_is_no_file_is_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let named = || Some(pipe.clone());
        for access in [
            Access { password_file: named(), ..access(&["redis://127.0.0.1"]) },
            Access { ca_file: named(), ..access(&["rediss://127.0.0.1"]) },
            Access { cert_file: named(), key_file: named(), ..access(&["rediss://127.0.0.1"]) },
        ] {
            let error = open(&access).err().unwrap().to_string();
            assert!(error.ends_with("pipe: it is a pipe, not a file"), "{error}");
        }
    }
}
