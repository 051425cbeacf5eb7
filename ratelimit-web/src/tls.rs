//! TLS of a listener. Its certificate can be replaced while it serves. Without a certificate, every handshake fails.
//! Knows PEM and streams, but must not know files.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem};
use tokio_rustls::rustls::{self, InconsistentKeys, ServerConfig};
use tokio_rustls::server::TlsStream;
use webpki::EndEntityCert;

/// Only ALPN protocol offered, so no client expects another one.
const PROTOCOL: &[u8] = b"http/1.1";
/// Marker of a password-protected key in PEM.
const ENCRYPTED: &[u8] = b"ENCRYPTED";

/// Reason why a certificate is rejected. Its display form says what is wrong and what to do.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// The certificate file holds no certificate.
    #[error("there is no certificate in it: it must be PEM, with -----BEGIN CERTIFICATE-----, the server's own first")]
    NoCertificate,
    /// The key file holds no private key.
    #[error("there is no private key in it: it must be PEM, with -----BEGIN PRIVATE KEY-----")]
    NoKey,
    /// The private key is protected by a password.
    #[error("the private key is encrypted, and nobody is there to type its password: openssl pkey -in OLD -out NEW")]
    Encrypted,
    /// The private key does not belong to the certificate.
    #[error("the private key does not belong to the certificate: name the two files that were made together")]
    NoPair,
    /// The certificate cannot be parsed or used.
    #[error("it cannot be read: {0}; openssl x509 -text -noout -in FILE says more")]
    Unreadable(String),
}

/// File that an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFile {
    /// File with the certificate chain.
    Certificate,
    /// File with the private key.
    Key,
}

impl TlsError {
    /// Returns the file that has to be replaced.
    pub const fn file(&self) -> TlsFile {
        match self {
            Self::NoCertificate | Self::Unreadable(_) => TlsFile::Certificate,
            Self::NoKey | Self::Encrypted | Self::NoPair => TlsFile::Key,
        }
    }
}

/// Certificate of a listener. Clones share one certificate.
#[derive(Clone, Debug, Default)]
pub struct Tls(Arc<RwLock<Option<Held>>>);

#[derive(Clone, Debug)]
struct Held {
    config: Arc<ServerConfig>,
    chain: Vec<CertificateDer<'static>>,
}

impl Tls {
    /// Installs a certificate and its key. Returns true if the chain differs from the previous one. An error keeps
    /// the previous certificate in use.
    ///
    /// # Errors
    /// Fails if the texts are not PEM of a certificate and of its key.
    pub fn renew(&self, chain: &[u8], key: &[u8]) -> Result<bool, TlsError> {
        let held = Held::new(chain, key)?;
        let mut now = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let is_new = now.as_ref().is_none_or(|before| before.chain != held.chain);
        *now = Some(held);
        Ok(is_new)
    }

    /// Returns true if a certificate is installed.
    pub fn is_there(&self) -> bool {
        self.held().is_some()
    }

    /// Returns a DNS name of the certificate, for use in a browser. None if the certificate has only wildcards and
    /// addresses.
    pub fn name(&self) -> Option<String> {
        name(&self.held()?.leaf()?)
    }

    /// Returns a DNS name of a certificate in PEM. None if there are only wildcards and addresses.
    pub fn name_of(chain: &[u8]) -> Option<String> {
        let leaf = CertificateDer::from_pem_slice(chain).ok()?;
        name(&EndEntityCert::try_from(&leaf).ok()?)
    }

    /// Returns true if the certificate covers this name. A site that points its own name at this host (DNS rebinding)
    /// has no such certificate.
    pub(crate) fn is_for(&self, name: &str) -> bool {
        let Ok(name) = ServerName::try_from(name) else { return false };
        self.held()
            .is_some_and(|held| held.leaf().is_some_and(|leaf| leaf.verify_is_valid_for_subject_name(&name).is_ok()))
    }

