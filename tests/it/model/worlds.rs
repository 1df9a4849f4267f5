//! The worlds: who is in them, and what may happen. Each is explored to its end.

use lakeward::commit::invariants::Broken;

use super::rules::{self, Rule};
use super::world::{Budget, Cfg, Expiry, Tiered};

const NONE: Budget = Budget {
    appends: 0,
    crashes: 0,
    lost: 0,
    late: 0,
    foreign: 0,
    rollbacks: 0,
    recreates: 0,
    lake_drops: 0,
    swallowed: 0,
    races: 0,
    gives_up: 0,
    starting: 0,
    user_writes: 0,
    rescales: 0,
    words: 0,
    zombies: 0,
};
/// Two services, one row there, one to come.
const TWO: Cfg = Cfg {
    services: 2,
    java: 0,
    java_overwrites: false,
    buckets: 1,
    start: [1, 0],
    budget: Budget { appends: 1, ..NONE },
    expiry: Expiry::Never,
    retained: 1,
    user_rows: 0,
    user_expired: 0,
    put_outlives: false,
    tiered: Tiered::Nothing,
    keyed: false,
    leases: false,
    java_records_in_time: false,
};
/// One service, so that a rare combination of troubles fits.
const ONE: Cfg = Cfg { services: 1, ..TWO };
/// The same, with a first round behind them, and an expiry that keeps one snapshot.
const OLD: Cfg = Cfg { expiry: Expiry::AtOnce, tiered: Tiered::ByUs, ..TWO };
const B1: Budget = Budget { appends: 1, ..NONE };
const B2: Budget = Budget { appends: 2, ..NONE };

