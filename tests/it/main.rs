//! The one integration binary.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unwrap_used,
    reason = "helpers of tests may do what tests may do"
)]

#[cfg(test)]
mod cli;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod cost;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod kill;
#[cfg(test)]
mod model;
#[cfg(test)]
mod rounds;
#[cfg(test)]
mod s3;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tidy;
#[cfg(test)]
mod wire;
