//! Tests of single requests by visitors, members and pages of other sites.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{Response, StatusCode, header};
use http_body_util::BodyExt as _;

use crate::assets::{FILES, with_headers};
use crate::attempts::FAILURES_MAX;
use crate::{Answer, Login, Token, over_socket};

const HOST: &str = "127.0.0.1:9464";
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

type Rows<'a> = &'a [(&'a str, &'a str)];

fn request(method: &str, path: &str, rows: Rows<'_>, body: &str) -> Request {
    let request = Request::builder().method(method).uri(path);
    let with = |request: axum::http::request::Builder, (name, value): &(&str, &str)| request.header(*name, *value);
    rows.iter().fold(request, with).body(Body::from(body.to_owned())).unwrap()
}

/// Returns the outcome of a request: "visitor", "member", or the status and the cookie that was set.
async fn told(login: &Login, request: Request) -> (String, String) {
    match login.answer(request, HERE).await {
        Answer::Visitor(_) => ("visitor".to_owned(), String::new()),
        Answer::Member(_) => ("member".to_owned(), String::new()),
        Answer::Done(response) => {
            let cookie = response.headers().get(header::SET_COOKIE).map(|of| of.to_str().unwrap().to_owned());
            (response.status().as_u16().to_string(), cookie.unwrap_or_default())
        }
    }
}

fn login() -> (Login, Token) {
    let token = Token::random().unwrap();
    (Login::new(token.clone(), SocketAddr::new(HERE, 9464), None), token)
}

fn code(token: &Token) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    format!(r#"{{"code":"{}"}}"#, token.code(now).unwrap())
}

const OWN: Rows<'_> = &[("host", HOST), ("origin", "http://127.0.0.1:9464")];

async fn enter(login: &Login, body: &str) -> (String, String) {
    told(login, request("POST", "/login", OWN, body)).await
}

