//! Where a browser thinks that it is: `Host` and `Origin`. A foreign name that leads here (DNS rebinding) and a page of
//! another site are both told by them. Pure.

use std::net::IpAddr;

use axum::http::{HeaderMap, header};

/// Under which names the page is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Loopback, and the address that is listened on; any address where that is the unspecified one.
    Tcp(IpAddr),
    /// Loopback, and names without a dot, which no site has: commands say what they like.
    Socket,
}

impl Place {
    /// Whether a request is for this place, and from no other site's page.
    pub(crate) fn judge(self, headers: &HeaderMap) -> Result<(), &'static str> {
        let host = one(headers, header::HOST)?;
        if !host.map_or(self == Self::Socket, |host| self.is_named(host)) {
            return Err(
                "this name is not the daemon's: open the page as http://127.0.0.1:PORT, or by the address that it \
                        listens on",
            );
        }
        match (one(headers, header::ORIGIN)?, host) {
            (None, _) => Ok(()),
            (Some(origin), Some(host)) if origin.strip_prefix("http://") == Some(host) => Ok(()),
            (Some(_), _) => Err("the request comes from a page of another site"),
        }
    }

    fn is_named(self, host: &str) -> bool {
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, port)) if port.is_empty() || port.starts_with(':') => address,
            Some(_) => return false,
            None => host.split_once(':').map_or(host, |(name, _)| name),
        };
        match (name.parse::<IpAddr>(), self) {
            (Ok(address), _) if address.to_canonical().is_loopback() => true,
            // Only names can be made to lead elsewhere.
            (Ok(address), Self::Tcp(listen)) => listen.is_unspecified() || address == listen,
            (Ok(_), Self::Socket) => false,
            (Err(_), Self::Tcp(_)) => name.eq_ignore_ascii_case("localhost"),
            (Err(_), Self::Socket) => !name.contains('.'),
        }
    }
}

/// A header that is there once, or not at all.
pub(crate) fn one(headers: &HeaderMap, name: header::HeaderName) -> Result<Option<&str>, &'static str> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| "a header is no text"),
        (Some(_), Some(_)) => Err("a header is there twice"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(rows: &[(header::HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in rows {
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn only_loopback_and_the_address_that_is_listened_on_are_the_page() {
        let listen = Place::Tcp("192.0.2.1".parse().unwrap());
        let everywhere = Place::Tcp("::".parse().unwrap());
        for (host, by_listen, by_everywhere, by_socket) in [
            ("127.0.0.1:9464", true, true, true),
            ("127.8.8.8", true, true, true),
            ("localhost:8080", true, true, true),
            ("LOCALHOST", true, true, true),
            ("[::1]:9464", true, true, true),
            ("192.0.2.1:9464", true, true, false),
            ("192.0.2.2:9464", false, true, false),
            ("[2001:db8::1]", false, true, false),
            ("example.org", false, false, false),
            ("127.0.0.1.example.org:9464", false, false, false),
            ("localhost.example.org", false, false, false),
            ("[::1]x", false, false, false),
            ("ratelimitd", false, false, true),
            ("", false, false, true),
        ] {
            let headers = headers(&[(header::HOST, host)]);
            let judged = [listen, everywhere, Place::Socket].map(|place| place.judge(&headers).is_ok());
            assert_eq!(judged, [by_listen, by_everywhere, by_socket], "{host}");
        }
        assert!(listen.judge(&HeaderMap::new()).is_err() && Place::Socket.judge(&HeaderMap::new()).is_ok());
        let twice = headers(&[(header::HOST, "127.0.0.1"), (header::HOST, "127.0.0.1")]);
        assert!(listen.judge(&twice).is_err());
    }

    #[test]
    fn an_origin_is_the_host_itself() {
        let place = Place::Tcp("127.0.0.1".parse().unwrap());
        for (origin, is_own) in [
            ("http://127.0.0.1:9464", true),
            ("http://127.0.0.1:80", false),
            ("https://127.0.0.1:9464", false),
            ("http://localhost:9464", false),
            ("http://example.org", false),
            ("null", false),
            ("", false),
        ] {
            let headers = headers(&[(header::HOST, "127.0.0.1:9464"), (header::ORIGIN, origin)]);
            assert_eq!(place.judge(&headers).is_ok(), is_own, "{origin}");
            assert_eq!(Place::Socket.judge(&headers).is_ok(), is_own, "{origin}");
        }
    }
}
