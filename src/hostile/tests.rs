//! Each target on its recorded inputs, on those cut off, flipped and lying, and on chance; what it says; how much memory it takes.
//!
//! Inputs lie in `fixtures/hostile/TARGET/`: `seed-*` are golden bytes, `found-*` come from fuzzing (fuzz/README.md).

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

mod places;
mod promises;
mod seeds;

fn folder(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/hostile").join(target)
}

/// Recorded inputs of a target whose names begin like this, by name.
fn inputs(target: &Target, prefix: &str) -> Vec<(String, Vec<u8>)> {
    let mut found: Vec<(String, Vec<u8>)> = fs::read_dir(folder(target.name))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap()))
        .filter(|(name, _)| name.starts_with(prefix))
        .collect();
    found.sort();
    found
}

/// Runs a target; says what is wrong.
fn tried(target: &Target, input: &[u8]) -> Result<Result<()>, String> {
    prepare();
    let mut outcome = None;
    let memory = allocation_counter::measure(|| outcome = Some((target.run)(input)));
    let outcome = outcome.unwrap();
    target.judge(input, memory.bytes_max, &outcome).map(|()| outcome)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Fails with the input at hand, also where the decoder panics.
fn check(target: &Target, input: &[u8], what: impl std::fmt::Display) {
    let caught = std::panic::catch_unwind(|| tried(target, input));
    match caught {
        Ok(Ok(_)) => {}
        Ok(Err(fault)) => panic!("{fault}\n{what}: {}", hex(input)),
        Err(_) => panic!("`{}` panics on {what}: {}", target.name, hex(input)),
    }
}

/// About `most` of the places of an input, the first ones all.
fn places(length: usize, most: usize) -> impl Iterator<Item = usize> {
    let step = (length / most).max(1);
    (0..length).filter(move |at| *at < most / 2 || at % step == 0)
}

#[test]
fn recorded_inputs_do_no_harm() {
    for target in TARGETS {
        let inputs = inputs(target, "");
        assert!(inputs.iter().any(|(name, _)| name.starts_with("seed-")), "`{}` has no seed", target.name);
        for (name, input) in inputs {
            check(target, &input, name);
        }
    }
}

#[test]
fn golden_inputs_are_decoded() {
    for target in TARGETS {
        for (name, input) in inputs(target, "seed-") {
            if let Err(error) = (target.run)(&input) {
                panic!("`{}` {name}: {}", target.name, error.chain());
            }
        }
    }
}

#[test]
fn inputs_that_end_too_early_do_no_harm() {
    for target in TARGETS {
        let seeds = inputs(target, "seed-");
        let most = (3000 / seeds.len()).clamp(50, 1000);
        for (name, input) in seeds {
            for end in places(input.len(), most) {
                check(target, &input[..end], format_args!("{name}, cut at {end}"));
            }
        }
    }
}

/// Targets that read by our own code. The others are for fuzzing, and for the recorded and cut inputs here: the `parquet` crate panics in many
/// damaged pages, which `pages::guarded` turns into an error, but with `RUST_BACKTRACE=1` each panic reads the symbols for its backtrace, 60 MB
/// that count as the decoder's memory. Without, both pass what is below.
fn own() -> impl Iterator<Item = &'static Target> {
    TARGETS.iter().filter(|target| !matches!(target.name, "data_file" | "load_parquet"))
}

#[test]
fn flipped_bits_do_no_harm() {
    for target in own() {
        let seeds = inputs(target, "seed-");
        let most = (3000 / seeds.len()).clamp(50, 1000);
        for (name, mut input) in seeds {
            for at in places(input.len(), most) {
                let bit = 1_u8 << (at * 5 % 8);
                input[at] ^= bit;
                check(target, &input, format_args!("{name}, byte {at} with bit {bit}"));
                input[at] ^= bit;
            }
        }
    }
}

/// Numbers that lengths and counts would like to be.
const LIES: [i64; 12] =
    [-1, 0, 1, i64::MAX, i64::MIN, 0x7fff_ffff, -0x8000_0000, 0x7fff_ffff_0000_0000, 0x1000_0000, 1 << 40, 0xffff, 300];

