//! One connection: to a server, or to all nodes of a cluster. Everything has a time limit.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError};
use tokio::time::timeout;

use super::access::{self, Access, AccessError};
use super::bounded::Notes;
use super::dial::{Way, Wire};
use super::said::Said as Words;
use super::trouble::Trouble;
use super::{BEAT, EXCHANGE, Script};
use crate::wire::{Call, Said};

/// The longest that an answer may take.
pub const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// The longest that a connection may take.
pub const CONNECT_WITHIN: Duration = Duration::from_millis(1000);

/// A connection; copies are one and the same.
#[derive(Clone)]
pub struct Link {
    to: Target,
    way: Arc<Way>,
    /// What is never repeated of the store's words.
    password: Option<Arc<str>>,
}

#[derive(Clone)]
enum Target {
    Server(Wire),
    Cluster(ClusterConnection<Wire>),
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// What was given does not fit, or a file is not there.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The store, with its own words where it said any.
    #[error("{0}")]
    Store(Trouble, Option<Words>),
}

/// What a beat says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// The hash of hosts, the stream of acts.
    pub keys: [String; 2],
    /// This host's id.
    pub host: [u8; 8],
    /// Its sealed record.
    pub record: Vec<u8>,
    /// The last act heard, as the store named it.
    pub heard: String,
    /// Sealed acts to say.
    pub acts: Vec<Vec<u8>>,
}

/// What the store answers to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The store's time, in microseconds since 1970.
    pub time_us: u64,
    /// Whether this host was there before.
    pub was_there: bool,
    /// Id and record of each host.
    pub hosts: Vec<(Vec<u8>, Vec<u8>)>,
    /// Name and sealed act of each that was not heard before.
    pub acts: Vec<(String, Vec<u8>)>,
}

impl Link {
    /// A new connection, with files read anew.
    pub async fn connect(access: &Access) -> Result<Self, ConnectError> {
        let opened = access::open(access)?;
        let password = opened.nodes.first().and_then(|node| node.redis_settings().password()).map(Arc::from);
        let way = Way::new(opened.tls);
        let to = async {
            if access::is_cluster(access) {
                let nodes: Vec<_> = opened.nodes.into_iter().map(|node| way.number(node)).collect();
                let client = ClusterClientBuilder::new(nodes)
                    .retries(0)
                    .connection_timeout(CONNECT_WITHIN)
                    .response_timeout(ANSWER_WITHIN)
                    .build()?;
                return Ok(Target::Cluster(client.get_async_generic_connection().await?));
            }
            let Some(node) = opened.nodes.into_iter().next() else {
                return Err(RedisError::from((ErrorKind::InvalidClientConfig, "no address")));
            };
            Ok(Target::Server(way.open(node.addr(), node.redis_settings()).await?))
        };
        // The client's own limits are not always kept (redis-rs #1528, #1953).
        match within(CONNECT_WITHIN * 3 / 2, to).await {
            Ok(to) => Ok(Self { to, way, password }),
            Err(failure) => {
                let words = Words::last(&way.notes, password.as_deref());
                let trouble = failure.named(&way.notes, words.as_ref());
                Err(ConnectError::Store(trouble, words.filter(|_| trouble.is_said())))
            }
        }
    }

    /// Whether it is to all nodes of a cluster, which mends its connections by itself.
    pub const fn is_cluster(&self) -> bool {
        matches!(self.to, Target::Cluster(_))
    }

    /// What the store said of this trouble, in its own words, where it said any.
    pub fn words(&self, trouble: Trouble) -> Option<Words> {
        trouble.is_said().then(|| Words::last(&self.way.notes, self.password.as_deref())).flatten()
    }

    /// Stores and asks what a call says.
    pub async fn exchange(&self, call: &Call) -> Result<Vec<Said>, Trouble> {
        let keys: Vec<&str> = call.keys().collect();
        let answer: Vec<u8> = self.ask(&EXCHANGE, &keys, &call.arguments()).await?;
        call.read(&answer).map_err(|_| Trouble::Garbled)
    }

    /// Says that this host is there.
    pub async fn beat(&self, beat: &Beat, gone_ms: u128, kept_ms: u128, acts_max: usize) -> Result<Heard, Trouble> {
        let mut arguments = vec![beat.host.to_vec(), beat.record.clone()];
        arguments.extend(
            [gone_ms.to_string(), kept_ms.to_string(), beat.heard.clone(), acts_max.to_string()]
                .map(String::into_bytes),
        );
        arguments.extend(beat.acts.iter().cloned());
        let keys = [beat.keys[0].as_str(), beat.keys[1].as_str()];
        type Answer = (u64, bool, Vec<(Vec<u8>, Vec<u8>)>, Vec<(String, Vec<u8>)>);
        let (time_us, was_there, hosts, acts): Answer = self.ask(&BEAT, &keys, &arguments).await?;
        Ok(Heard { time_us, was_there, hosts, acts })
    }

    /// EVALSHA; where the store has not the script, EVAL, which keeps it. A promoted replica has none.
    async fn ask<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[&str],
        arguments: &[Vec<u8>],
    ) -> Result<T, Trouble> {
        let command = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            command.arg(script).arg(keys.len()).arg(keys).arg(arguments);
            command
        };
        match self.send(command("EVALSHA", &script.sha)).await {
            Err(Trouble::NoScript) => self.send(command("EVAL", script.code)).await,
            answer => answer,
        }
    }

    async fn send<T: FromRedisValue>(&self, command: Cmd) -> Result<T, Trouble> {
        let answer = match self.to.clone() {
            Target::Server(mut link) => within(ANSWER_WITHIN, command.query_async(&mut link)).await,
            Target::Cluster(mut link) => within(ANSWER_WITHIN, command.query_async(&mut link)).await,
        };
        answer.map_err(|failure| {
            // A server that refuses a client may end the connection before the client has read why.
            let why = failure.is_end().then(|| Words::farewell(&self.way.notes)).flatten();
            let trouble = failure.named(&self.way.notes, why.as_ref());
            if trouble == Trouble::Moved && !self.is_cluster() { Trouble::IsCluster } else { trouble }
        })
    }
}

/// What came instead of an answer.
enum Failure {
    Late,
    Error(RedisError),
}

impl Failure {
    /// What it is; `said` is what the store said that the client may hide, in its own words.
    fn named(&self, notes: &Notes, said: Option<&Words>) -> Trouble {
        if let Some(excess) = notes.excess() {
            return Trouble::of_excess(excess);
        }
        let error = match self {
            Self::Late => return Trouble::Hung,
            Self::Error(error) => error,
        };
        let said = said.and_then(|words| Trouble::of_words(words.text()));
        said.unwrap_or_else(|| Trouble::of(error))
    }

    /// Whether the connection ended.
    fn is_end(&self) -> bool {
        matches!(self, Self::Error(error) if error.is_io_error() && !error.is_timeout())
    }
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, RedisError>>) -> Result<T, Failure> {
    match timeout(limit, work).await {
        Ok(outcome) => outcome.map_err(Failure::Error),
        Err(_) => Err(Failure::Late),
    }
}
