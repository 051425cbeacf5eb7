//! Access logs of servers.

use ratelimit_common::layout;
use ratelimit_policy::desired::AccessLog;

use super::{config_of, healthy, unwell};
use crate::facts::{Facts, OpenLog, Server};
use crate::finding::State;

#[test]
fn logs_of_running_servers_are_named_with_the_line_that_reads_them() {
    let mut facts = healthy();
    let log = |path: &str, readers: Option<&str>| OpenLog { path: path.into(), readers: readers.map(str::to_owned) };
    let logs = vec![log("/var/log/nginx/access.log", Some("adm")), log("/srv/a/access.log", None)];
    facts.servers = vec![
        Server { name: "HAProxy".into(), logs: Ok(Vec::new()) },
        Server { name: "nginx".into(), logs: Ok(logs) },
        Server { name: "Caddy".into(), logs: Err("permission denied".into()) },
    ];
    assert_eq!(unwell(&facts), [], "a rule that counts connections needs no log");
    config_of(&mut facts).policy.rules[0].limits[0].unit = layout::Unit::Requests;
    let said = |facts: &Facts| -> Vec<_> {
        let of_logs = unwell(facts).into_iter().filter(|of| of.about == "logs");
        of_logs.map(|of| (of.id, of.state, of.mend.unwrap())).collect()
    };
    let found = said(&facts);
    let ids: Vec<_> = found.iter().map(|(id, state, _)| (&**id, *state)).collect();
    let warning = State::Warning;
    assert_eq!(ids, [("logs.haproxy", warning), ("logs.nginx", warning), ("logs.caddy", State::Unknown)]);
    let mend = &found[1].2;
    assert!(mend.contains("access_log = [\"/var/log/nginx/access.log\", \"/srv/a/access.log\"]"), "{mend}");
    assert!(mend.contains("SupplementaryGroups=adm"), "{mend}");
    let read = ["/var/log/nginx/access.log", "/srv/a/access.log"].map(|path| AccessLog::File(path.into()));
    config_of(&mut facts).policy.rules[0].access_logs = read.to_vec();
    assert!(said(&facts).iter().all(|(id, ..)| id != "logs.nginx"), "{:?}", said(&facts));
}
