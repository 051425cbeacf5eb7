//! The web page's token: a file that only root reads, with the address that the page is served at. The daemon makes it,
//! `ratelimitd web-token` makes links of it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::error::DaemonError;
use super::store::Store;
use ratelimit_web::{CODE_SECONDS_MAX, Login, Token};

const FILE: &str = "web-token.json";

#[derive(Serialize, Deserialize)]
struct Kept {
    token: String,
    address: SocketAddr,
}

/// A link that opens the page once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WebLink {
    schema: u32,
    /// Where it leads.
    pub url: String,
    /// How long it is good.
    pub expires_seconds: u64,
}

/// The login of the page that is served at an address; none where it is not to be had unencrypted, or no token can be kept.
pub(super) fn login(store: &Store, address: Option<SocketAddr>, is_insecure_meant: bool) -> Option<Login> {
    let Some(address) = address.filter(|address| address.ip().to_canonical().is_loopback() || is_insecure_meant) else {
        // A link would lead nowhere.
        store.remove(FILE);
        if let Some(address) = address {
            tracing::info!(
                "no web page at {address}, which is no loopback address: use an SSH tunnel, or --insecure-web"
            );
        }
        return None;
    };
    let kept = store.load(FILE).and_then(|kept: Kept| Token::from_hex(&kept.token));
    let token = kept.or_else(Token::random)?;
    match store.save(FILE, Kept { token: token.to_hex(), address }) {
        Ok(()) => {
            tracing::info!("web page at http://{}/: sudo ratelimitd web-token prints a link", reached(address));
            if !address.ip().to_canonical().is_loopback() {
                tracing::warn!(
                    "the web page is served unencrypted, by --insecure-web: who reads the traffic can take it over"
                );
            }
            Some(Login::new(token, address))
        }
        Err(error) => {
            tracing::warn!("no web page: {error}");
            None
        }
    }
}

/// A new link to the page of this host's daemon.
pub fn web_link() -> Result<WebLink, DaemonError> {
    link(&Store::of_host(), Timestamp::now())
}

fn link(store: &Store, now: Timestamp) -> Result<WebLink, DaemonError> {
    let failed = |source| DaemonError::WebLink { path: store.path(FILE), source };
    let Kept { token, address } = store.read(FILE).map_err(failed)?;
    let now = u64::try_from(now.as_second()).unwrap_or(0);
    let code = Token::from_hex(&token).and_then(|token| token.code(now));
    let code = code.ok_or_else(|| failed(std::io::Error::other("it holds no token")))?;
    let url = format!("http://{}/login#{code}", reached(address));
    Ok(WebLink { schema: 1, url, expires_seconds: CODE_SECONDS_MAX })
}

/// How a browser on this host reaches what listens there.
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
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn at(text: &str) -> Option<SocketAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn a_token_is_made_once_for_root_alone_and_links_are_made_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().join("state"));
        assert!(link(&store, Timestamp::now()).unwrap_err().help().join(" ").contains("--listen"));
        assert!(login(&store, at("127.0.0.1:9464"), false).is_some());
        let file = store.path(FILE);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let first = std::fs::read(&file).unwrap();
        assert!(login(&store, at("127.0.0.1:9464"), false).is_some());
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
        assert!(login(&store, at("[::1]:1"), false).is_some() && store.path(FILE).exists());
        for address in ["192.0.2.1:9464", "0.0.0.0:9464", "[::]:9464"] {
            assert!(login(&store, at(address), false).is_none(), "{address}");
            assert!(!store.path(FILE).exists(), "no link leads to a page that is not served");
        }
        assert!(login(&store, at("[::]:9464"), true).is_some());
        assert!(link(&store, Timestamp::now()).unwrap().url.starts_with("http://[::1]:9464/login#"));
        assert!(login(&store, None, true).is_none() && !store.path(FILE).exists());
    }

    #[test]
    fn a_broken_token_is_replaced_and_one_that_cannot_be_kept_leaves_metrics_as_they_were() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path().to_owned());
        for broken in ["", "{}", r#"{"version":1,"token":"00","address":"127.0.0.1:1"}"#] {
            std::fs::write(store.path(FILE), broken).unwrap();
            assert!(link(&store, Timestamp::now()).is_err(), "{broken}");
            assert!(login(&store, at("127.0.0.1:1"), false).is_some(), "{broken}");
            assert!(link(&store, Timestamp::now()).is_ok(), "{broken}");
        }
        let nowhere = Store::at("/proc/nowhere".into());
        assert!(login(&nowhere, at("127.0.0.1:1"), false).is_none());
    }
}
