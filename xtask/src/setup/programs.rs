//! Programs that the tests and the demo run, and their Debian packages.

use std::env::consts::ARCH;

use anyhow::{Context, Result};

use super::{apt, axe, cross, machine, say, schemas};
use crate::workspace;

/// Program, package and purpose.
const PROGRAMS: [(&str, &str, &str); 16] = [
    ("nginx", "nginx-light", "the web server behind the limiter"),
    ("curl", "curl", "a client"),
    ("wrk", "wrk", "a client that sends as fast as it can"),
    ("h2load", "nghttp2-client", "a client of HTTP/2 with many streams"),
    ("openssl", "openssl", "a certificate"),
    ("python3", "python3", "the example application in Python"),
    ("php", "php-cli", "the example application in PHP"),
    ("ip", "iproute2", "network namespaces"),
    ("ethtool", "ethtool", "offloads of veth"),
    ("ipset", "ipset", "sets that exports are loaded into and imports are read from"),
    ("nsenter", "util-linux", "the daemon in a namespace of the network alone"),
    ("setpriv", "util-linux", "the daemon without root's capabilities"),
    ("capsh", "libcap2-bin", "what capabilities a process has"),
    ("systemd-analyze", "systemd", "the checks of the unit file"),
    ("tmux", "tmux", "a terminal for `ratelimitd top`"),
    ("logrotate", "logrotate", "rotation of access logs"),
];

/// Additional programs for `cargo xtask accuracy`.
const FOR_ACCURACY: [(&str, &str, &str); 12] = [
    ("ab", "apache2-utils", "a client of HTTP/1.0"),
    ("chromium", "chromium", "a browser"),
    ("pip3", "python3-pip", "packages of Python's registry"),
    ("apache2", "apache2-bin", "a web server"),
    ("caddy", "caddy", "a web server in Go"),
    ("lighttpd", "lighttpd", "a web server"),
    ("haproxy", "haproxy", "a proxy"),
    ("hey", "hey", "a client in Go"),
    ("node", "nodejs", "a client in JavaScript"),
    ("javac", "openjdk-17-jdk-headless", "a client in Java"),
    ("gnutls-cli", "gnutls-bin", "a client of GnuTLS"),
    ("wget", "wget", "another"),
];

/// Servers for accuracy that the tests of recipes also run.
const RECIPES: [&str; 4] = ["apache2", "caddy", "lighttpd", "haproxy"];

const TLS_OF_LIGHTTPD: (&str, &str) = ("lighttpd-mod-openssl", "TLS of lighttpd");

/// Additional packages for accuracy that are not programs.
const LIBRARIES_FOR_ACCURACY: [(&str, &str); 3] =
    [TLS_OF_LIGHTTPD, ("libcurl3-gnutls", "a client of GnuTLS"), ("libcurl3-nss", "a client of NSS")];

/// Programs for the test of the web page. The browser is in accuracy's list.
const FOR_PAGE: [(&str, &str, &str); 3] = [
    ("chromedriver", "chromium-driver", "a browser that a test drives"),
    ("npm", "npm", "axe-core, which the page is held to"),
    ("tar", "tar", "its archive"),
];

/// Programs for the moving picture in the README.
const FOR_PICTURE: [(&str, &str, &str); 1] = [("asciinema", "asciinema", "a recorder of terminals")];

/// Programs that make the root file systems of the tests under a real systemd.
const FOR_SYSTEMD: [(&str, &str, &str); 1] = [("mmdebstrap", "mmdebstrap", "a root file system of Debian's packages")];

/// Packages with a service that would run from the machine's next start on.
const SERVICES: [(&str, &str); 4] =
    [("nginx-light", "nginx"), ("caddy", "caddy"), ("lighttpd", "lighttpd"), ("haproxy", "haproxy")];

/// Limiters that `cargo xtask bench` compares with.
const FOR_BENCH: [(&str, &str, &str); 2] =
    [("nft", "nftables", "a limiter to compare with"), ("iptables", "iptables", "another")];

/// Programs that `cargo xtask dist` runs.
const FOR_PACKAGES: [(&str, &str, &str); 3] = [
    ("dpkg-deb", "dpkg", "Debian packages"),
    ("dpkg-shlibdeps", "dpkg-dev", "which libraries a package depends on"),
    ("gzip", "gzip", "manual pages"),
];

/// Programs that check the Debian package.
const FOR_LINT: [(&str, &str, &str); 1] = [("lintian", "lintian", "the checks of the Debian package")];

