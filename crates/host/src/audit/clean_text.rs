//! Text from an unleased process, made safe for the audit trail and a terminal.
//!
//! Absent: what is secret in it ([`super::redact`]).

use sublet_core::request::is_visible;

/// Characters of a path.
pub(super) const PATH_MAX: usize = 1024;
/// Characters of a name, of a word of a command line and of an ancestor's executable.
pub(super) const WORD_MAX: usize = 256;

/// The text in at most `max` characters. Characters that could move a cursor or reverse a line become `?`. Of a long
/// text the middle is left out: both ends of a path are informative.
pub(super) fn clean(text: &str, max: usize) -> String {
    let shown = |c: char| if is_visible(c) { c } else { '?' };
    let count = text.chars().count();
    if count <= max {
        return text.chars().map(shown).collect();
    }
    let head = max / 2;
    let tail = max - head - 1;
    let kept = text.chars().take(head).chain(['…']).chain(text.chars().skip(count - tail));
    kept.map(shown).collect()
}

/// The same for bytes that need not be text.
pub(super) fn clean_bytes(bytes: &[u8], max: usize) -> String {
    clean(&String::from_utf8_lossy(bytes), max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clean_text_moves_no_cursor_and_reverses_no_line() {
        assert_eq!(clean("a\x1b[2Jb\nc\u{202e}d\u{9b}", 64), "a?[2Jb?c?d?");
        assert_eq!(clean("modèle-日本", 64), "modèle-日本");
        assert_eq!(clean_bytes(b"a\xffb", 64), "a\u{fffd}b");
    }

    #[test]
    fn of_a_long_text_both_ends_are_kept() {
        assert_eq!(clean("/very/long/path/train.py", 13), "/very/…ain.py");
        for max in [1, 2, 3, 10, 255] {
            assert_eq!(clean(&"é".repeat(300), max).chars().count(), max);
        }
        assert_eq!(clean("abc", 3), "abc");
    }
}
