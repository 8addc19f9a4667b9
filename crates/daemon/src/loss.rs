//! Sentences about missing lines of the journal.

use jiff::Timestamp;
use sublet_core::loss::Loss;

/// What an operator can do.
pub const REMEDY: &str =
    "put a backup back (docs/backup.md), or go on without those lines: `sublet journal accept-loss`";

/// What is missing, in one sentence.
pub fn sentence(loss: &Loss) -> String {
    match loss {
        Loss::Missing { lines, after, since_wall_us, until_wall_us } => {
            let since = since_wall_us.map_or_else(String::new, |since| format!(" of {}", time(since)));
            let end = if *after == 0 { "is empty".to_owned() } else { format!("ends with line {after}{since}") };
            let (lines, are) =
                if *lines == 1 { ("1 line".to_owned(), "is") } else { (format!("{lines} lines"), "are") };
            format!("{lines} of the journal {are} missing: it {end}, and was written until {}", time(*until_wall_us))
        }
        Loss::Other { line, wall_us } => format!(
            "line {line} of the journal is not the one that was written at {}: it is another journal, or it was rewritten",
            time(*wall_us)
        ),
        Loss::Unknown => {
            "`journal.head` cannot be read, so it is not known whether lines of the journal are missing".to_owned()
        }
    }
}

/// `2026-11-18T05:12:03Z`.
fn time(wall_us: u64) -> String {
    let seconds = i64::try_from(wall_us / 1_000_000).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| "an unknown time".to_owned(), |at| at.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_shown_with_its_size_and_time() {
        let us = 1_795_000_000_000_000;
        let loss = Loss::Missing { lines: 69, after: 120, since_wall_us: Some(us), until_wall_us: us + 2_500_000 };
        assert_eq!(
            sentence(&loss),
            "69 lines of the journal are missing: it ends with line 120 of 2026-11-18T11:06:40Z, and was written until \
             2026-11-18T11:06:42Z"
        );
        let all = Loss::Missing { lines: 1, after: 0, since_wall_us: None, until_wall_us: us };
        assert_eq!(
            sentence(&all),
            "1 line of the journal is missing: it is empty, and was written until 2026-11-18T11:06:40Z"
        );
        assert!(sentence(&Loss::Other { line: 7, wall_us: us }).starts_with("line 7 of the journal is not the one"));
        assert!(sentence(&Loss::Unknown).contains("`journal.head` cannot be read"));
    }
}
