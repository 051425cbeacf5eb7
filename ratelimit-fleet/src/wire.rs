//! What is sent to the store, and what it answers, as bytes. Pure.
//!
//! A call stores registers of one host in one shard and asks for the sums of the others'. A register is a host's id, a
//! sequence, and a count as the kernel's cell says it; it is replaced only by a higher sequence of the same host. So
//! what is repeated, late or out of order changes nothing.

use ratelimit_common::time::BucketIndex;

use crate::names::{Field, HostId, Shard};
use crate::tracked::Subject;

/// Sources and buckets of one call: the store is busy for 2 ms with it, and Lua unpacks no more than 8000 values.
pub const ENTRIES_MAX: usize = 1000;

/// In place of a count: nothing is stored, the others' sum is asked for.
const ASK: u64 = u64::MAX;

/// Counts and sums are numbers of Lua: exact up to here, and cut there.
pub const COUNT_MAX: u64 = 1 << 53;

/// Bytes of an answer's entry: whether the host's register was there, and the sum.
const ANSWER_BYTES: usize = 9;

/// Orders the reports of one host: a later reading has a higher one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sequence(pub u64);

/// One source and bucket of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which source and limit.
    pub subject: Subject,
    /// Which bucket.
    pub bucket: BucketIndex,
    /// What it is called in the store.
    pub field: Field,
    /// What this host admitted; none only asks.
    pub count: Option<u64>,
}

/// The entries of one hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The hash.
    pub key: String,
    /// Milliseconds that it is kept, from each report on.
    pub expiry_ms: u64,
    /// At least one.
    pub entries: Vec<Entry>,
}

/// One EVALSHA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Whose registers.
    pub host: HostId,
    /// When its counts were read.
    pub sequence: Sequence,
    /// Whose keys.
    pub shard: Shard,
    /// A hash each.
    pub groups: Vec<Group>,
}

/// What the store says of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// Whether it had a register of this host before.
    pub had_mine: bool,
    /// What the others admitted.
    pub others: u64,
}

/// An answer that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an answer of {got} bytes for {entries} entries: another version of ratelimitd, or no Redis")]
pub struct Garbled {
    got: usize,
    entries: usize,
}

impl Call {
    /// Its entries, in the order of the answer.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.groups.iter().flat_map(|group| &group.entries)
    }

    /// Its keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(|group| group.key.as_str())
    }

    /// The arguments of the script: host, sequence, and for each key the expiry and the entries.
    pub fn arguments(&self) -> Vec<Vec<u8>> {
        let mut arguments = vec![self.host.0.to_vec(), self.sequence.0.to_be_bytes().to_vec()];
        for group in &self.groups {
            arguments.push(group.expiry_ms.to_string().into_bytes());
            let mut packed = Vec::with_capacity(group.entries.len() * 16);
            for entry in &group.entries {
                packed.extend(entry.field.0);
                packed.extend(entry.count.map_or(ASK, |count| count.min(COUNT_MAX)).to_be_bytes());
            }
            arguments.push(packed);
        }
        arguments
    }

    /// What the store answered, entry by entry.
    pub fn read(&self, answer: &[u8]) -> Result<Vec<Said>, Garbled> {
        let entries = self.entries().count();
        let garbled = Garbled { got: answer.len(), entries };
        let (chunks, rest) = answer.as_chunks::<ANSWER_BYTES>();
        if chunks.len() != entries || !rest.is_empty() {
            return Err(garbled);
        }
        let read = |[had, sum @ ..]: &[u8; ANSWER_BYTES]| match had {
            0 | 1 => Ok(Said { had_mine: *had == 1, others: u64::from_be_bytes(*sum) }),
            2.. => Err(garbled),
        };
        chunks.iter().map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracked::LimitId;

    fn call(counts: &[Option<u64>]) -> Call {
        let subject = Subject { limit: LimitId(0), source: "192.0.2.1/32".parse().unwrap() };
        let entry =
            |count: &Option<u64>| Entry { subject, bucket: BucketIndex(5), field: Field(*b"abcdefgh"), count: *count };
        let group = Group { key: "k".to_owned(), expiry_ms: 7000, entries: counts.iter().map(entry).collect() };
        Call { host: HostId([1; 8]), sequence: Sequence(258), shard: Shard(0), groups: vec![group] }
    }

    #[test]
    fn a_call_is_host_sequence_expiry_and_packed_entries() {
        let arguments = call(&[Some(3), None, Some(u64::MAX)]).arguments();
        assert_eq!(arguments[0], [1; 8]);
        assert_eq!(arguments[1], [0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(arguments[2], b"7000");
        assert_eq!(arguments[3][..16], *b"abcdefgh\0\0\0\0\0\0\0\x03");
        assert_eq!(arguments[3][24..32], [255; 8]);
        assert_eq!(arguments[3][40..], COUNT_MAX.to_be_bytes(), "never mistaken for a question");
    }

    #[test]
    fn an_answer_of_another_length_or_kind_is_garbled() {
        let call = call(&[Some(3), None]);
        let good = b"\x01\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\0\x06";
        let said = call.read(good).unwrap();
        assert_eq!(said, [Said { had_mine: true, others: 5 }, Said { had_mine: false, others: 6 }]);
        for length in 0..good.len() {
            assert!(call.read(&good[..length]).is_err());
        }
        assert!(call.read(&[&good[..], b"\0"].concat()).is_err());
        assert!(call.read(&[2; 18]).is_err());
    }
}
