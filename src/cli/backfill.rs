//! `lakeward backfill`: bring into the lake what a table's logs hold now.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio_util::sync::CancellationToken;

use super::End;
use super::args::Backfill as Args;
use super::connect;
use super::output::{Output, count};
use crate::config::Settings;
use crate::daemon::backfill::{Backfill, Status};
use crate::error::Result;
use crate::runtime::{Clock, Moment, Runtime};
use crate::telemetry;

/// What a round may take to clean up after the grace.
const CLEAN_UP: Duration = Duration::from_secs(2);
/// How often the bar moves.
const TICK: Duration = Duration::from_millis(250);
/// How often a line is logged where there is no terminal.
const LINE: Duration = Duration::from_secs(10);
/// How often it is looked at there.
const SAMPLE: Duration = Duration::from_secs(1);
/// Over how long speed is measured.
const WINDOW: Duration = Duration::from_secs(15);

pub(super) async fn run(args: &Args, settings: Settings, runtime: Runtime, output: &mut Output) -> Result<(), End> {
    // A request to stop cuts the round in hand; what it then does to commit is ended with the grace only.
    let (asked, abort) = (runtime.shutdown.clone(), CancellationToken::new());
    let runtime = Runtime { shutdown: abort.clone(), ..runtime };
    let clock = runtime.clock.clone();
    let cluster = tokio::select! {
        found = connect::cluster(&settings, &runtime) => found?,
        // Nothing has begun yet.
        () = asked.cancelled() => return Ok(()),
    };
    let (_, context) = connect::rounds(&cluster, &settings, &runtime);
    let backfill = Backfill::new(context, args.table.clone(), args.partition.clone(), settings.backfill, asked.clone());
    let grace = async {
        asked.cancelled().await;
        clock.sleep(settings.daemon.grace).await;
        abort.cancel();
        // To delete what it has written. A commit that hangs is left where it stands: the next round knows what became of it.
        clock.sleep(CLEAN_UP).await;
    };
    let ended = tokio::select! {
        ended = backfill.run() => ended,
        never = show(&backfill, &clock) => never,
        () = grace => {
            backfill.abandon();
            Ok(())
        }
    };
    let status = backfill.status();
    let printed = if args.json { output.json(&status) } else { output.data(&last_line(&status)) };
    // A fault counts also when nobody reads the last line.
    ended?;
    printed
}

/// The last line: `key=value`, for people and scripts alike.
fn last_line(status: &Status) -> String {
    let or_dash = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    format!(
        "backfill table={} outcome={} rows={} rows_by_others={} rows_gone={} rows_left={} rounds={} snapshot={} fetched_bytes={} \
         dropped_partitions={} seconds={:.3}",
        status.table,
        status.outcome.as_str(),
        status.rows,
        status.rows_by_others,
        status.rows_gone,
        or_dash(status.rows_left),
        status.rounds,
        status.snapshot.map_or_else(|| "-".to_owned(), |snapshot| snapshot.to_string()),
        status.fetched_bytes,
        status.dropped_partitions.len(),
        status.seconds,
    )
}

/// Shows how far it is: a bar on a terminal, else a log line now and then. Never returns; dropped, the bar is gone.
async fn show(backfill: &Backfill, clock: &Clock) -> ! {
    let mut speed = Speed::default();
    if !std::io::stderr().is_terminal() {
        let mut said = clock.moment();
        loop {
            clock.sleep(SAMPLE).await;
            let Some(now) = Now::of(backfill) else { continue };
            speed.saw(clock.moment(), now);
            if said.elapsed() < LINE {
                continue;
            }
            said = clock.moment();
            telemetry::BackfillProgress {
                table: &backfill.status().table,
                rows: now.rows,
                rows_total: now.total,
                mib_per_second: speed.mib_per_second(),
                seconds_left: speed.seconds_left(now),
            }
            .emit();
        }
    }
    let bar = Bar(ProgressBar::new_spinner());
    let style = |template| ProgressStyle::with_template(template).unwrap_or_else(|_source| ProgressStyle::default_bar());
    let begun = style("{bar:30} {percent:>3} %  {msg}");
    bar.0.set_style(style("{spinner} {msg}"));
    bar.0.set_message("looking at the table");
    loop {
        if let Some(now) = Now::of(backfill) {
            speed.saw(clock.moment(), now);
            bar.0.set_style(begun.clone());
            bar.0.set_message(message(now, &speed));
            bar.0.set_length(now.total);
            bar.0.set_position(now.rows);
        }
        bar.0.tick();
        clock.sleep(TICK).await;
    }
}

