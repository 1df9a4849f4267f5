//! The node goes away and comes back under those who use it: gracefully, or as in a crash.

use futures::FutureExt;
use tokio::sync::Mutex;

use super::edges::interrupted;
use super::*;

/// A node that comes back at the same address.
struct Phoenix {
    options: NodeOptions,
    runtime: Runtime,
    node: Mutex<Option<Node>>,
}

impl Phoenix {
    /// Takes the node of `stage` over.
    fn of(stage: &mut Stage) -> Arc<Self> {
        let node = stage.node.take().unwrap();
        let mut options = NodeOptions::new(stage.dir.path());
        options.listen = node.address().to_string();
        Arc::new(Self { options, runtime: stage.runtime.clone(), node: Mutex::new(Some(node)) })
    }

    async fn restart(&self, graceful: bool) {
        let mut node = self.node.lock().await;
        let old = node.take().unwrap();
        if graceful {
            old.stop().await;
        } else {
            drop(old);
        }
        // A dropped node lets its address and folder go a moment later.
        while node.is_none() {
            *node = Node::start(self.options.clone(), self.runtime.clone()).await.ok();
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_appends_each_row_once_over_restarts_of_the_node() {
    let mut stage = Stage::new().await;
    let path = stage.table("orders", &orders()).await;
    let node = Phoenix::of(&mut stage);
    let mut writer = Writer::open(&stage.cluster, &path, WriterOptions::default()).await.unwrap();
    let (written, mut seen) = tokio::sync::watch::channel(0_i64);
    let (enough, mut ends) = tokio::sync::watch::channel(false);
    let writing = tokio::spawn(async move {
        for start in (0..).step_by(10) {
            let batch = rows(&writer, start..start + 10, if start % 20 == 0 { "a" } else { "b" });
            writer.append(&batch).await.map_err(|error| error.chain()).unwrap();
            written.send(start + 10).unwrap();
            if *ends.borrow_and_update() {
                return start + 10;
            }
        }
        0
    });
    for graceful in [true, false, true] {
        let now = *seen.borrow();
        seen.wait_for(|count| *count > now + 20).await.unwrap();
        node.restart(graceful).await;
    }
    enough.send(true).unwrap();
    let end = writing.await.unwrap();
    assert_eq!(stage.tier().await, [Some(1)]);
    assert_eq!(stage.ids(&path).await, Vec::from_iter(0..end));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_outlives_a_restart_of_the_node() {
    for graceful in [true, false] {
        let mut stage = Stage::new().await;
        let path = stage.table("orders", &orders()).await;
        stage.append(&path, 0..100, "a").await;
        assert_eq!(stage.tier().await, [Some(1)]);
        stage.append(&path, 100..200, "a").await;
        stage.append(&path, 200..300, "b").await;
        let node = Phoenix::of(&mut stage);
        let service = interrupted(&stage, move || {
            let node = Arc::clone(&node);
            async move { node.restart(graceful).await }.boxed()
        });
        let (report, rounds) = run_once(&service, Duration::ZERO).await;
        assert_no_faults(&report);
        // Whoever starts again forgets who holds what: the same table may come once more, and has nothing new.
        assert_eq!((snapshot_of(&rounds[0]), rounds[0].rows), (Some(2), 200));
        assert_eq!(stage.ids(&path).await, Vec::from_iter(0..300));
        assert_eq!(stage.known(&path).await, Some(SnapshotId(2)));
        drop(service);
    }
}
