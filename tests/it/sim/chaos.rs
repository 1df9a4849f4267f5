//! Everything at once, by the seed: services that crash and lose replies, late messages, rows, expiry, foreign commits, Java.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lakeward::error::{Error, Kind};
use lakeward::source::memory;
use lakeward::storage::{self, Fault};
use tokio_util::sync::CancellationToken;

use super::rivals::{append_somewhere, java_round};
use super::service::Service;
use super::world::{World, bucket};

/// How much of each trouble.
#[derive(Clone, Copy, Default)]
pub(crate) struct Chaos {
    pub(crate) services: usize,
    /// Appends while they run.
    pub(crate) appends: u64,
    /// Processes killed at any moment and started again.
    pub(crate) crashes: u64,
    /// One call to the lake in this many fails, before or after its work; 0 = none.
    pub(crate) lake_faults: u64,
    /// The same for calls to the coordinator; records may also come late, or be lost after an OK.
    pub(crate) coordinator_faults: u64,
    /// One publish in this many lands later than its caller waits for, or never.
    pub(crate) late_puts: u64,
    pub(crate) foreign: u64,
    /// Runs of an expirer that keeps one snapshot.
    pub(crate) expiries: u64,
    /// Rounds of a Java worker.
    pub(crate) java: u64,
}

impl Chaos {
    /// Runs it all to its end; what is still under way then has landed or died. Returns what services were held by.
    pub(crate) async fn run(self, world: &World) -> Vec<Error> {
        let done = Arc::new(AtomicBool::new(false));
        let held = Arc::new(Mutex::new(vec![]));
        let services: Vec<_> = (0..self.services)
            .map(|index| {
                // The processes of one service, one after the other.
                let crashes = (0..self.crashes).filter(|crash| crash % self.services as u64 == index as u64).count();
                let (world, done, held) = (world.clone(), Arc::clone(&done), Arc::clone(&held));
                tokio::spawn(async move {
                    for _ in 0..crashes {
                        let process = tokio::spawn(self.service(world.clone()).run(Arc::clone(&done), Arc::clone(&held)));
                        world.pause(2000).await;
                        process.abort();
                        drop(process.await);
                    }
                    self.service(world).run(done, held).await;
                })
            })
            .collect();
        let surroundings = [
            self.spawn(world, self.appends, |world| async move { append_somewhere(&world).await }),
            self.spawn(world, self.foreign, |world| async move { world.foreign_commit().await }),
            self.spawn(world, self.expiries, |world| async move { world.expire(1).await }),
            self.spawn(world, self.java, |world| async move { java_round(&world, 300).await }),
        ];
        for task in surroundings {
            task.await.unwrap();
        }
        done.store(true, Ordering::Relaxed);
        for service in services {
            service.await.unwrap();
        }
        world.sleep(600).await;
        std::mem::take(&mut *held.lock().unwrap())
    }

    fn spawn<F: Future<Output = ()> + Send + 'static>(
        self,
        world: &World,
        times: u64,
        act: impl Fn(World) -> F + Send + 'static,
    ) -> tokio::task::JoinHandle<()> {
        let world = world.clone();
        tokio::spawn(async move {
            for _ in 0..times {
                world.pause(400).await;
                act(world.clone()).await;
            }
        })
    }

    fn service(self, world: World) -> Process {
        let rng = world.runtime.rng.clone();
        let lake = {
            let (world, rng) = (world.clone(), rng.clone());
            move |act: &str, path: &str| {
                if act == "create" && path.contains("snapshot-") && self.late_puts > 0 && rng.below(self.late_puts) == 0 {
                    return Some(Fault::Late(land_late(&world)));
                }
                (self.lake_faults > 0 && rng.below(self.lake_faults) == 0)
                    .then(|| if rng.below(2) == 0 { Fault::Before } else { Fault::After })
            }
        };
        let coordinator = {
            let (world, rng) = (world.clone(), rng.clone());
            move |act: &str, _: &str| {
                if self.coordinator_faults == 0 || rng.below(self.coordinator_faults) != 0 {
                    return None;
                }
                Some(match rng.below(if act == "record" { 4 } else { 2 }) {
                    0 => memory::Fault::Before,
                    1 => memory::Fault::After,
                    2 => memory::Fault::Lost,
                    _ => memory::Fault::Late(late(&world)),
                })
            }
        };
        let lake = storage::Faults::scripted(lake).yielding(rng);
        Process { service: Service::with_faults(&world, Some(lake), memory::Faults::scripted(coordinator)), world }
    }
}

/// A token that is cancelled some turns from now, or after some minutes.
fn late(world: &World) -> CancellationToken {
    let token = CancellationToken::new();
    let (release, world) = (token.clone(), world.clone());
    tokio::spawn(async move {
        world.pause(600).await;
        if world.runtime.rng.below(4) == 0 {
            world.sleep(60).await;
        }
        release.cancel();
    });
    token
}

/// The same for a PUT: it may also never land, and until it has landed or died nothing expires.
fn land_late(world: &World) -> CancellationToken {
    let token = CancellationToken::new();
    let (release, world) = (token.clone(), world.clone());
    world.late_puts.fetch_add(1, Ordering::Relaxed);
    tokio::spawn(async move {
        world.pause(600).await;
        if world.runtime.rng.below(4) != 0 {
            release.cancel();
        }
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        world.late_puts.fetch_sub(1, Ordering::Relaxed);
    });
    token
}

struct Process {
    service: Service,
    world: World,
}

impl Process {
    async fn run(self, done: Arc<AtomicBool>, held: Arc<Mutex<Vec<Error>>>) {
        while !done.load(Ordering::Relaxed) {
            match self.service.round().await {
                Ok(_) => {}
                Err(error) if matches!(error.kind(), Kind::Stale | Kind::Unavailable) => {}
                Err(error) => {
                    held.lock().unwrap().push(error);
                    return;
                }
            }
            self.world.pause(60).await;
        }
    }
}

/// Rows for the buckets of a table without partitions, before anything runs.
pub(crate) async fn some_rows(world: &World) {
    let id = world.info().await.id;
    world.append(bucket(id, None, 0), 2);
    world.append(bucket(id, None, 1), 1);
}
