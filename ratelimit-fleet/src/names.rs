//! Names in the store: keys, shards, and fields that reveal no source without the fleet's secret.
//!
//! A field is the first 8 bytes of HMAC-SHA256 over the day of the bucket, the limit and the source. A source therefore
//! has a new name each day. Encrypted values can be read and created only with the secret.

use std::fmt;

use ipnet::IpNet;
use ratelimit_common::time::{BucketIndex, SECOND_NS};
use ratelimit_policy::config::rule::NAME_LEN_MAX;
use ratelimit_policy::fleet::key_prefix;
use ratelimit_policy::secret::BYTES_MIN;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;

/// Number of shards per bucket. Must be equal on all hosts, because it determines where a source is stored.
pub const SHARDS: u8 = 16;

const DAY_NS: u64 = 86_400 * SECOND_NS;

/// Id of one host's kernel state. Created with that state and stored beside its pins.
///
/// The id does not belong to the process: a new id with old counts would count them twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub [u8; 8]);

impl HostId {
    /// Derives the id of the kernel state with this secret. The id does not reveal the secret.
    pub fn of_state(secret: [u64; 2]) -> Self {
        let key = secret.map(u64::to_be_bytes).concat();
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), b"ratelimitd fleet 1 host");
        let mut id = [0; 8];
        id.copy_from_slice(&tag.as_ref()[..8]);
        Self(id)
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Field name of a source for one limit and bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Field(pub [u8; 8]);

/// Reason why a fleet name or a secret is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The name is empty, too long, or has a character that a key cannot contain.
    #[error("a fleet's name has 1 to {NAME_LEN_MAX} letters, digits, `-` and `_`")]
    Name,
    /// The secret is too short.
    #[error("a fleet's secret has at least {BYTES_MIN} bytes; make one: head -c 32 /dev/urandom | base64")]
    Secret,
}

/// Key and field names of one fleet, with its encryption key.
pub struct Names {
    prefix: String,
    name: String,
    fields: hmac::Key,
    seal: LessSafeKey,
}

impl Names {
    /// Creates the names of the fleet `name`. `secret` must be equal on all hosts. Fails if it has less than
    /// [`BYTES_MIN`] bytes or the name is invalid.
    pub fn new(name: &str, secret: &[u8]) -> Result<Self, Refused> {
        if secret.len() < BYTES_MIN {
            return Err(Refused::Secret);
        }
        Self::of(name, secret)
    }

    /// Creates names from an empty secret, for a store that only this machine can reach.
    pub fn without_secret(name: &str) -> Result<Self, Refused> {
        Self::of(name, b"")
    }

    fn of(name: &str, secret: &[u8]) -> Result<Self, Refused> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if name.is_empty() || name.len() > NAME_LEN_MAX || !name.bytes().all(is_plain) {
            return Err(Refused::Name);
        }
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let derived = |purpose: &str| hmac::sign(&secret, format!("ratelimitd fleet 1 {purpose} {name}").as_bytes());
        let fields = hmac::Key::new(hmac::HMAC_SHA256, derived("field").as_ref());
        let seal = UnboundKey::new(&CHACHA20_POLY1305, derived("seal").as_ref()).map_err(|_| Refused::Secret)?;
        Ok(Self { prefix: key_prefix(name), name: name.to_owned(), fields, seal: LessSafeKey::new(seal) })
    }

    /// Returns the day of a bucket, counted from 1970. Names are constant within a day.
    pub const fn day(bucket_ns: u64, bucket: BucketIndex) -> u64 {
        bucket.start(bucket_ns).0 / DAY_NS
    }

    /// Returns the field name of a source for one limit and bucket.
    pub fn field(&self, identity: &str, bucket_ns: u64, bucket: BucketIndex, source: IpNet) -> Field {
        let day = Self::day(bucket_ns, bucket);
        let mut context = hmac::Context::with_key(&self.fields);
        context.update(&day.to_be_bytes());
        context.update(&(identity.len() as u64).to_be_bytes());
        context.update(identity.as_bytes());
        context.update(&[source.prefix_len()]);
        match source.network() {
            std::net::IpAddr::V4(address) => context.update(&address.octets()),
            std::net::IpAddr::V6(address) => context.update(&address.octets()),
        }
        let mut field = [0; 8];
        field.copy_from_slice(&context.sign().as_ref()[..8]);
        Field(field)
    }

    /// Returns the key of the hash with the registers of a shard's sources in a bucket. All keys of a shard are in one
    /// cluster slot.
    pub fn bucket_key(&self, shard: Shard, bucket_ns: u64, bucket: BucketIndex) -> String {
        format!("{}{{{}:{:x}}}:{}:{}", self.prefix, self.name, shard.0, bucket_ns / 1_000_000, bucket.0)
    }

    /// Returns the key of the hash with the fleet's hosts.
    pub fn hosts_key(&self) -> String {
        format!("{}{{{}:fleet}}:hosts", self.prefix, self.name)
    }

    /// Returns the key of the stream with bans, grants and resets. It is in the cluster slot of the hosts.
    pub fn acts_key(&self) -> String {
        format!("{}{{{}:fleet}}:acts", self.prefix, self.name)
    }

    /// Encrypts `plain` with the fleet's secret. `nonce` must be random. [`Names::open`] needs the same `context`.
    pub fn seal(&self, context: &str, plain: &[u8], nonce: [u8; NONCE_LEN]) -> Vec<u8> {
        let mut sealed = nonce.to_vec();
        let mut body = plain.to_vec();
        let key = Nonce::assume_unique_for_key(nonce);
        // Encryption fails only for lengths of 256 GB. The empty result never decrypts.
        if self.seal.seal_in_place_append_tag(key, Aad::from(context.as_bytes()), &mut body).is_err() {
            return Vec::new();
        }
        sealed.append(&mut body);
        sealed
    }

    /// Decrypts a value. None if it was encrypted with another secret or context, or was changed.
    pub fn open(&self, context: &str, sealed: &[u8]) -> Option<Vec<u8>> {
        let (nonce, body) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut body = body.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let plain = self.seal.open_in_place(nonce, Aad::from(context.as_bytes()), &mut body).ok()?;
        Some(plain.to_vec())
    }
}

