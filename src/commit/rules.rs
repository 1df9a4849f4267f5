//! The rules of docs/commit.md, each of which a test can switch off in the real code: the mutation check shows that something
//! notices (docs/reliability.md). Nothing but a test ever does; no setting reaches it.

use super::Options;

/// A rule of docs/commit.md, by its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// 1: K is read before the newest id.
    KnownFirst,
    /// 1: a fault or a missing id stands only if K, the newest id and the table are the same again.
    SecondLook,
    /// 1: a missing id is read again, and missing still.
    HoleAgain,
    /// 1: what is above K in the lake counts.
    LakeCounts,
    /// 1: a pin of ours is there before L is recorded.
    PinFound,
    /// 1: L is recorded before anything is planned from it.
    RecordFound,
    /// 1: prepared again, never by the path that L names.
    PrepareAgain,
    /// 1: L and K have to belong to this table.
    TableOfFound,
    /// 1: newest below K is a fault.
    NewestBelowKnown,
    /// 1: snapshot K, if it is there, is Fluss-made and has the offsets that Fluss says.
    KnownSnapshot,
    /// 1: a Java-made K has the offsets that Fluss says, as far as its file tells.
    KnownOfJava,
    /// 1, 5a: what is right above L, K or the base stands on it.
    Standing,
    /// 1: Java-made snapshots hold no more rows than offsets advanced.
    JavaDoubled,
    /// 1: offsets of Java-made snapshots never go back.
    JavaWentBack,
    /// 1: "can't be read" is believed only after a pause.
    UnknownPause,
    /// 1, 5: ids up to a missing one that recovery accepted are not looked at again.
    Floor,
    /// 3: a round pins.
    Pin,
    /// 3: before the looks, not right before the publish.
    PinFirst,
    /// 3, 7: where consumers expire, pins are written again.
    PinAgain,
    /// 4: the lease.
    CheckLease,
    /// 4: the table and what is above the floor, before anything is prepared.
    CheckFirst,
    /// 4: base and round, not the round's buckets alone.
    CompleteMap,
    /// 5: a round older than 12 h gives up.
    RoundAge,
    /// 5a: newest below the base is a fault.
    NewestBelowBase,
    /// 5a: the base is the same snapshot, not only the same id.
    BaseIdentity,
    /// 5a: a base that has gone makes the round stale; it is no fault.
    BaseGone,
    /// 5a: so does a missing id above the floor.
    MissingAbove,
    /// 5a: so does a Fluss-made snapshot above the floor.
    FlussMadeAbove,
    /// 5b: the lake table is the one that recovery saw.
    SameLakeTable,
    /// 5b: a partition has one bucket total.
    Totals,
    /// 5b: the rows of a primary-key bucket have greater sequence numbers than all that are there.
    Sequences,
    /// 5c: create if absent.
    CreateIfAbsent,
    /// 5d: the round id tells whether a publish won, not user, identifier and kind.
    RoundId,
    /// 5d: one more look after the last try.
    LastLook,
    /// 5d: nothing is built below an id whose outcome is unknown.
    UnknownBeyond,
    /// 6: K is read before each try.
    ReadKnown,
    /// 6: snapshot N is read once more.
    LookAfter,
    /// 7: our own pin stays until a later round has come here.
    StandingPin,
    /// 7: the pin of a round that has not published stays for a day.
    PinsOfTheLiving,
    /// 7: pins with our floor stay.
    PinsOfOurFloor,
    /// 7: pins of rounds that have published go.
    PublishedPinsGo,
    /// 7: pins older than a day go.
    OldPinsGo,
    /// 7: a round that ends with every outcome settled takes its pin away.
    OwnPinGoes,
    /// Files stay while a snapshot may still name them.
    FilesStay,
    /// Files stay after a try without an answer, however settled it looks.
    Unanswered,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 45] = [
        Self::KnownFirst,
        Self::SecondLook,
        Self::HoleAgain,
        Self::LakeCounts,
        Self::PinFound,
        Self::RecordFound,
        Self::PrepareAgain,
        Self::TableOfFound,
        Self::NewestBelowKnown,
        Self::KnownSnapshot,
        Self::KnownOfJava,
        Self::Standing,
        Self::JavaDoubled,
        Self::JavaWentBack,
        Self::UnknownPause,
        Self::Floor,
        Self::Pin,
        Self::PinFirst,
        Self::PinAgain,
        Self::CheckLease,
        Self::CheckFirst,
        Self::CompleteMap,
        Self::RoundAge,
        Self::NewestBelowBase,
        Self::BaseIdentity,
        Self::BaseGone,
        Self::MissingAbove,
        Self::FlussMadeAbove,
        Self::SameLakeTable,
        Self::Totals,
        Self::Sequences,
        Self::CreateIfAbsent,
        Self::RoundId,
        Self::LastLook,
        Self::UnknownBeyond,
        Self::ReadKnown,
        Self::LookAfter,
        Self::StandingPin,
        Self::PinsOfTheLiving,
        Self::PinsOfOurFloor,
        Self::PublishedPinsGo,
        Self::OldPinsGo,
        Self::OwnPinGoes,
        Self::FilesStay,
        Self::Unanswered,
    ];
}

impl Options {
    /// Whether `rule` holds: always, but for the one that a test has switched off.
    pub(super) fn holds(&self, rule: Rule) -> bool {
        self.off != Some(rule)
    }
}
