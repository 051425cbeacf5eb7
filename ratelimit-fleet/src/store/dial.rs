//! Opens connections by TCP, TLS or a Unix socket, with every answer bounded from the first byte.
//!
//! The client opens its own connections only to the nodes of a cluster. It then passes only their address and user. The
//! user's name therefore carries the number of a [`Way`], which never leaves this program.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use futures_util::future::select_ok;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::Connect;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, Pipeline,
    RedisConnectionInfo, RedisError, RedisFuture, RedisResult, Value,
};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::bounded::{Bounded, Notes};
use super::link::{ANSWER_WITHIN, CONNECT_WITHIN};

/// Error text for a TLS handshake that does not finish in time.
pub(super) const NO_TLS_IN_TIME: &str = "no TLS handshake in time";

/// Separator after the way's number in a user name. No real user name contains it.
const END: char = '\0';

/// Method of connecting to the nodes of one store, and the observations of those connections.
pub struct Way {
    number: u64,
    tls: Option<TlsConnector>,
    /// Observations of the connections.
    pub(super) notes: Arc<Notes>,
}

type Ways = HashMap<u64, Weak<Way>>;

static WAYS: LazyLock<Mutex<Ways>> = LazyLock::new(Mutex::default);

impl Way {
    pub(super) fn new(tls: Option<TlsConnector>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let way = Arc::new(Self { number, tls, notes: Arc::default() });
        ways(|ways| ways.insert(number, Arc::downgrade(&way)));
        way
    }

    /// Returns the address of a cluster node, with this way's number in the user name.
    pub(super) fn number(&self, node: ConnectionInfo) -> ConnectionInfo {
        let settings = node.redis_settings().clone();
        let user = format!("{}{END}{}", self.number, settings.username().unwrap_or_default());
        node.set_redis_settings(settings.set_username(user))
    }

    /// Returns the way of a numbered node, and the settings with the store's user name.
    fn of_node(settings: &RedisConnectionInfo) -> Option<(Arc<Self>, RedisConnectionInfo)> {
        let (number, user) = settings.username()?.split_once(END)?;
        let way = ways(|ways| ways.get(&number.parse().ok()?)?.upgrade())?;
        let mut own = RedisConnectionInfo::default().set_skip_set_lib_name().set_db(settings.db());
        if !user.is_empty() {
            own = own.set_username(user);
        }
        if let Some(password) = settings.password() {
            own = own.set_password(password);
        }
        Some((way, own))
    }

    /// Opens a connection to one server.
    pub(super) async fn open(&self, addr: &ConnectionAddr, settings: &RedisConnectionInfo) -> RedisResult<Wire> {
        match addr {
            ConnectionAddr::Tcp(host, port) => self.set_up(tcp(host, *port).await?, settings).await,
            ConnectionAddr::TcpTls { host, port, .. } => {
                let Some(tls) = &self.tls else {
                    return Err((ErrorKind::InvalidClientConfig, "no TLS for this address").into());
                };
                let stream = tcp(host, *port).await?;
                let name = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
                let name = ServerName::try_from(name.to_owned())?;
                let Ok(stream) = timeout(CONNECT_WITHIN, tls.connect(name, stream)).await else {
                    return Err(io::Error::new(io::ErrorKind::ConnectionAborted, NO_TLS_IN_TIME).into());
                };
                self.set_up(stream?, settings).await
            }
            ConnectionAddr::Unix(path) => self.set_up(UnixStream::connect(path).await?, settings).await,
            _ => Err((ErrorKind::InvalidClientConfig, "no address of a known kind").into()),
        }
    }

    async fn set_up<S>(&self, stream: S, settings: &RedisConnectionInfo) -> RedisResult<Wire>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = Bounded::new(stream, Arc::clone(&self.notes));
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_WITHIN));
        let (connection, driver) = MultiplexedConnection::new_with_config(settings, stream, config).await?;
        let driver: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(driver);
        let driver = tokio::spawn(driver).abort_handle();
        Ok(Wire { connection, _driver: Arc::new(Driver(driver)) })
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        ways(|ways| ways.remove(&self.number));
    }
}

fn ways<T>(change: impl FnOnce(&mut Ways) -> T) -> T {
    change(&mut WAYS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Connects to all addresses of a host and returns the first connection that succeeds.
async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let name = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let attempts: Vec<_> = lookup_host((name, port)).await?.map(|at| Box::pin(TcpStream::connect(at))).collect();
    if attempts.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "No address found for host"));
    }
    let (stream, _others) = select_ok(attempts).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Background task that reads and writes. Ends with the last copy of its connection, whatever the server does.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Connection to one server. Copies share it.
#[derive(Clone)]
pub struct Wire {
    connection: MultiplexedConnection,
    _driver: Arc<Driver>,
}

impl ConnectionLike for Wire {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.connection.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.connection.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

impl Connect for Wire {
    fn connect_with_config<'a, T>(info: T, _config: AsyncConnectionConfig) -> RedisFuture<'a, Self>
    where
        T: IntoConnectionInfo + Send + 'a,
    {
        Box::pin(async move {
            let info = info.into_connection_info()?;
            let Some((way, settings)) = Way::of_node(info.redis_settings()) else {
                return Err(RedisError::from((ErrorKind::InvalidClientConfig, "the store is no longer used")));
            };
            match timeout(CONNECT_WITHIN, way.open(info.addr(), &settings)).await {
                Ok(opened) => opened,
                Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            }
        })
    }
}
