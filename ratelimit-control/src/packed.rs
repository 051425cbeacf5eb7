//! Compression of answers over TCP by gzip, for clients that accept it. Knows headers and bytes; must not know what is
//! asked.
//!
//! The length of a compressed answer reveals its contents to an attacker who can repeat a request and choose a part of
//! the answer (BREACH). Answers that set a session's token are therefore not compressed. Other answers contain no
//! token, and another site cannot make a member's browser request them: reading needs the token too.

use std::io::{self, Write as _};

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::BodyExt as _;
use tokio::task::spawn_blocking;

use super::proto::{Problem, ProblemKind};
use super::server::Refusal;

/// Minimum length of a compressed answer in bytes: a shorter one is a single packet anyway.
const BYTES_MIN: u64 = 1 << 10;
/// Maximum length of a compressed answer in bytes: a longer one is sent piece by piece, uncompressed.
const BYTES_MAX: u64 = 4 << 20;

/// Compresses the answer to a request, if that is worthwhile.
pub(super) async fn packed(request: Request, next: Next) -> Response {
    let is_taken = takes_gzip(request.headers());
    let mut response = next.run(request).await;
    if !may_be_packed(&response) {
        return response;
    }
    response.headers_mut().append(header::VARY, HeaderValue::from_name(header::ACCEPT_ENCODING));
    if !is_taken {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    match in_gzip(body).await {
        Ok(bytes) => {
            parts.headers.remove(header::CONTENT_LENGTH);
            parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            Response::from_parts(parts, bytes.into())
        }
        Err(error) => {
            Refusal::from(Problem::new(ProblemKind::Internal, format!("pack the answer: {error}"))).into_response()
        }
    }
}

/// Returns true if the answer has a known length within the bounds, and begins no session.
fn may_be_packed(response: &Response) -> bool {
    let bytes = response.body().size_hint().exact();
    let is_free = |name| !response.headers().contains_key(name);
    bytes.is_some_and(|bytes| (BYTES_MIN..=BYTES_MAX).contains(&bytes))
        && is_free(header::SET_COOKIE)
        && is_free(header::CONTENT_ENCODING)
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    codings.flat_map(|text| text.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let is_refused = weight.trim().strip_prefix("q=").is_some_and(|of| of.parse() == Ok(0.0));
        name.trim().eq_ignore_ascii_case("gzip") && !is_refused
    })
}

async fn in_gzip(body: Body) -> io::Result<Bytes> {
    let whole = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let pack = move || {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&whole)?;
        encoder.finish().map(Bytes::from)
    };
    spawn_blocking(pack).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_for_clients_that_name_it() {
        for (accepted, is_taken) in [
            (None, false),
            (Some("gzip, deflate, br, zstd"), true),
            (Some("br;q=1.0, GZIP ; q=0.2"), true),
            (Some("gzip;q=0"), false),
            (Some("gzip; q=0.000"), false),
            (Some("x-gzip-like, identity"), false),
            (Some(""), false),
        ] {
            let value = accepted.map(|of| (header::ACCEPT_ENCODING, HeaderValue::from_str(of).unwrap()));
            assert_eq!(takes_gzip(&value.into_iter().collect()), is_taken, "{accepted:?}");
        }
    }
}
