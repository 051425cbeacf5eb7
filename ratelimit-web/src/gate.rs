//! Access control of the web page. Requests come from visitors, who are answered as if there were no login, or from
//! members. Everyone on the control socket already is a member.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use ratelimit_common::time::Nanos;
use serde::Deserialize;
use serde_json::json;

use crate::assets;
use crate::attempts::Attempts;
use crate::place::{Place, one};
use crate::sessions::{SESSION_TIME_MAX, Session, Sessions};
use crate::tls::Tls;
use crate::token::{Codes, Refused, Token};

/// Maximum size in bytes of a login's body, which holds only a code.
const BODY_BYTES_MAX: usize = 4096;
/// Header that every request of a member repeats, which no page of another origin can do. Browsers send a cookie to
/// every port of a host, so a cookie that another server on the host received is useless alone.
const CSRF: HeaderName = HeaderName::from_static("x-csrf-token");
/// Path that returns the state of the session.
const SESSION: &str = "/web/session";
const LOGIN: &str = "/login";
const LOGOUT: &str = "/logout";

/// Outcome of the access check for one request.
#[derive(Debug)]
pub enum Answer {
    /// The request was answered.
    Done(Response),
    /// The request comes from a user who is not logged in.
    Visitor(Request),
    /// The request comes from a logged-in user. Its extension [`SessionEnd`](crate::SessionEnd) tells when the
    /// session ends.
    Member(Request),
}

/// Login of one TCP listener.
#[derive(Clone, Debug)]
pub struct Login {
    place: Place,
    /// Cookie name, which includes the port. Browsers share cookies between ports, so two daemons on one host need
    /// two names.
    cookie: String,
    started: Instant,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    codes: Codes,
    sessions: Sessions,
    attempts: Attempts,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Code {
    code: String,
}

impl Login {
    /// Creates the login of a listener for holders of this token's codes. Connections are encrypted if `tls` is
    /// given.
    pub fn new(token: Token, listen: SocketAddr, tls: Option<Tls>) -> Self {
        let state = State {
            codes: Codes::new(token, unix_seconds()),
            sessions: Sessions::default(),
            attempts: Attempts::default(),
        };
        let (ip, port) = (listen.ip().to_canonical(), listen.port());
        let (place, cookie) = match tls {
            // The prefix `__Host-` keeps unencrypted pages of this host and pages of sibling domains from setting
            // this cookie.
            Some(tls) => (Place::Tls(ip, tls), format!("__Host-ratelimitd_{port}")),
            None => (Place::Tcp(ip), format!("ratelimitd_{port}")),
        };
        Self { place, cookie, started: Instant::now(), state: Arc::new(Mutex::new(state)) }
    }

    /// Answers a request, or classifies it as a visitor's or member's. A visitor may address the daemon by any name,
    /// as without a login. The page and its members must use a name of the daemon.
    pub async fn answer(&self, mut request: Request, from: IpAddr) -> Answer {
        let path = request.uri().path();
        let is_page = matches!(path, LOGIN | LOGOUT | SESSION) || assets::file(path).is_some();
        if let Err(why) = self.place.judge(request.uri(), request.headers()) {
            return if is_page { refuse(StatusCode::FORBIDDEN, why) } else { Answer::Visitor(request) };
        }
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let has_origin = request.headers().contains_key(header::ORIGIN);
        if path == LOGIN && *request.method() == Method::POST && has_origin {
            return self.enter(request, from).await;
        }
        let Some((id, session)) = self.session(request.headers()) else {
            return match path {
                "/" if is_read => Answer::Done(Redirect::to(LOGIN).into_response()),
                SESSION | LOGOUT => refuse(StatusCode::UNAUTHORIZED, "log in: sudo ratelimitd web-token"),
                _ => file_or(request, Answer::Visitor),
            };
        };
        if is_read && assets::file(path).is_some() {
            return file_or(request, Answer::Member);
        }
        if !is_read && !has_origin {
            return refuse(StatusCode::FORBIDDEN, "a request that changes something must have an Origin header");
        }
        if !request.headers().get(CSRF).is_some_and(|of| of.to_str().is_ok_and(|of| session.repeats(of))) {
            return match path {
                SESSION => refuse(StatusCode::UNAUTHORIZED, "log in: sudo ratelimitd web-token"),
                _ if is_read => Answer::Visitor(request),
                _ => refuse(StatusCode::FORBIDDEN, "the header X-CSRF-Token is not this session's"),
            };
        }
        match (request.method(), path) {
            (&Method::GET, SESSION) => {
                let rest = session.until.saturating_duration_since(Instant::now()).as_secs();
                let told = json!({ "schema": 1, "login": true, "expires_seconds": rest });
                Answer::Done(Json(told).into_response())
            }
            (&Method::POST, LOGOUT) => {
                self.lock().sessions.end(&id);
                let gone = self.set_cookie("", 0);
                Answer::Done(([(header::SET_COOKIE, gone)], Json(json!({ "schema": 1 }))).into_response())
            }
            _ => {
                request.extensions_mut().insert(session.end());
                file_or(request, Answer::Member)
            }
        }
    }

