//! Who is connected: how many at most, how slow they may be, and how much memory what they send and leave unread may hold.
//!
//! Nobody is trusted to come to an end: a client that says nothing, trickles or takes no answers is closed after some time, and at once where
//! others wait for its place or its memory. Those that move on are not touched. `connection` asks here before it reads, answers and writes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::node::ClientOptions;
use crate::runtime::{Budget, Clock, Moment, Permit, Runtime, open_files_max};

/// Connections at once, where the machine gives enough open files: those are for logs and states as well.
const CONNECTIONS_MAX: usize = 1_000;
/// Bytes of answers that one connection may hold, from before they are made until they are written; at most a quarter of all.
const ANSWERS_MAX: usize = 64 << 20;
/// Requests of one connection that are answered at the same time, long polls and acknowledgements apart.
const WORKING_MAX: usize = 32;
/// What is smaller is not counted; the number of connections and of their requests bounds it.
pub(super) const SMALL: usize = 64 << 10;
/// A transfer that is slower than this in bytes per second for [`ClientOptions::stall`] is given up ...
const RATE_MIN: u64 = 16 << 10;
/// ... and where others wait for memory: all that hardly move, else the slowest of those that are slower than this.
const RATE_STALLED: u64 = 64 << 10;
const RATE_FAIR: u64 = 1 << 20;
/// How long somebody waits for memory before slow ones give way, and how long a transfer has to last to be called slow.
const GIVE_WAY: Duration = Duration::from_secs(2);

/// Everybody who is connected.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) options: ClientOptions,
    connections_max: usize,
    clock: Clock,
    /// For large requests, from before they are read until they are carried out.
    requests: Budget,
    /// For answers, from before they are made until they are written. Whoever waits for it holds none of it, so that nobody waits for
    /// somebody who waits.
    answers: Budget,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: BTreeMap<u64, Arc<Client>>,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Client {
    id: u64,
    pub(super) peer: SocketAddr,
    clients: Arc<Clients>,
    opened: Moment,
    facts: Mutex<Facts>,
    answers: Budget,
    pub(super) working: Semaphore,
    /// It is given up: nothing is read or written any more.
    pub(super) closed: CancellationToken,
    /// It asks nothing more: what waits is answered with what there is.
    pub(super) ended: CancellationToken,
}

#[derive(Debug)]
struct Facts {
    /// It has said something sound, and logged in where it has to.
    greeted: bool,
    /// When it came, a request came whole or an answer had gone.
    used: Moment,
    in_flight: usize,
    /// The request that is being read, and the answer that is being written.
    reading: Option<Transfer>,
    writing: Option<Transfer>,
}

#[derive(Debug, Clone, Copy)]
struct Transfer {
    began: Moment,
    bytes: u64,
}

impl Transfer {
    fn deadline(self, stall: Duration) -> Moment {
        self.began + stall + Duration::from_millis(self.bytes.saturating_mul(1_000) / RATE_MIN)
    }

    /// Bytes per second, if it has lasted long enough and that is slow.
    fn slowness(self, now: Moment) -> Option<u64> {
        let lasted = now.saturating_duration_since(self.began);
        let millis = u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = self.bytes.saturating_mul(1_000) / millis;
        (lasted >= GIVE_WAY && rate < RATE_FAIR).then_some(rate)
    }
}

/// Memory that a request or its answer holds.
#[derive(Debug)]
pub(super) struct Held(Vec<Permit>);

impl Held {
    /// Nothing worth counting.
    pub(super) const fn none() -> Self {
        Self(Vec::new())
    }

    /// Gives back all above `bytes`.
    pub(super) fn shrink(&mut self, bytes: usize) {
        for permit in &mut self.0 {
            permit.shrink(bytes);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.first().map_or(SMALL, Permit::bytes)
    }
}

/// A request that has no answer yet; a client is not idle while there is one.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Client>);

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut facts = self.0.facts();
        facts.in_flight = facts.in_flight.saturating_sub(1);
    }
}

