//! The rules of docs/commit.md that the model represents, each of which can be switched off.

/// A rule, with where it stands and what is done instead when it is off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rule {
    pub(super) name: &'static str,
    pub(super) place: &'static str,
    pub(super) off: &'static str,
    bit: u32,
}

macro_rules! rules {
    ($($id:ident $place:literal $off:literal,)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "only counts the rules")]
        #[repr(u32)]
        enum Bit { $($id,)* }
        $(pub(super) const $id: Rule = Rule { name: stringify!($id), place: $place, off: $off, bit: Bit::$id as u32 };)*
        /// All of them, in the order of the page.
        pub(super) const ALL: &[Rule] = &[$($id,)*];
    };
}

rules! {
    K_FIRST "1" "the newest id is read before K",
    K_ASKED_AGAIN "1" "a first −1 of the coordinator is believed",
    FAULT_TWICE "1" "a fault stands at the first look",
    HOLE_TWICE "1" "a missing id stands at the first look",
    K_GONE_TWICE "1" "that snapshot K is missing stands at the first look",
    HOLE_READ_AGAIN "1" "the second look at a missing id reads K and the newest id, not the id",
    LAKE_LOOKED_AT "1" "recovery believes K and does not look for L",
    TABLE_OF_L "1" "L counts whatever table it belongs to",
    L_PREPARED_AGAIN "1" "L is recorded with the path that it names",
    L_PINNED "1" "L is recorded although no pin of ours is there",
    L_RECORDED "1" "a round is planned from L without recording it",
    HOLE_ENDS_WALK "1" "the walk goes on below a missing id",
    FLOOR "1" "a missing id that recovery accepted counts again in 4 and 5",
    SNAPSHOT_K "1" "K stands without a look at the newest id and at snapshot K",
    JAVA_K_COMPARED "1" "offsets of a Java-made K are not compared with the file that the snapshot names",
    STANDS_ON "1, 5a" "nobody looks at what the snapshot above L, K or the base was built on",
    JAVA_COUNTED "1" "rows and offsets of Java-made snapshots are not compared",
    PIN "3" "no pin",
    PIN_BEFORE_CHECKS "3" "the pin is written after the checks of 4 and 5",
    LEASE_90_S "4" "a round goes on when its lease was not renewed for 90 s",
    TABLE_CHECKED "4" "the table id is not looked at before the commit",
    LAKE_CHECKED "4" "the lake is not looked at before the commit",
    COMPLETE_MAP "4" "the offsets file holds the buckets of the round only",
    IGNORE_PREVIOUS "4" "the offsets file is overlaid on what Fluss knows",
    NEWEST_BELOW_BASE "5a" "a newest id below the base is no fault",
    BASE_IDENTITY "5a" "a base that is another snapshot now goes unnoticed",
    BASE_GONE "5a" "a base that has expired meanwhile goes unnoticed",
    MISSING_ABOVE "4, 5a" "a missing id above the floor goes unnoticed",
    FLUSS_MADE_ABOVE "4, 5a" "a Fluss-made snapshot above the floor goes unnoticed",
    LAKE_TABLE_SAME "5b" "schema-0 is not compared",
    PARTITION_TOTALS "5b" "bucket totals in the lake are not compared",
    SEQUENCE_NUMBERS "5b" "the live maximum sequence number is not compared",
    CREATE_IF_ABSENT "5c" "a snapshot is put over one that is there",
    ROUND_ID "5d" "any snapshot of ours under our id counts as published",
    BELOW_A_TRY "5d" "a snapshot is built below a try whose outcome is unknown",
    K_AT_LEAST_N "6" "N is recorded without reading K",
    EARLIEST_TO_KEEP "6" "earliest_snapshot_id_to_keep is absent",
    LOOK_AFTER_RECORD "6" "snapshot N is not read again",
    STANDING_PIN "7" "a round removes its own pin at its end",
    LIVING_PINS "7" "pins of living rounds are removed too",
    PINS_AT_OUR_FLOOR "7" "pins with our floor are removed too",
    OWN_PIN_GOES "7" "a stale round leaves its pin",
    FILES_KEPT "files" "a round that gives up deletes its files although an outcome is unknown",
    UNANSWERED_TRY "files" "a try without an answer counts as lost once another's snapshot is seen under its id",
    WORD_CHECKED "word" "the operator's word is published without the checks of 5a",
    WORD_RECORDED "word" "the operator's word is recorded only over a lower K",
}

/// Which rules hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    off: u64,
}

impl Rules {
    /// The protocol.
    pub(super) const fn all() -> Self {
        Self { off: 0 }
    }

    /// The protocol without `rule`.
    pub(super) const fn without(self, rule: Rule) -> Self {
        Self { off: self.off | 1 << rule.bit }
    }

    pub(super) const fn has(self, rule: Rule) -> bool {
        self.off & 1 << rule.bit == 0
    }
}
