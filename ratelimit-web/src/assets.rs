//! Files of the web page, embedded in the binary, and the headers of every answer. No path can name anything else.
//!
//! The page is plain JavaScript that renders the API's JSON. There is one read model, and no templates that would
//! repeat its wording. The page uses no library. `chart.js` draws charts: at most 120 stacked columns in SVG that
//! take their colours from the style sheet. A slider reads them by key, finger and mouse, and a table lists them.
//! That takes 6 kB. uPlot takes 50 kB of a page that may have 100. Its canvas follows no style sheet, and it would
//! still need the slider and the table.

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};

/// Content security policy: only the page's own scripts and styles, nothing from elsewhere, and no framing.
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

/// Path, content type and content of each file.
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

/// Returns the file at a path.
pub(crate) fn file(path: &str) -> Option<Response> {
    let (_, of, text) = FILES.iter().find(|(name, ..)| *name == path)?;
    Some(([(header::CONTENT_TYPE, *of)], *text).into_response())
}

/// Adds the headers that keep other sites from reading, framing or running an answer.
pub fn with_headers(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
