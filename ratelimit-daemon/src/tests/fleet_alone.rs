//! Tests of a daemon in a fleet without a reachable store.

use super::*;
use ratelimit_control::proto::{ApplyRequest, Deny, GrantRequest, ReloadReport};
use ratelimit_policy::config::fleet::Fleet;
use ratelimit_report::snapshot::ListFilter;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// Starts a daemon that reads the same file at each reload.
async fn host(fleet: Fleet) -> Running {
    let same = |config: &Config| file(std::iter::repeat_n(config.clone(), 5).map(Ok));
    start(None, |config| config.fleet = Some(fleet), same).await
}

#[tokio::test]
async fn the_store_of_the_fleet_is_never_limited_and_denied_by_force_alone() {
    let secret_file = Some("/dev/null/none".into());
    let running = host(Fleet { secret_file, ..Fleet::at("redis://192.0.2.6:6379") }).await;
    let listed = running.client.call(&ListFilter::default()).await.unwrap().entries;
    let exempt = listed.iter().find(|entry| entry.prefix == "192.0.2.6").unwrap();
    assert_eq!(exempt.reason.as_deref(), Some("the fleet's store"));
    for (prefix, words) in
        [("192.0.2.6", "192.0.2.6 is the fleet's store"), ("192.0.2.0/24", "contains the fleet's store, 192.0.2.6")]
    {
        let request = |force| Deny(GrantRequest { prefix: prefix.to_owned(), force, ..GrantRequest::default() });
        let refused = running.client.call(&request(false)).await.unwrap_err().to_string();
        assert!(refused.contains(words) && refused.contains("--force denies it anyway"), "{refused}");
        running.client.call(&request(true)).await.unwrap();
    }
    running.events.send(Event::Stop).await.unwrap();
    running.task.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_reload_says_what_became_of_the_secret() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    std::fs::write(&secret, SECRET).unwrap();
    let running = host(Fleet { secret_file: Some(secret.clone()), ..Fleet::at("unix:///dev/null/none") }).await;
    let reload = async || {
        let ReloadReport { changes, notes, .. } = running.client.reload().await.unwrap();
        (changes, notes)
    };
    let (nothing, anew) = (Vec::<String>::new(), vec!["the fleet's secret was read again".to_owned()]);
    assert_eq!(reload().await, (nothing.clone(), nothing.clone()));
    std::fs::write(&secret, SECRET.repeat(2)).unwrap();
    assert_eq!(reload().await, (anew, nothing.clone()));
    assert_eq!(reload().await, (nothing.clone(), nothing.clone()));
    std::fs::write(&secret, SECRET).unwrap();
    let applied = running.client.call(&ApplyRequest::default()).await.unwrap();
    assert_eq!(
        (applied.changes, applied.notes),
        (vec!["the fleet's secret was read again".to_owned()], nothing.clone())
    );
    std::fs::remove_file(&secret).unwrap();
    let (changes, notes) = reload().await;
    assert_eq!(changes, nothing);
    let is_said = |note: &String| note.contains("/secret: ") && note.contains("the previous secret stays in use");
    assert!(notes.len() == 1 && is_said(&notes[0]), "{notes:?}");
    assert!(!notes[0].contains(SECRET));
    running.events.send(Event::Stop).await.unwrap();
    running.task.await.unwrap().unwrap();
}
