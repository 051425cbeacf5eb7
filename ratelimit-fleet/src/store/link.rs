//! One connection: to a server, or to all nodes of a cluster. Everything has a time limit.

use std::future::Future;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisError};
use tokio::time::timeout;

use super::access::{self, Access, AccessError};
use super::trouble::Trouble;
use super::{BEAT, EXCHANGE, Script};
use crate::wire::{Call, Said};

/// The longest that an answer may take.
pub const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// The longest that a connection may take.
pub const CONNECT_WITHIN: Duration = Duration::from_millis(1000);

/// A connection; copies are one and the same.
#[derive(Clone)]
pub enum Link {
    /// To one server.
    Single(MultiplexedConnection),
    /// To a cluster.
    Cluster(ClusterConnection),
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// What was given does not fit, or a file is not there.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The store.
    #[error("{0}")]
    Store(Trouble),
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
        // Without it rustls finds two providers, or none, where another part of the program chose.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            rustls::crypto::ring::default_provider().install_default().ok();
        }
        let link = async {
            if access::is_cluster(access) {
                let mut builder = ClusterClientBuilder::new(opened.nodes)
                    .retries(0)
                    .connection_timeout(CONNECT_WITHIN)
                    .response_timeout(ANSWER_WITHIN);
                if let Some(certificates) = opened.certificates {
                    builder = builder.certs(certificates);
                }
                return Ok(Self::Cluster(builder.build()?.get_async_connection().await?));
            }
            let Some(node) = opened.nodes.into_iter().next() else {
                return Err(RedisError::from((redis::ErrorKind::InvalidClientConfig, "no address")));
            };
            let client = match opened.certificates {
                Some(certificates) => Client::build_with_tls(node, certificates)?,
                None => Client::open(node)?,
            };
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(CONNECT_WITHIN))
                .set_response_timeout(Some(ANSWER_WITHIN));
            Ok(Self::Single(client.get_multiplexed_async_connection_with_config(&config).await?))
        };
        // The client's own limits are not always kept (redis-rs #1528, #1953).
        within(CONNECT_WITHIN * 3 / 2, link).await.map_err(ConnectError::Store)
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
        match self.clone() {
            Self::Single(mut link) => within(ANSWER_WITHIN, command.query_async(&mut link)).await,
            Self::Cluster(mut link) => within(ANSWER_WITHIN, command.query_async(&mut link)).await,
        }
    }
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, RedisError>>) -> Result<T, Trouble> {
    match timeout(limit, work).await {
        Ok(outcome) => outcome.map_err(|error| Trouble::of(&error)),
        Err(_) => Err(Trouble::Hung),
    }
}
