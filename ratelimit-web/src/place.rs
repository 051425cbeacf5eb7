//! Checks of `Host` and `Origin`. They detect a foreign name that resolves to this host (DNS rebinding), and requests
//! from pages of other sites. Pure.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};

use crate::tls::Tls;

/// Names under which the page may be opened.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Plain TCP: loopback and the listen address. Any address if the listen address is unspecified.
    Tcp(IpAddr),
    /// TLS: the names of [`Place::Tcp`], and the names in the certificate.
    Tls(IpAddr, Tls),
    /// Control socket: loopback, and names without a dot, which no web site has. Command-line clients send arbitrary
    /// names.
    Socket,
}

impl Place {
    /// Fails if a request names another host, or comes from a page of another site.
    pub(crate) fn judge(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
        let host = one(headers, header::HOST)?;
        if !host.map_or(matches!(self, Self::Socket), |host| self.is_named(host)) {
            return Err(match self {
                Self::Tcp(_) | Self::Socket => {
                    "this name is not the daemon's: open the page as http://127.0.0.1:PORT, or by the address that it \
                     listens on"
                }
                Self::Tls(..) => {
                    "this name is not the daemon's: open the page by a name of its certificate, or by the address that \
                     it listens on"
                }
            });
        }
        if uri.authority().is_some_and(|of| Some(of.as_str()) != host) {
            return Err("the request names one server, and its Host header another");
        }
        match (one(headers, header::ORIGIN)?, host) {
            (None, _) => Ok(()),
            (Some(origin), Some(host)) if origin.strip_prefix(self.scheme()) == Some(host) => Ok(()),
            (Some(_), _) => Err("the request comes from a page of another site"),
        }
    }

    const fn scheme(&self) -> &'static str {
        match self {
            Self::Tcp(_) | Self::Socket => "http://",
            Self::Tls(..) => "https://",
        }
    }

    fn is_named(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, port)) if port.is_empty() || port.starts_with(':') => address,
            Some(_) => return false,
            None => host.split_once(':').map_or(host, |(name, _)| name),
        };
        match (name.parse::<IpAddr>(), self) {
            (Ok(address), _) if address.to_canonical().is_loopback() => true,
            // Only names can be made to resolve elsewhere, so an unspecified listen address allows any address.
            (Ok(address), Self::Tcp(listen) | Self::Tls(listen, _)) => {
                listen.is_unspecified() || address.to_canonical() == *listen
            }
            (Ok(_), Self::Socket) => false,
            (Err(_), Self::Tcp(_)) => name.eq_ignore_ascii_case("localhost"),
            (Err(_), Self::Tls(_, tls)) => name.eq_ignore_ascii_case("localhost") || tls.is_for(name),
            (Err(_), Self::Socket) => !name.contains('.'),
        }
    }
}

/// Returns a header's value, or none if it is absent. Fails if the header is repeated or not text.
pub(crate) fn one(headers: &HeaderMap, name: header::HeaderName) -> Result<Option<&str>, &'static str> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| "a header is not text"),
        (Some(_), Some(_)) => Err("a header appears twice"),
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

    /// Returns the request target as browsers send it.
    fn own() -> Uri {
        Uri::from_static("/")
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
            let judged = [&listen, &everywhere, &Place::Socket].map(|place| place.judge(&own(), &headers).is_ok());
            assert_eq!(judged, [by_listen, by_everywhere, by_socket], "{host}");
        }
        let none = HeaderMap::new();
        assert!(listen.judge(&own(), &none).is_err() && Place::Socket.judge(&own(), &none).is_ok());
        let twice = headers(&[(header::HOST, "127.0.0.1"), (header::HOST, "127.0.0.1")]);
        assert!(listen.judge(&own(), &twice).is_err());
    }

    #[test]
    fn an_origin_is_the_host_itself() {
        let loopback = "127.0.0.1".parse().unwrap();
        let (place, encrypted) = (Place::Tcp(loopback), Place::Tls(loopback, Tls::default()));
        for (origin, is_own, is_own_encrypted) in [
            ("http://127.0.0.1:9464", true, false),
            ("https://127.0.0.1:9464", false, true),
            ("http://127.0.0.1:80", false, false),
            ("http://localhost:9464", false, false),
            ("https://localhost:9464", false, false),
            ("http://example.org", false, false),
            ("null", false, false),
            ("", false, false),
        ] {
            let headers = headers(&[(header::HOST, "127.0.0.1:9464"), (header::ORIGIN, origin)]);
            assert_eq!(place.judge(&own(), &headers).is_ok(), is_own, "{origin}");
            assert_eq!(Place::Socket.judge(&own(), &headers).is_ok(), is_own, "{origin}");
            assert_eq!(encrypted.judge(&own(), &headers).is_ok(), is_own_encrypted, "{origin}");
        }
    }

    #[test]
    fn encrypted_the_page_has_the_names_of_its_certificate_and_no_others() {
        let made = rcgen::generate_simple_self_signed(vec!["limiter.example".to_owned()]).unwrap();
        let tls = Tls::default();
        tls.renew(made.cert.pem().as_bytes(), made.signing_key.serialize_pem().as_bytes()).unwrap();
        let place = Place::Tls("192.0.2.1".parse().unwrap(), tls);
        for (host, is_named) in [
            ("limiter.example", true),
            ("limiter.example:9464", true),
            ("192.0.2.1:9464", true),
            ("[::ffff:192.0.2.1]:9464", true),
            ("[::1]:9464", true),
            ("192.0.2.2:9464", false),
            ("[2001:db8::1]:9464", false),
            ("evil.example:9464", false),
            ("limiter.example.evil.example", false),
        ] {
            assert_eq!(place.judge(&own(), &headers(&[(header::HOST, host)])).is_ok(), is_named, "{host}");
        }
    }

    #[test]
    fn a_target_that_names_a_server_names_the_same_as_the_host() {
        let place = Place::Tcp("127.0.0.1".parse().unwrap());
        let headers = headers(&[(header::HOST, "127.0.0.1:9464")]);
        for (target, is_own) in [
            ("http://127.0.0.1:9464/", true),
            ("http://evil.example/", false),
            ("http://evil.example:9464/api/v1/stats", false),
            ("http://127.0.0.1@evil.example/", false),
            ("evil.example:443", false),
        ] {
            assert_eq!(place.judge(&target.parse().unwrap(), &headers).is_ok(), is_own, "{target}");
        }
    }
}
