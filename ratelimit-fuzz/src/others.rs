//! Fuzz targets for other untrusted input: requests on the control socket, answers of the fleet's store, pinned maps.

use std::sync::LazyLock;

use axum::body::Body;
use axum::http::Request;
use ratelimit_common::time::{BucketIndex, Nanos};
use ratelimit_control::feed::Feed;
use ratelimit_control::server::{Peer, Surface, router};
use ratelimit_control::{Commands, Handle};
use ratelimit_fleet::acts::{Act, Ledger};
use ratelimit_fleet::hosts::Hosts;
use ratelimit_fleet::names::{Field, HostId, Names, Shard};
use ratelimit_fleet::tracked::{LimitId, Subject};
use ratelimit_fleet::wire::{Call, Entry, Group, Sequence};
use ratelimit_kernel::read_hostile;
use tower::ServiceExt as _;

use crate::WORKS;

const OWN_UID: u32 = 990;

/// Sends a request to the control server, as root, as another user and without a uid. The first line holds method and
/// path, the rest is the body. The answer must not be 500, although no command is answered.
pub(crate) fn request(bytes: &[u8]) {
    let (head, body) = match bytes.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[][..]),
    };
    let head = String::from_utf8_lossy(head);
    let (method, path) = head.split_once(' ').unwrap_or(("GET", &head));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect(WORKS);
    for uid in [Some(0), Some(65_534), None] {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let Ok(request) = request.extension(Peer { uid, address: None }).body(Body::from(body.to_vec())) else {
            return;
        };
        let (handle, commands) = Handle::channel(Feed::default());
        let answered = runtime.block_on(async {
            tokio::spawn(refuse_all(commands));
            router(handle, Surface::Socket, OWN_UID).oneshot(request).await
        });
        let status = answered.expect(WORKS).status();
        assert_ne!(status.as_u16(), 500, "{head}");
    }
}

/// Drops each command unanswered, like a stopping daemon.
async fn refuse_all(mut commands: Commands) {
    while commands.recv().await.is_some() {}
}

/// Parses the bytes as answers of the store: sums, hosts and acts, both encrypted with the fleet's secret and not.
pub(crate) fn fleet(bytes: &[u8]) {
    static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new("fuzz", &[7; 32]).expect(WORKS));
    let Some((&[kind, id], bytes)) = bytes.split_first_chunk() else { return };
    let subject = Subject { limit: LimitId(1), source: "192.0.2.7/32".parse().expect(WORKS) };
    let entry = Entry { subject, bucket: BucketIndex(5), field: Field([1; 8]), count: Some(3) };
    let group = Group { key: "k".to_owned(), expiry_ms: 1, entries: vec![entry; usize::from(kind % 5) + 1] };
    let call = Call { host: HostId([1; 8]), sequence: Sequence(1), shard: Shard(0), groups: vec![group] };
    if let Ok(said) = call.read(bytes) {
        assert_eq!(said.len(), call.entries().count());
    }
    let host = HostId([id; 8]);
    let age = 1_000_u64.to_be_bytes();
    let sealed = NAMES.seal(&format!("host {host}"), bytes, [0; 12]);
    let list = [
        (host.0.to_vec(), [age.as_slice(), &sealed].concat()),
        (bytes.get(..8).unwrap_or_default().to_vec(), bytes.to_vec()),
        (bytes.to_vec(), Vec::new()),
    ];
    let mut hosts = Hosts::default();
    for _ in 0..2 {
        hosts.learn(&NAMES, 2_000, &list, (HostId([1; 8]), 9));
    }
    assert!(hosts.all(std::time::Duration::ZERO).count() <= list.len());
    assert!(Act::open(&NAMES, bytes).is_none(), "an act that nobody sealed");
    if let Some(act) = Act::open(&NAMES, &NAMES.seal("act", bytes, [0; 12])) {
        let mut ledger = Ledger::default();
        let now = Nanos(act.at_ns.saturating_add(1));
        if ledger.hear(&act, now) {
            assert!(!ledger.hear(&act, now), "{act:?} is done twice");
        }
    }
}

/// Reads the bytes as entries of pinned maps.
pub(crate) fn maps(bytes: &[u8]) {
    read_hostile(bytes);
}
