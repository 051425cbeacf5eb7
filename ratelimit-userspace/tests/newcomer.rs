//! Tasks of a new user that need neither privileges nor a daemon. Snapshots hold what a terminal shows.
//!
//! The other tasks are in `integration-test/tests/newcomer.rs`.
#![expect(clippy::expect_used, reason = "a test that cannot run its program fails")]

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use assert_cmd::cargo::CommandCargoExt as _;
use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;

/// A shell in a directory of its own, which records all input and output.
struct Shell {
    directory: TempDir,
    written: String,
}

impl Shell {
    fn new() -> Self {
        Self { directory: TempDir::new().expect("a directory"), written: String::new() }
    }

    fn put(&self, name: &str, contents: &[u8]) {
        fs::write(self.directory.path().join(name), contents).expect(name);
    }

    fn file(&mut self, name: &str, text: &str) {
        self.put(name, text.as_bytes());
        self.written += &format!("$ cat {name}\n{}\n\n", text.trim_end());
    }

    /// Types a command, and waits for its end.
    fn types(&mut self, line: &str) {
        let program = Command::cargo_bin("ratelimitd").expect("built with the tests");
        let binaries = Path::new(program.get_program()).parent().expect("a directory");
        let output = Command::new("sh")
            .args(["-c", &format!("exec 2>&1; {line}")])
            .current_dir(self.directory.path())
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", binaries.display()))
            .envs([("COLUMNS", "100"), ("TERM", "dumb"), ("TZ", "UTC")])
            .stdin(Stdio::null())
            .output()
            .expect("a shell");
        let said = String::from_utf8(output.stdout).expect("UTF-8");
        let code = output.status.code().expect("ended by itself");
        let code = if code == 0 { String::new() } else { format!("[exit code {code}]\n") };
        self.written += &format!("$ {line}\n{said}{code}\n");
    }

    fn transcript(&self) -> String {
        self.written.replace(&self.directory.path().display().to_string(), "/srv/web")
    }
}

macro_rules! tasks {
    ($($name:ident: |$shell:ident| $script:block)*) => {
        $(
            #[test]
            fn $name() {
                let mut shell = Shell::new();
                let $shell = &mut shell;
                $script
                insta::with_settings!({ omit_expression => true }, {
                    insta::assert_snapshot!(stringify!($name), shell.transcript());
                });
            }
        )*
    };
}

/// Configuration with the interface `lo`, which exists everywhere.
const FILE: &str = "interfaces = [\"lo\"]\n\n[rule]\nlimits = [\"1000/5m\"]\nmode = \"dry-run\"\n";

tasks! {
    broken_files: |shell| {
        shell.types("ratelimitd check-config web.toml");
        shell.file("web.toml", &FILE.replace("limits", "limit"));
        shell.types("ratelimitd check-config web.toml");
        shell.types("ratelimitd run --config web.toml");
        shell.file("web.toml", &FILE.replace("1000/5m", "1000/5x"));
        shell.types("ratelimitd check-config web.toml");
        shell.file("web.toml", &FILE.replace("interfaces = [\"lo\"]", "interfaces = \"lo\"\ndeny = [\"file:bad.txt\"]"));
        shell.types("ratelimitd check-config web.toml");
        shell.file("bad.txt", "192.0.2.7\n192.0.2.0/33\n");
        shell.types("ratelimitd check-config web.toml");
        shell.file("web.toml", &FILE.replace("limits = [\"1000/5m\"]", "limits = [\"1000\"]\nports = \"http,80000\""));
        shell.types("ratelimitd check-config web.toml");
        shell.file("web.toml", &FILE.replace("\"dry-run\"", "\"dryrun\"").replace("[rule]", "[rules]"));
        shell.types("ratelimitd check-config web.toml");
        shell.file("web.toml", "interfaces = [\"lo\"\n");
        shell.types("ratelimitd check-config web.toml");
        shell.file("web.toml", FILE);
        shell.types("ratelimitd check-config web.toml");
    }

    limits_from_habit: |shell| {
        for limit in [
            "10r/s", "10r/m", "5 per minute", "100 requests per hour", "1,000/1m", "1k/1m", "10/500ms", "1w", "5/1w", "10/min",
            "10/0s", "0/1m", "10 MB/s", "100Mbit/s", "10", "10/5", "10-1m", "10/1m burst 20", "1000/5m,10/s", "10/s/ip",
        ] {
            shell.types(&format!("ratelimitd check-config --iface lo --limit \"{limit}\" | grep ' limit'"));
        }
        for option in ["--port http", "--port 80:443", "--port 80-", "--count hits", "--block-for 1", "--window sliding"] {
            shell.types(&format!("ratelimitd check-config --iface lo --limit 10/s {option} | grep ' ports'"));
        }
    }

    a_replay_of_ten_formats: |shell| {
        let logs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs");
        let log = |name: &str| fs::read(logs.join(name)).expect(name);
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&log("nginx-combined.log")).expect("pack");
        shell.put("access.log.2.gz", &packed.finish().expect("pack"));
        for name in [
            "nginx-combined.log", "nginx-json.log", "caddy.log", "traefik.log", "haproxy.log", "iis-w3c.log", "aws-alb.log",
            "journal-export.bin", "kubernetes-cri.log", "apache-forwarded-first.log", "apache-vhost-combined.log",
            "apache-error.log", "proxied.log", "copytruncate.log",
        ] {
            shell.put(name, &log(name));
        }
        shell.types("ratelimitd replay nginx-combined.log --limit 3/1m");
        shell.types("ratelimitd replay nginx-combined.log access.log.2.gz --limit 3/1m");
        shell.types("ratelimitd replay nginx-json.log caddy.log traefik.log haproxy.log iis-w3c.log --limit 3/1m");
        shell.types("ratelimitd replay aws-alb.log journal-export.bin kubernetes-cri.log copytruncate.log --limit 3/1m");
        shell.types("ratelimitd replay apache-forwarded-first.log apache-vhost-combined.log --limit 3/1m");
        shell.types("ratelimitd replay proxied.log --limit 60/1m");
        shell.types("ratelimitd replay apache-error.log --limit 3/1m");
        shell.types("ratelimitd replay acess.log --limit 3/1m");
        shell.types("ratelimitd replay nginx-combined.log");
        shell.types("ratelimitd suggest --from nginx-combined.log");
        shell.types("ratelimitd suggest --from proxied.log");
    }
}