/// Name and world.
#[rustfmt::skip]
pub(super) const WORLDS: &[(&str, Cfg)] = &[
    ("crashes", Cfg { budget: Budget { crashes: 2, ..B1 }, ..TWO }),
    ("lost replies", Cfg { budget: Budget { lost: 2, crashes: 1, ..B1 }, ..TWO }),
    ("late messages", Cfg { budget: Budget { late: 1, ..B1 }, ..TWO }),
    ("late messages, crash", Cfg { budget: Budget { late: 1, crashes: 1, ..B1 }, ..ONE }),
    ("two late messages", Cfg { budget: Budget { late: 2, foreign: 1, ..B1 }, services: 1, ..OLD }),
    ("late message, three rounds", Cfg { budget: Budget { late: 1, ..B2 }, ..ONE }),
    ("late message, three rounds, expiry", Cfg { services: 1, budget: Budget { late: 1, foreign: 1, ..B2 }, ..OLD }),
    ("giving up", Cfg { budget: Budget { gives_up: 1, lost: 1, late: 1, ..B1 }, ..ONE }),
    ("expiry", Cfg { budget: Budget { foreign: 2, ..B1 }, ..OLD }),
    ("expiry, two rounds", Cfg { budget: Budget { foreign: 1, ..B2 }, ..OLD }),
    ("expiry after Java", Cfg { budget: Budget { foreign: 2, ..B1 }, tiered: Tiered::ByJava, ..OLD }),
    ("expiry, crash", Cfg { budget: Budget { foreign: 1, crashes: 1, ..B2 }, ..OLD }),
    ("expiry, lost reply", Cfg { budget: Budget { foreign: 1, lost: 1, ..B1 }, ..OLD }),
    ("expiry, late message", Cfg { budget: Budget { foreign: 1, late: 1, ..B1 }, ..OLD }),
    (
        "expiry, late message after Java",
        Cfg { budget: Budget { foreign: 1, late: 1, ..B1 }, tiered: Tiered::ByJava, services: 1, ..OLD },
    ),
    ("expiry in its own steps", Cfg { budget: Budget { foreign: 2, ..B1 }, expiry: Expiry::Apart, ..OLD }),
    ("expiry of all but two", Cfg { budget: Budget { foreign: 2, crashes: 1, ..B2 }, retained: 2, services: 1, ..OLD }),
    (
        "crash, lost reply, late message, expiry",
        Cfg { budget: Budget { crashes: 1, lost: 1, late: 1, foreign: 1, ..B1 }, services: 1, ..OLD },
    ),
    (
        "a user's rows first",
        Cfg { user_rows: 3, user_expired: 2, expiry: Expiry::AtOnce, budget: Budget { foreign: 1, crashes: 1, ..B1 }, ..TWO },
    ),
    ("two buckets", Cfg { buckets: 2, budget: B2, ..TWO }),
    ("two buckets, expiry, crash", Cfg { buckets: 2, budget: Budget { foreign: 1, crashes: 1, ..B2 }, services: 1, ..OLD }),
    ("three services", Cfg { services: 3, ..TWO }),
    ("three services, expiry", Cfg { services: 3, budget: Budget { foreign: 1, ..B1 }, ..OLD }),
    ("records lost after an OK", Cfg { budget: Budget { swallowed: 1, foreign: 1, ..B1 }, ..OLD }),
    ("records that overtake each other", Cfg { budget: Budget { races: 2, ..B1 }, ..TWO }),
    ("records that overtake each other, expiry", Cfg { budget: Budget { races: 1, foreign: 1, ..B1 }, ..OLD }),
    ("a coordinator that starts", Cfg { budget: Budget { starting: 2, foreign: 1, ..B1 }, ..OLD }),
    ("rollback", Cfg { budget: Budget { rollbacks: 1, foreign: 2, ..B1 }, ..TWO }),
    ("rollback below what we made", Cfg { user_rows: 1, budget: Budget { rollbacks: 1, foreign: 1, ..B1 }, ..ONE }),
    ("rollback, crash, lost reply", Cfg { budget: Budget { rollbacks: 1, foreign: 1, crashes: 1, lost: 1, ..B1 }, ..ONE }),
    ("rollback, expiry", Cfg { budget: Budget { rollbacks: 1, foreign: 2, ..B1 }, ..OLD }),
    ("rollback, expiry, late message", Cfg { budget: Budget { rollbacks: 1, foreign: 2, late: 1, ..B1 }, services: 1, ..OLD }),
    ("rollback, expiry, late message, two services", Cfg { budget: Budget { rollbacks: 1, late: 1, ..B1 }, ..OLD }),
    ("rollback and an operator's word", Cfg { budget: Budget { rollbacks: 1, foreign: 1, words: 1, ..B1 }, ..TWO }),
    ("rollback and an operator's word, expiry", Cfg { budget: Budget { rollbacks: 1, foreign: 1, words: 1, ..B1 }, ..OLD }),
    (
        "rollback and an operator's word, late message, crash",
        Cfg { budget: Budget { rollbacks: 1, late: 1, crashes: 1, words: 2, ..B1 }, services: 1, ..OLD },
    ),
    ("table made again", Cfg { budget: Budget { recreates: 1, crashes: 1, lost: 1, ..B1 }, ..TWO }),
    ("table and lake table made again", Cfg { budget: Budget { recreates: 1, lake_drops: 1, ..B1 }, ..TWO }),
    ("table made again and an operator's word", Cfg { budget: Budget { recreates: 1, words: 1, foreign: 1, ..B1 }, ..OLD }),
    ("primary key", Cfg { keyed: true, budget: Budget { user_writes: 2, lost: 1, ..B2 }, services: 1, ..OLD }),
    ("primary key, two services", Cfg { keyed: true, budget: Budget { user_writes: 1, ..B1 }, ..TWO }),
    ("partition with another total", Cfg { budget: Budget { rescales: 1, foreign: 1, crashes: 1, ..B1 }, ..ONE }),
    ("beside Java", Cfg { services: 1, java: 1, budget: Budget { foreign: 1, ..B1 }, ..TWO }),
    ("two beside Java", Cfg { java: 1, ..TWO }),
    ("beside Java, expiry, pinned", Cfg { services: 1, java: 1, budget: Budget { foreign: 2, ..B1 }, ..OLD }),
    ("beside Java, expiry, not pinned", Cfg { services: 1, java: 1, expiry: Expiry::AtOnce, java_records_in_time: true, budget: Budget { foreign: 1, ..B1 }, ..TWO }),
    ("beside Java that overwrites", Cfg { services: 1, java: 1, java_overwrites: true, ..TWO }),
    (
        "beside Java that overwrites, crash",
        Cfg {
            services: 1,
            java: 1,
            java_overwrites: true,
            tiered: Tiered::ByUs,
            budget: Budget { foreign: 1, crashes: 1, ..B2 },
            ..TWO
        },
    ),
    ("beside Java, an operator's word", Cfg { services: 1, java: 1, budget: Budget { words: 1, ..B1 }, ..TWO }),
    ("leases", Cfg { leases: true, budget: Budget { crashes: 1, ..B1 }, ..TWO }),
    ("leases beside Java", Cfg { leases: true, services: 1, java: 1, tiered: Tiered::ByUs, ..TWO }),
    (
        "leases beside Java, crash",
        Cfg { leases: true, services: 1, java: 1, budget: Budget { crashes: 1, foreign: 1, ..B1 }, ..TWO },
    ),
    (
        "leases beside Java, zombie",
        Cfg { leases: true, services: 1, java: 1, budget: Budget { zombies: 1, ..B1 }, tiered: Tiered::ByUs, ..TWO },
    ),
];

/// Limits that docs/commit.md names, and what breaks first there.
#[rustfmt::skip]
pub(super) const LIMITS: &[((&str, Cfg), Broken)] = &[
    (("a PUT that outlives its round's day", Cfg { put_outlives: true, budget: Budget { foreign: 1, late: 1, ..B2 }, tiered: Tiered::ByJava, ..OLD }), Broken::NotStanding),
    (("a Java commit that expires unrecorded and unpinned", Cfg { services: 1, java: 1, expiry: Expiry::AtOnce, budget: Budget { foreign: 1, ..B2 }, ..TWO }), Broken::Twice),
    (("a rollback in a recovery, overgrown and expired", Cfg { user_rows: 1, budget: Budget { rollbacks: 1, foreign: 2, ..B1 }, ..OLD }), Broken::Skipped),
];

