//! The nouns: what the flow passes from stage to stage.
//!
//! Owns ids as newtypes, the table as Fluss describes it, types and schema shared by both systems,
//! the bucket layout and its rule, offsets and their JSON, splits, batches and the round summary.
//! Owns no I/O and no format but the offsets file (F3.1). Everyone may import it.

mod batch;
mod ids;
mod layout;
mod offsets;
mod summary;
mod table;
mod types;

pub use batch::{ChangeCounts, ChangeKind, LogBatch, Memory};
pub use ids::{
    BucketCountEpoch, BucketId, CoordinatorEpoch, PartitionId, RoundId, SchemaId, SnapshotId, TableBucket, TableId, TablePath,
    TieringEpoch,
};
pub use layout::{BucketLayout, LayoutOrigin};
pub use offsets::{BUCKET_ID_MAX, BucketKey, LakeOffsets, OffsetsFile};
pub use summary::{BucketProgress, PartitionSummary, RoundOutcome, RoundSummary};
pub use table::{Partition, Split, SplitKind, StartOffset, TableInfo, parse_duration_ms};
pub use types::{DataType, Datum, Field, NESTED_DEPTH_MAX, Schema, TypeKind, number_fields, visit_fields};
