//! Tests of the recipes in docs/recipes, each with its server. Multiplexed requests of clients are charged, and a limit
//! with conditions refuses requests.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use integration_test::lab::{CLIENTS, Lab, SERVER, binary, is_there, number, once};
use integration_test::logged::{CLIENT, Site, load, post, start_by, used};
use netlab::{Child, certificate, needs_root, serving, without_offloads};

/// Pages that are tested with a server or a line of its log.
const PAGES: [(&str, &str); 7] = [
    ("nginx", include_str!("../../docs/recipes/nginx.md")),
    ("apache", include_str!("../../docs/recipes/apache.md")),
    ("caddy", include_str!("../../docs/recipes/caddy.md")),
    ("haproxy", include_str!("../../docs/recipes/haproxy.md")),
    ("lighttpd", include_str!("../../docs/recipes/lighttpd.md")),
    ("traefik", include_str!("../../docs/recipes/traefik.md")),
    ("wordpress", include_str!("../../docs/recipes/wordpress.md")),
];
const REQUESTS: u32 = 500;

/// Returns the first fenced text of a page in this language.
fn text_of(page: &str, language: &str) -> &'static str {
    let (_, text) = PAGES.iter().find(|(of, _)| *of == page).unwrap();
    let mut fences = text.split("```").skip(1).step_by(2).map(|fence| fence.split_once('\n').unwrap());
    fences.find(|(of, _)| *of == language).unwrap().1
}

/// Returns the tables of a recipe, enforced. The laboratory has its own lines above the first table.
fn tables(file: &str) -> String {
    let (_, tables) = file.split_once("\n[").unwrap();
    format!("[{tables}").replace("mode = \"dry-run\"\n", "")
}

/// Replaces the host's paths by the laboratory's.
fn here(text: &str, directory: &Path) -> String {
    let mut out = text.replace("/usr/bin/ratelimitd", binary().to_str().unwrap());
    out = out.replace("/run/ratelimitd/log.sock", directory.join("log.sock").to_str().unwrap());
    for logs in ["/var/log/nginx/", "/var/log/apache2/", "/var/log/caddy/", "/var/log/"] {
        out = out.replace(logs, &format!("{}/", directory.display()));
    }
    // The laboratory's servers run as root.
    [" group=haproxy", " group=www-data"].into_iter().fold(out, |out, group| out.replace(group, ""))
}

fn absent(program: &str) -> Option<String> {
    (!is_there(program)).then(|| format!("there is no {program}; `cargo xtask setup` installs it"))
}

/// Tests a recipe with a server of this configuration, and the daemon with the recipe's rule and a limit of logins.
/// `beside` starts the program that receives the server's lines.
fn works(title: &str, rule: &str, config: &str, command: &[&str], beside: impl FnOnce(&Lab) -> Option<Rsyslog>) {
    let lab = Lab::new();
    // The value that systemd sets.
    lab.server.run(&["sh", "-c", "echo 512 > /proc/sys/net/unix/max_dgram_qlen"]).unwrap();
    without_offloads(&lab.client, "c0").unwrap();
    without_offloads(&lab.server, "s0").unwrap();
    let directory = lab.directory();
    let [key, certificate] = certificate(directory).unwrap().map(|path| fs::read(path).unwrap());
    fs::write(directory.join("both.pem"), [certificate, key].concat()).unwrap();
    fs::write(directory.join("index.html"), "ok\n").unwrap();
    let root = directory.display().to_string();
    let path = directory.join("server.conf");
    fs::write(&path, here(config, directory).replace("{root}", &root)).unwrap();
    let rule = tables(&here(rule, directory));
    let login = "\"100000/1h\", \"5/1m path=/login method=POST status=200,403,404,405\"";
    let daemon = start_by(&lab, &rule.replace("\"300/1m\"", login));
    let beside = beside(&lab);
    let mut run = lab.server.command(command[0]);
    run.args(&command[1..]).arg(&path).current_dir(directory);
    run.envs(["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"].map(|name| (name, directory)));
    let web: Child = serving(&lab.server, run, SocketAddr::new(SERVER[0].parse().unwrap(), 443)).unwrap();

    load(&lab, REQUESTS, 2, 50);
    // A server may refuse the streams that h2load opens before it has read how many there may be. They are in no log.
    let charged = once(|| {
        let lines = number(&lab.stats(), "/access_logs/0/lines/reconciled");
        (lines >= u64::from(REQUESTS) * 4 / 5 && used(&lab, CLIENT) == lines).then_some(())
    });
    assert!(charged.is_some(), "{title}: {} of {REQUESTS}: {:#}", used(&lab, CLIENT), lab.stats()["access_logs"]);
    let added = lab.stats()["access_logs"][0]["requests_added"]["default"].as_u64().unwrap();
    // How many requests share a record, and so are counted as one, varies from run to run.
    assert!(added > 0, "{title}: no request of {REQUESTS} was added from the log");

    let url = format!("https://{}/login", SERVER[0]);
    let posts: Vec<String> =
        (0..60).map(|_| post(&lab, CLIENTS[1], &url)).take_while(|code| code != "000" && code != "refused").collect();
    assert!((6..=30).contains(&posts.len()), "{title}: {posts:?}");
    drop((daemon, web, beside));
}

