//! One connection per server and role, made on first use and again when it has died.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::fluss::code::Code;
use crate::fluss::connection::{Connection, ConnectionOptions, ServerType};
use crate::runtime::{Moment, Runtime};

/// How long a failed attempt to connect answers for others who want the same server, so that they don't time out one by one.
const FAILURE_STANDS: Duration = Duration::from_millis(100);

type Key = (Option<ServerType>, String);

#[derive(Debug)]
pub(super) struct Pool {
    options: ConnectionOptions,
    runtime: Runtime,
    slots: Mutex<BTreeMap<Key, Arc<tokio::sync::Mutex<Slot>>>>,
}

#[derive(Debug, Default)]
enum Slot {
    #[default]
    Empty,
    Connected(Connection),
    Failed(Moment, Error),
}

impl Pool {
    pub(super) fn new(options: ConnectionOptions, runtime: Runtime) -> Self {
        Self { options, runtime, slots: Mutex::default() }
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<tokio::sync::Mutex<Slot>>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection to `address`. A server that says it is something else than `role` is refused: metadata is stale then (F2.2).
    pub(super) async fn get(&self, role: Option<ServerType>, address: &str) -> Result<Connection> {
        let slot = Arc::clone(self.slots().entry((role, address.to_owned())).or_default());
        // Whoever comes while one connects waits here for the outcome.
        let mut slot = slot.lock().await;
        match &*slot {
            Slot::Connected(connection) if !connection.is_dead() => return Ok(connection.clone()),
            Slot::Failed(at, error) if at.elapsed() < FAILURE_STANDS => return Err(error.echo()),
            Slot::Empty | Slot::Connected(_) | Slot::Failed(..) => {}
        }
        *slot = Slot::Empty;
        let connected = Connection::connect(address, &self.options, &self.runtime).await.and_then(|connection| {
            match (role, connection.server_type()) {
                (Some(wanted), Some(found)) if wanted != found => {
                    Err(Code::NETWORK_EXCEPTION.error(format!("server `{address}` is a {found}, not a {wanted}")))
                }
                _ => Ok(connection),
            }
        });
        match &connected {
            Ok(connection) => *slot = Slot::Connected(connection.clone()),
            Err(error) => *slot = Slot::Failed(self.runtime.clock.moment(), error.echo()),
        }
        connected
    }

    /// Closes connections to servers that are not among `addresses`.
    pub(super) fn retain(&self, addresses: &BTreeSet<String>) {
        self.slots().retain(|(role, address), _| role.is_some() && addresses.contains(address));
    }
}
