//! The longer texts of the help.

pub(super) const USAGE: &str = "\
ratelimitd --iface IF --limit N/DUR [OPTIONS]
       ratelimitd <COMMAND> [OPTIONS]";

/// Output if no command and no flags are given.
pub(super) const NOTHING: &str = "\
Usage: ratelimitd --iface IF --limit N/DUR [OPTIONS]
       ratelimitd <COMMAND> [OPTIONS]

Try:   sudo ratelimitd --iface eth0 --limit 1000/5m
       ratelimitd stats
       ratelimitd --help
";

pub(super) const EXAMPLES_SHORT: &str = "\
Examples:
  sudo ratelimitd --iface eth0 --limit 1000/5m --dry-run   see what would be dropped
  sudo ratelimitd --iface eth0 --limit 1000/5m             drop it
  ratelimitd stats --watch                                 watch it
  ratelimitd suggest                                       what should the limit be?

More: ratelimitd --help, and ratelimitd COMMAND --help for one command";

pub(super) const EXAMPLES: &str = "\
Limits:
  N/DUR: at most N in any DUR, for each source separately. The unit is requests, unless --count or a
  word after the limit says otherwise; a size counts bytes. DUR is 1s to 24h, written with the units
  ms, s, m, h and d.
    1000/5m                  1000 requests in 5 minutes
    10/s                     10 requests in 1 second
    10/1m,60/1h              both at once
    50MB/1m                  50 000 000 bytes in 1 minute (KiB, MiB, GiB count by 1024)
    \"100/1m connections\"     100 connections in 1 minute
    \"100/1m packets\"         100 packets in 1 minute

What is counted (--count, or the word after a limit):
  requests     The start of a new turn: new data from the client after the server has sent something
               since the client's last request. In clear text, each HTTP/1 request counts, whatever
               its method. Turns count over TLS too; handshakes and HTTP/2 control frames do not.
               On QUIC, the Initial is the connection's first request; later ones are recognised by
               size. On other UDP, each datagram is a request.
               The count is exact under HTTP/1.x, and under HTTP/2 in clear text or with one request
               at a time. It is a lower bound under HTTP/2 over TLS with several at once, and an
               estimate under HTTP/3: share/doc/ratelimitd/docs/ACCURACY.md.
               Connections without a request, segments that begin none and QUIC datagrams that are
               none do not count. The guard bounds them, unless the rule says guard = \"off\" or
               refuse = \"all\".
  connections  A TCP SYN, a QUIC Initial, the first datagram of any other UDP flow.
  packets      An IP packet.
  bytes        A byte of an IP packet.

Examples:
  See what would be dropped, and drop nothing:
    sudo ratelimitd --iface eth0 --limit 1000/5m --dry-run
  Drop it; a second terminal shows what happens:
    sudo ratelimitd --iface eth0 --limit 1000/5m
    ratelimitd stats --watch
  Limit requests, and connections as well:
    sudo ratelimitd --iface eth0 --limit 1000/5m --limit \"500/5m connections\"
  A login port, with the office exempt:
    sudo ratelimitd --iface eth0 --port 22/tcp --count connections --limit 5/1m,20/1h \\
                    --allow 192.0.2.0/24
  Explain these flags in words:
    ratelimitd check-config --iface eth0 --limit 1000/5m --window lenient

Exit codes:
   0  done
   1  internal error; `doctor`: a problem
   2  usage: a bad flag, a bad limit, no such interface, a file that cannot be replayed, a change
      that needs `--force`
   3  `check`: a rule drops packets of it; `unblock`: something else still blocks it; `unallow`:
      something else allows it; `import`, and a command on the lines of standard input: some
      entries are refused, the others hold
  69  the kernel or driver lacks support, or no daemon answers; `crowdsec`: no local API answers
  75  the interface has another XDP program, the socket another daemon, or a trial has to be
      confirmed first
  77  not privileged; `crowdsec`: the local API refuses the key
  78  bad configuration file";