    /// Performs the TLS handshake with a client. The caller bounds the time.
    ///
    /// # Errors
    /// Fails if the client does not speak TLS as required, or if no certificate is installed.
    pub async fn accept<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let held = self.held().ok_or_else(|| io::Error::other("there is no certificate"))?;
        TlsAcceptor::from(held.config).accept(stream).await
    }

    fn held(&self) -> Option<Held> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Held {
    fn new(chain: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let parsed: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(chain).collect();
        let chain = parsed.map_err(|error| TlsError::Unreadable(error.to_string()))?;
        let leaf = chain.first().ok_or(TlsError::NoCertificate)?;
        EndEntityCert::try_from(leaf).map_err(|error| TlsError::Unreadable(error.to_string()))?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| without_key(key))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(unreadable)?;
        let config = builder.with_no_client_auth().with_single_cert(chain.clone(), key);
        let is_no_pair =
            |error: &rustls::Error| *error == rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch);
        let refused = |error| if is_no_pair(&error) { TlsError::NoPair } else { unreadable(error) };
        let mut config = config.map_err(refused)?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Self { config: Arc::new(config), chain })
    }

    fn leaf(&self) -> Option<EndEntityCert<'_>> {
        EndEntityCert::try_from(self.chain.first()?).ok()
    }
}

fn name(leaf: &EndEntityCert<'_>) -> Option<String> {
    let mut names = leaf.valid_dns_names();
    names.find(|name| !name.contains('*')).map(str::to_owned)
}

fn unreadable(error: rustls::Error) -> TlsError {
    TlsError::Unreadable(error.to_string())
}

/// Returns the error for a text in which no key was found.
fn without_key(text: &[u8]) -> TlsError {
    let is_encrypted = text.windows(ENCRYPTED.len()).any(|part| part == ENCRYPTED);
    if is_encrypted { TlsError::Encrypted } else { TlsError::NoKey }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(names: &[&str]) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn a_certificate_is_for_its_names_and_addresses_alone() {
        let (chain, key) = pair(&["limiter.example", "*.limiter.example", "192.0.2.7"]);
        let tls = Tls::default();
        assert!(!tls.is_for("limiter.example") && tls.name().is_none(), "there is none yet");
        assert_eq!(tls.renew(chain.as_bytes(), key.as_bytes()), Ok(true));
        for (name, is_for) in [
            ("limiter.example", true),
            ("LIMITER.example", true),
            ("a.limiter.example", true),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("a.b.limiter.example", false),
            ("evil.example", false),
            ("limiter.example.evil.example", false),
            ("", false),
        ] {
            assert_eq!(tls.is_for(name), is_for, "{name}");
        }
        assert_eq!(tls.name().as_deref(), Some("limiter.example"));
        assert_eq!(tls.renew(chain.as_bytes(), key.as_bytes()), Ok(false), "the same once more");
        let (wild, its_key) = pair(&["*.limiter.example"]);
        assert_eq!((tls.renew(wild.as_bytes(), its_key.as_bytes()), tls.name()), (Ok(true), None));
    }

    #[test]
    fn errors_in_a_certificate_are_reported_and_the_previous_one_stays() {
        let (chain, key) = pair(&["limiter.example"]);
        let (_, others_key) = pair(&["limiter.example"]);
        let tls = Tls::default();
        tls.renew(chain.as_bytes(), key.as_bytes()).unwrap();
        let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
        let cut = format!("{}\n-----END CERTIFICATE-----\n", &chain[..chain.len() / 2].trim_end());
        let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (chain, key, why) in [
            ("", key.as_str(), "no certificate in it"),
            (key.as_str(), &key, "no certificate in it"),
            (&cut, &key, "it cannot be read"),
            (garbage, &key, "it cannot be read"),
            (&chain, "", "no private key in it"),
            (&chain, &chain, "no private key in it"),
            (&chain, &encrypted, "openssl pkey"),
            (&chain, &others_key, "does not belong to the certificate"),
        ] {
            let error = tls.renew(chain.as_bytes(), key.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(why), "{why}: {error}");
            assert_eq!(tls.name().as_deref(), Some("limiter.example"), "{why}");
        }
    }
}
