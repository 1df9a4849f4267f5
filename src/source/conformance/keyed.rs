//! Primary-key tables: their changelog as puts make it (S6.3), their states (F5.7).

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};

use super::logs::{buckets, ends, fetch, spec};
use super::{World, check, descriptor, eventually, made};
use crate::error::{Error, Kind, Result};
use crate::fluss::record::arrow_schema;
use crate::fluss::table_json::TableDescriptor;
use crate::model::{BucketLayout, ChangeKind, DataType, Field, Partition, SchemaId, StartOffset, TableBucket, TableInfo, TypeKind};
use crate::source::{FetchBucket, StateRequest};

/// Words by key.
type Rows = BTreeMap<i64, Option<String>>;

fn keyed(partitioned: bool, image: Option<&str>) -> TableDescriptor {
    let mut table = descriptor(partitioned, false);
    for field in table.schema.fields.iter_mut().filter(|field| field.name != "words") {
        field.data_type.nullable = false;
        table.schema.primary_key.push(field.name.clone());
    }
    table.bucket_keys.clear();
    if let Some(image) = image {
        table.properties.insert("table.changelog.image".to_owned(), image.to_owned());
    }
    table
}

/// Puts these keys, all with the same words (NULL for every third); keys in `gone` are deleted instead. The model follows.
async fn put(world: &dyn World, table: &TableInfo, ids: &[i64], words: &str, gone: &[i64], model: &mut Rows) -> Result<()> {
    let text = |id: i64| (id % 3 != 0).then(|| format!("{words} {id}"));
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(ids.iter().copied().collect::<Int64Array>()),
        Arc::new(ids.iter().map(|id| text(*id)).collect::<StringArray>()),
    ];
    if table.is_partitioned() {
        columns.push(Arc::new(StringArray::from(vec!["b"; ids.len()])));
    }
    if table.schema.index_of("later").is_some() {
        columns.push(Arc::new(ids.iter().copied().collect::<Int64Array>()));
    }
    let rows = RecordBatch::try_new(arrow_schema(&table.schema)?, columns);
    let rows = rows.map_err(|source| Error::internal("rows").with_source(source))?;
    let deletes: Vec<bool> = ids.iter().map(|id| gone.contains(id)).collect();
    world.put(&table.path, &rows, &deletes).await?;
    for (id, gone) in ids.iter().zip(deletes) {
        if gone { drop(model.remove(id)) } else { drop(model.insert(*id, text(*id))) }
    }
    Ok(())
}

fn read_rows(rows: &RecordBatch) -> Vec<(i64, Option<String>)> {
    let (ids, words) = (rows.column(0).as_primitive::<Int64Type>(), rows.column(1).as_string::<i32>());
    ids.values().iter().zip(words).map(|(id, words)| (*id, words.map(str::to_owned))).collect()
}

/// Applies the changelog of a bucket up to `end` to nothing, checking that each change fits what was before it. Counts the −U.
async fn replayed(
    world: &dyn World,
    table: &TableInfo,
    bucket: TableBucket,
    layout: BucketLayout,
    end: i64,
    wal: bool,
) -> Result<(Rows, usize)> {
    let (mut state, mut from, mut before) = (Rows::new(), 0, None);
    let mut befores = 0;
    while from < end {
        let wanted = FetchBucket { bucket, offset: StartOffset::At(from), bytes_max: 4000, layout };
        let decoded = fetch(world, table, wanted).await?.log.decode(from, end)?;
        check(decoded.next_offset > from, || format!("no progress at `{from}` of `{end}`"))?;
        for batch in &decoded.batches {
            let kinds = batch.changes.clone().unwrap_or_default();
            check(kinds.len() == batch.rows.num_rows(), || format!("kinds of changes {kinds:?}"))?;
            for (kind, (id, words)) in kinds.into_iter().zip(read_rows(&batch.rows)) {
                let was = state.get(&id).cloned();
                let fits = match kind {
                    ChangeKind::Insert => !wal && was.is_none(),
                    ChangeKind::UpdateBefore => !wal && was.as_ref() == Some(&words),
                    ChangeKind::UpdateAfter => wal || before == Some(id),
                    ChangeKind::Delete => was.as_ref() == Some(&words),
                    ChangeKind::Append => false,
                };
                check(fits, || format!("{kind:?} of `{id}` {words:?} where {was:?} was"))?;
                befores += usize::from(kind == ChangeKind::UpdateBefore);
                before = (kind == ChangeKind::UpdateBefore).then_some(id);
                match kind {
                    ChangeKind::Delete => drop(state.remove(&id)),
                    _ => drop(state.insert(id, words)),
                }
            }
        }
        from = decoded.next_offset;
    }
    Ok((state, befores))
}

