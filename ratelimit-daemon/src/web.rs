//! Token of the web page, in a file that only root can read, with the address of the page. The daemon creates it, and
//! `ratelimitd web-token` makes links from it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::certificate::{self, Certificate};
use super::error::DaemonError;
use super::store::Store;
use ratelimit_web::{CODE_SECONDS_MAX, Login, Token};

const FILE: &str = "web-token.json";

#[derive(Serialize, Deserialize)]
struct Kept {
    token: String,
    address: SocketAddr,
    /// Certificate file, if the page is encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cert: Option<PathBuf>,
}

/// Link that opens the web page once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WebLink {
    schema: u32,
    /// Address of the link.
    pub url: String,
    /// Lifetime of the link in seconds.
    pub expires_seconds: u64,
}

/// Returns the URL scheme of the TCP listener.
pub(super) const fn scheme(is_encrypted: bool) -> &'static str {
    if is_encrypted { "https" } else { "http" }
}

/// Creates the login of the page at an address. None if the page would be unencrypted off loopback without
/// `--insecure-web`, or if no token can be saved.
pub(super) fn login(
    store: &Store,
    address: Option<SocketAddr>,
    certificate: &Certificate,
    is_insecure_meant: bool,
) -> Option<Login> {
    let (tls, cert) = (certificate.tls(), certificate.file());
    let is_private = |address: &SocketAddr| tls.is_some() || address.ip().to_canonical().is_loopback();
    let Some(address) = address.filter(|address| is_private(address) || is_insecure_meant) else {
        // A link would lead nowhere.
        store.remove(FILE);
        if let Some(address) = address {
            tracing::info!(
                "no web page at {address}, which is no loopback address: use --tls-cert-file, or an SSH tunnel; \
                 --insecure-web serves it unencrypted"
            );
        }
        return None;
    };
    let kept = store.load(FILE).and_then(|kept: Kept| Token::from_hex(&kept.token)).filter(|_| is_secret(store));
    let token = kept.or_else(Token::random)?;
    let place = place(address, cert.as_ref());
    match store.save(FILE, Kept { token: token.to_hex(), address, cert }) {
        Ok(()) => {
            tracing::info!("web page at {place}/: sudo ratelimitd web-token prints a link");
            if !is_private(&address) {
                tracing::warn!(
                    "the web page is served unencrypted, by --insecure-web: anyone who reads the traffic can take a \
                     session over"
                );
            }
            Some(Login::new(token, address, tls))
        }
        Err(error) => {
            tracing::warn!("no web page: {error}");
            None
        }
    }
}

/// Returns true if nobody else could read the token. Warns otherwise, because such a token is replaced.
fn is_secret(store: &Store) -> bool {
    let path = store.path(FILE);
    let mode = fs::symlink_metadata(&path).map_or(0, |of| of.permissions().mode() & 0o777);
    let is_secret = mode & 0o077 == 0;
    if !is_secret {
        tracing::warn!("other users could read {} (mode {mode:03o}): it has a new token from now on", path.display());
    }
    is_secret
}

/// Creates a link to the page of this host's daemon.
pub fn web_link() -> Result<WebLink, DaemonError> {
    link(&Store::of_host(), Timestamp::now())
}

fn link(store: &Store, now: Timestamp) -> Result<WebLink, DaemonError> {
    let failed = |source| DaemonError::WebLink { path: store.path(FILE), source };
    let Kept { token, address, cert } = store.read(FILE).map_err(failed)?;
    let now = u64::try_from(now.as_second()).unwrap_or(0);
    let code = Token::from_hex(&token).and_then(|token| token.code(now));
    let code = code.ok_or_else(|| failed(std::io::Error::other("it holds no token")))?;
    let url = format!("{}/login#{code}", place(address, cert.as_ref()));
    Ok(WebLink { schema: 1, url, expires_seconds: CODE_SECONDS_MAX })
}

/// Returns the base URL of the page, with the certificate's name if it has one.
fn place(address: SocketAddr, cert: Option<&PathBuf>) -> String {
    let scheme = scheme(cert.is_some());
    match cert.and_then(|path| certificate::name(path)) {
        Some(name) => format!("{scheme}://{name}:{}", address.port()),
        None => format!("{scheme}://{}", reached(address)),
    }
}

