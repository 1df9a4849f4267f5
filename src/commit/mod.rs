//! The commit protocol (docs/commit.md): recovery, pin, prepare, publish, record.