/// Cleared when it is dropped, so that the last line stands alone.
struct Bar(ProgressBar);

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn message(now: Now, speed: &Speed) -> String {
    let left = match speed.seconds_left(now) {
        None => "time left unknown".to_owned(),
        Some(seconds) if seconds < 60 => format!("{seconds} s left"),
        Some(seconds) if seconds < 3_600 => format!("{} min {:02} s left", seconds / 60, seconds % 60),
        Some(seconds) => format!("{} h {:02} min left", seconds / 3_600, seconds / 60 % 60),
    };
    format!("{} of {} rows, {:.1} MiB/s, {left}", count(now.rows), count(now.total), speed.mib_per_second())
}

/// How far it is, what is on its way included.
#[derive(Debug, Clone, Copy)]
struct Now {
    rows: u64,
    total: u64,
    bytes: u64,
}

impl Now {
    /// `None` until the lake was looked at.
    fn of(backfill: &Backfill) -> Option<Self> {
        let (status, progress) = (backfill.status(), backfill.progress());
        let total = status.rows_total?;
        let there = total.saturating_sub(status.rows_left.unwrap_or(total));
        let rows = there.saturating_add(progress.rows()).min(total);
        Some(Self { rows, total, bytes: status.fetched_bytes.saturating_add(progress.fetched_bytes()) })
    }
}

/// Speed over the last few seconds.
#[derive(Debug, Default)]
struct Speed(VecDeque<(Moment, Now)>);

impl Speed {
    fn saw(&mut self, at: Moment, now: Now) {
        self.0.push_back((at, now));
        while self.0.len() > 2 && self.0.front().is_some_and(|(then, _)| at.saturating_duration_since(*then) > WINDOW) {
            self.0.pop_front();
        }
    }

    /// Rows and bytes per second; nothing while one round's loss hides what the others bring.
    fn per_second(&self) -> (f64, f64) {
        let (Some((then, first)), Some((at, last))) = (self.0.front(), self.0.back()) else { return (0.0, 0.0) };
        let seconds = at.saturating_duration_since(*then).as_secs_f64();
        if seconds <= 0.0 {
            return (0.0, 0.0);
        }
        (last.rows.saturating_sub(first.rows) as f64 / seconds, last.bytes.saturating_sub(first.bytes) as f64 / seconds)
    }

    fn mib_per_second(&self) -> f64 {
        (self.per_second().1 / f64::from(1 << 20) * 10.0).round() / 10.0
    }

    fn seconds_left(&self, now: Now) -> Option<u64> {
        let left = now.total.saturating_sub(now.rows) as f64 / self.per_second().0;
        Duration::try_from_secs_f64(left).ok().map(|left| left.as_secs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::backfill::Outcome;
    use crate::model::{SnapshotId, TablePath};

    #[test]
    fn the_last_line_is_keys_and_values() {
        let status = Status {
            table: TablePath::new("demo", "orders"),
            outcome: Outcome::Stopped,
            rows_total: Some(100),
            rows: 40,
            rows_by_others: 10,
            rows_gone: 5,
            rows_left: Some(45),
            rounds: 2,
            snapshot: Some(SnapshotId(7)),
            fetched_bytes: 1_234,
            dropped_partitions: vec!["a".into()],
            seconds: 1.26,
        };
        assert_eq!(
            last_line(&status),
            "backfill table=demo.orders outcome=stopped rows=40 rows_by_others=10 rows_gone=5 rows_left=45 rounds=2 snapshot=7 \
             fetched_bytes=1234 dropped_partitions=1 seconds=1.260"
        );
        let unknown = Status { rows_left: None, snapshot: None, ..status };
        assert!(last_line(&unknown).contains(" rows_left=- rounds=2 snapshot=- "));
    }

    #[tokio::test(start_paused = true)]
    async fn speed_and_time_left_follow_the_last_seconds() {
        let clock = Clock::simulated(0);
        let mut speed = Speed::default();
        let now = |rows| Now { rows, total: 4_000, bytes: rows << 20 };
        assert_eq!(speed.seconds_left(now(0)), None);
        for second in 0..40 {
            // Twice as fast in the second half.
            let rows = if second < 20 { second * 10 } else { 200 + (second - 20) * 20 };
            speed.saw(clock.moment(), now(rows));
            clock.sleep(Duration::from_secs(1)).await;
        }
        assert!((speed.mib_per_second() - 20.0).abs() < 0.01, "{}", speed.mib_per_second());
        assert_eq!(speed.seconds_left(now(580)), Some(171));
        assert_eq!(message(now(580), &speed), "580 of 4,000 rows, 20.0 MiB/s, 2 min 51 s left");
        // A round was in vain: what it had read counts no more.
        speed.saw(clock.moment(), now(0));
        assert_eq!(speed.seconds_left(now(0)), None);
    }
}
