//! The client half: writer with bucket assigner, admin calls.