pub(super) const STATS_EXAMPLES: &str = "\
A terminal shows what fits, worst first. A pipe, a file and --all get everything. With -v, the
output lists every reason, and how exactly each unit is counted.

Examples:
  ratelimitd stats
  ratelimitd stats --watch
  ratelimitd stats --json | jq .rules";

pub(super) const LOG_EXAMPLES: &str = "\
It runs as long as the server does. A line that the daemon does not take at once is lost, and the
server never waits. In Apache's configuration, with access_log = [\"unix:/run/ratelimitd/log.sock\"]
in the daemon's:
  CustomLog \"|/usr/bin/ratelimitd log /run/ratelimitd/log.sock\" combined";

pub(super) const CHECK_EXAMPLES: &str = "\
Exit codes:
  3  at least one rule drops packets of the address now: all of them, or only new connections or
     requests. For a network: the same for any address in it.
  0  no rule drops any of its packets. In a dry run nothing is dropped.

Examples:
  ratelimitd check 198.51.100.7
  ratelimitd check 198.51.100.0/24
  ratelimitd check 2001:db8:1:2::7 --json | jq '.verdicts[] | [.ports, .verdict, .undo]'";

pub(super) const LIST_EXAMPLES: &str = "\
Examples:
  ratelimitd list
  ratelimitd list --rule login
  ratelimitd list --reason scraper
  ratelimitd list 198.51.100.0/24 --json";

pub(super) const EVENTS_EXAMPLES: &str = "\
The daemon remembers the last 4096 events; `ratelimitd history` has what was refused longer ago.

Examples:
  ratelimitd events
  ratelimitd events -f --source 198.51.100.0/24
  ratelimitd events --since 1h --kind ban --json | jq -r .source";

pub(super) const HISTORY_EXAMPLES: &str = "\
Examples:
  ratelimitd history
  ratelimitd history 198.51.100.7
  ratelimitd history 198.51.100.0/24 --since 7d --csv
  ratelimitd history 198.51.100.7 --since 7d --format abuse
  ratelimitd history --since 24h --reason banned --json";

pub(super) const SUGGEST_EXAMPLES: &str = "\
The daemon observes the demand of every source while it runs, whether it drops packets or not. A
dry run shows the demand undisturbed: run it over the busiest hours, then type `suggest`.

Examples:
  sudo ratelimitd --iface eth0 --limit 1000/5m --dry-run
  ratelimitd suggest
  ratelimitd suggest --rule login --json | jq '.rules[].paste'
  Without a daemon, from a web server's log:
    ratelimitd suggest --from /var/log/nginx/access.log*
    ratelimitd suggest --from access.log --limit 1000/5m";

pub(super) const FLEET_EXAMPLES: &str = "\
Examples:
  ratelimitd fleet
  ratelimitd fleet --json | jq '.hosts[] | {name, heard_seconds_ago, admitted_last_minute}'
  ratelimitd events --kind fleet                           when it was lost, and connected";

pub(super) const EXPLAIN_EXAMPLES: &str = "\
Examples:
  ratelimitd explain 198.51.100.7 --to 443
  ratelimitd explain 2001:db8::7 --to 443/udp --to-address 2001:db8::1 --json";

pub(super) const ALLOW_EXAMPLES: &str = "\
Examples:
  sudo ratelimitd allow 192.0.2.7 --reason \"load test\"
  sudo ratelimitd allow 192.0.2.0/24 --for permanent
  sudo ratelimitd unallow 192.0.2.0/24                     end it";

pub(super) const UNBLOCK_EXAMPLES: &str = "\
Examples:
  sudo ratelimitd unblock 198.51.100.7 2001:db8::7
  sudo ratelimitd unblock - < addresses.txt                blank lines and # comments are skipped
  sudo ratelimitd unblock --all";

