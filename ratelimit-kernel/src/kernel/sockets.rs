//! Field offsets in the running kernel's sockets that packets are checked against.

use anyhow::Result;
use ratelimit_common::layout::SocketFields;

use crate::btf::{self, Btf};

/// Returns the field offsets. If they are unknown, logs a warning and returns none. The client's own sequence numbers
/// then decide.
pub(super) fn fields() -> SocketFields {
    match read() {
        Ok(fields) => fields,
        Err(error) => {
            tracing::warn!(
                "the kernel's type information lacks the sequence numbers of sockets, so requests are counted by the \
                 clients' own sequence numbers: {error:#}"
            );
            SocketFields::default()
        }
    }
}

fn read() -> Result<SocketFields> {
    let bytes = btf::of_kernel()?;
    let btf = Btf::parse(&bytes)?;
    let tcp = |field| btf.offset("tcp_sock", field);
    let request = |field| btf.offset("tcp_request_sock", field);
    Ok(SocketFields {
        are_known: 1,
        received: tcp("rcv_nxt")?,
        window_at: tcp("rcv_wup")?,
        window: tcp("rcv_wnd")?,
        // `snd_nxt` is updated only once a segment is sent (`tcp_write_xmit`). A near peer may have answered by then.
        said: tcp("write_seq")?,
        unacknowledged: tcp("snd_una")?,
        peers_window_max: tcp("max_window")?,
        bytes_received: tcp("bytes_received")?,
        request_received: request("rcv_nxt")?,
        request_said: request("snt_isn")?,
    })
}
