//! What was typed; output; exit codes.
