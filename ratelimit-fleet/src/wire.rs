//! Encoding of requests to the store and of its answers. Pure.
//!
//! A call stores registers of one host in one shard and requests the sums of the other hosts. A register contains a
//! host's id, a sequence number and the count from the kernel's cell. Only a higher sequence of the same host replaces
//! a register, so repeated, late or reordered reports change nothing.

use ratelimit_common::time::BucketIndex;

use crate::names::{Field, HostId, Shard};
use crate::tracked::Subject;

/// Maximum number of entries (source and bucket) per call. The store is busy for 2 ms with one call, and Lua unpacks at
/// most 8000 values.
pub const ENTRIES_MAX: usize = 1000;

/// Placeholder for the count of an entry that stores nothing and only requests the sum of the other hosts.
const ASK: u64 = u64::MAX;

/// Largest count or sum that a Lua number represents exactly. Larger values are cut to this.
pub const COUNT_MAX: u64 = 1 << 53;

/// Bytes per entry of an answer: 1 for whether the host's register existed, 8 for the sum.
const ANSWER_BYTES: usize = 9;

/// Sequence number that orders the reports of one host. A later reading has a higher number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sequence(pub u64);

/// One source and bucket in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Source and limit.
    pub subject: Subject,
    /// Bucket of the source's window.
    pub bucket: BucketIndex,
    /// Field name of the source in the store.
    pub field: Field,
    /// Number of admissions of this host. None only requests the sum.
    pub count: Option<u64>,
}

/// Entries of one hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Key of the hash.
    pub key: String,
    /// Lifetime of the hash after each report, in milliseconds.
    pub expiry_ms: u64,
    /// Entries, at least one.
    pub entries: Vec<Entry>,
}

/// Arguments of one EVALSHA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Host that reports its registers.
    pub host: HostId,
    /// Sequence number, from the time at which the counts were read.
    pub sequence: Sequence,
    /// Shard that the keys belong to.
    pub shard: Shard,
    /// One group per hash.
    pub groups: Vec<Group>,
}

/// Answer of the store for one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// True if the store already had a register of this host.
    pub had_mine: bool,
    /// Number of admissions of the other hosts.
    pub others: u64,
}

/// Error for an answer with a length or content that does not match the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an answer of {got} bytes for {entries} entries: another version of ratelimitd, or no Redis")]
pub struct Garbled {
    got: usize,
    entries: usize,
}

impl Call {
    /// Returns the entries, in the order of the answer.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.groups.iter().flat_map(|group| &group.entries)
    }

    /// Returns the keys of the hashes.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(|group| group.key.as_str())
    }

    /// Returns the arguments of the script: host, sequence, then the expiry and the packed entries of each key.
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

    /// Decodes the store's answer, one value per entry. Fails if the length is wrong or a flag is neither 0 nor 1.
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
