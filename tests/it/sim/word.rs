//! An operator's word beside rounds: the lake was rolled back, the table is held, `accept-base` heals it.

use lakeward::commit::{self, CommitOutcome, Judgement, Statement};
use lakeward::error::{Error, Kind, Result};
use lakeward::source::LakeLedger;
use lakeward::source::memory;
use lakeward::storage;

use super::audit;
use super::service::Service;
use super::world::{World, bucket, for_seeds};

/// What `repair accept-base` does; `false` when the table is not held.
async fn accept_base(operator: &Service) -> Result<bool> {
    let context = operator.context().await?;
    if !matches!(commit::judge(&context).await?, Judgement::Held(_)) {
        return Ok(false);
    }
    let mut offsets = None;
    for id in context.lake.snapshot_ids().await?.into_iter().rev() {
        let Some(snapshot) = context.lake.snapshot(id).await? else { continue };
        if let Some(statement) = Statement::of(&snapshot) {
            offsets = statement.offsets(context.ledger.as_ref() as &dyn LakeLedger).await?;
            break;
        }
    }
    let ground = commit::ground(&context).await?;
    match commit::say(&context, &ground, offsets.expect("a snapshot of ours is left")).await {
        CommitOutcome::Committed { .. } => Ok(true),
        CommitOutcome::Nothing => Err(Error::internal("nothing was said")),
        CommitOutcome::Failed { error, .. } => Err(error),
    }
}

/// Says it again until the table is not held.
async fn until_healed(operator: &Service, world: &World) {
    for _ in 0..200 {
        match accept_base(operator).await {
            Ok(false) => return,
            Ok(true) => {}
            Err(error) => {
                assert!(matches!(error.kind(), Kind::Stale | Kind::Unavailable | Kind::Data), "{}", error.chain());
            }
        }
        world.pause(6).await;
    }
    panic!("the table is held for ever, seed {}", world.seed);
}

#[test]
fn an_operators_word_beside_rounds_over_faulty_stores_leaves_each_row_once() {
    for_seeds("word", 150, |seed| async move {
        let world = World::new(seed, false).await;
        let table = world.info().await.id;
        let healthy = Service::healthy(&world);
        for turn in 0..3 + world.runtime.rng.below(3) {
            for index in 0..2 {
                world.append(bucket(table, None, index), i64::try_from(1 + turn).unwrap());
            }
            healthy.round().await.unwrap();
            if world.runtime.rng.below(3) == 0 {
                world.foreign_commit().await;
            }
        }
        let newest = world.newest().await;
        let back = 1 + i64::try_from(world.runtime.rng.below(u64::try_from(newest - 1).unwrap())).unwrap();
        world.roll_back(back).await;
        let faulty = |one_in| {
            let store = storage::Faults::seeded(world.runtime.rng.clone(), one_in).yielding(world.runtime.rng.clone());
            Service::with_faults(&world, Some(store), memory::Faults::default())
        };
        let (operator, rival) = (faulty(15), faulty(15));
        let rounds = async {
            for _ in 0..8 {
                world.append(bucket(table, None, 0), 2);
                drop(rival.round().await);
                world.pause(6).await;
            }
        };
        tokio::join!(until_healed(&operator, &world), rounds);
        // What died on the way is healed by one more word, or by nothing at all.
        until_healed(&healthy, &world).await;
        healthy.tier_all().await.map_err(|error| error.chain()).unwrap();
        audit::each_row_once(&world, table).await;
    });
}
