//! Tests of the checks of servers' access logs.

use ratelimit_common::layout;
use ratelimit_policy::config::LOGS_MAX;
use ratelimit_policy::desired::AccessLog;

use super::{config_of, healthy, unwell};
use crate::facts::{Facts, OpenLog, Readers, Server};
use crate::finding::State;

#[test]
fn logs_of_running_servers_are_named_with_the_line_that_reads_them() {
    let mut facts = healthy();
    let log = |path: &str, readers| OpenLog { path: path.into(), readers };
    let logs = vec![
        log("/var/log/nginx/access.log", Readers::Group("adm".to_owned())),
        log("/srv/a/access.log", Readers::Everyone),
    ];
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
    config_of(&mut facts).policy.rules[0].access_logs = vec![AccessLog::File("/srv/b.log".into())];
    let beside = said(&facts)[1].2.clone();
    assert!(beside.contains("access_log = [\"/srv/b.log\", \"/var/log/nginx/access.log\", \"/srv/a"), "{beside}");
    let many = (0..LOGS_MAX).map(|number| AccessLog::File(format!("/srv/{number}.log").into()));
    config_of(&mut facts).policy.rules[0].access_logs = many.collect();
    assert!(said(&facts)[1].2.contains("unix:/run/ratelimitd/log.sock"), "{:?}", said(&facts));
    facts.servers[1].logs = Ok(vec![log("/srv/private-access.log", Readers::Owner)]);
    config_of(&mut facts).policy.rules[0].access_logs.clear();
    let private = said(&facts)[1].2.clone();
    assert!(private.contains("0640") && !private.contains("SupplementaryGroups"), "{private}");
    facts.servers[1].logs = Ok(vec![log("/var/log/nginx/access.log", Readers::Everyone)]);
    let read = ["/var/log/nginx/access.log", "/srv/a/access.log"].map(|path| AccessLog::File(path.into()));
    config_of(&mut facts).policy.rules[0].access_logs = read.to_vec();
    assert!(said(&facts).iter().all(|(id, ..)| id != "logs.nginx"), "{:?}", said(&facts));
}
