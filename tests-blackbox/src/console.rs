//! Console blocks of documents: which lines are typed, what is shown, and whether that is what is printed.
//!
//! ```text
//!   document ──► Block { reason not to run it, steps } ──► Step { terminal, command or go on, lines shown }
//!   terminal ──► printed(): lines as a reader sees them ──► find(): shown lines among printed ones
//! ```
//! Absent: shells and time; `tests/documents.rs` has both, and the rules in words.

use std::collections::BTreeMap;

/// A console block.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The line of the document on which it begins.
    pub line: usize,
    /// From the comment before it: why it is not run.
    pub not_run: Option<String>,
    /// What is typed and shown.
    pub steps: Vec<ConsoleStep>,
}

/// A prompt, and the lines that are shown below it.
#[derive(Debug, PartialEq, Eq)]
pub struct ConsoleStep {
    /// The line of the document.
    pub line: usize,
    /// Before the prompt: `one` in `one$ sublet`, nothing in `$ sublet`.
    pub terminal: String,
    /// What is typed; `None` goes on with what the terminal shows.
    pub command: Option<String>,
    /// What is shown then.
    pub shown: Vec<String>,
}

/// A line that a terminal showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Printed {
    /// Without colours.
    pub text: String,
    /// The program drew over it later.
    pub is_redrawn: bool,
}

/// The value of a comment such as `<!-- KEY: VALUE -->`.
pub fn comment<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.trim().strip_prefix("<!--")?.strip_suffix("-->")?.trim().strip_prefix(key)?.strip_prefix(':').map(str::trim)
}

/// The console blocks of a document.
pub fn blocks(document: &str) -> Vec<Block> {
    let (mut blocks, mut not_run, mut inside) = (Vec::<Block>::new(), None, false);
    for (number, line) in document.lines().enumerate().map(|(number, line)| (number + 1, line)) {
        if inside && line.trim_end() == "```" {
            inside = false;
        } else if inside {
            add_line(blocks.last_mut().map(|block| &mut block.steps).expect("a block was begun"), number, line);
        } else if line.trim_end() == "```console" {
            inside = true;
            blocks.push(Block { line: number, not_run: not_run.take(), steps: Vec::new() });
        } else if let Some(reason) = comment(line, "not run") {
            not_run = Some(reason.to_owned());
        } else if !line.trim().is_empty() {
            not_run = None;
        }
    }
    blocks
}

fn add_line(steps: &mut Vec<ConsoleStep>, number: usize, line: &str) {
    if let Some((terminal, typed)) = prompt(line) {
        let typed = without_remark(typed);
        let command = (!typed.starts_with('…')).then(|| typed.to_owned());
        steps.push(ConsoleStep { line: number, terminal: terminal.to_owned(), command, shown: Vec::new() });
        return;
    }
    let Some(step) = steps.last_mut() else {
        // A block may show a piece of a command only, which is marked.
        return;
    };
    match &mut step.command {
        Some(command) if command.ends_with('\\') && step.shown.is_empty() => {
            command.pop();
            command.push_str(without_remark(line.trim_start()));
        }
        _ if line.trim().is_empty() => {}
        _ => step.shown.push(line.trim_end().to_owned()),
    }
}

/// The terminal and what is typed, if a line has a prompt.
fn prompt(line: &str) -> Option<(&str, &str)> {
    let (before, typed) = line.split_once(['$', '#']).filter(|(_, rest)| rest.starts_with(' '))?;
    before.chars().all(|c| c.is_ascii_lowercase()).then(|| (before, typed.trim()))
}

/// What is typed, without the remark behind it.
fn without_remark(typed: &str) -> &str {
    typed.split("  #").next().unwrap_or(typed).trim_end()
}