/// Returns the address at which a browser on this host reaches the listener.
fn reached(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::tests::write;

    fn at(text: &str) -> Option<SocketAddr> {
        Some(text.parse().unwrap())
    }

    fn plain(store: &Store, address: Option<SocketAddr>, is_insecure_meant: bool) -> Option<Login> {
        login(store, address, &Certificate::default(), is_insecure_meant)
    }

    fn token_of(store: &Store) -> String {
        store.read::<Kept>(FILE).unwrap().token
    }

    #[test]
    fn encrypted_the_page_is_served_anywhere_and_its_link_has_the_certificates_name() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().join("state"));
        let files = write(directory.path(), "limiter.example");
        let certificate = Certificate::open(Some(&files));
        assert!(login(&store, at("192.0.2.1:9464"), &certificate, false).is_some());
        let url = || link(&store, Timestamp::now()).unwrap().url;
        assert!(url().starts_with("https://limiter.example:9464/login#"), "{}", url());
        fs::write(&files.cert, "").unwrap();
        assert!(url().starts_with("https://192.0.2.1:9464/login#"), "{}", url());
        let without = Certificate::open(Some(&files));
        assert!(login(&store, at("192.0.2.1:9464"), &without, false).is_some(), "a later certificate finds it there");
    }

    #[test]
    fn a_token_that_others_could_read_or_have_put_there_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().to_owned());
        let file = store.path(FILE);
        plain(&store, at("127.0.0.1:1"), false).unwrap();
        let mut known = token_of(&store);
        for mode in [0o640, 0o604, 0o622] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            plain(&store, at("127.0.0.1:1"), false).unwrap();
            assert_ne!(token_of(&store), known, "{mode:03o}");
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
            known = token_of(&store);
        }
        let elsewhere = directory.path().join("elsewhere");
        fs::rename(&file, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        assert!(link(&store, Timestamp::now()).is_err(), "no link is made through a symbolic link");
        plain(&store, at("127.0.0.1:1"), false).unwrap();
        assert!(fs::symlink_metadata(&file).unwrap().is_file() && token_of(&store) != known);
        known = token_of(&store);
        // Only root can give a file away.
        if std::os::unix::fs::chown(&file, Some(65_534), None).is_ok() {
            assert!(link(&store, Timestamp::now()).is_err(), "nor of another user's file");
            plain(&store, at("127.0.0.1:1"), false).unwrap();
            assert_ne!(token_of(&store), known);
        }
    }

    #[test]
    fn a_token_is_made_once_for_root_alone_and_links_are_made_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().join("state"));
        assert!(link(&store, Timestamp::now()).unwrap_err().help().join(" ").contains("--listen"));
        assert!(plain(&store, at("127.0.0.1:9464"), false).is_some());
        let file = store.path(FILE);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let first = std::fs::read(&file).unwrap();
        assert!(plain(&store, at("127.0.0.1:9464"), false).is_some());
        assert_eq!(std::fs::read(&file).unwrap(), first, "a restart keeps the token");
        let [one, other] = [(); 2].map(|()| link(&store, Timestamp::now()).unwrap().url);
        assert!(one.starts_with("http://127.0.0.1:9464/login#") && one != other, "{one}");
        let token: serde_json::Value = serde_json::from_slice(&first).unwrap();
        assert!(!one.contains(token["token"].as_str().unwrap()));
    }

    #[test]
    fn off_loopback_there_is_no_login_unless_it_is_insisted_on() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().to_owned());
        assert!(plain(&store, at("[::1]:1"), false).is_some() && store.path(FILE).exists());
        for address in ["192.0.2.1:9464", "0.0.0.0:9464", "[::]:9464"] {
            assert!(plain(&store, at(address), false).is_none(), "{address}");
            assert!(!store.path(FILE).exists(), "no link leads to a page that is not served");
        }
        assert!(plain(&store, at("[::]:9464"), true).is_some());
        assert!(link(&store, Timestamp::now()).unwrap().url.starts_with("http://[::1]:9464/login#"));
        assert!(plain(&store, None, true).is_none() && !store.path(FILE).exists());
    }

    #[test]
    fn a_broken_token_is_replaced_and_an_unkeepable_one_leaves_metrics_alone() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().to_owned());
        for broken in ["", "{}", r#"{"version":1,"token":"00","address":"127.0.0.1:1"}"#] {
            std::fs::write(store.path(FILE), broken).unwrap();
            assert!(link(&store, Timestamp::now()).is_err(), "{broken}");
            assert!(plain(&store, at("127.0.0.1:1"), false).is_some(), "{broken}");
            assert!(link(&store, Timestamp::now()).is_ok(), "{broken}");
        }
        let nowhere = Store::at("/proc/nowhere".into());
        assert!(plain(&nowhere, at("127.0.0.1:1"), false).is_none());
    }
}
