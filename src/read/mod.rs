//! A split → bounded stream of Arrow batches, in offset order, ending at its stop offset.
