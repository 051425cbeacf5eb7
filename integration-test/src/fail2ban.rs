//! The distribution's fail2ban with its own jails, log files, socket and database, in a laboratory's namespace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use netlab::{Child, Output};

use crate::lab::{Lab, binary, run};

/// Path below `target` at which `cargo xtask setup` unpacks fail2ban.
const UNPACKED: &str = "kernels/fail2ban";
/// Path of the Python module within the package.
const MODULE: &str = "usr/lib/python3/dist-packages";
/// The shipped action, relative to this crate.
const ACTION: &str = "../dist/fail2ban/action.d/ratelimitd.conf";

/// A running fail2ban, stopped on drop.
pub struct Fail2ban<'a> {
    lab: &'a Lab,
    root: PathBuf,
    directory: PathBuf,
    _server: Child,
}

/// Returns the reason why there is no fail2ban, or `None`.
pub fn missing() -> Option<String> {
    root().is_none().then(|| "there is no fail2ban: `cargo xtask setup` unpacks one".to_owned())
}

fn root() -> Option<PathBuf> {
    let named = std::env::var_os("FAIL2BAN_ROOT").map(PathBuf::from);
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target").join(UNPACKED);
    named.into_iter().chain([target, PathBuf::from("/")]).find(|root| root.join(MODULE).join("fail2ban").is_dir())
}

impl<'a> Fail2ban<'a> {
    /// Starts fail2ban with these jails: a name and the duration of bans in seconds.
    pub fn start(lab: &'a Lab, jails: &[(&str, i64)]) -> Self {
        Self::start_with(lab, jails, "")
    }

    /// Starts fail2ban with these jails and with further configuration lines for every jail.
    pub fn start_with(lab: &'a Lab, jails: &[(&str, i64)], lines: &str) -> Self {
        let root = root().expect("fail2ban");
        let directory = lab.directory().join("fail2ban");
        let at = |name: &str| directory.join(name).display().to_string();
        for part in ["action.d", "filter.d"] {
            fs::create_dir_all(directory.join(part)).expect("a directory");
        }
        let action = Path::new(env!("CARGO_MANIFEST_DIR")).join(ACTION);
        fs::copy(action, directory.join("action.d/ratelimitd.conf")).expect("the action");
        let write = |name: &str, text: String| fs::write(directory.join(name), text).expect("a file");
        write("filter.d/refused.conf", "[Definition]\nfailregex = ^ refused <HOST>$\n".into());
        let (log, socket, pid, db) = (at("f2b.log"), at("f2b.sock"), at("f2b.pid"), at("f2b.db"));
        write(
            "fail2ban.conf",
            format!(
                "[Definition]\nallowipv6 = auto\nloglevel = INFO\nlogtarget = {log}\nsyslogsocket = auto\nsocket = {socket}\n\
                 pidfile = {pid}\ndbfile = {db}\ndbpurgeage = 1d\ndbmaxmatches = 10\n[Thread]\nstacksize = 0\n"
            ),
        );
        let program = binary();
        let mut text = format!(
            "[DEFAULT]\nmaxretry = 2\nfindtime = 600\nbackend = polling\nusedns = no\nignoreself = false\nfilter = refused\n\
             enabled = true\nlogencoding = utf-8\naction = ratelimitd[name=%(__name__)s, ratelimitd={}]\n",
            program.display()
        );
        for (name, seconds) in jails {
            let log = directory.join(format!("{name}.log"));
            if !log.exists() {
                fs::write(&log, "").expect("a log file");
            }
            text += &format!("[{name}]\nlogpath = {}\nbantime = {seconds}\n{lines}", log.display());
        }
        write("jail.conf", text);
        let mut server = command(lab, &root, &directory, "fail2ban-server");
        server.args(["-f", "start"]);
        let server = Child::start(server).expect("fail2ban-server");
        let started = Self { lab, root, directory, _server: server };
        crate::lab::once(|| (started.client(&["ping"]).code() == 0).then_some(()));
        started
    }

    /// Returns the output of `fail2ban-client` for a command.
    pub fn client(&self, args: &[&str]) -> Output {
        let mut command = command(self.lab, &self.root, &self.directory, "fail2ban-client");
        command.args(args);
        run(command)
    }

    /// Runs a command on a jail by hand, such as `banip` or `unbanip`.
    pub fn set(&self, jail: &str, what: &str, address: &str) {
        let said = self.client(&["set", jail, what, address]);
        assert_eq!(said.code(), 0, "{}{}", said.stdout, self.log());
    }

    /// Writes two failures of an address to a jail's log.
    pub fn fail(&self, jail: &str, address: &str) {
        let mut date = Command::new("date");
        date.arg("+%Y-%m-%d %H:%M:%S");
        let now = run(date).stdout.trim().to_owned();
        let path = self.directory.join(format!("{jail}.log"));
        let before = fs::read_to_string(&path).expect("the log file");
        fs::write(&path, format!("{before}{now} refused {address}\n{now} refused {address}\n")).expect("the log file");
    }

    /// Returns fail2ban's own log, empty if there is none.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("f2b.log")).unwrap_or_default()
    }
}

fn command(lab: &Lab, root: &Path, directory: &Path, program: &str) -> Command {
    let mut command = lab.command("/usr/bin/python3");
    let path = |name: &str| directory.join(name);
    command.env("PYTHONPATH", root.join(MODULE)).arg(root.join("usr/bin").join(program));
    command.arg("-c").arg(directory).arg("-s").arg(path("f2b.sock")).arg("-p").arg(path("f2b.pid"));
    command
}
