//! How much the next round of a backfill takes on. Pure.

use std::time::Duration;

/// No round is bounded more tightly than this, whatever others do.
const BYTES_MIN: u64 = 16 << 20;
/// The same in time: planning and committing have to fit too.
const TIME_MIN: Duration = Duration::from_secs(5);
/// Rounds that may turn out stale in a row before the bounds are halved: one is bad luck.
const STALE_MAX: u32 = 1;
/// Commits in a row after which a round is worth more again.
const COMMITS_MIN: u32 = 3;

/// Bounds of the next round: halved while others are faster than us, doubled again, up to what is configured, when they are not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    bytes: u64,
    time: Duration,
    bytes_max: u64,
    time_max: Duration,
    stale: u32,
    commits: u32,
}

impl Bounds {
    pub(super) fn new(bytes_max: u64, time_max: Duration) -> Self {
        Self { bytes: bytes_max, time: time_max, bytes_max, time_max, stale: 0, commits: 0 }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn time(&self) -> Duration {
        self.time
    }

    /// Rounds that were stale in a row.
    pub(super) fn stale_in_row(&self) -> u32 {
        self.stale
    }

    /// A round was committed.
    pub(super) fn committed(&mut self) {
        self.stale = 0;
        self.commits += 1;
        if self.commits >= COMMITS_MIN {
            self.commits = 0;
            self.bytes = self.bytes.saturating_mul(2).min(self.bytes_max);
            self.longer();
        }
    }

    /// Somebody else was faster. Whether to let them finish before the next try: from the second time in a row on.
    pub(super) fn stale(&mut self) -> bool {
        self.commits = 0;
        self.stale += 1;
        if self.stale <= STALE_MAX {
            return false;
        }
        self.bytes = (self.bytes / 2).max(BYTES_MIN.min(self.bytes_max));
        self.time = (self.time / 2).max(TIME_MIN.min(self.time_max));
        true
    }

    /// The time was over before anything was read.
    pub(super) fn too_short(&mut self) {
        self.longer();
    }

    fn longer(&mut self) {
        self.time = self.time.saturating_mul(2).min(self.time_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_secs(60);

    #[test]
    fn the_second_stale_round_in_a_row_halves_both_bounds_and_waits() {
        let mut bounds = Bounds::new(1 << 30, MIN);
        assert!(!bounds.stale());
        assert_eq!((bounds.bytes(), bounds.time()), (1 << 30, MIN));
        assert!(bounds.stale());
        assert_eq!((bounds.bytes(), bounds.time()), (1 << 29, MIN / 2));
        assert!(bounds.stale());
        assert_eq!((bounds.bytes(), bounds.time()), (1 << 28, MIN / 4));
        bounds.committed();
        assert!(!bounds.stale(), "a commit ends the row");
        assert_eq!(bounds.bytes(), 1 << 28);
    }

    #[test]
    fn bounds_have_a_floor_which_is_never_above_what_is_configured() {
        let mut bounds = Bounds::new(1 << 30, MIN);
        for _ in 0..40 {
            bounds.stale();
        }
        assert_eq!((bounds.bytes(), bounds.time()), (BYTES_MIN, TIME_MIN));
        let mut small = Bounds::new(1_000, Duration::from_secs(1));
        for _ in 0..40 {
            small.stale();
        }
        assert_eq!((small.bytes(), small.time()), (1_000, Duration::from_secs(1)));
    }

    #[test]
    fn commits_in_a_row_double_them_again_up_to_what_is_configured() {
        let mut bounds = Bounds::new(1 << 30, MIN);
        for _ in 0..4 {
            bounds.stale();
        }
        assert_eq!((bounds.bytes(), bounds.time()), (1 << 27, MIN / 8));
        for _ in 0..COMMITS_MIN {
            bounds.committed();
        }
        assert_eq!((bounds.bytes(), bounds.time()), (1 << 28, MIN / 4));
        for _ in 0..100 {
            bounds.committed();
        }
        assert_eq!((bounds.bytes(), bounds.time()), (1 << 30, MIN));
    }

    #[test]
    fn a_round_that_had_no_time_to_read_gets_more_of_it() {
        let mut bounds = Bounds::new(1 << 30, MIN);
        bounds.stale();
        bounds.stale();
        bounds.too_short();
        assert_eq!((bounds.bytes(), bounds.time()), (1 << 29, MIN));
    }
}
