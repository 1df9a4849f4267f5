//! Servers and clients that are slow, silent, half-closed or talk garbage: bounded memory and time, and no harm to others.

mod client;
mod node;
mod servers;
mod service;
mod store;
