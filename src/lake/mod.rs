//! A lake table: open, newest snapshot, schema, manifest scan, publish.
