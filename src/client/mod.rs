//! The client half: what a user does to a cluster from outside, and a writer.
//!
//! [`Admin`] makes and lists databases, tables and partitions and changes bucket counts; [`Writer`] appends rows to a log table,
//! each once, and upserts and deletes rows of one with a primary key; [`load`] writes those of [`files`]. All stand on [`fluss::cluster`](crate::fluss::cluster). Callers: quickstart, loader, tests, benches.

mod admin;
mod assigner;
pub mod ddl;
mod deliver;
pub mod files;
mod form;
mod load;
mod rows;
mod trace;
mod writer;

pub use admin::Admin;
pub use load::{LoadReport, Place, load};
pub use writer::{Writer, WriterFigures, WriterOptions};