#[test]
fn apache_s_log_charges_what_is_multiplexed_and_logins() {
    needs_root!(absent("apache2"));
    let modules = ["mpm_event", "authz_core", "ssl", "http2", "dir", "socache_shmcb"];
    let load: String =
        modules.map(|module| format!("LoadModule {module}_module /usr/lib/apache2/modules/mod_{module}.so\n")).concat();
    let config = load
        + "ServerRoot {root}\nPidFile {root}/apache.pid\nDefaultRuntimeDir {root}\nServerName server.test
User www-data\nGroup www-data\nErrorLog {root}/apache-error.log\nDocumentRoot {root}\nDirectoryIndex index.html
LogFormat \"%h %l %u %t \\\"%r\\\" %>s %O \\\"%{Referer}i\\\" \\\"%{User-Agent}i\\\"\" combined
CustomLog {root}/access.log combined
<Directory {root}>\nRequire all granted\n</Directory>
Listen 443\n<VirtualHost *:443>\nProtocols h2 http/1.1\nSSLEngine on
SSLCertificateFile {root}/certificate.pem\nSSLCertificateKeyFile {root}/key.pem\n</VirtualHost>\n"
        + text_of("apache", "apache");
    works("apache", text_of("apache", "toml"), &config, &["apache2", "-DFOREGROUND", "-f"], |_| None);
}

#[test]
fn caddy_s_log_charges_what_is_multiplexed_and_logins() {
    needs_root!(absent("caddy"));
    let config = caddy(text_of("caddy", "caddyfile"));
    let rule = text_of("caddy", "toml");
    works("caddy", rule, &config, &["caddy", "run", "--adapter", "caddyfile", "--config"], |_| None);
}

fn caddy(log: &str) -> String {
    format!(
        "{{\nadmin off\nauto_https off\ndefault_sni server.test\n}}\nhttps://:443 {{
tls {{root}}/certificate.pem {{root}}/key.pem\nrespond \"ok\"\n{log}}}\n"
    )
}

/// A replacement for rsyslog that writes datagrams to a log in its default format, until it is dropped.
struct Rsyslog {
    socket: PathBuf,
    thread: Option<JoinHandle<()>>,
}

impl Rsyslog {
    fn start(lab: &Lab) -> Self {
        let (socket, log) = (lab.directory().join("dev-log"), lab.directory().join("haproxy.log"));
        let receiver = lab.server.inside(|| Ok(UnixDatagram::bind(&socket)?)).unwrap();
        let mut file = OpenOptions::new().create(true).append(true).open(log).unwrap();
        let thread = thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = receiver.recv(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                let message = text.split_once('>').unwrap().1;
                let (time, tagged) = message.split_at("Nov 28 04:00:00 ".len());
                file.write_all(format!("{time}web {}\n", tagged.trim_end()).as_bytes()).unwrap();
            }
        });
        Self { socket, thread: Some(thread) }
    }
}