/// The lines of what a terminal got.
pub fn printed(bytes: &str) -> Vec<Printed> {
    let (mut lines, mut line, mut at_start) = (Vec::new(), String::new(), true);
    let redraw = |line: &mut String, lines: &mut Vec<Printed>| {
        if !line.trim().is_empty() {
            lines.push(Printed { text: std::mem::take(line), is_redrawn: true });
        }
        line.clear();
    };
    let mut chars = bytes.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\n' => {
                lines.push(Printed { text: std::mem::take(&mut line), is_redrawn: false });
                at_start = true;
            }
            '\r' => at_start = true,
            '\x1b' => {
                chars.next_if_eq(&'[');
                let end = chars.by_ref().find(|c| c.is_ascii_alphabetic());
                if end == Some('K') && at_start {
                    redraw(&mut line, &mut lines);
                }
            }
            c => {
                if at_start {
                    redraw(&mut line, &mut lines);
                }
                at_start = false;
                line.push(c);
            }
        }
    }
    // The line that is still written to may be redrawn.
    if !line.trim().is_empty() {
        lines.push(Printed { text: line, is_redrawn: true });
    }
    lines.retain(|line| !line.text.trim().is_empty());
    lines
}

/// Where the lines that are shown end among the printed ones; `None` if they are not all there, in this order. With
/// `skips` other lines may come before.
pub fn find(shown: &[String], printed: &[Printed], skips: bool) -> Option<usize> {
    let Some((first, rest)) = shown.split_first() else { return Some(0) };
    if first.trim() == "…" {
        return find(rest, printed, true);
    }
    for (at, line) in printed.iter().enumerate() {
        if is_alike(first, &line.text)
            && let Some(end) = find(rest, &printed[at + 1..], false)
        {
            return Some(at + 1 + end);
        }
        if !skips && !line.is_redrawn {
            return None;
        }
    }
    None
}

/// Whether a printed line is what is shown: words are the same, what differs from run to run is not compared, and `…`
/// stands for any text.
pub fn is_alike(shown: &str, printed: &str) -> bool {
    let (shown, printed) = (general(shown), general(printed));
    let mut parts = shown.split('…').map(str::trim);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

/// A line without what differs from run to run: spans of time, numbers of processes, checksums; and with single spaces.
fn general(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let bare = word.trim_matches(|c: char| "(),.;:`'".contains(c));
        let (before, after) = word.split_once(bare).filter(|_| !bare.is_empty()).unwrap_or((word, ""));
        let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.');
        let last = words.last().cloned().unwrap_or_default();
        if UNITS.contains(&bare) && is_number(last.trim_start_matches('(')) {
            words.pop();
            let opens = if last.starts_with('(') { "(" } else { "" };
            match words.last_mut() {
                // `2 h 3 min` is one span.
                Some(span) if span.ends_with(SPAN) && opens.is_empty() => span.push_str(after),
                _ => words.push(format!("{opens}{SPAN}{after}")),
            }
        } else if is_id(bare) {
            words.push(format!("{before}{ID}{after}"));
        } else {
            words.push(word.to_owned());
        }
    }
    words.join(" ")
}

const UNITS: [&str; 5] = ["ms", "s", "min", "h", "d"];
const SPAN: &str = "TIME";
const ID: &str = "NUMBER";

/// Numbers of processes (three digits and more), several of them with commas, and checksums.
fn is_id(word: &str) -> bool {
    let is_pid = |part: &str| part.len() >= 3 && part.chars().all(|c| c.is_ascii_digit());
    word.split(',').all(is_pid) || word.len() >= 16 && word.chars().all(|c| c.is_ascii_hexdigit())
}

/// Which numbers of processes in a shown line stand for which ones in the printed line.
pub fn ids(shown: &str, printed: &str) -> BTreeMap<String, String> {
    let numbers = |line: &str| -> Vec<String> {
        let words = line.split(|c: char| !c.is_ascii_alphanumeric());
        words.filter(|word| is_id(word)).map(str::to_owned).collect()
    };
    let (shown, printed) = (numbers(shown), numbers(printed));
    if shown.len() == printed.len() { shown.into_iter().zip(printed).collect() } else { BTreeMap::new() }
}