pub(super) fn ensure() -> Result<()> {
    ensure_some(&PROGRAMS.map(|(program, ..)| program))?;
    // Used by tests too: nft drops and counts packets that another limiter passed.
    ensure_some(&["nft"])?;
    if let Err(error) = ensure_some(&["chromium", "chromedriver"]) {
        say(&format!("{error:#}; the test of the web page in a browser is skipped"));
    }
    if ARCH == "x86_64"
        && let Err(error) = machine::ensure()
    {
        say(&format!("{error:#}; the tests on other kernels are skipped"));
    }
    if let Err(error) = cross::ensure() {
        say(&format!("{error:#}; what is built for aarch64 is not checked"));
    }
    if let Err(error) = axe::ensure() {
        say(&format!("{error:#}; the test of the web page's accessibility is skipped"));
    }
    if let Err(error) = machine::PROMTOOL.ensure() {
        say(&format!("{error:#}; the tests of alerts and dashboard are skipped"));
    }
    if let Err(error) = machine::NSPAWN.ensure().and_then(|()| ensure_some(&["mmdebstrap"])) {
        say(&format!("{error:#}; the tests under a real systemd are skipped"));
    }
    if let Err(error) = machine::ensure_fail2ban() {
        say(&format!("{error:#}; the test with fail2ban is skipped"));
    }
    if let Err(error) = machine::REDIS.ensure() {
        say(&format!("{error:#}; the tests of a fleet with its store are skipped"));
    }
    if let Err(error) = ensure_some(&RECIPES).and_then(|()| apt::install(TLS_OF_LIGHTTPD.1, &[TLS_OF_LIGHTTPD.0])) {
        say(&format!("{error:#}; the tests of recipes for servers are skipped"));
    }
    if let Err(error) = machine::CRUN.ensure() {
        say(&format!("{error:#}; the tests of the container image are skipped"));
    }
    if let Err(error) = schemas::ensure() {
        say(&format!("{error:#}; the manifests for Kubernetes are not checked against its schemas"));
    }
    if let Err(error) = ensure_some(&FOR_LINT.map(|(program, ..)| program)) {
        say(&format!("{error:#}; the check of the Debian package is skipped"));
    }
    Ok(())
}

pub(super) fn ensure_for_packages() -> Result<()> {
    ensure_some(&FOR_PACKAGES.map(|(program, ..)| program))
}

pub(super) fn ensure_for_accuracy() -> Result<()> {
    ensure_some(&for_accuracy())?;
    for (package, purpose) in LIBRARIES_FOR_ACCURACY {
        apt::install(purpose, &[package]).with_context(|| format!("the rows need {package}: {purpose}"))?;
    }
    Ok(())
}

pub(super) fn for_accuracy() -> Vec<&'static str> {
    let besides = ["nginx", "curl", "wrk", "h2load", "openssl", "python3", "ip", "ethtool", "nsenter", "setpriv"];
    [&besides[..], &FOR_ACCURACY.map(|(program, ..)| program)].concat()
}

/// Ensures the programs for the benchmark. Missing competitors and servers are only reported.
pub(super) fn ensure_for_bench() -> Result<()> {
    ensure_some(&["ip", "ethtool", "nsenter", "setpriv"])?;
    let compared = FOR_BENCH.map(|(program, ..)| program);
    if let Err(error) = ensure_some(&[&compared[..], &["wrk", "nginx", "openssl"]].concat()) {
        say(&format!("{error:#}; their rows and columns say so"));
    }
    Ok(())
}

/// Ensures the named programs from all lists.
pub(super) fn ensure_some(names: &[&str]) -> Result<()> {
    let is_missing =
        |(program, ..): &&(&str, &str, &str)| names.contains(program) && workspace::program(program).is_none();
    let missing = PROGRAMS.iter().chain(&FOR_ACCURACY).chain(&FOR_PAGE).chain(&FOR_SYSTEMD).chain(&FOR_BENCH);
    let missing: Vec<_> =
        missing.chain(&FOR_PACKAGES).chain(&FOR_LINT).chain(&FOR_PICTURE).filter(is_missing).collect();
    if missing.is_empty() {
        say(&format!("programs: {}", names.join(" ")));
        return Ok(());
    }
    let mut packages = Vec::new();
    for (program, package, purpose) in &missing {
        say(&format!("programs: {program} is missing ({purpose}), package {package}"));
        if !packages.contains(package) {
            packages.push(*package);
        }
    }
    apt::install("programs", &packages).with_context(|| {
        format!("the tests need programs that are missing; by the names of Debian's packages: {}", packages.join(" "))
    })?;
    for (_, service) in SERVICES.iter().filter(|(package, _)| packages.contains(package)) {
        apt::disable_service(service);
    }
    Ok(())
}