    /// Exchanges a code for a session.
    async fn enter(&self, request: Request, from: IpAddr) -> Answer {
        let Ok(body) = to_bytes(request.into_body(), BODY_BYTES_MAX).await else {
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, "a login is a code and nothing else");
        };
        let code = serde_json::from_slice(&body).map_or_else(|_| String::new(), |Code { code }| code);
        let mut state = self.lock();
        let refused = match state.codes.take(&code, unix_seconds()) {
            Ok(()) => {
                let Some((id, csrf)) = state.sessions.begin(Instant::now()) else {
                    return refuse(StatusCode::INTERNAL_SERVER_ERROR, "the system has no random bytes");
                };
                let cookie = self.set_cookie(&id, SESSION_TIME_MAX.as_secs());
                let told = json!({ "schema": 1, "csrf": csrf });
                return Answer::Done(([(header::SET_COOKIE, cookie)], Json(told)).into_response());
            }
            Err(refused) => refused,
        };
        let since_start = Nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX));
        if let Err(wait) = state.attempts.fail(from, since_start) {
            let seconds = wait.as_secs() + 1;
            let why = format!("too many logins failed: wait {seconds} s");
            let mut response = refusal(StatusCode::TOO_MANY_REQUESTS, &why);
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
            return Answer::Done(response);
        }
        let why = match refused {
            Refused::Wrong => "this is no link of this daemon: sudo ratelimitd web-token prints one",
            Refused::Expired => "the link has expired: sudo ratelimitd web-token prints a new one",
            Refused::Used => "the link was used before: sudo ratelimitd web-token prints a new one",
        };
        refuse(StatusCode::UNAUTHORIZED, why)
    }

    fn session(&self, headers: &HeaderMap) -> Option<(String, Session)> {
        let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let pairs = all.flat_map(|text| text.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let state = self.lock();
        let find = |id: &str| state.sessions.find(id, Instant::now()).map(|session| (id.to_owned(), session));
        // A browser sends only a few cookies, and those with other names do not count.
        pairs.filter(|(name, _)| *name == self.cookie).take(2).find_map(|(_, id)| find(id))
    }

    fn set_cookie(&self, id: &str, seconds: u64) -> String {
        let secure = match self.place {
            Place::Tls(..) => "; Secure",
            Place::Tcp(_) | Place::Socket => "",
        };
        format!("{}={id}; HttpOnly; SameSite=Strict; Path=/; Max-Age={seconds}{secure}", self.cookie)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is a single call on one of three tables, so a panic leaves no half-made change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers a request over the control socket, which a browser reaches through a tunnel. Everyone who may connect is a
/// member, but pages of other sites in the user's browser are refused.
pub fn over_socket(request: Request) -> Answer {
    if let Err(why) = Place::Socket.judge(request.uri(), request.headers()) {
        return refuse(StatusCode::FORBIDDEN, why);
    }
    let site = one(request.headers(), HeaderName::from_static("sec-fetch-site"));
    if matches!(site, Ok(Some("cross-site" | "same-site"))) && assets::file(request.uri().path()).is_none() {
        return refuse(StatusCode::FORBIDDEN, "the request comes from a page of another site");
    }
    match (request.method(), request.uri().path()) {
        (&Method::GET, SESSION) => Answer::Done(Json(json!({ "schema": 1, "login": false })).into_response()),
        _ => file_or(request, Answer::Member),
    }
}

fn file_or(request: Request, other: impl FnOnce(Request) -> Answer) -> Answer {
    match *request.method() {
        Method::GET | Method::HEAD => assets::file(request.uri().path()).map_or_else(|| other(request), Answer::Done),
        _ => other(request),
    }
}

fn refuse(status: StatusCode, why: &str) -> Answer {
    Answer::Done(refusal(status, why))
}

/// Builds a refusal in the shape that all refusals of the API have.
fn refusal(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({ "schema": 1, "kind": "not_permitted", "message": why }))).into_response()
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
