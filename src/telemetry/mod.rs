//! Events, metric names and log set-up: an event is a struct; emitting it writes the log line.
