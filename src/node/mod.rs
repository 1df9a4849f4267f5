//! The embedded server: coordinator and tablet server in one process (architecture.md 7).

pub mod log;
pub mod registry;
pub mod tiering;