/// Logs in, and returns the session's cookie and CSRF token.
async fn member(login: &Login, token: &Token) -> (String, String) {
    let Answer::Done(response) = login.answer(request("POST", "/login", OWN, &code(token)), HERE).await else {
        panic!("not answered")
    };
    assert_eq!(response.status(), StatusCode::OK);
    let set = response.headers()[header::SET_COOKIE].to_str().unwrap().to_owned();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let told: serde_json::Value = serde_json::from_slice(&body).unwrap();
    (set.split(';').next().unwrap().to_owned(), told["csrf"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn without_a_login_there_is_the_login_page_and_what_there_was_before() {
    let (login, _) = login();
    for (method, path, expected) in [
        ("GET", "/", "303"),
        ("GET", "/login", "200"),
        ("GET", "/style.css", "200"),
        ("HEAD", "/app.js", "200"),
        ("GET", "/web/session", "401"),
        ("GET", "/metrics", "visitor"),
        ("GET", "/api/v1/stats", "visitor"),
        ("GET", "/api/v1/list", "visitor"),
        ("GET", "/app.js/", "visitor"),
        ("GET", "//login", "visitor"),
        ("GET", "/../etc/passwd", "visitor"),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", "visitor"),
        ("GET", "/..%2fCargo.toml", "visitor"),
    ] {
        for rows in [&[("host", HOST)] as Rows<'_>, &[("host", HOST), ("cookie", "ratelimitd_9464=00; a; =; b=c")]] {
            assert_eq!(told(&login, request(method, path, rows, "")).await.0, expected, "{method} {path}");
        }
    }
    assert_eq!(told(&login, request("POST", "/v1/deny", OWN, "")).await.0, "visitor", "the router has no such path");
    assert_eq!(told(&login, request("POST", "/logout", OWN, "")).await.0, "401");
    let without_origin = request("POST", "/login", &[("host", HOST)], "{}");
    assert_eq!(told(&login, without_origin).await.0, "visitor", "a login names its Origin");
}

#[tokio::test]
async fn a_link_logs_in_once_and_its_cookie_is_for_this_page_alone() {
    let (login, token) = login();
    let body = code(&token);
    let (status, set) = enter(&login, &body).await;
    assert_eq!(status, "200");
    let (_, flags) = set.split_once("; ").unwrap();
    assert_eq!(flags, "HttpOnly; SameSite=Strict; Path=/; Max-Age=43200");
    assert_eq!(enter(&login, &body).await, ("401".to_owned(), String::new()), "the link is used up");
    let other = Token::random().unwrap();
    for wrong in [code(&other).as_str(), "", "{}", r#"{"code":""}"#, r#"{"code":"00"}"#, r#"{"code":7}"#] {
        assert_eq!(enter(&login, wrong).await, ("401".to_owned(), String::new()), "{wrong}");
    }
    assert_eq!(enter(&login, &"x".repeat(5_000)).await.0, "413");
}

#[tokio::test]
async fn a_cookie_alone_which_every_port_of_the_host_is_sent_opens_nothing() {
    let (login, token) = login();
    let (cookie, csrf) = member(&login, &token).await;
    let cookie = format!("x=y; {cookie}");
    let [host, cookie] = [("host", "localhost:8080"), ("cookie", cookie.as_str())];
    for path in ["/api/v1/list", "/metrics", "/api/v1/check/192.0.2.7"] {
        assert_eq!(told(&login, request("GET", path, &[host, cookie], "")).await.0, "visitor", "{path}");
        assert_eq!(
            told(&login, request("GET", path, &[host, ("x-csrf-token", &csrf)], "")).await.0,
            "visitor",
            "{path}"
        );
        let both = [host, cookie, ("x-csrf-token", &csrf)];
        assert_eq!(told(&login, request("GET", path, &both, "")).await.0, "member", "{path}");
    }
    assert_eq!(told(&login, request("GET", "/web/session", &[host, cookie], "")).await.0, "401");
    assert_eq!(told(&login, request("GET", "/", &[host, cookie], "")).await.0, "200", "the page itself tells nothing");
}

#[tokio::test]
async fn failed_logins_are_bounded_and_keep_nobody_with_a_link_out() {
    let (login, token) = login();
    for _ in 0..FAILURES_MAX {
        assert_eq!(enter(&login, "{}").await.0, "401");
    }
    assert_eq!(enter(&login, "{}").await.0, "429");
    let other = request("POST", "/login", OWN, "{}");
    let Answer::Done(response) = login.answer(other, "192.0.2.7".parse().unwrap()).await else { panic!("passed") };
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "another address has its own");
    assert_eq!(enter(&login, &code(&token)).await.0, "200");
}

#[tokio::test]
async fn changes_require_the_sessions_csrf_token_and_its_origin() {
    let (login, token) = login();
    let (cookie, csrf) = member(&login, &token).await;
    let (_, others_csrf) = member(&login, &token).await;
    let origin = ("origin", "http://127.0.0.1:9464");
    let (host, cookie) = (("host", HOST), ("cookie", cookie.as_str()));
    for (rows, expected) in [
        (vec![host, cookie, origin, ("x-csrf-token", &csrf)], "member"),
        (vec![host, cookie, origin], "403"),
        (vec![host, cookie, origin, ("x-csrf-token", "")], "403"),
        (vec![host, cookie, origin, ("x-csrf-token", &others_csrf)], "403"),
        (vec![host, cookie, ("x-csrf-token", &csrf)], "403"),
        (vec![host, cookie, ("origin", "http://example.org"), ("x-csrf-token", &csrf)], "visitor"),
        (vec![host, cookie, ("origin", "null"), ("x-csrf-token", &csrf)], "visitor"),
        (vec![host, origin, ("x-csrf-token", &csrf)], "visitor"),
        (vec![("host", "evil.example"), cookie, ("origin", "http://evil.example"), ("x-csrf-token", &csrf)], "visitor"),
    ] {
        for method in ["POST", "PUT", "DELETE"] {
            assert_eq!(told(&login, request(method, "/v1/deny", &rows, "{}")).await.0, expected, "{method} {rows:?}");
        }
    }
    let out = request("POST", "/logout", &[host, cookie, origin, ("x-csrf-token", &csrf)], "");
    let (status, set) = told(&login, out).await;
    assert!(status == "200" && set.contains("=; ") && set.ends_with("Max-Age=0"), "{set}");
    let after = request("GET", "/api/v1/list", &[host, cookie, ("x-csrf-token", &csrf)], "");
    assert_eq!(told(&login, after).await.0, "visitor");
}

#[tokio::test]
async fn a_foreign_name_or_page_is_no_member_and_sees_no_page() {
    let (login, token) = login();
    let (cookie, csrf) = member(&login, &token).await;
    let foreign: [Rows<'_>; 3] =
        [&[("host", "evil.example:9464")], &[("host", HOST), ("origin", "http://evil.example")], &[]];
    for rows in foreign {
        let rows = [rows, &[("cookie", cookie.as_str()), ("x-csrf-token", &csrf)]].concat();
        for (path, expected) in [
            ("/", "403"),
            ("/login", "403"),
            ("/api/v1/list", "visitor"),
            ("/web/session", "403"),
            ("/metrics", "visitor"),
        ] {
            assert_eq!(told(&login, request("GET", path, &rows, "")).await.0, expected, "{path} {rows:?}");
        }
    }
}

#[tokio::test]
async fn over_the_socket_commands_go_on_and_other_sites_pages_do_not() {
    let member = "member".to_owned();
    let cross = ("sec-fetch-site", "cross-site");
    let rows: [(&str, &str, Rows<'_>, String); 9] = [
        ("POST", "/v1/deny", &[("host", "ratelimitd")], member.clone()),
        ("POST", "/v1/deny", &[], member.clone()),
        ("POST", "/v1/deny", OWN, member.clone()),
        ("POST", "/v1/deny", &[("host", HOST), ("origin", "http://evil.example")], "403".to_owned()),
        ("GET", "/api/v1/stats", &[("host", "evil.example")], "403".to_owned()),
        ("GET", "/api/v1/stats", &[("host", HOST), cross], "403".to_owned()),
        ("GET", "/", &[("host", HOST), cross], "200".to_owned()),
        ("GET", "/web/session", &[("host", HOST)], "200".to_owned()),
        ("GET", "/nothing", &[("host", HOST)], member),
    ];
    for (method, path, headers, expected) in rows {
        let is = match over_socket(request(method, path, headers, "")) {
            Answer::Member(_) => "member".to_owned(),
            Answer::Visitor(_) => "visitor".to_owned(),
            Answer::Done(response) => response.status().as_u16().to_string(),
        };
        assert_eq!(is, expected, "{method} {path} {headers:?}");
    }
}

#[test]
fn every_answer_forbids_scripts_and_styles_that_are_not_the_pages_own() {
    let response = with_headers(Response::new(Body::empty()));
    let policy = response.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ] {
        assert_eq!(response.headers()[name], value);
    }
}

#[test]
fn the_files_need_nothing_from_elsewhere_nothing_inline_and_less_than_80_kb() {
    let size: usize = FILES.iter().map(|(.., text)| text.len()).sum();
    assert!(size <= 80_000, "{size}");
    for (path, _, text) in FILES {
        assert!(!text.is_empty(), "{path}");
        for forbidden in ["https://", "<style", "style=", "onclick", "onload", "javascript:", "innerHTML", "eval("] {
            assert!(!text.contains(forbidden), "{path}: {forbidden}");
        }
        let mut scripts = text.split("<script").skip(1);
        assert!(scripts.all(|rest| rest.starts_with(" src=\"/")), "{path}");
    }
}
