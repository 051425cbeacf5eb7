//! The page's files, in the binary, and the headers that go with every answer. There is nothing else that a path could
//! name.
//!
//! The page is plain JavaScript that renders the API's JSON: there is one read model, and no second set of words as templates
//! would be. It has no library. Charts are `chart.js`: at most 120 stacked columns in SVG, which take their colours from
//! the style sheet, with a slider that reads them by key, finger and mouse, and a table. That is 6 kB. uPlot is 50 kB, of a page
//! that may have 100; its canvas follows no style sheet, and would need the slider and the table all the same.

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};

/// No script and no style but the page's own files, nothing from elsewhere, and no page around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Path, content type, contents.
pub(crate) const FILES: [(&str, &str, &str); 18] = [
    ("/", HTML, include_str!("../assets/index.html")),
    ("/login", HTML, include_str!("../assets/login.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("../assets/style.css")),
    ("/icon.svg", "image/svg+xml", include_str!("../assets/icon.svg")),
    ("/access.js", SCRIPT, include_str!("../assets/access.js")),
    ("/api.js", SCRIPT, include_str!("../assets/api.js")),
    ("/app.js", SCRIPT, include_str!("../assets/app.js")),
    ("/change.js", SCRIPT, include_str!("../assets/change.js")),
    ("/chart.js", SCRIPT, include_str!("../assets/chart.js")),
    ("/dom.js", SCRIPT, include_str!("../assets/dom.js")),
    ("/events.js", SCRIPT, include_str!("../assets/events.js")),
    ("/login.js", SCRIPT, include_str!("../assets/login.js")),
    ("/overview.js", SCRIPT, include_str!("../assets/overview.js")),
    ("/rules.js", SCRIPT, include_str!("../assets/rules.js")),
    ("/source.js", SCRIPT, include_str!("../assets/source.js")),
    ("/theme.js", SCRIPT, include_str!("../assets/theme.js")),
    ("/traffic.js", SCRIPT, include_str!("../assets/traffic.js")),
    ("/words.js", SCRIPT, include_str!("../assets/words.js")),
];

/// The file of a path.
pub(crate) fn file(path: &str) -> Option<Response> {
    let (_, of, text) = FILES.iter().find(|(name, ..)| *name == path)?;
    Some(([(header::CONTENT_TYPE, *of)], *text).into_response())
}

/// What keeps an answer from being read, framed or run by others.
pub fn with_headers(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
