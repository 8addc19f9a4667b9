//! The configuration file, parsed and settled as a start of the daemon does, and as `sublet config check` does.
//!
//! Properties: both refuse the same texts (only the check reads certificates), each error has a message and a line of
//! the text, and at most 50 errors are listed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::fs;
use sublet_daemon::{TcpConfig, check_config, rules};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let file = sublet_fuzz::scratch().join("sublet.toml");
    fs::write(&file, text).expect("a file in memory");
    let settled = rules(Some(&file));
    match check_config(Some(&file), &TcpConfig::default()) {
        Ok(checked) => {
            assert!(settled.is_ok(), "the check accepts what a start refuses: {settled:?}");
            assert!(checked.0.iter().all(|(topic, sentence)| !topic.is_empty() && !sentence.is_empty()));
        }
        Err(findings) => {
            assert!((1..=50).contains(&findings.len()), "{} findings", findings.len());
            let lines = text.split('\n').count();
            for finding in &findings {
                assert!(!finding.message.is_empty());
                assert!(finding.line.is_none_or(|line| (1..=lines).contains(&line)), "{finding:?} of {lines} lines");
            }
            let is_certificate = |finding: &sublet_daemon::Finding| finding.message.contains("certificate");
            assert!(
                settled.is_err() || findings.iter().any(is_certificate),
                "a start accepts what the check refuses: {findings:?}"
            );
        }
    }
});
