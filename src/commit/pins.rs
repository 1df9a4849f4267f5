//! Steps 3 and 7, decided: when a pin is written again, and which go (commit.md 3, 7). No I/O.
//!
//! Tables on which pins do not hold are refused where options are read (`paimon::options`).

use std::collections::BTreeSet;
use std::time::Duration;

use super::Options;
use super::rules::Rule;
use crate::model::RoundId;

/// Pins of dead rounds go after this long: no living round is older (a round gives up after 12 h).
pub(super) const AGE_MAX_MS: i64 = 24 * 60 * 60 * 1000;

/// What the consumer names of our pins begin with.
pub(super) const PREFIX: &str = "lakeward-";

/// The consumer name of a round's pin: its file is `consumer/consumer-lakeward-<round id>`.
pub(super) fn name_of(round: RoundId) -> String {
    format!("{PREFIX}{round}")
}

/// The round whose pin has this consumer name.
pub(super) fn round_of(name: &str) -> Option<RoundId> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

/// Whether a pin written at `written_ms` has to be written again: before half of its time has passed.
pub(super) fn is_due(expiration: Option<Duration>, written_ms: i64, now_ms: i64) -> bool {
    expiration.is_some_and(|time| {
        // A quarter, so that a pause between looks does not pass the half.
        now_ms.saturating_sub(written_ms) >= i64::try_from(time.as_millis() / 4).unwrap_or(i64::MAX)
    })
}

/// A pin in the lake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pin {
    pub(super) round: RoundId,
    pub(super) next_snapshot: i64,
    pub(super) written_ms: i64,
}

/// Which pins go after a round with floor `floor` has published and recorded.
///
/// A pin goes if its own floor lies below ours (so that two rounds can never remove each other's) and its round has published
/// (`published`: ids in snapshots that we read) or the pin is too old for a living one.
pub(super) fn removable(
    pins: &[Pin],
    own: RoundId,
    floor: i64,
    published: &BTreeSet<RoundId>,
    now_ms: i64,
    options: &Options,
) -> Vec<RoundId> {
    let published = |pin: &Pin| published.contains(&pin.round) && options.holds(Rule::PublishedPinsGo);
    let old = |pin: &Pin| now_ms.saturating_sub(pin.written_ms) > AGE_MAX_MS && options.holds(Rule::OldPinsGo);
    pins.iter()
        .filter(|pin| {
            let theirs = pin.next_snapshot.saturating_sub(1);
            let over = published(pin) || old(pin) || !options.holds(Rule::PinsOfTheLiving);
            pin.round != own && ((theirs < floor && over) || (theirs == floor && !options.holds(Rule::PinsOfOurFloor)))
        })
        .map(|pin| pin.round)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(number: u128) -> RoundId {
        RoundId(uuid::Uuid::from_u128(number))
    }

    fn pin(number: u128, next_snapshot: i64, written_ms: i64) -> Pin {
        Pin { round: round(number), next_snapshot, written_ms }
    }

    #[test]
    fn pin_names_round_trip_and_foreign_consumers_are_none_of_ours() {
        assert_eq!(round_of(&name_of(round(7))), Some(round(7)));
        assert_eq!(round_of("flink-job"), None);
        assert_eq!(round_of("lakeward-x"), None);
    }

    #[test]
    fn pins_of_published_rounds_below_our_floor_go() {
        let published = BTreeSet::from([round(1)]);
        assert_eq!(removable(&[pin(1, 3, 0)], round(9), 3, &published, 0, &Options::default()), [round(1)]);
    }

    #[test]
    fn pins_with_our_floor_stay_so_that_two_rounds_never_remove_each_others() {
        let published = BTreeSet::from([round(1)]);
        assert_eq!(removable(&[pin(1, 4, 0)], round(9), 3, &published, i64::MAX, &Options::default()), []);
    }

    #[test]
    fn the_pin_of_a_living_round_stays_until_it_is_older_than_a_day() {
        let day = 24 * 60 * 60 * 1000;
        assert_eq!(removable(&[pin(1, 2, 0)], round(9), 3, &BTreeSet::new(), day, &Options::default()), []);
        assert_eq!(removable(&[pin(1, 2, 0)], round(9), 3, &BTreeSet::new(), day + 1, &Options::default()), [round(1)]);
    }

    #[test]
    fn our_own_pin_stays_as_the_standing_one() {
        assert_eq!(removable(&[pin(9, 1, 0)], round(9), 3, &BTreeSet::from([round(9)]), i64::MAX, &Options::default()), []);
    }

    #[test]
    fn a_pin_is_written_again_before_half_of_its_time_has_passed() {
        let hour = Some(Duration::from_secs(3600));
        assert!(!is_due(None, 0, i64::MAX));
        assert!(!is_due(hour, 0, 14 * 60 * 1000));
        assert!(is_due(hour, 0, 15 * 60 * 1000));
    }
}
