//! All decoders behind one libFuzzer entry; the variable `LAKEWARD_FUZZ` says which (a name of `lakeward::hostile::TARGETS`).
#![no_main]

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook};
use std::sync::{LazyLock, Mutex};

use lakeward::hostile::{TARGETS, Target, prepare};

static TARGET: LazyLock<&'static Target> = LazyLock::new(|| {
    prepare();
    let name = std::env::var("LAKEWARD_FUZZ").unwrap_or_default();
    Target::named(&name).unwrap_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        panic!("LAKEWARD_FUZZ has to be one of {}", names.join(" "))
    })
});

/// The last panic. libFuzzer's own hook ends at each; those that the product makes errors of (`paimon::pages::guarded`) are none.
static PANIC: Mutex<String> = Mutex::new(String::new());

fn remember_panics() {
    set_hook(Box::new(|panic| {
        if let Ok(mut last) = PANIC.lock() {
            *last = panic.to_string();
        }
    }));
}

libfuzzer_sys::fuzz_target!(init: remember_panics(), |input: &[u8]| {
    let (target, mut outcome) = (*TARGET, None);
    let memory = allocation_counter::measure(|| outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input))).ok());
    let fault = match &outcome {
        Some(outcome) => target.judge(input, memory.bytes_max, outcome).err(),
        None => PANIC.lock().ok().map(|last| last.clone()),
    };
    if let Some(fault) = fault {
        eprintln!("{fault}");
        std::process::abort();
    }
});
