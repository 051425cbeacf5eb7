//! Certificate of `listen`, read at the start and at each reload. A bad certificate is reported but stops nothing:
//! packets are still limited, and the previous certificate stays in use. Without any certificate, nothing is served
//! over TCP.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ratelimit_policy::config::{Config, TlsFiles};
use ratelimit_policy::files;
use ratelimit_web::{Tls, TlsFile};

/// Maximum size in bytes of a file. A chain has a few kB.
const BYTES_MAX: u64 = 1 << 20;
/// Mode bits that a private key's file must not have.
const READABLE_BY_OTHERS: u32 = 0o004;

/// Certificate in use, if one is configured.
#[derive(Debug, Default)]
pub(super) struct Certificate {
    served: Option<(TlsFiles, Tls)>,
    trouble: Option<String>,
}

impl Certificate {
    /// Reads the certificate, and logs any error.
    pub(super) fn open(files: Option<&TlsFiles>) -> Self {
        let served = files.map(|files| (files.clone(), Tls::default()));
        let mut certificate = Self { served, trouble: None };
        // The error is already logged.
        let _said = certificate.read();
        certificate
    }

    /// Reads the certificate again. Returns whether it changed, or what is wrong with it. None if no certificate is
    /// configured.
    pub(super) fn read(&mut self) -> Option<Result<bool, String>> {
        let (files, tls) = self.served.as_ref()?;
        let outcome = renew(files, tls).map_err(|why| {
            let goes_on = if tls.is_there() {
                "the previous certificate stays in use"
            } else {
                "nothing is served over TCP until then"
            };
            format!("TLS: {why}; mend it, then `ratelimitd reload`; {goes_on}")
        });
        self.trouble = outcome.as_ref().err().cloned();
        if let Some(trouble) = &self.trouble {
            tracing::error!("{trouble}");
        }
        warn_of_readers(&files.key);
        Some(outcome)
    }

    /// Returns the TLS state of the listener.
    pub(super) fn tls(&self) -> Option<Tls> {
        self.served.as_ref().map(|(_, tls)| tls.clone())
    }

    /// Returns the absolute path of the certificate file.
    pub(super) fn file(&self) -> Option<PathBuf> {
        let path = &self.served.as_ref()?.0.cert;
        Some(std::path::absolute(path).unwrap_or_else(|_| path.clone()))
    }

    /// Describes what is wrong with the certificate, if anything.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.clone()
    }
}

/// Returns what a daemon with this configuration would report about its certificate. None if the certificate is good
/// or not configured.
pub fn certificate_trouble(config: &Config) -> Option<String> {
    let files = config.tls.as_ref()?;
    renew(files, &Tls::default()).err().map(|why| format!("TLS: {why}"))
}

/// Returns the name in a certificate file. None if the file cannot be read or names no host.
pub(super) fn name(path: &Path) -> Option<String> {
    Tls::name_of(&files::read_of_anyone(path, BYTES_MAX).ok()?)
}

fn renew(files: &TlsFiles, tls: &Tls) -> Result<bool, String> {
    let read = |path: &Path| {
        files::read_of_anyone(path, BYTES_MAX).map_err(|error| format!("{} cannot be read: {error}", path.display()))
    };
    tls.renew(&read(&files.cert)?, &read(&files.key)?).map_err(|error| {
        let path = match error.file() {
            TlsFile::Certificate => &files.cert,
            TlsFile::Key => &files.key,
        };
        format!("{}: {error}", path.display())
    })
}

fn warn_of_readers(key: &Path) {
    let mode = fs::metadata(key).map_or(0, |of| of.permissions().mode());
    if mode & READABLE_BY_OTHERS != 0 {
        let path = key.display();
        tracing::warn!("the private key {path} may be read by everyone on this host: chmod 600 {path}");
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Writes a new certificate for this name and its key into a directory.
    pub(crate) fn write(directory: &Path, name: &str) -> TlsFiles {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        let files = TlsFiles { cert: directory.join("tls.pem"), key: directory.join("tls.key") };
        fs::write(&files.cert, made.cert.pem()).unwrap();
        fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
        files
    }

    #[test]
    fn a_certificate_that_is_bad_is_said_with_what_to_do_and_the_one_before_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let files = write(directory.path(), "one.example");
        assert!(Certificate::open(None).read().is_none());
        let mut certificate = Certificate::open(Some(&files));
        assert_eq!((certificate.trouble(), certificate.read()), (None, Some(Ok(false))));
        write(directory.path(), "other.example");
        assert_eq!(certificate.read(), Some(Ok(true)));
        assert_eq!(name(&files.cert).as_deref(), Some("other.example"));
        let key = fs::read(&files.key).unwrap();
        fs::remove_file(&files.key).unwrap();
        let why = certificate.read().unwrap().unwrap_err();
        for words in ["tls.key cannot be read: ", "`ratelimitd reload`", "previous certificate stays in use"] {
            assert!(why.contains(words), "{why}");
        }
        assert_eq!(certificate.trouble(), Some(why));
        let tls = certificate.tls().unwrap();
        assert_eq!(tls.name().as_deref(), Some("other.example"));
        fs::write(&files.key, key).unwrap();
        assert_eq!((certificate.read(), certificate.trouble()), (Some(Ok(false)), None));
    }

    #[test]
    fn without_a_certificate_nothing_is_served_until_there_is_one() {
        let directory = tempfile::tempdir().unwrap();
        let files = write(directory.path(), "one.example");
        let text = fs::read(&files.cert).unwrap();
        fs::write(&files.cert, "no certificate").unwrap();
        let mut certificate = Certificate::open(Some(&files));
        let why = certificate.trouble().unwrap();
        assert!(why.contains("tls.pem: there is no certificate in it") && why.contains("nothing is served"), "{why}");
        assert_eq!(name(&files.cert), None);
        fs::write(&files.cert, text).unwrap();
        assert_eq!((certificate.read(), certificate.trouble()), (Some(Ok(true)), None));
    }
}