#[test]
fn lying_numbers_do_no_harm() {
    for target in own() {
        let seeds = inputs(target, "seed-");
        let most = (1200 / seeds.len()).clamp(30, 400);
        for (name, input) in seeds {
            let is_text = std::str::from_utf8(&input).is_ok();
            for (turn, at) in places(input.len(), most).enumerate() {
                for lie in LIES.iter().skip(turn % 3).step_by(3) {
                    let mut lying = input.clone();
                    if is_text {
                        // In the place of a digit or of a quoted word.
                        if !lying[at].is_ascii_digit() {
                            continue;
                        }
                        let end = at + input[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                        lying.splice(at..end, lie.to_string().into_bytes());
                    } else {
                        let bytes = if turn % 2 == 0 { lie.to_le_bytes() } else { lie.to_be_bytes() };
                        let width = [4, 8, 1, 2][turn / 2 % 4];
                        let part = if turn % 2 == 0 { &bytes[..width] } else { &bytes[8 - width..] };
                        for (to, from) in lying[at..].iter_mut().zip(part) {
                            *to = *from;
                        }
                    }
                    check(target, &lying, format_args!("{name}, {lie} at {at}"));
                }
            }
        }
    }
}

/// One change of an input.
#[derive(Debug, Clone)]
enum Change {
    Set(usize, u8),
    Cut(usize),
    Remove(usize, usize),
    Repeat(usize, usize, usize),
    Lie(usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let at = || 0_usize..100_000;
    prop_oneof![
        4 => (at(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        1 => at().prop_map(Change::Cut),
        1 => (at(), 1_usize..40).prop_map(|(at, length)| Change::Remove(at, length)),
        1 => (at(), 1_usize..40, 1_usize..200).prop_map(|(at, length, times)| Change::Repeat(at, length, times)),
        2 => (at(), 0_usize..LIES.len()).prop_map(|(at, lie)| Change::Lie(at, lie)),
    ]
}

fn changed(mut input: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        let length = input.len().max(1);
        let part = |input: &[u8], at: usize, length: usize| {
            let start = at.min(input.len());
            start..(start + length).min(input.len())
        };
        match change {
            Change::Set(at, byte) => {
                if let Some(place) = input.get_mut(at % length) {
                    *place = *byte;
                }
            }
            Change::Cut(at) => input.truncate(at % length),
            Change::Remove(at, many) => drop(input.drain(part(&input, at % length, *many))),
            Change::Repeat(at, many, times) => {
                let range = part(&input, at % length, *many);
                let more = input[range.clone()].repeat(*times);
                input.splice(range.end..range.end, more);
            }
            Change::Lie(at, lie) => {
                let range = part(&input, at % length, 8);
                let bytes = LIES[*lie].to_le_bytes();
                for (to, from) in input[range].iter_mut().zip(bytes) {
                    *to = from;
                }
            }
        }
    }
    input
}

proptest! {
    // The same chance in each run: what others find is for fuzzing, not for whoever happens to run the tests.
    #![proptest_config(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(20_261_130),
        ..ProptestConfig::default()
    })]

    #[test]
    fn chance_does_no_harm(target in 0..own().count(), seed in any::<usize>(), changes in proptest::collection::vec(change(), 1..8)) {
        let target = own().nth(target).unwrap();
        let mut seeds = inputs(target, "");
        let (_, input) = seeds.swap_remove(seed % seeds.len());
        let input = changed(input, &changes);
        if let Err(fault) = tried(target, &input) {
            prop_assert!(false, "{}: {}", fault, hex(&input));
        }
    }

    #[test]
    fn any_bytes_do_no_harm(target in 0..own().count(), bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Err(fault) = tried(own().nth(target).unwrap(), &bytes) {
            prop_assert!(false, "{}: {}", fault, hex(&bytes));
        }
    }
}

/// redb panics on some files that are not what it wrote: where the node opens one, that is an error that names the file.
#[test]
fn a_damaged_database_file_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.redb");
    crate::node::hostile::database(&path).unwrap();
    let good = fs::read(&path).unwrap();
    let mut random = 1_u64;
    let mut refused = 0;
    for turn in 0..60 {
        let mut bytes = good.clone();
        for _ in 0..=turn % 4 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = usize::try_from(random >> 33).unwrap() % if turn % 2 == 0 { 4096 } else { bytes.len() };
            bytes[at] ^= 1 << (random >> 20 & 7);
        }
        if turn % 5 == 0 {
            bytes.truncate(good.len() / 60 * turn);
        }
        refused += usize::from(files::node_database(&bytes).is_err());
    }
    assert!(refused > 10, "{refused}");
}
