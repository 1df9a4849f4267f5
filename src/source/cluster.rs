//! A cluster over the wire.
