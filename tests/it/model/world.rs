//! A state: lake, ledger with the real coordinator's semantics, services, what is in flight, and what was done to it all.
//!
//! Names follow docs/commit.md: K, L, N, base, floor, round id. Round ids and paths are renamed to the smallest free numbers, so that
//! equal situations are equal states. Rows are ghosts: each snapshot counts how often each source row is in it.

use lakeward::commit::invariants::{self, Broken, Hold, Troubles};

use super::list::List;

/// Buckets of a table.
pub(super) const BUCKETS: usize = 2;
/// Rows that a bucket can get.
pub(super) const ROWS: u8 = 3;
/// Exclusive ends, per bucket.
pub(super) type Ends = [u8; BUCKETS];

/// How the lake expires snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Expiry {
    Never,
    AtOnce,
    /// Decides, then deletes one by one.
    Apart,
}

/// What has been tiered when the world begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tiered {
    Nothing,
    /// By a Java job that has gone: no pin.
    ByJava,
    ByUs,
}

/// What may still happen; each counts down.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Budget {
    pub(super) appends: u8,
    pub(super) crashes: u8,
    /// Replies lost after the work was done.
    pub(super) lost: u8,
    /// PUTs and records that land late, or land once more.
    pub(super) late: u8,
    /// A user's or compactor's commits without rows.
    pub(super) foreign: u8,
    pub(super) rollbacks: u8,
    pub(super) recreates: u8,
    /// The lake table is dropped and made anew as well.
    pub(super) lake_drops: u8,
    /// Records that get an OK and are not there.
    pub(super) swallowed: u8,
    /// Records whose read and write at the coordinator are apart: a concurrent one can be lost.
    pub(super) races: u8,
    /// Rounds that give up their attempts.
    pub(super) gives_up: u8,
    /// Answers −1 of a coordinator that is starting.
    pub(super) starting: u8,
    /// A user's rows in a bucket of a primary-key table.
    pub(super) user_writes: u8,
    /// A user rewrites the partition with another bucket total.
    pub(super) rescales: u8,
    /// Commits of an operator.
    pub(super) words: u8,
    /// Java rounds that outlive their lease.
    pub(super) zombies: u8,
}

/// A world: who is in it and what may happen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cfg {
    pub(super) services: u8,
    pub(super) java: u8,
    /// Java's rename overwrites what is there (local disk, S3A).
    pub(super) java_overwrites: bool,
    pub(super) buckets: usize,
    /// Rows at the start.
    pub(super) start: Ends,
    pub(super) budget: Budget,
    pub(super) expiry: Expiry,
    pub(super) retained: u8,
    /// A user's snapshots in the lake at the start, and how many of them have expired.
    pub(super) user_rows: u8,
    pub(super) user_expired: u8,
    /// A PUT may outlive its round's day and land on an id that was used and has expired.
    pub(super) put_outlives: bool,
    pub(super) tiered: Tiered,
    /// A primary-key table of one key.
    pub(super) keyed: bool,
    /// One holder at a time, by lease; time passes in steps of 30 s.
    pub(super) leases: bool,
    /// Retention is longer than Java takes from its commit to its record.
    pub(super) java_records_in_time: bool,
}