/// Part of the sources that one call covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shard(pub u8);

impl Shard {
    /// Returns the shard of a field, from its last byte.
    pub const fn of(field: Field) -> Self {
        Self(field.0[7] % SHARDS)
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60 * SECOND_NS;
    const BUCKET: BucketIndex = BucketIndex(29_000_000);

    fn names(name: &str, secret: u8) -> Names {
        Names::new(name, &[secret; 32]).unwrap()
    }

    fn field(names: &Names, identity: &str, bucket: u64, source: &str) -> Field {
        names.field(identity, MINUTE, BucketIndex(bucket), source.parse().unwrap())
    }

    #[test]
    fn a_source_has_one_name_on_all_hosts_and_another_in_each_fleet_limit_and_day() {
        let web = names("web", 1);
        let name = field(&web, "a", BUCKET.0, "192.0.2.1/32");
        assert_eq!(field(&names("web", 1), "a", BUCKET.0, "192.0.2.1/32"), name);
        assert_eq!(field(&web, "a", BUCKET.0 + 1, "192.0.2.1/32"), name, "the same day");
        let others = [
            field(&web, "a", BUCKET.0 + 1440, "192.0.2.1/32"),
            field(&web, "b", BUCKET.0, "192.0.2.1/32"),
            field(&web, "a", BUCKET.0, "192.0.2.2/32"),
            field(&web, "a", BUCKET.0, "192.0.2.1/31"),
            field(&web, "a", BUCKET.0, "c000:201::/32"),
            field(&names("shop", 1), "a", BUCKET.0, "192.0.2.1/32"),
            field(&names("web", 2), "a", BUCKET.0, "192.0.2.1/32"),
        ];
        assert!(others.iter().all(|other| *other != name), "{name:?} {others:?}");
    }

    #[test]
    fn all_keys_of_a_shard_have_one_tag_and_all_of_a_fleet_its_prefix() {
        let web = names("web", 1);
        let keys = [
            web.bucket_key(Shard(10), MINUTE, BUCKET),
            web.bucket_key(Shard(10), 10 * SECOND_NS, BucketIndex(7)),
            web.hosts_key(),
            web.acts_key(),
        ];
        assert_eq!(keys[0], "rl:web:{web:a}:60000:29000000");
        assert_eq!(keys[1], "rl:web:{web:a}:10000:7");
        assert!(keys.iter().all(|key| key.starts_with(&key_prefix("web"))), "{keys:?}");
    }

    #[test]
    fn sealed_data_opens_only_with_its_secret_and_context() {
        let sealed = names("web", 1).seal("act", b"192.0.2.1", [7; 12]);
        assert!(!sealed.windows(9).any(|part| part == b"192.0.2.1"));
        assert_eq!(names("web", 1).open("act", &sealed).unwrap(), b"192.0.2.1");
        assert_eq!(names("web", 2).open("act", &sealed), None);
        assert_eq!(names("shop", 1).open("act", &sealed), None);
        assert_eq!(names("web", 1).open("host", &sealed), None);
        let mut changed = sealed.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert_eq!(names("web", 1).open("act", &changed), None);
        for length in 0..sealed.len() {
            assert_eq!(names("web", 1).open("act", &sealed[..length]), None);
        }
    }

    #[test]
    fn a_state_has_one_id_and_another_state_another() {
        assert_eq!(HostId::of_state([1, 2]), HostId::of_state([1, 2]));
        assert_ne!(HostId::of_state([1, 2]), HostId::of_state([2, 1]));
        assert_ne!(HostId::of_state([1, 2]).0, 1_u64.to_be_bytes(), "the secret is not in it");
    }

    #[test]
    fn a_short_secret_and_a_name_that_breaks_a_key_are_refused() {
        assert_eq!(Names::new("web", &[1; 31]).err(), Some(Refused::Secret));
        for name in ["", "a b", "a{b", "a*", "é", &"a".repeat(33)] {
            assert_eq!(Names::new(name, &[1; 32]).err(), Some(Refused::Name), "{name}");
        }
        assert!(Names::without_secret("Web_1-a").is_ok());
    }

    #[test]
    fn debug_output_of_names_contains_no_key() {
        assert_eq!(format!("{:?}", names("web", 1)), r#"Names { prefix: "rl:web:", .. }"#);
    }
}