impl Clients {
    pub(super) fn new(options: ClientOptions, runtime: &Runtime) -> Arc<Self> {
        let files = open_files_max().unwrap_or(usize::MAX);
        let connections_max = options.connections_max.unwrap_or_else(|| CONNECTIONS_MAX.min(files / 4)).max(1);
        let half = || Budget::new(runtime.budget.total() / 2);
        let clock = runtime.clock.clone();
        Arc::new(Self { options, connections_max, clock, requests: half(), answers: half(), state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection in. Where there are too many, the one that was idle longest makes room, first of those that never said anything;
    /// `None` = all are busy.
    pub(super) fn enter(self: &Arc<Self>, peer: SocketAddr) -> Option<Arc<Client>> {
        let now = self.clock.moment();
        let mut state = self.state();
        if state.open.len() >= self.connections_max {
            let idle = state.open.values().filter_map(|client| Some((client.idle_since()?, client.id))).min();
            let (_, id) = idle?;
            if let Some(oldest) = state.open.remove(&id) {
                oldest.give_up("others wait for its place");
            }
        }
        let id = state.next;
        state.next += 1;
        let client = Arc::new(Client {
            id,
            peer,
            clients: Arc::clone(self),
            opened: now,
            facts: Mutex::new(Facts { greeted: false, used: now, in_flight: 0, reading: None, writing: None }),
            answers: Budget::new(ANSWERS_MAX.min(self.answers.total() / 4)),
            working: Semaphore::new(WORKING_MAX),
            closed: CancellationToken::new(),
            ended: CancellationToken::new(),
        });
        state.open.insert(id, Arc::clone(&client));
        Some(client)
    }

    pub(super) fn leave(&self, client: &Client) {
        self.state().open.remove(&client.id);
    }

    /// Takes `bytes` of `budget`; who holds memory of that kind and hardly moves, by the `transfer` that gives it back, gives way.
    async fn take(&self, budget: &Budget, bytes: usize, transfer: fn(&Facts) -> Option<Transfer>) -> Permit {
        // Waits in one place: who begins anew is overtaken by those who want less.
        let mut permit = std::pin::pin!(budget.acquire(bytes));
        loop {
            if let Some(permit) = self.clock.timeout(GIVE_WAY, permit.as_mut()).await {
                return permit;
            }
            let now = self.clock.moment();
            let mut slow: Vec<(u64, u64, Arc<Client>)> = {
                let state = self.state();
                let open = state.open.values().filter(|client| !client.closed.is_cancelled());
                let slowness = |client: &Client| transfer(&client.facts())?.slowness(now);
                open.filter_map(|client| Some((slowness(client)?, client.id, Arc::clone(client)))).collect()
            };
            slow.sort_by_key(|(rate, id, _)| (*rate, *id));
            for (at, (rate, _, client)) in slow.iter().enumerate() {
                if at == 0 || *rate < RATE_STALLED {
                    client.give_up("it is slow, and others wait for its memory");
                }
            }
        }
    }

    /// Connections, and bytes that their requests and answers hold.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        (self.state().open.len(), self.requests.used(), self.answers.used())
    }
}

impl Client {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn give_up(&self, why: &str) {
        tracing::info!(peer = %self.peer, "connection closed: {why}");
        self.closed.cancel();
    }

    /// Since when nothing is in flight; whoever never said anything comes first.
    fn idle_since(&self) -> Option<(bool, Moment)> {
        let facts = self.facts();
        let busy = facts.in_flight > 0 || (facts.greeted && facts.reading.is_some());
        (!busy).then_some((facts.greeted, facts.used))
    }

    pub(super) fn greet(&self) {
        self.facts().greeted = true;
    }

    pub(super) fn begin(self: &Arc<Self>) -> InFlight {
        self.facts().in_flight += 1;
        InFlight(Arc::clone(self))
    }

    /// A request is being read: `bytes` of it are there.
    pub(super) fn reads(&self, bytes: usize) {
        let transfer = self.starts(bytes);
        self.facts().reading = transfer;
    }

    /// An answer is being written.
    pub(super) fn writes(&self) {
        let transfer = self.starts(1);
        let mut facts = self.facts();
        facts.writing = transfer;
    }

    fn starts(&self, bytes: usize) -> Option<Transfer> {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        (bytes > 0).then(|| Transfer { began: self.clients.clock.moment(), bytes })
    }

    /// So many bytes more have come.
    pub(super) fn came(&self, bytes: usize) {
        let mut facts = self.facts();
        match &mut facts.reading {
            Some(transfer) => transfer.bytes = transfer.bytes.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX)),
            None => {
                drop(facts);
                self.reads(bytes);
            }
        }
    }