impl Drop for Rsyslog {
    fn drop(&mut self) {
        let _ended = UnixDatagram::unbound().and_then(|sender| sender.send_to(&[], &self.socket));
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

const HAPROXY: &str = "defaults\nmode http\noption httplog\ntimeout connect 5s\ntimeout client 60s
timeout server 60s\nfrontend web\nbind *:443 ssl crt {root}/both.pem alpn h2,http/1.1
http-request return status 200 content-type text/plain string ok\n";

#[test]
fn haproxy_s_lines_in_rsyslog_s_file_charge_what_is_multiplexed_and_logins() {
    needs_root!(absent("haproxy"));
    let config = format!("{}{HAPROXY}log {{root}}/dev-log local0\n", text_of("haproxy", "haproxy"));
    let rule = text_of("haproxy", "toml");
    works("haproxy", rule, &config, &["haproxy", "-db", "-f"], |lab| Some(Rsyslog::start(lab)));
}

#[test]
fn haproxy_s_lines_in_the_socket_charge_what_is_multiplexed_and_logins() {
    needs_root!(absent("haproxy"));
    let config = format!("{}{HAPROXY}log /run/ratelimitd/log.sock local0\n", text_of("haproxy", "haproxy"));
    let rule =
        text_of("haproxy", "toml").replace("/var/log/haproxy.log", "unix:/run/ratelimitd/log.sock group=haproxy");
    works("haproxy", &rule, &config, &["haproxy", "-db", "-f"], |_| None);
}

#[test]
fn caddy_s_lines_in_the_socket_charge_what_is_multiplexed_and_logins() {
    needs_root!(absent("caddy"));
    let config = caddy("log {\noutput net unixgram//run/ratelimitd/log.sock\n}\n");
    let rule = text_of("caddy", "toml").replace("/var/log/caddy/access.log", "unix:/run/ratelimitd/log.sock");
    works("caddy", &rule, &config, &["caddy", "run", "--adapter", "caddyfile", "--config"], |_| None);
}

#[test]
fn lighttpd_s_pipe_charges_what_is_multiplexed_and_logins() {
    needs_root!(absent("lighttpd"));
    let config = format!(
        "server.modules = (\"mod_openssl\", \"mod_accesslog\")\nserver.document-root = \"{{root}}\"
server.port = 443\nssl.engine = \"enable\"\nssl.pemfile = \"{{root}}/both.pem\"\nindex-file.names = (\"index.html\")
server.max-keep-alive-requests = 100000\nserver.errorlog = \"{{root}}/lighttpd-error.log\"\n{}",
        text_of("lighttpd", "lighttpd")
    );
    works("lighttpd", text_of("lighttpd", "toml"), &config, &["lighttpd", "-D", "-f"], |_| None);
}

#[test]
fn nginx_s_log_charges_what_is_multiplexed_and_logins() {
    needs_root!(absent("nginx"));
    let before = "daemon off;\nmaster_process off;\npid {root}/nginx.pid;\nerror_log {root}/error.log;
events { worker_connections 1024; }\nhttp {\naccess_log {root}/access.log;\nkeepalive_requests 1000000;
client_body_temp_path {root}; proxy_temp_path {root}; fastcgi_temp_path {root};
uwsgi_temp_path {root}; scgi_temp_path {root};\n";
    let site = "server {\nlisten 443 ssl http2;\nssl_certificate {root}/certificate.pem;
ssl_certificate_key {root}/key.pem;\nlocation / { return 200 \"ok\\n\"; }\n}\n}\n";
    let config = [before, text_of("nginx", "nginx"), site].concat();
    works("nginx", text_of("nginx", "toml"), &config, &["nginx", "-c"], |_| None);
}

#[test]
fn nginx_s_log_and_the_recipe_of_a_login_page_refuse_a_guesser_alone() {
    needs_root!();
    let site = Site::new();
    let directory = site.lab.directory();
    let rule = tables(&here(text_of("wordpress", "toml"), directory));
    let _daemon = start_by(&site.lab, &rule);
    assert!(text_of("wordpress", "toml").contains("/var/log/nginx/access.log"), "the same log");
    let url = format!("https://{}/wp-login.php", SERVER[0]);
    let tries: Vec<String> = (0..60).map(|_| post(&site.lab, CLIENT, &url)).take_while(|code| code == "200").collect();
    assert!((11..=30).contains(&tries.len()), "{}", tries.len());
    let page = ["curl", "-sk", "--interface", CLIENTS[1], "-o", "/dev/null", "-w", "%{http_code}", &url];
    assert_eq!(site.lab.client.run(&page).unwrap().stdout, "200");
}

#[test]
fn traefik_s_line_is_read() {
    needs_root!();
    let lab = Lab::new();
    let settings = text_of("traefik", "yaml");
    assert!(settings.contains("format: json"), "{settings}");
    let line = r#"{"ClientAddr":"198.51.100.7:50686","DownstreamStatus":200,"Duration":1000000,"RequestMethod":"GET","RequestPath":"/","RequestProtocol":"HTTP/2.0","StartUTC":"2026-11-28T03:00:00.123456789Z","level":"info","msg":"","time":"2026-11-28T03:00:00Z"}"#;
    let log = lab.directory().join("traefik.log");
    fs::write(&log, format!("{line}\n").repeat(7)).unwrap();
    let replayed = lab.ratelimitd(&["replay", log.to_str().unwrap(), "--limit", "5/1m", "--json"]);
    assert_eq!(replayed.code(), 0, "{}", replayed.stderr);
    assert!(replayed.stdout.contains("198.51.100.7"), "{}", replayed.stdout);
}
