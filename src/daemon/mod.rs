//! Heartbeats and leases, supervision of tables.
