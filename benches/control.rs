//! What does not grow with rows: planning, commits of many buckets, and a daemon that has nothing to do.
//!
//! `cargo bench --bench control` does the first two. `-- planning`, `-- commit`, `-- at-rest [--tables N] [--settle SECONDS]
//! [--minutes N]` do one: the last takes minutes, since its tables have to become due.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

#[path = "control/at_rest.rs"]
mod at_rest;
#[path = "control/buckets.rs"]
mod buckets;

use std::time::{Duration, Instant};

fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    Instant::now()
}

fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// Core seconds of a process (`self` or its id), ended threads included.
fn core_seconds(process: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // Fields 14 and 15, counted after the name in parentheses, in hundredths.
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
    let hundredths: u32 = fields.map(|field| field.parse::<u32>().unwrap()).sum();
    f64::from(hundredths) / 100.0
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    // `cargo test --benches` runs it with `--test`: once, without figures.
    if arguments.iter().any(|argument| argument == "--test") {
        return;
    }
    let option = |name: &str, default: u64| {
        let at = arguments.iter().position(|argument| argument == name);
        at.and_then(|at| arguments.get(at + 1)).map_or(default, |value| value.parse().unwrap())
    };
    match arguments.first().map(String::as_str) {
        Some("planning") => buckets::planning(),
        Some("commit") => buckets::commit(),
        Some("at-rest") => at_rest::report(
            option("--tables", 300),
            Duration::from_secs(option("--settle", 200)),
            u32::try_from(option("--minutes", 3)).unwrap(),
        ),
        _ => {
            buckets::planning();
            buckets::commit();
        }
    }
}