const LIMIT: &str = "a rollback in a recovery, overgrown and expired";
const UNPINNED: &str = "beside Java, expiry, not pinned";
const BELOW: &str = "rollback below what we made";
const WORD: &str = "rollback and an operator's word, expiry";

/// Each rule with a world that notices its absence, and the length of a shortest trace to the first broken promise there (in the
/// limit: it breaks there sooner).
#[rustfmt::skip]
pub(super) const NOTICED: &[(Rule, &str, usize)] = &[
    (rules::FAULT_TWICE, "a coordinator that starts", 18),
    (rules::HOLE_TWICE, UNPINNED, 9),
    (rules::K_GONE_TWICE, LIMIT, 19),
    (rules::HOLE_READ_AGAIN, "rollback, expiry", 11),
    (rules::LAKE_LOOKED_AT, "crashes", 10),
    (rules::TABLE_OF_L, "table made again", 7),
    (rules::L_PREPARED_AGAIN, "beside Java", 14),
    (rules::L_PINNED, UNPINNED, 21),
    (rules::L_RECORDED, "crashes", 10),
    (rules::FLOOR, "expiry after Java", 4),
    (rules::SNAPSHOT_K, BELOW, 15),
    (rules::JAVA_K_COMPARED, "beside Java that overwrites", 18),
    (rules::STANDS_ON, "beside Java that overwrites, crash", 18),
    (rules::JAVA_COUNTED, "beside Java", 15),
    (rules::PIN, UNPINNED, 15),
    (rules::PIN_BEFORE_CHECKS, UNPINNED, 15),
    (rules::LEASE_90_S, "leases beside Java", 19),
    (rules::COMPLETE_MAP, "two buckets", 5),
    (rules::IGNORE_PREVIOUS, "late message, three rounds", 40),
    (rules::BASE_IDENTITY, BELOW, 21),
    (rules::BASE_GONE, LIMIT, 21),
    (rules::MISSING_ABOVE, UNPINNED, 10),
    (rules::FLUSS_MADE_ABOVE, "crashes", 2),
    (rules::PARTITION_TOTALS, "partition with another total", 11),
    (rules::SEQUENCE_NUMBERS, "primary key", 6),
    (rules::CREATE_IF_ABSENT, "crashes", 2),
    (rules::ROUND_ID, "lost replies", 2),
    (rules::EARLIEST_TO_KEEP, "beside Java", 20),
    (rules::STANDING_PIN, "late message, three rounds, expiry", 31),
    (rules::LIVING_PINS, "expiry, two rounds", 37),
    (rules::FILES_KEPT, "giving up", 10),
    (rules::UNANSWERED_TRY, "rollback, expiry, late message", 17),
    (rules::WORD_CHECKED, WORD, 25),
    (rules::WORD_RECORDED, WORD, 11),
];

/// Rules whose absence nothing notices: worlds where it might, and why it does not.
#[rustfmt::skip]
pub(super) const ECONOMY: &[(Rule, &[&str], &str)] = &[
    (rules::K_FIRST, &["beside Java", UNPINNED, "a coordinator that starts"], "held by the second look as well"),
    (rules::K_ASKED_AGAIN, &["a coordinator that starts"], "held by the second look as well"),
    (rules::HOLE_ENDS_WALK, &["expiry after Java", UNPINNED], "saves reads: pins keep what is Fluss-made from standing below a missing id"),
    (rules::TABLE_CHECKED, &["table made again"], "step 4 saves work"),
    (rules::LAKE_CHECKED, &["crashes", UNPINNED], "step 4 saves work"),
    (rules::NEWEST_BELOW_BASE, &[BELOW, "rollback, expiry"], "earlier news: the base is gone then, and recovery holds"),
    (rules::LAKE_TABLE_SAME, &["table and lake table made again"], "saves the new lake table what would be held there: another table's snapshot"),
    (rules::BELOW_A_TRY, &["rollback, expiry, late message", BELOW], "files and lists of a try without an answer stay, and its snapshot is whole"),
    (rules::K_AT_LEAST_N, &["late message, three rounds", "crashes"], "saves a step of K backwards"),
    (rules::LOOK_AFTER_RECORD, &[BELOW, "beside Java that overwrites"], "earlier news: the next recovery finds the same"),
    (rules::PINS_AT_OUR_FLOOR, &["expiry, two rounds"], "held by the pins of living rounds as well"),
    (rules::OWN_PIN_GOES, &["expiry"], "saves a day of retention: it goes as those of dead rounds do"),
];
