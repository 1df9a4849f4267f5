//! One table, one round: the only place where the stages meet.