/// Each change in its place with its kind; what changes nothing still takes an offset.
pub(super) async fn puts_become_changes(world: &dyn World) -> Result<()> {
    for (name, image) in [("changes_full", None), ("changes_wal", Some("WAL"))] {
        let table = made(world, name, &keyed(false, image)).await?;
        check(table.bucket_keys == ["id"] && table.schema.primary_key == ["id"], || format!("keys of {table:?}"))?;
        let layout = BucketLayout::of(&table, None)?;
        let mut model = Rows::new();
        put(world, &table, &(0..100).collect::<Vec<_>>(), "first", &[], &mut model).await?;
        // The same key twice in a batch, and one that comes and goes.
        put(world, &table, &[7, 8, 7, 200], "second", &[8], &mut model).await?;
        put(world, &table, &[200, 9], "third", &[200, 9], &mut model).await?;
        let before = ends(world, &table, None, layout).await?;
        put(world, &table, &[8], "never", &[8], &mut model).await?;
        let after = ends(world, &table, None, layout).await?;
        check(after.iter().sum::<i64>() == before.iter().sum::<i64>() + 1, || {
            format!("a delete of nothing: {before:?}, {after:?}")
        })?;
        let (mut found, mut befores) = (Rows::new(), 0);
        for (bucket, end) in buckets(&table, None, layout).into_iter().zip(after) {
            let (state, count) = replayed(world, &table, bucket, layout, end, image.is_some()).await?;
            check(!state.is_empty(), || format!("{bucket} has no rows"))?;
            found.extend(state);
            befores += count;
        }
        check(found == model, || format!("the changes come to {found:?}, not to {model:?}"))?;
        let wanted = if image.is_some() { 0 } else { 2 };
        check(befores == wanted, || format!("`{befores}` rows before an update, not `{wanted}`"))?;
        check(world.scan().start_offsets(&table, None, layout).await? == Some(vec![0, 0]), || "the log starts later".to_owned())?;
    }
    Ok(())
}

fn wanted(table: &TableInfo, bucket: TableBucket, layout: BucketLayout, bytes_max: i32) -> StateRequest {
    StateRequest { table: Arc::new(table.clone()), bucket, layout, bytes_max }
}

/// The whole state of a bucket, the offset that it names, and how many answers it took.
async fn state(world: &dyn World, request: StateRequest) -> Result<(Rows, i64, usize)> {
    let mut scan = world.scan().open_state(request).await?;
    let (mut rows, mut answers) = (Rows::new(), 0);
    while let Some(slice) = scan.next().await? {
        answers += 1;
        for batch in slice.decode()? {
            let inserts = batch.changes.as_ref().is_some_and(|kinds| kinds.iter().all(|kind| *kind == ChangeKind::Insert));
            check(inserts && batch.base_offset == -1 && batch.commit_timestamp_ms == -1, || format!("rows of a state: {batch:?}"))?;
            for (id, words) in read_rows(&batch.rows) {
                check(rows.insert(id, words).is_none(), || format!("key `{id}` twice in a state"))?;
            }
        }
    }
    check(scan.is_done(), || "a scan at its end is not done".to_owned())?;
    Ok((rows, scan.log_offset(), answers))
}

