//! Trace files: CSV, JSON and the public task list, as `sublet replay` reads them.
//!
//! The first byte of an input chooses the task list (`a`) or a trace. Properties: the reader refuses or returns, an
//! error names a line of the text, and a trace that was read is the same after it was written as CSV and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sublet_replay::trace::{Trace, TraceError};
use sublet_replay::{Bytes, alibaba, csv, json};

fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    match read(*kind, text) {
        Ok(trace) => check(&trace),
        Err(error) => {
            assert!(!error.what.is_empty(), "an error says what is wrong");
            // A text that ends too early ends after its last line end.
            let lines = text.split('\n').count();
            assert!(error.line.is_none_or(|line| (1..=lines).contains(&line)), "{error} in a text of {lines} lines");
        }
    }
});

fn read(kind: u8, text: &str) -> Result<Trace, TraceError> {
    match kind {
        b'a' => {
            let host_gpus = "2x80GiB,1x24GiB".parse().expect("GPUs of one host");
            alibaba::read(text, &host_gpus, Bytes::mib(256), 5, 7)
        }
        _ if json::is_json(text) => json::read(text, "fuzz"),
        _ => csv::read(text, "fuzz"),
    }
}

fn check(trace: &Trace) {
    assert!(!trace.jobs.is_empty());
    assert!(trace.jobs.is_sorted_by_key(|job| job.arrival), "jobs are in the order of their arrivals");
    assert!(trace.jobs.iter().all(|job| (job.tenant as usize) < trace.tenants.len()));
    assert!(trace.demand() > 0);
    let written = trace.to_csv();
    let again = csv::read(&written, "fuzz").unwrap_or_else(|error| panic!("{error} in what was written:\n{written}"));
    assert_eq!(again.tenants, trace.tenants, "{written}");
    assert_eq!(again.jobs, trace.jobs, "{written}");
}
