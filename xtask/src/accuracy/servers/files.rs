//! Files that the servers serve, and certificates of servers and clients. All are created anew for each run.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::run;

const UPLOAD_BYTES: usize = 10_000_000;
const DOWNLOAD_BYTES: usize = 100_000_000;

/// Writes the served files: a page with 60 resources and large files. Also writes certificates and the OpenSSL padding
/// configuration. Returns the hash of the server's public key.
pub(in crate::accuracy) fn write_files(directory: &Path) -> Result<String> {
    let page = directory.join("page");
    for made in [&page, &directory.join("put"), &directory.join("bodies")] {
        fs::create_dir_all(made).with_context(|| format!("make {}", made.display()))?;
    }
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.join(name);
        fs::write(&path, bytes).with_context(|| format!("write {}", path.display()))
    };
    let mut html = "<!doctype html><html><head><title>page</title>".to_owned();
    for number in 0..10 {
        html += &format!("<link rel=stylesheet href=/page/{number}.css><script src=/page/{number}.js></script>");
        write(&format!("page/{number}.css"), "body { color: #012 }\n".repeat(40 + number).as_bytes())?;
        write(&format!("page/{number}.js"), "var it = 1;\n".repeat(100 + number).as_bytes())?;
    }
    html += "</head><body>";
    for number in 0..39 {
        html += &format!("<img src=/page/{number}.png>");
        write(&format!("page/{number}.png"), &noise(600 + number * 900))?;
    }
    write("page.html", (html + "</body></html>\n").as_bytes())?;
    write("page/39.png", &noise(400))?;
    write("ok", b"ok\n")?;
    write("index.html", b"<!doctype html><title>ok</title>\n")?;
    write("ten", &noise(UPLOAD_BYTES))?;
    let download = noise(DOWNLOAD_BYTES);
    write("fifty", &download[..DOWNLOAD_BYTES / 2])?;
    write("hundred", &download)?;
    for padding in [256, 512] {
        write(&format!("padded{padding}.conf"), padded_config(padding).as_bytes())?;
    }
    write_certificates(directory)
}

/// Returns an OpenSSL configuration that pads TLS 1.3 records to a multiple of `padding` bytes, in any program.
fn padded_config(padding: u32) -> String {
    format!(
        "openssl_conf = lab\n[lab]\nssl_conf = ssl\n[ssl]\nsystem_default = all\n[all]\nRecordPadding = {padding}\n"
    )
}

/// Writes a server certificate and a client certificate that it signed. Returns the hash of the server's public key.
fn write_certificates(directory: &Path) -> Result<String> {
    let openssl = |arguments: &str| {
        let mut command = Command::new("openssl");
        run::answer(command.args(arguments.split(' ')).current_dir(directory))
    };
    openssl(
        "req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=server.test -addext subjectAltName=DNS:server.test \
         -keyout key.pem -out certificate.pem",
    )?;
    openssl("req -newkey rsa:2048 -nodes -subj /CN=client.test -keyout client-key.pem -out client.csr")?;
    openssl("x509 -req -in client.csr -CA certificate.pem -CAkey key.pem -CAcreateserial -days 30 -out client.pem")?;
    openssl("pkcs12 -export -in client.pem -inkey client-key.pem -passout pass:secret -out client.p12")?;
    let both = ["certificate.pem", "key.pem"].map(|name| fs::read(directory.join(name)));
    let [certificate, key] = both;
    let both = [certificate.context("read the certificate")?, key.context("read its key")?].concat();
    fs::write(directory.join("both.pem"), both).context("write both.pem")?;
    let hash = r#"openssl pkey -in "$0" -pubout -outform der | openssl dgst -sha256 -binary | openssl base64"#;
    run::answer(Command::new("sh").args(["-c", hash]).arg(directory.join("key.pem")))
}

/// Returns incompressible bytes, which are the same each time.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