pub(super) const DENY_EXAMPLES: &str = "\
Examples:
  sudo ratelimitd deny 198.51.100.7 --for 1d --reason scraper
  sudo ratelimitd deny - --for permanent < addresses.txt   blank lines and # comments are skipped
  sudo ratelimitd unblock 198.51.100.7                     end it";

pub(super) const APPLY_EXAMPLES: &str = "\
Examples:
  Try the changed file for a minute, and keep it if you can still log in:
    sudo ratelimitd apply --confirm 60s
    sudo ratelimitd confirm                                or, to undo it now: rollback
  Apply another file without a trial:
    sudo ratelimitd apply night.toml";

pub(super) const CHECK_CONFIG_USAGE: &str = "\
ratelimitd check-config [FILE]
       ratelimitd check-config --iface IF --limit N/DUR [OPTIONS]";

pub(super) const CHECK_CONFIG_EXAMPLES: &str = "\
Examples:
  ratelimitd check-config ratelimitd.toml
  ratelimitd check-config --iface eth0 --limit 1000/5m --json";

pub(super) const REPLAY_EXAMPLES: &str = "\
Nothing is attached, nothing is sent, and no daemon is asked. The code that the kernel runs applies
the limits to the file, as in a dry run: a refusal removes nothing that follows in the file. A log
contains only requests.

Logs: common or combined format (nginx, Apache), JSON lines (nginx, Caddy, Traefik, Envoy, Google,
Azure, Cloudflare), HAProxy's HTTP log, W3C extended format (IIS, CloudFront), AWS load balancers,
Squid, Envoy's text; also in syslog's, journald's or a container's lines. Gzip is unpacked. Lines
need not be in order of time: requests are sorted by the time when they began. A time without an
offset is taken as local time.

Examples:
  ratelimitd replay /var/log/nginx/access.log* --limit 1000/5m
  journalctl -u caddy -o json | ratelimitd replay - --limit 1000/5m
  ratelimitd replay access.log --limit 1000/5m --json | jq '.limits[].limited[]'
  tcpdump -i eth0 -s 0 -w site.pcap 'dst port 80 or dst port 443'
  ratelimitd replay site.pcap --limit 100/1m --limit \"50/1m connections\"";

pub(super) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  ratelimitd completions bash > /usr/share/bash-completion/completions/ratelimitd
  ratelimitd completions zsh  > /usr/share/zsh/site-functions/_ratelimitd
  ratelimitd completions fish > /usr/share/fish/vendor_completions.d/ratelimitd.fish";

pub(super) const DOCTOR_EXAMPLES: &str = "\
Examples:
  sudo ratelimitd doctor            the interfaces that the configuration names
  sudo ratelimitd doctor eth0       one interface, even without a configuration
  ratelimitd doctor --json          for programs; without root, it names what it cannot check

Nothing is attached and nothing is changed.
Exit code 0: no problem, though there may be warnings; 1: a problem.";

pub(super) const BUG_REPORT_EXAMPLES: &str = "\
Examples:
  sudo ratelimitd bug-report                        into this directory
  sudo ratelimitd bug-report --out /tmp/r.tar.gz    into a file
  tar -tzf ratelimitd-report-*.tar.gz               what is in it

It has only what the program itself wrote: no log, no text of a file, no reason and no user. Addresses
are masked; equal ones get equal masks. Names of rules, interfaces and lists are in it: read it
before you send it.";

pub(super) const FROM_MMDB_EXAMPLES: &str = "\
Examples:
  Two autonomous systems and a country, as a list for `deny` or for a rule's `from`:
    ratelimitd lists from-mmdb GeoLite2-ASN.mmdb --asn 64496 --asn 64497 -o crawlers.txt
    ratelimitd lists from-mmdb GeoLite2-Country.mmdb --country XX -o xx.txt

The daemon follows the file. If nothing is found, or the database is damaged, the old file stays.";
