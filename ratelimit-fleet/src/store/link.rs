//! Connection to one server or to all nodes of a cluster. Every operation has a time limit.

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

/// Maximum time for an answer.
pub const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// Maximum time for a TLS handshake, and for connecting to a cluster node. A new link may take 1.5 times this.
pub const CONNECT_WITHIN: Duration = Duration::from_millis(1000);

/// Connection to the store. Copies share it.
#[derive(Clone)]
pub struct Link {
    to: Target,
    way: Arc<Way>,
    /// Password, so that it is never repeated from the store's error texts.
    password: Option<Arc<str>>,
}

#[derive(Clone)]
enum Target {
    Server(Wire),
    Cluster(ClusterConnection<Wire>),
}

/// Reason why no connection was opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The settings are invalid, or a file is missing.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The store refused or did not answer, with the text of its error if it sent one.
    #[error("{0}")]
    Store(Trouble, Option<Words>),
}

/// Arguments of a beat: one host's record and acts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Keys of the hash of hosts and of the stream of acts.
    pub keys: [String; 2],
    /// Id of this host.
    pub host: [u8; 8],
    /// Encrypted record of this host.
    pub record: Vec<u8>,
    /// Stream id of the last received act.
    pub heard: String,
    /// Encrypted acts to publish.
    pub acts: Vec<Vec<u8>>,
}

/// Answer of the store to a beat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Store time in microseconds since 1970.
    pub time_us: u64,
    /// True if this host was listed before.
    pub was_there: bool,
    /// Id and record of each host.
    pub hosts: Vec<(Vec<u8>, Vec<u8>)>,
    /// Stream id and encrypted act of each act that was not received before.
    pub acts: Vec<(String, Vec<u8>)>,
}

impl Link {
    /// Opens a new connection. Reads the files again.
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
        // The client does not always observe its own limits (redis-rs #1528, #1953).
        match within(CONNECT_WITHIN * 3 / 2, to).await {
            Ok(to) => Ok(Self { to, way, password }),
            Err(failure) => {
                let words = Words::last(&way.notes, password.as_deref());
                let trouble = failure.named(&way.notes, words.as_ref());
                Err(ConnectError::Store(trouble, words.filter(|_| trouble.is_said())))
            }
        }
    }

    /// Returns true for a connection to a cluster, which repairs itself.
    pub const fn is_cluster(&self) -> bool {
        matches!(self.to, Target::Cluster(_))
    }

    /// Returns the store's error text for this trouble, if the store sent one.
    pub fn words(&self, trouble: Trouble) -> Option<Words> {
        trouble.is_said().then(|| Words::last(&self.way.notes, self.password.as_deref())).flatten()
    }

    /// Stores and requests the registers of a call.
    pub async fn exchange(&self, call: &Call) -> Result<Vec<Said>, Trouble> {
        let keys: Vec<&str> = call.keys().collect();
        let answer: Vec<u8> = self.ask(&EXCHANGE, &keys, &call.arguments()).await?;
        call.read(&answer).map_err(|_| Trouble::Garbled)
    }

    /// Publishes this host's record and acts. Returns the store's time, the hosts and new acts.
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

    /// Runs a script with EVALSHA. If the store does not have it, for example after a promotion, EVAL sends and stores
    /// it.
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
            // A server that refuses a client may end the connection before the client has read the reason.
            let why = failure.is_end().then(|| Words::farewell(&self.way.notes)).flatten();
            let trouble = failure.named(&self.way.notes, why.as_ref());
            if trouble == Trouble::Moved && !self.is_cluster() { Trouble::IsCluster } else { trouble }
        })
    }
}

/// Reason why no answer arrived.
enum Failure {
    Late,
    Error(RedisError),
}

impl Failure {
    /// Classifies the failure. `said` is the store's error text, which the client may hide.
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

    /// Returns true if the connection ended.
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
