//! The mutation check of the real code: each rule of docs/commit.md is switched off, and a schedule has to notice.
//!
//! `directed` holds schedules that go for one rule each; they and those of `schedules` are tests of their own with every rule on.
//! What nothing can notice is economy, or is held by another rule as well, and says so in [`CAUGHT`].

mod directed;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lakeward::commit::Rule;

use super::{schedules, traces};

/// What is switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Off {
    /// In the commit stage.
    Rule(Rule),
    /// 6: `earliest_snapshot_id_to_keep` is never absent.
    Earliest,
    /// 4: prepare ignores previous offsets.
    IgnorePrevious,
}

impl Off {
    pub(crate) fn rule(self) -> Option<Rule> {
        match self {
            Self::Rule(rule) => Some(rule),
            Self::Earliest | Self::IgnorePrevious => None,
        }
    }
}

thread_local! {
    static OFF: Cell<Option<Off>> = const { Cell::new(None) };
}

/// What worlds made on this thread have switched off.
pub(crate) fn off() -> Option<Off> {
    OFF.get()
}

enum By {
    /// The first that notices, of these.
    Schedule(&'static str, fn()),
    /// Nothing does: why not.
    Economy(&'static str),
}

use By::{Economy, Schedule};

macro_rules! by {
    ($module:ident :: $name:ident) => {
        Schedule(stringify!($name), $module::$name)
    };
}

/// Each rule with what notices its absence.
#[rustfmt::skip]
const CAUGHT: &[(Off, By)] = &[
    (Off::Rule(Rule::KnownFirst), Economy("held by the second look as well: a newest id that is older than K looks like a rollback until K and newest are read again")),
    (Off::Rule(Rule::SecondLook), by!(schedules::a_missing_id_is_believed_only_if_k_is_the_same_again)),
    (Off::Rule(Rule::HoleAgain), by!(traces::a_missing_id_is_believed_only_if_it_is_missing_still)),
    (Off::Rule(Rule::LakeCounts), by!(directed::a_snapshot_that_fluss_never_heard_of_counts_and_is_told)),
    (Off::Rule(Rule::PinFound), by!(traces::a_slow_record_of_javas_snapshot_does_not_let_the_next_one_expire)),
    (Off::Rule(Rule::RecordFound), by!(directed::a_snapshot_that_fluss_never_heard_of_counts_and_is_told)),
    (Off::Rule(Rule::PrepareAgain), by!(directed::a_snapshot_is_never_recorded_by_the_path_that_it_names)),
    (Off::Rule(Rule::TableOfFound), by!(schedules::a_table_that_was_dropped_and_made_again_never_continues_the_old_ones_offsets)),
    (Off::Rule(Rule::NewestBelowKnown), by!(schedules::a_rolled_back_lake_is_held_and_nothing_is_doubled)),
    (Off::Rule(Rule::KnownSnapshot), by!(schedules::a_rolled_back_lake_is_held_and_nothing_is_doubled)),
    (Off::Rule(Rule::KnownOfJava), by!(traces::a_java_made_snapshot_over_the_one_that_was_recorded_holds_the_table)),
    (Off::Rule(Rule::Standing), by!(directed::a_snapshot_that_was_built_on_another_than_k_holds_the_table)),
    (Off::Rule(Rule::JavaDoubled), by!(schedules::a_zombie_that_doubles_our_rows_is_held_with_its_numbers)),
    (Off::Rule(Rule::JavaWentBack), by!(directed::a_zombie_whose_double_is_masked_by_empty_batches_is_found_by_its_offsets)),
    (Off::Rule(Rule::UnknownPause), by!(directed::a_coordinator_that_starts_holds_nothing)),
    (Off::Rule(Rule::Floor), by!(schedules::rows_that_a_user_put_there_first_stay_and_are_no_trouble)),
    (Off::Rule(Rule::Pin), by!(directed::what_was_published_and_not_recorded_does_not_expire)),
    (Off::Rule(Rule::PinFirst), by!(directed::an_id_that_was_used_and_has_expired_is_never_used_again)),
    (Off::Rule(Rule::PinAgain), by!(schedules::where_consumers_expire_a_look_with_nothing_to_tier_writes_the_standing_pin_again)),
    (Off::Rule(Rule::CheckLease), by!(traces::nothing_is_published_or_recorded_on_a_lease_that_has_run_out_on_the_way)),
    (Off::Rule(Rule::CheckFirst), Economy("step 4 saves work; 5a decides")),
    (Off::Rule(Rule::CompleteMap), by!(directed::a_round_of_one_bucket_keeps_the_offsets_of_the_others)),
    (Off::Rule(Rule::RoundAge), by!(directed::a_round_whose_files_may_be_swept_publishes_no_more)),
    (Off::Rule(Rule::NewestBelowBase), by!(directed::a_rollback_below_an_expired_base_is_found_by_the_round_under_way)),
    (Off::Rule(Rule::BaseIdentity), by!(directed::a_base_whose_id_is_used_again_holds_the_table)),
    (Off::Rule(Rule::BaseGone), by!(directed::a_base_that_expires_under_a_round_is_no_fault)),
    (Off::Rule(Rule::MissingAbove), by!(schedules::a_round_that_slept_while_a_java_commit_expired_is_stale)),
    (Off::Rule(Rule::FlussMadeAbove), by!(schedules::services_that_hold_one_table_while_rows_arrive_and_processes_die)),
    (Off::Rule(Rule::SameLakeTable), by!(directed::a_lake_table_that_is_made_again_under_a_round_gets_none_of_its_files)),
    (Off::Rule(Rule::Totals), by!(schedules::a_partition_with_another_total_in_the_lake_is_held_by_name)),
    (Off::Rule(Rule::Sequences), by!(directed::rows_of_others_and_ours_share_no_sequence_number)),
    (Off::Rule(Rule::CreateIfAbsent), by!(directed::a_publish_that_lost_a_race_overwrites_nothing)),
    (Off::Rule(Rule::RoundId), by!(directed::a_rivals_snapshot_under_our_id_is_not_ours)),
    (Off::Rule(Rule::LastLook), Economy("what is not seen now is found by the next recovery; the round is told as stale although it won")),
    (Off::Rule(Rule::UnknownBeyond), Economy("the lists of a try without an answer stay, so that nothing breaks when it lands above")),
    (Off::Rule(Rule::ReadKnown), Economy("saves a step of K backwards, which the next recovery repairs")),
    (Off::Rule(Rule::LookAfter), Economy("earlier news: the next recovery finds the same")),
    (Off::Rule(Rule::StandingPin), by!(schedules::a_late_record_takes_k_back_and_the_next_round_records_again_first)),
    (Off::Rule(Rule::PinsOfTheLiving), by!(directed::a_living_rounds_pin_keeps_the_id_that_it_publishes_under)),
    (Off::Rule(Rule::PinsOfOurFloor), by!(directed::a_living_rounds_pin_keeps_the_id_that_it_publishes_under)),
    (Off::Rule(Rule::PublishedPinsGo), by!(schedules::a_round_commits_records_and_leaves_its_pin_the_next_one_makes_nothing)),
    (Off::Rule(Rule::OldPinsGo), by!(directed::pins_of_dead_rounds_go_after_a_day)),
    (Off::Rule(Rule::OwnPinGoes), by!(directed::a_round_that_is_stale_takes_its_pin_away)),
    (Off::Rule(Rule::FilesStay), by!(schedules::files_stay_while_a_publish_may_still_land)),
    (Off::Rule(Rule::Unanswered), by!(traces::files_of_a_publish_without_an_answer_stay_whatever_stands_under_its_id)),
    (Off::Earliest, by!(directed::a_late_record_of_ours_leaves_javas_file_alone)),
    (Off::IgnorePrevious, by!(schedules::a_lost_offsets_file_is_made_again_from_the_lake)),
];

/// Whether `schedule` notices that this is off.
fn notices(schedule: fn(), off: Off) -> bool {
    OFF.set(Some(off));
    let noticed = catch_unwind(AssertUnwindSafe(schedule)).is_err();
    OFF.set(None);
    noticed
}

#[test]
fn every_rule_stands_in_the_table_once() {
    for rule in Rule::ALL {
        assert_eq!(CAUGHT.iter().filter(|(off, _)| *off == Off::Rule(rule)).count(), 1, "{rule:?}");
    }
}

#[test]
fn each_rule_that_is_switched_off_is_noticed() {
    let missed: Vec<_> = CAUGHT
        .iter()
        .filter_map(|(off, by)| match by {
            Schedule(name, schedule) => (!notices(*schedule, *off)).then_some((off, *name)),
            Economy(_) => None,
        })
        .collect();
    assert!(missed.is_empty(), "switched off, and nothing noticed: {missed:#?}");
}

/// Every rule against every schedule: economy must stay unnoticed by all that only look at rows, files, offsets and pins.
#[test]
#[ignore = "the whole matrix: cargo test --test it -- --ignored mutants --nocapture"]
#[expect(clippy::print_stdout, reason = "the matrix is what it is for")]
fn mutants_against_every_schedule() {
    for (off, by) in CAUGHT {
        let found: Vec<&str> =
            directed::ALL.iter().filter(|(_, schedule)| notices(*schedule, *off)).map(|(name, _)| *name).collect();
        match by {
            Schedule(name, _) => println!("{off:?}: by {name}; of the directed ones {found:?}"),
            Economy(why) => {
                println!("{off:?}: economy ({why}); {found:?}");
                assert!(found.is_empty(), "{off:?} is no economy: {found:?}");
            }
        }
    }
}