/// A state is what the log comes to at the offset that it names, in few or many answers, whatever is written meanwhile.
pub(super) async fn states_are_what_the_log_comes_to(world: &dyn World) -> Result<()> {
    let serves = world.scan().serves_states().await?;
    check(serves == world.serves_states(), || format!("states are served: {serves}"))?;
    let table = made(world, "state", &keyed(false, None)).await?;
    let layout = BucketLayout::of(&table, None)?;
    let all = buckets(&table, None, layout);
    let first = all.first().copied().ok_or_else(|| Error::internal("no bucket"))?;
    if !serves {
        let refused = world.scan().open_state(wanted(&table, first, layout, 1000)).await;
        let found = refused.as_ref().err().map(|error| (error.kind(), error.code()));
        return check(found == Some((Kind::Unsupported, Some(2))), || format!("a state that is not served: {refused:?}"));
    }
    let nothing = state(world, wanted(&table, first, layout, 1000)).await?;
    check((nothing.0.len(), nothing.1) == (0, 0), || format!("an empty bucket has {nothing:?}"))?;
    let mut model = Rows::new();
    put(world, &table, &(0..300).collect::<Vec<_>>(), "first", &[], &mut model).await?;
    let later = Field { id: 2, name: "later".into(), data_type: DataType::nullable(TypeKind::BigInt), comment: None };
    world.add_column(&table.path, &later).await?;
    world.scan().forget(&table.path);
    let table = world.scan().table_info(&table.path).await?;
    check(table.schema_id() == SchemaId(2), || format!("with a column more it is {table:?}"))?;
    put(world, &table, &(100..120).collect::<Vec<_>>(), "second", &[110, 111], &mut model).await?;
    for bytes_max in [1, 500, 1 << 20] {
        let mut found = Rows::new();
        for (bucket, end) in all.iter().zip(ends(world, &table, None, layout).await?) {
            let (rows, offset, answers) = state(world, wanted(&table, *bucket, layout, bytes_max)).await?;
            let (replayed, _) = replayed(world, &table, *bucket, layout, offset, false).await?;
            check(offset == end && rows == replayed, || format!("{bucket} to `{offset}`: {rows:?}, its log: {replayed:?}"))?;
            check((answers > 1) == (bytes_max < 1000), || format!("`{answers}` answers of `{bytes_max}` bytes"))?;
            found.extend(rows);
        }
        check(found == model, || format!("the states are {found:?}, not {model:?}"))?;
    }
    // Two at once, one that is given up, and writes in between.
    let mut one = world.scan().open_state(wanted(&table, first, layout, 1)).await?;
    drop(world.scan().open_state(wanted(&table, first, layout, 1)).await?);
    put(world, &table, &(0..300).collect::<Vec<_>>(), "third", &[], &mut model).await?;
    let mut rows = Rows::new();
    while let Some(slice) = one.next().await? {
        rows.extend(slice.decode()?.iter().flat_map(|batch| read_rows(&batch.rows)));
    }
    let (replayed, _) = replayed(world, &table, first, layout, one.log_offset(), false).await?;
    check(rows == replayed, || format!("written meanwhile, {first} is {rows:?}, its log: {replayed:?}"))?;
    let log = made(world, "stateless", &descriptor(false, false)).await?;
    let bucket = TableBucket { table: log.id, ..first };
    let refused = world.scan().open_state(wanted(&log, bucket, layout, 1000)).await;
    check(refused.as_ref().is_err_and(|error| error.code() == Some(20)), || format!("the state of a log table: {refused:?}"))
}

/// Each partition by its own count; who asks by another one, or for what is gone, has to plan again.
pub(super) async fn states_are_routed_by_their_partition(world: &dyn World) -> Result<()> {
    if !world.serves_states() {
        return Ok(());
    }
    let table = made(world, "state_parted", &keyed(true, None)).await?;
    check(table.bucket_keys == ["id"], || format!("bucket keys {:?}", table.bucket_keys))?;
    let old = BucketLayout::of(&table, None)?;
    world.create_partition(&table.path, &spec("a")).await?;
    if world.rescales() {
        world.alter_bucket_count(&table.path, 4).await?;
        world.scan().forget(&table.path);
    }
    world.create_partition(&table.path, &spec("b")).await?;
    let table = world.scan().table_info(&table.path).await?;
    let mut model = Rows::new();
    put(world, &table, &(0..100).collect::<Vec<_>>(), "first", &[], &mut model).await?;
    put(world, &table, &(40..60).collect::<Vec<_>>(), "second", &[50], &mut model).await?;
    let mut partitions = world.scan().partitions(&table).await?;
    partitions.sort_by_key(Partition::name);
    let [a, b] = partitions.as_slice() else { return Err(Error::internal(format!("partitions {partitions:?}"))) };
    let layout = BucketLayout::of(&table, Some(b))?;
    let mut found = Rows::new();
    for bucket in buckets(&table, Some(b), layout) {
        found.extend(state(world, wanted(&table, bucket, layout, 1000)).await?.0);
    }
    check(found == model, || format!("the states are {found:?}, not {model:?}"))?;
    let bucket = |partition: &Partition| buckets(&table, Some(partition), old).into_iter().next();
    let (Some(of_a), Some(of_b)) = (bucket(a), bucket(b)) else { return Err(Error::internal("no bucket")) };
    if world.rescales() {
        let wrong = world.scan().open_state(wanted(&table, of_b, old, 1000)).await;
        check(wrong.as_ref().is_err_and(|error| error.kind() == Kind::Stale), || format!("a wrong count gets {wrong:?}"))?;
    }
    world.drop_partition(&table.path, &a.spec).await?;
    eventually(world, "end of a dropped partition's state", async || {
        world.scan().forget(&table.path);
        match world.scan().open_state(wanted(&table, of_a, old, 1000)).await {
            Ok(_) => Ok(None),
            Err(error) if error.kind() == Kind::Stale => Ok(Some(())),
            Err(error) => Err(error),
        }
    })
    .await
}
