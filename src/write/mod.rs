//! Batches of one bucket → Parquet files and their metadata.
