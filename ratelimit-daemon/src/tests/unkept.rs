//! Tests of a state directory that cannot be written for a while, as on a full disk.

use super::site::Site;
use super::*;
use ratelimit_control::proto::{GrantRequest, ModeWord};
use ratelimit_policy::desired::Grant;

#[tokio::test(start_paused = true)]
async fn a_start_under_a_hold_of_an_earlier_run_is_told_that_nothing_is_dropped() {
    for (word, said) in [(ModeWord::Panic, "DRY RUN, nothing is dropped"), (ModeWord::Enforce, "limiting each source")]
    {
        let mut site = Site::new(3);
        site.start().await;
        site.client.mode(word).await.unwrap();
        site.stop().await;
        let config = Config { on_exit: OnExit::Keep, ..config(site.directory.path(), 3) };
        let (datapath, _kernel) = FakeDatapath::new(&["eth0"]);
        let (events, queue) = mpsc::channel(1);
        events.send(Event::Stop).await.unwrap();
        let (mut surroundings, _told) = surroundings(None);
        surroundings.host.store = crate::store::Store::at(site.directory.path().join("state"));
        let mut line = String::new();
        let attached = |of: Limited<'_>| line = ratelimit_view::describe::first_line(of.policy, of.interfaces);
        drive(config, ConfigSource::Flags, |_| Ok(datapath), attached, queue, surroundings).await.unwrap();
        assert!(line.starts_with(said), "{word:?}: {line}");
    }
}

#[tokio::test(start_paused = true)]
async fn state_that_cannot_be_written_is_reported_and_written_later() {
    let mut site = Site::new(3);
    site.start().await;
    // A file in place of the directory blocks writes even for root.
    let state = site.directory.path().join("state");
    let _ = std::fs::remove_dir_all(&state);
    std::fs::write(&state, "").unwrap();
    let denial = GrantRequest { prefix: "198.51.100.7".into(), permanent: true, ..GrantRequest::default() };
    let notes = site.client.grant(Grant::Denied, &denial).await.unwrap().notes;
    assert!(notes.iter().any(|note| note.starts_with("a restart forgets it: ")), "{notes:?}");
    let notes = site.client.mode(ModeWord::Panic).await.unwrap().notes;
    assert!(notes.iter().any(|note| note.starts_with("a restart ends it: ")), "{notes:?}");
    site.pass(60).await;
    let stats = site.client.stats().await.unwrap();
    let said = stats.unkept.clone().unwrap();
    assert!(said.starts_with("A RESTART FORGETS the changes by commands: write ") && said.contains("state/"), "{said}");
    assert!(stats.attention.contains(&said) && site.client.health().await.unwrap().notes.contains(&said));
    assert!(ratelimit_view::stats(&stats, ratelimit_view::Page::ENDLESS).contains("A RESTART FORGETS"));

    std::fs::remove_file(&state).unwrap();
    site.pass(10).await;
    let stats = site.client.stats().await.unwrap();
    assert_eq!((stats.unkept, site.client.health().await.unwrap().notes), (None, Vec::<String>::new()));
    assert!(!stats.attention.iter().any(|line| line.contains("FORGETS")), "{:?}", stats.attention);
    site.kill().await;
    site.start().await;
    assert_eq!(site.client.list().await.unwrap().entries.len(), 1);
    assert!(site.client.stats().await.unwrap().hold.is_some_and(|hold| hold.panic));
    site.stop().await;
}
