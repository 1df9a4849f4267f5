//! Lake catalog: wanted against found → actions (pure), applied idempotently.