impl Cfg {
    /// Whether a Java job may break the table by itself.
    pub(super) const fn java_is_loose(&self) -> bool {
        self.java > 0 && (!self.leases || self.budget.zombies > 0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub(super) enum By {
    #[default]
    User,
    Ours,
    Java,
}

/// A user's write of the key; Fluss's changes are their offset + 1.
const USERS: u8 = 200;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub(super) struct Snap {
    pub(super) id: u8,
    /// Its identity: a uuid is in the name of its delta list. The round id of what is ours.
    pub(super) uid: u8,
    pub(super) by: By,
    /// Identity of the snapshot that it was built on. The code tells it by totals.
    pub(super) parent: u8,
    pub(super) table: u8,
    pub(super) ends: Ends,
    pub(super) path: u8,
    /// How often each row is in the lake: two bits per table, bucket and offset.
    pub(super) rows: u32,
    /// Rows that it has added (`deltaRecordCount`).
    pub(super) delta: u8,
    /// Highest live sequence number of the key's bucket.
    pub(super) sequence: u8,
    /// Version of the key that was committed last, and the one that a merge read shows.
    pub(super) committed: u8,
    pub(super) shown: u8,
    /// Bucket totals of the live files of the one partition, as bits.
    pub(super) totals: u8,
}

fn bit(table: u8, bucket: usize, offset: u8) -> u32 {
    2 * (u32::from(table) * 6 + u32::try_from(bucket).unwrap() * 3 + u32::from(offset))
}

pub(super) fn copies(rows: u32, table: u8, bucket: usize, offset: u8) -> u32 {
    rows >> bit(table, bucket, offset) & 3
}

pub(super) fn with_rows(mut rows: u32, table: u8, from: Ends, to: Ends) -> u32 {
    for bucket in 0..BUCKETS {
        for offset in from[bucket]..to[bucket] {
            let now = (copies(rows, table, bucket, offset) + 1).min(3);
            rows = rows & !(3 << bit(table, bucket, offset)) | now << bit(table, bucket, offset);
        }
    }
    rows
}

/// The rows of the table as an operator states them: those below `ends`, once.
pub(super) fn stated(mut rows: u32, table: u8, ends: Ends) -> u32 {
    for bucket in 0..BUCKETS {
        for offset in 0..ROWS {
            rows &= !(3 << bit(table, bucket, offset));
        }
    }
    with_rows(rows, table, Ends::default(), ends)
}

impl Snap {
    /// The files of a round on top of this snapshot: rows from `from` to `to`, sequence numbers from `first` on.
    pub(super) fn plus(self, act: &Act, keyed: bool) -> Self {
        let delta = (0..BUCKETS).map(|bucket| act.end[bucket] - act.offs[bucket]).sum();
        let mut made = Self { rows: with_rows(self.rows, act.table, act.offs, act.end), delta, totals: self.totals | 1, ..self };
        if keyed && act.end[0] > act.offs[0] {
            made.committed = act.end[0];
            let last = act.first + (act.end[0] - act.offs[0]) - 1;
            // Of two versions with one number the order of files decides: the wrong one, if it can.
            if last > self.sequence {
                (made.sequence, made.shown) = (last, act.end[0]);
            }
        }
        made
    }

    /// A user's row of the key on top of this snapshot.
    pub(super) fn users_row(self) -> Self {
        Self { sequence: self.sequence + 1, committed: USERS, shown: USERS, ..self }
    }

    /// Somebody else's snapshot on top of this one, without rows.
    pub(super) fn foreign(self, uid: u8) -> Self {
        let (id, parent) = (self.id + 1, self.uid);
        Self { id, uid, parent, by: By::User, table: 0, ends: Ends::default(), path: 0, delta: 0, ..self }
    }

    fn check(&self) -> invariants::Verdict {
        for table in 0..2 {
            for bucket in 0..BUCKETS {
                for offset in 0..ROWS {
                    let copies = copies(self.rows, table, bucket, offset);
                    if self.by != By::User && table == self.table {
                        invariants::row(offset < self.ends[bucket], copies)?;
                    } else if copies > 1 {
                        return Err(Broken::Twice);
                    }
                }
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub(super) struct Pin {
    pub(super) next: u8,
    pub(super) round: u8,
}

/// `earliest_snapshot_id_to_keep`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub(super) enum Keep {
    #[default]
    All,
    From(u8),
    Absent,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub(super) struct Record {
    pub(super) table: u8,
    pub(super) id: u8,
    pub(super) path: u8,
    pub(super) keep: Keep,
}

/// Entries of one table: snapshot id, path.
pub(super) type Entries = List<(u8, u8), 10>;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub(super) enum K {
    #[default]
    None,
    Unknown,
    At(u8, Ends),
}

impl K {
    pub(super) const fn id(self) -> u8 {
        if let Self::At(id, _) = self { id } else { 0 }
    }
}

/// What an actor does next. Each is one durable action or one read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub(super) enum Pc {
    #[default]
    Idle,
    // step 1
    KAgain,
    List,
    Walk,
    Known,
    KnownFile,
    Above,
    File,
    TwiceK,
    TwiceNewest,
    TwiceHole,
    RecordPin,
    RecordPrepare,
    RecordK,
    RecordSend,
    RecordWrite,
    // steps 2 to 4
    Plan,
    Check,
    Prepare,
    // step 5
    Newest,
    Look,
    LookBase,
    Put,
    // step 6
    ReadK,
    Send,
    Write,
    After,
    AfterNewest,
    // step 7
    Unpin,
    // a Java job
    JavaCheck,
    JavaRecord,
    JavaPrepare,
    JavaList,
    JavaPut,
    JavaSend,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub(super) enum Who {
    #[default]
    Service,
    /// `repair`: publishes stated offsets, and ends.
    Operator,
    Java,
}

/// What one process knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Act {
    pub(super) who: Who,
    pub(super) pc: Pc,
    pub(super) held: Option<Hold>,
    pub(super) table: u8,
    /// Which lake table it has opened.
    pub(super) born: u8,
    pub(super) k: K,
    pub(super) newest: u8,
    /// The id that is read next.
    pub(super) at: u8,
    /// Step 1: the missing id that ended the walk.
    pub(super) hole: u8,
    /// Step 1: a fault that a second look has to confirm.
    pub(super) fault: Option<Hold>,
    /// What the snapshot right above the last one read was built on.
    pub(super) above: u8,
    pub(super) base: u8,
    pub(super) base_uid: u8,
    pub(super) floor: u8,
    pub(super) offs: Ends,
    pub(super) end: Ends,
    /// First sequence number of its files.
    pub(super) first: u8,
    pub(super) round: u8,
    pub(super) path: u8,
    /// 5a: something above the floor is missing, or Fluss-made.
    pub(super) missing: bool,
    pub(super) made: bool,
    /// 5a: the newest snapshot.
    pub(super) parent: Snap,
    /// The id that a PUT goes to, or has gone to.
    pub(super) n: u8,
    /// Ids of tries whose outcome is unknown, as bits.
    pub(super) open: u16,
    /// Whether one of them got no answer: a rollback can free its id again, however settled it looks.
    pub(super) unanswered: bool,
    /// The list that a record is to be added to, as the coordinator has read it.
    pub(super) view: Entries,
    /// Whether the coordinator counts it as the holder, and 30 s steps since the last renewal.
    pub(super) holds: bool,
    pub(super) age: u8,
    /// Ghost: a PUT of this round has made a snapshot.
    pub(super) published: bool,
}

impl Act {
    pub(super) fn idle(who: Who) -> Self {
        Self { who, ..Self::default() }
    }

    /// Whether its round could still act. A round that has published has no need of its pin any more.
    fn needs_pin(&self) -> bool {
        self.pc != Pc::Idle && !self.published
    }
}

#[derive(Clone, Copy, PartialEq, Hash, Debug)]
pub(super) struct World {
    pub(super) table: u8,
    /// The lake table: another number when it was made anew.
    pub(super) born: u8,
    pub(super) source: Ends,
    pub(super) lake: List<Snap, 12>,
    pub(super) pins: List<Pin, 10>,
    pub(super) ledger: [Entries; 2],
    /// Offsets files: path, table, offsets.
    pub(super) files: List<(u8, u8, Ends), 16>,
    pub(super) acts: List<Act, 4>,
    pub(super) puts: List<Snap, 3>,
    pub(super) records: List<Record, 3>,
    /// Rounds whose files were deleted while a PUT of theirs was in flight.
    pub(super) deleted: List<u8, 4>,
    /// Ids below it are being expired.
    pub(super) expiring: u8,
    pub(super) troubles: Troubles,
    /// An operator's word has settled them, with nothing else under way: none explains a hold any more.
    pub(super) answered: bool,
    pub(super) left: Budget,
    pub(super) broken: Option<Broken>,
}

impl World {
    pub(super) fn start(cfg: &Cfg) -> Self {
        let mut world = Self {
            table: 0,
            born: 0,
            source: cfg.start,
            lake: List::default(),
            pins: List::default(),
            ledger: [Entries::default(); 2],
            files: List::default(),
            acts: List::default(),
            puts: List::default(),
            records: List::default(),
            deleted: List::default(),
            expiring: 0,
            troubles: Troubles::default(),
            answered: false,
            left: cfg.budget,
            broken: None,
        };
        for id in 1..=cfg.user_rows {
            let parent = if id == 1 { 0 } else { 99 + id };
            world.lake.push(Snap { id, uid: 100 + id, parent, ..Snap::default() });
        }
        world.lake.retain(|snap| snap.id > cfg.user_expired);
        for _ in 0..cfg.services {
            world.acts.push(Act::idle(Who::Service));
        }
        for _ in 0..cfg.java {
            world.acts.push(Act::idle(Who::Java));
        }
        if cfg.tiered != Tiered::Nothing {
            let below = world.snap(world.newest()).unwrap_or_default();
            let act = Act { end: cfg.start, first: 1, ..Act::default() };
            let path = world.prepare(0, |ends| *ends = cfg.start, true).unwrap();
            let by = if cfg.tiered == Tiered::ByUs { By::Ours } else { By::Java };
            let id = below.id + 1;
            world.lake.push(Snap { id, uid: 50, by, parent: below.uid, ends: cfg.start, path, ..below.plus(&act, cfg.keyed) });
            world.ledger[0].push((id, path));
            if cfg.tiered == Tiered::ByUs {
                world.pins.push(Pin { round: 50, next: id });
            }
        }
        world.canon();
        world
    }

    pub(super) fn newest(&self) -> u8 {
        self.lake.last().map_or(0, |snap| snap.id)
    }

    pub(super) fn snap(&self, id: u8) -> Option<Snap> {
        self.lake.iter().find(|snap| snap.id == id).copied()
    }

    pub(super) fn file(&self, path: u8) -> Option<Ends> {
        self.files.iter().find(|file| file.0 == path).map(|file| file.2)
    }

    pub(super) fn k(&self, table: u8) -> K {
        match self.ledger[usize::from(table)].last() {
            None => K::None,
            Some((id, path)) => self.file(*path).map_or(K::Unknown, |ends| K::At(*id, ends)),
        }
    }

    /// Newest Fluss-made snapshot of the table.
    pub(super) fn newest_made(&self) -> Option<Snap> {
        self.lake.iter().rev().find(|snap| snap.by != By::User && snap.table == self.table).copied()
    }

    pub(super) fn fresh_uid(&self) -> u8 {
        let mut used = [false; 256];
        self.clone().each_uid(|uid| used[usize::from(*uid)] = true);
        (1..).find(|uid| !used[usize::from(*uid)]).unwrap()
    }

    /// A new offsets file; the coordinator overlays what it knows unless it is told not to, and fails if it can't read that.
    pub(super) fn prepare(&mut self, table: u8, set: impl Fn(&mut Ends), ignore_previous: bool) -> Option<u8> {
        let mut ends = Ends::default();
        if !ignore_previous {
            match self.k(table) {
                K::None => {}
                K::Unknown => return None,
                K::At(_, known) => ends = known,
            }
        }
        set(&mut ends);
        let mut used = [false; 256];
        self.clone().each_path(|path| used[usize::from(*path)] = true);
        self.files.iter().for_each(|file| used[usize::from(file.0)] = true);
        let path = (1..).find(|path| !used[usize::from(*path)]).unwrap();
        self.files.push((path, table, ends));
        Some(path)
    }

    /// The coordinator's record: appends, not idempotent, not ordered, nothing checked (F3.3). `view`: the list as it was read.
    pub(super) fn record(&mut self, record: Record, view: Entries) {
        let from = match record.keep {
            Keep::All => 0,
            Keep::Absent => view.len(),
            Keep::From(id) => view.iter().position(|entry| entry.0 == id).unwrap_or(0),
        };
        let mut kept = Entries::default();
        view[from..].iter().for_each(|entry| kept.push(*entry));
        kept.push((record.id, record.path));
        self.files.retain(|file| !view[..from].iter().any(|gone| gone.1 == file.0));
        self.ledger[usize::from(record.table)] = kept;
    }

    pub(super) fn record_now(&mut self, record: Record) {
        self.record(record, self.ledger[usize::from(record.table)]);
    }

    /// Create-if-absent.
    pub(super) fn put(&mut self, snap: Snap) -> bool {
        if self.snap(snap.id).is_some() {
            return false;
        }
        if invariants::named_file(true, self.deleted.contains(&snap.uid)).is_err() {
            self.broken = Some(Broken::NamedGone);
        }
        self.lake.push(snap);
        self.lake.sort_unstable_by_key(|snap| snap.id);
        for act in self.acts.iter_mut().filter(|act| act.round == snap.uid) {
            act.published = true;
        }
        true
    }

    /// Whether a round that is alive has this pin; `but` = the actor that asks.
    pub(super) fn lives(&self, pin: Pin, but: usize) -> bool {
        self.acts.iter().enumerate().any(|(index, act)| index != but && act.round == pin.round && act.needs_pin())
    }

    fn each_uid(&mut self, mut visit: impl FnMut(&mut u8)) {
        for snap in self.lake.iter_mut().chain(self.puts.iter_mut()) {
            visit(&mut snap.uid);
            visit(&mut snap.parent);
        }
        for act in self.acts.iter_mut() {
            visit(&mut act.round);
            visit(&mut act.base_uid);
            visit(&mut act.above);
            visit(&mut act.parent.uid);
            visit(&mut act.parent.parent);
        }
        for pin in self.pins.iter_mut() {
            visit(&mut pin.round);
        }
    }

    fn each_path(&mut self, mut visit: impl FnMut(&mut u8)) {
        for entry in self.ledger.iter_mut().flat_map(|entries| entries.iter_mut()) {
            visit(&mut entry.1);
        }
        for snap in self.lake.iter_mut().chain(self.puts.iter_mut()) {
            visit(&mut snap.path);
        }
        for act in self.acts.iter_mut() {
            visit(&mut act.path);
            visit(&mut act.parent.path);
            for entry in act.view.iter_mut() {
                visit(&mut entry.1);
            }
        }
        for record in self.records.iter_mut() {
            visit(&mut record.path);
        }
    }

    /// Renames ids by first appearance, drops what nothing refers to, sorts what has no order.
    pub(super) fn canon(&mut self) {
        self.acts.sort_unstable_by_key(|act| {
            let round = (act.table, act.base, act.floor, act.offs, act.end, act.n, act.open);
            ((act.who, act.pc, act.held, act.k, act.newest, act.at), round, (act.holds, act.age, act.round, act.base_uid))
        });
        self.pins.sort_unstable();
        self.puts.sort_unstable();
        self.records.sort_unstable();
        let mut names = [0; 256];
        let mut next = 0;
        let mut rename = |uid: &mut u8| {
            if *uid != 0 {
                if names[usize::from(*uid)] == 0 {
                    next += 1;
                    names[usize::from(*uid)] = next;
                }
                *uid = names[usize::from(*uid)];
            }
        };
        self.each_uid(&mut rename);
        self.deleted.iter_mut().for_each(|uid| *uid = names[usize::from(*uid)]);
        self.deleted.retain(|uid| *uid != 0);
        self.deleted.sort_unstable();
        let mut names = [0; 256];
        let mut next = 0;
        self.each_path(|path| {
            if *path != 0 {
                if names[usize::from(*path)] == 0 {
                    next += 1;
                    names[usize::from(*path)] = next;
                }
                *path = names[usize::from(*path)];
            }
        });
        self.files.retain(|file| names[usize::from(file.0)] != 0);
        self.files.iter_mut().for_each(|file| file.0 = names[usize::from(file.0)]);
        self.files.sort_unstable();
        self.pins.sort_unstable();
        self.puts.sort_unstable();
        self.records.sort_unstable();
    }

    /// The promises that a state itself can break.
    pub(super) fn check(&self, cfg: &Cfg, strict: bool) -> invariants::Verdict {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        // What a Java job has broken is broken; that we add nothing to it is asserted where we commit.
        if self.troubles.java || self.troubles.overwritten {
            return if cfg.java_is_loose() { Ok(()) } else { Err(Broken::Twice) };
        }
        for snap in self.lake.iter() {
            snap.check()?;
            if cfg.keyed {
                invariants::key(Some(&snap.committed), Some(&snap.shown))?;
            }
            invariants::one_total((0..2).filter(|total| snap.totals >> total & 1 == 1))?;
        }
        if self.troubles.rolled_back {
            return Ok(());
        }
        for pair in self.lake.windows(2) {
            if pair[0].id + 1 == pair[1].id && pair[1].parent != pair[0].uid {
                return Err(Broken::NotStanding);
            }
        }
        for (table, entries) in (0..).zip(&self.ledger) {
            for (id, path) in entries.iter() {
                if let (Some(snap), Some(ends)) = (self.snap(*id), self.file(*path))
                    && snap.by != By::User
                    && snap.table == table
                {
                    invariants::same_offsets(&ends, &snap.ends)?;
                }
            }
        }
        match self.newest_made() {
            Some(made) if strict && made.by == By::Ours => {
                invariants::newest_is_pinned(i64::from(made.id), self.pins.iter().map(|pin| i64::from(pin.next)))
            }
            _ => Ok(()),
        }
    }

    /// How the table stands, if nobody has anything left to do.
    pub(super) fn end(&self) -> invariants::End {
        let rows = self.snap(self.newest()).map_or(0, |snap| snap.rows);
        let rows_left =
            (0..BUCKETS).any(|bucket| (0..self.source[bucket]).any(|offset| copies(rows, self.table, bucket, offset) == 0));
        let (known, known_to_ends) = match self.k(self.table) {
            K::At(id, ends) => (id, ends == self.source),
            K::None => (0, self.source == Ends::default()),
            K::Unknown => (0, false),
        };
        invariants::End {
            held: self.acts.iter().find_map(|act| act.held),
            troubles: if self.answered { Troubles::default() } else { self.troubles },
            rows_left,
            known: i64::from(known),
            newest: self.newest_made().map_or(0, |snap| i64::from(snap.id)),
            known_to_ends,
        }
    }
}