    /// So many bytes more have gone.
    pub(super) fn went(&self, bytes: usize) {
        if let Some(transfer) = &mut self.facts().writing {
            transfer.bytes = transfer.bytes.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        }
    }

    /// A request is there whole, or an answer is written.
    pub(super) fn is_through(&self, reading: bool) {
        let mut facts = self.facts();
        if reading {
            facts.reading = None;
        } else {
            facts.writing = None;
        }
        facts.used = self.clients.clock.moment();
    }

    /// Until when something has to come, or else why it is too late for that.
    pub(super) fn read_until(&self) -> Result<Moment, &'static str> {
        let (facts, now, options) = (self.facts(), self.clients.clock.moment(), &self.clients.options);
        let (until, why) = match facts.reading {
            Some(transfer) => (transfer.deadline(options.stall), "its request comes too slowly"),
            None if !facts.greeted => (self.opened + options.stall, "it says nothing, or does not log in"),
            None if facts.in_flight > 0 => (now + options.idle, ""),
            None => (facts.used + options.idle, "it was idle for too long"),
        };
        if until > now { Ok(until) } else { Err(why) }
    }

    /// Until when more of an answer has to go.
    pub(super) fn write_until(&self) -> Moment {
        let stall = self.clients.options.stall;
        self.facts().writing.map_or_else(|| self.clients.clock.moment() + stall, |transfer| transfer.deadline(stall))
    }

    /// Room for a request of `bytes`.
    pub(super) async fn hold_request(&self, bytes: usize) -> Held {
        if bytes <= SMALL {
            Held::none()
        } else {
            Held(vec![self.clients.take(&self.clients.requests, bytes, |facts| facts.reading).await])
        }
    }

    /// Room for an answer of `bytes`, with nothing of its kind in hand; `None` = the connection is gone.
    pub(super) async fn hold_answer(&self, bytes: usize) -> Option<Held> {
        if bytes <= SMALL {
            return Some(Held::none());
        }
        let room = async {
            // Its own first: nobody waits for a client that waits for itself.
            let own = self.answers.acquire(bytes).await;
            let shared = self.clients.take(&self.clients.answers, bytes, |facts| facts.writing).await;
            Held(vec![own, shared])
        };
        tokio::select! {
            room = room => Some(room),
            () = self.closed.cancelled() => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// 32 MiB for requests, as many for answers.
    fn clients() -> Arc<Clients> {
        Clients::new(ClientOptions::default(), &Runtime::simulated(1, 0, 64 * MIB))
    }

    fn one(clients: &Arc<Clients>) -> Arc<Client> {
        clients.enter(([127, 0, 0, 1], 1).into()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_request_does_not_give_way_where_memory_for_answers_is_short() {
        let clients = clients();
        let (asks, takes, waits) = (one(&clients), one(&clients), one(&clients));
        let all = clients.answers.acquire(32 * MIB).await;
        asks.reads(1);
        takes.writes();
        let room = clients.clock.timeout(Duration::from_secs(5), waits.hold_answer(MIB)).await;
        assert!(room.is_none() && takes.closed.is_cancelled(), "an answer that does not move gives way");
        assert!(!asks.closed.is_cancelled(), "a request has none of that memory");
        drop(all);
        let all = clients.requests.acquire(32 * MIB).await;
        let writes = one(&clients);
        writes.writes();
        let room = clients.clock.timeout(Duration::from_secs(5), waits.hold_request(MIB)).await;
        assert!(room.is_none() && asks.closed.is_cancelled() && !writes.closed.is_cancelled());
        drop(all);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_much_is_not_overtaken_by_who_comes_later_for_less() {
        let clients = clients();
        let (first, second) = (one(&clients), one(&clients));
        let all = clients.requests.acquire(32 * MIB).await;
        let much = tokio::spawn(async move { first.hold_request(30 * MIB).await });
        clients.clock.sleep(Duration::from_secs(1)).await;
        let less = tokio::spawn(async move { second.hold_request(20 * MIB).await });
        // One has waited for long enough to look for who is slow, the other has not.
        clients.clock.sleep(Duration::from_millis(1_500)).await;
        drop(all);
        clients.clock.sleep(Duration::from_millis(100)).await;
        assert!(much.is_finished() && !less.is_finished());
        drop(much.await.unwrap());
        drop(less.await.unwrap());
        assert_eq!(clients.counts().1, 0);
    }
}
