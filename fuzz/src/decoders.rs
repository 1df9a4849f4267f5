//! All decoders behind one libFuzzer entry; the variable `LAKEWARD_FUZZ` says which (a name of `lakeward::hostile::TARGETS`).
#![no_main]

use std::sync::LazyLock;

use lakeward::hostile::{TARGETS, Target, prepare};

static TARGET: LazyLock<&'static Target> = LazyLock::new(|| {
    prepare();
    let name = std::env::var("LAKEWARD_FUZZ").unwrap_or_default();
    Target::named(&name).unwrap_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        panic!("LAKEWARD_FUZZ has to be one of {}", names.join(" "))
    })
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let (target, mut outcome) = (*TARGET, None);
    let memory = allocation_counter::measure(|| outcome = Some((target.run)(input)));
    if let Some(outcome) = outcome
        && let Err(fault) = target.judge(input, memory.bytes_max, &outcome)
    {
        panic!("{fault}");
    }
});
