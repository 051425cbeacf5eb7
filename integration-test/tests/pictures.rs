//! Pictures for the documents, of the page and `top`, from a run with one limited and one banned client. `cargo xtask
//! screenshots` stores them. Otherwise they are made quickly, and discarded.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use integration_test::browser::{Browser, no_browser};
use integration_test::lab::{Lab, SERVER, binary, once};
use integration_test::terminal::{Tmux, html};
use netlab::{HttpServer, needs_root};

/// Documentation addresses (RFC 5737, RFC 3849), which belong to nobody.
const GUESSER: &str = "203.0.113.66";
const CRAWLER: &str = "198.51.100.23";
const VISITORS: [&str; 5] = ["198.51.100.7", "198.51.100.11", "203.0.113.9", "203.0.113.40", "2001:db8:0:a::17"];
const BYTES_MAX: u64 = 150_000;
/// Duration of the traffic in a stored run, longer than the live chart.
const TRAFFIC_TIME: Duration = Duration::from_secs(140);
/// Duration of the guesses, less than the window, so that the use is still visible.
const GUESSING_TIME: Duration = Duration::from_secs(25);

const CONFIG: &str = r#"
interfaces = ["s0"]
listen = "127.0.0.1:9464"

[safety]
breaker = "off"

[[rule]]
name = "login"
ports = "80/tcp"
limits = ["5/1m connections"]
block_for = ["10m", "1h"]

[[rule]]
name = "web"
ports = "443/tcp"
limits = ["150/1m connections"]
shadow_limits = ["60/1m connections"]
"#;

/// Returns the directory of the pictures and the duration of traffic, which is long only for stored pictures.
fn place(lab: &Lab) -> (PathBuf, Duration) {
    match std::env::var_os("RATELIMITD_SCREENSHOTS") {
        Some(directory) => (directory.into(), TRAFFIC_TIME),
        None => (lab.directory().join("pictures"), Duration::from_secs(3)),
    }
}

fn prepare(lab: &Lab) -> Vec<HttpServer> {
    for address in [GUESSER, CRAWLER].into_iter().chain(VISITORS) {
        let length = if address.contains(':') { 128 } else { 32 };
        lab.client.add_address("c0", &format!("{address}/{length}")).unwrap();
    }
    for network in ["198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"] {
        let family = if network.contains(':') { "-6" } else { "-4" };
        lab.server.ip(&[family, "route", "add", network, "dev", "s0"]).unwrap();
    }
    let addresses = [format!("{}:80", SERVER[0]), format!("{}:443", SERVER[0]), format!("[{}]:443", SERVER[1])];
    addresses.iter().map(|at| HttpServer::start(&lab.server, at.parse().unwrap()).unwrap()).collect()
}

/// Simulates visitors who return and a crawler that does not stop. At the end a guesser keeps sending on an open
/// connection. Lasts at least `time`, and until both are refused.
fn traffic(lab: &Lab, time: Duration) {
    const WITHIN: Duration = Duration::from_millis(30);
    const ROUND: Duration = Duration::from_millis(400);
    let started = Instant::now();
    let end = started + time;
    let mut open = None;
    let is_over = || lab.is_blocked(CRAWLER, 443) && lab.stats()["sources"]["banned"] == 1;
    for (round, next) in (0..).zip((1..).map(|round| started + ROUND * round)) {
        if Instant::now() > end && is_over() {
            return;
        }
        // The number of visitors varies.
        let busy = 1 + (round / 12) % VISITORS.len();
        for visitor in VISITORS.iter().cycle().skip(round % VISITORS.len()).take(busy) {
            lab.reaches(visitor, 443, WITHIN);
        }
        for _ in 0..8 {
            lab.reaches(CRAWLER, 443, WITHIN);
        }
        if Instant::now() + GUESSING_TIME > end {
            let open = open.get_or_insert_with(|| lab.open(GUESSER, 80));
            lab.reaches(GUESSER, 80, WITHIN);
            // A SYN alone bans nobody. The write fails once the ban exists.
            let _sent = open.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        once(|| (Instant::now() >= next).then_some(()));
    }
}

fn take(browser: &Browser<'_>, directory: &Path, name: &str) {
    let size = browser.picture(&directory.join(name));
    assert!((5_000..BYTES_MAX).contains(&size), "{name}: {size}");
}

#[test]
fn pictures_show_a_client_that_is_limited_and_one_that_is_banned() {
    needs_root!(no_browser());
    let lab = Lab::new();
    let (directory, time) = place(&lab);
    fs::create_dir_all(&directory).unwrap();
    let _servers = prepare(&lab);
    let config = lab.directory().join("ratelimitd.toml");
    fs::write(&config, format!("socket = {:?}\n{CONFIG}", lab.socket())).unwrap();
    let _daemon = lab.start(&["run", "--config", config.to_str().unwrap()]);
    let link = lab.ratelimitd(&["web-token"]).stdout.trim().to_owned();
    let browser = Browser::start(&lab);
    browser.looks([1280, 900], "light");
    browser.open(&link);
    browser.says("Refused now");
    browser.click("input[name=period][value=live]");
    let tmux = Tmux::start(&lab, [110, 24], &format!("{} top; cat", binary().display()));

    traffic(&lab, time);
    for word in ["1 banned", "over the limit", GUESSER, CRAWLER] {
        browser.says(word);
    }
    take(&browser, &directory, "page-light.png");
    browser.looks([1280, 900], "dark");
    take(&browser, &directory, "page-dark.png");
    browser.looks([375, 812], "light");
    browser.run(&format!("location.hash = '#/source/{GUESSER}'"));
    browser.says("Blocked on port 80/tcp");
    browser.says("banned");
    take(&browser, &directory, "page-phone.png");

    tmux.shows(&[GUESSER, CRAWLER, "banned", "over the limit"]);
    let page = lab.directory().join("top.html");
    fs::write(&page, html(&tmux.painted())).unwrap();
    browser.looks([960, 460], "dark");
    browser.open(&format!("file://{}", page.display()));
    browser.says(GUESSER);
    take(&browser, &directory, "top.png");
}
