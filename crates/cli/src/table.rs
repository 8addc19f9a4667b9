//! Tables in the style of `ps`: a header, columns two spaces apart, no lines.
//!
//! A table that is wider than the terminal is narrowed in this order, until it fits:
//!
//! ```text
//!   1. every column marked `~` (a name, a model) is shortened to 16 characters
//!   2. columns without a single value are left out
//!   3. columns are left out in the order of `Table::drops`
//!   4. the columns marked `~` are shortened further, to 6 characters
//! ```
//! Without a terminal every table is whole. A sentence is no cell: it is printed below the table, once for all leases
//! that it is about ([`once`]).

use crate::text::NONE;
use std::io::{self, IsTerminal};

/// The width of a `~` column before any other column is left out.
const SHORT: usize = 16;
/// The least width of a `~` column.
const SHORTEST: usize = 6;
/// The space between two columns.
const GAP: usize = 2;

/// How wide text may be, and whether it may have colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextFormat {
    /// The columns of the terminal; `None` without a terminal: nothing is cut or wrapped.
    pub columns: Option<usize>,
    /// Whether states that need attention are coloured.
    pub colour: Colour,
}

/// Whether text is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colour {
    /// Yes.
    On,
    /// No.
    #[default]
    Off,
}

impl TextFormat {
    /// The format of stdout: the width of its terminal, and colours there unless `NO_COLOR` is set.
    pub fn of_stdout() -> TextFormat {
        let stdout = io::stdout();
        TextFormat::of(&stdout, anstream::AutoStream::choice(&stdout))
    }

    /// The format of stderr.
    pub fn of_stderr() -> TextFormat {
        let stderr = io::stderr();
        TextFormat::of(&stderr, anstream::AutoStream::choice(&stderr))
    }

    fn of(stream: &(impl IsTerminal + std::os::fd::AsFd), choice: anstream::ColorChoice) -> TextFormat {
        let size = stream.is_terminal().then(|| rustix::termios::tcgetwinsize(stream).ok()).flatten();
        let columns = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        let colour = if choice == anstream::ColorChoice::Never { Colour::Off } else { Colour::On };
        TextFormat { columns, colour }
    }

    #[cfg(test)]
    pub fn wide(columns: usize) -> TextFormat {
        TextFormat { columns: Some(columns), colour: Colour::Off }
    }
}

/// How much attention a cell needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// None.
    #[default]
    Plain,
    /// Something waits, is parked, or has no lease.
    Notable,
    /// Something is wrong: a GPU is out of service, a program uses more than its lease.
    Wrong,
}

/// A text in the colour of its tone.
pub fn toned(text: &str, tone: Tone, colour: Colour) -> String {
    match (colour, tone) {
        (Colour::Off, _) | (_, Tone::Plain) => text.to_owned(),
        (Colour::On, Tone::Notable) => format!("\x1b[33m{text}\x1b[0m"),
        (Colour::On, Tone::Wrong) => format!("\x1b[31m{text}\x1b[0m"),
    }
}

#[derive(Debug)]
struct Column {
    header: &'static str,
    is_number: bool,
    may_be_short: bool,
}

/// Rows under a header.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    drops: &'static [&'static str],
    rows: Vec<Vec<(String, Tone)>>,
}

impl Table {
    /// An empty table. A header that begins with `>` is for a column of numbers, one that begins with `~` for a column
    /// that may be shortened.
    pub fn new(headers: &[&'static str]) -> Table {
        let column = |header: &&'static str| Column {
            header: header.trim_start_matches(['>', '~']),
            is_number: header.starts_with('>'),
            may_be_short: header.starts_with('~'),
        };
        Table { columns: headers.iter().map(column).collect(), drops: &[], rows: Vec::new() }
    }

    /// The columns to leave out on a narrow terminal, the first one first.
    pub fn drops(mut self, headers: &'static [&'static str]) -> Table {
        debug_assert!(headers.iter().all(|header| self.columns.iter().any(|column| column.header == *header)));
        self.drops = headers;
        self
    }

    /// Adds a row. Control characters could move the cursor, so they become spaces.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let row: Vec<_> = cells.into_iter().map(|cell| (plain(&cell.into()), Tone::Plain)).collect();
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }

    /// Sets the tone of a cell of the last row.
    pub fn set_tone(&mut self, header: &str, tone: Tone) {
        let column = self.columns.iter().position(|column| column.header == header);
        debug_assert!(column.is_some(), "{header}");
        if let (Some(column), Some(row)) = (column, self.rows.last_mut()) {
            row[column].1 = tone;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text, within the columns of the format. Each line begins with `indent` and ends with a newline.
    pub fn show(&self, indent: &str, format: TextFormat) -> String {
        let shown = self.fitted(format.columns.map(|columns| columns.saturating_sub(width(indent))));
        let mut text = String::new();
        let header: Vec<(String, Tone)> =
            self.columns.iter().map(|column| (column.header.to_owned(), Tone::Plain)).collect();
        for row in std::iter::once(&header).chain(&self.rows) {
            let mut line = indent.to_owned();
            for (n, (column, wide)) in shown.iter().enumerate() {
                let (cell, tone) = &row[*column];
                let cell = shortened(cell, *wide);
                let space = " ".repeat(wide.saturating_sub(width(&cell)));
                let is_number = self.columns[*column].is_number;
                let (before, after) = if is_number { (space.as_str(), "") } else { ("", space.as_str()) };
                let gap = if n == 0 { 0 } else { GAP };
                let cell = toned(&cell, *tone, format.colour);
                line.push_str(&format!("{:gap$}{before}{cell}{after}", ""));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// The columns to show, with their widths.
    fn fitted(&self, room: Option<usize>) -> Vec<(usize, usize)> {
        let mut shown: Vec<(usize, usize)> = (0..self.columns.len()).map(|n| (n, self.natural_width(n))).collect();
        let Some(room) = room else { return shown };
        self.shorten(&mut shown, room, SHORT);
        let is_empty = |n: usize| !self.rows.is_empty() && self.rows.iter().all(|row| row[n].0 == NONE);
        let empty = self.drops.iter().filter(|header| self.position(header).is_some_and(is_empty));
        for header in empty.chain(self.drops) {
            if total(&shown) > room {
                shown.retain(|(n, _)| self.columns[*n].header != *header);
            }
        }
        self.shorten(&mut shown, room, SHORTEST);
        shown
    }

    fn position(&self, header: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.header == header)
    }

    fn natural_width(&self, n: usize) -> usize {
        let cells = self.rows.iter().map(|row| width(&row[n].0));
        cells.chain([width(self.columns[n].header)]).max().unwrap_or(0)
    }

    /// Takes the excess width from the widest `~` columns, down to `least`.
    fn shorten(&self, shown: &mut [(usize, usize)], room: usize, least: usize) {
        while total(shown) > room {
            let long = shown
                .iter_mut()
                .filter(|(n, wide)| self.columns[*n].may_be_short && *wide > least.max(width(self.columns[*n].header)));
            match long.max_by_key(|(_, wide)| *wide) {
                Some((_, wide)) => *wide -= 1,
                None => return,
            }
        }
    }
}

fn total(shown: &[(usize, usize)]) -> usize {
    shown.iter().map(|(_, wide)| wide + GAP).sum::<usize>().saturating_sub(GAP)
}

/// A text cut to this many characters; the last one is `…` then.
fn shortened(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

/// Text from other users without control characters, which could disturb a terminal.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Each sentence once, with all ids that it is about, in the order in which they first appear.
pub fn once<'a>(all: impl IntoIterator<Item = (&'a str, String)>) -> Vec<(Vec<&'a str>, String)> {
    let mut found: Vec<(Vec<&str>, String)> = Vec::new();
    for (id, sentence) in all {
        match found.iter_mut().find(|(_, known)| *known == sentence) {
            Some((ids, _)) => ids.push(id),
            None => found.push((vec![id], sentence)),
        }
    }
    found
}

/// Wraps a text at spaces so that it fits the format. Lines after the first begin with `hanging` spaces. A command in
/// backticks stays on one line if it fits there, so that it can be copied.
pub fn wrapped(text: &str, hanging: usize, format: TextFormat) -> String {
    let Some(columns) = format.columns else { return text.to_owned() };
    text.lines().map(|line| wrapped_line(line, hanging, columns)).collect::<Vec<_>>().join("\n")
}

fn wrapped_line(text: &str, hanging: usize, columns: usize) -> String {
    if width(text) <= columns || hanging >= columns {
        return text.to_owned();
    }
    let lead = text.chars().take_while(|c| *c == ' ').count();
    let mut lines = vec![" ".repeat(lead)];
    for (gap, piece) in pieces(&text[lead..], columns - hanging) {
        let Some(line) = lines.last_mut() else { continue };
        let is_first = line.trim().is_empty();
        if !is_first && width(line) + gap + width(&piece) > columns {
            lines.push(" ".repeat(hanging) + &piece);
        } else {
            line.push_str(&(" ".repeat(if is_first { 0 } else { gap }) + &piece));
        }
    }
    lines.join("\n")
}

/// The pieces between which a line may be broken, each with the spaces before it.
fn pieces(text: &str, room: usize) -> Vec<(usize, String)> {
    let mut pieces: Vec<(usize, String)> = Vec::new();
    let mut gap = 0;
    for word in text.split(' ') {
        gap += 1;
        if word.is_empty() {
            continue;
        }
        match pieces.last_mut() {
            Some((_, piece)) if belongs_to(piece) && width(piece) + gap + width(word) <= room => {
                piece.push_str(&(" ".repeat(gap) + word));
            }
            _ => pieces.push((gap, word.to_owned())),
        }
        gap = 0;
    }
    pieces
}

/// Whether the next word stays on the line of this piece: a command goes on, or a number has its unit next.
fn belongs_to(piece: &str) -> bool {
    let last = piece.rsplit(' ').next().unwrap_or(piece).trim_start_matches('(');
    piece.matches('`').count() % 2 == 1 || last.parse::<f64>().is_ok()
}

/// The number of columns of a text without escape sequences.
fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn columns_line_up_and_no_text_moves_the_cursor() {
        let mut table = Table::new(&["NAME", ">VRAM", "WHY"]);
        table.row(["train", "16 GiB", "first"]);
        table.row(["évil\x1b[2J", "4 GiB", ""]);
        expect![[r#"
            NAME        VRAM  WHY
            train     16 GiB  first
            évil [2J   4 GiB
        "#]]
        .assert_eq(&table.show("", TextFormat::default()));
    }

    fn leases() -> Table {
        let mut table = Table::new(&["LEASE", "~NAME", "STATE", ">VRAM", ">LEFT", "PIDS"]).drops(&["PIDS", "VRAM"]);
        table.row(["L1", "a name that is far too long", "parked", "16 GiB", "-", "4312,4313"]);
        table.row(["L12", "b", "active", "8 GiB", "4 min", "-"]);
        table
    }

    #[test]
    fn a_narrow_table_shortens_names_then_drops_columns_then_shortens_names_further() {
        expect![[r#"
            LEASE  NAME                         STATE     VRAM   LEFT  PIDS
            L1     a name that is far too long  parked  16 GiB      -  4312,4313
            L12    b                            active   8 GiB  4 min  -
        "#]]
        .assert_eq(&leases().show("", TextFormat::wide(80)));
        expect![[r#"
            LEASE  NAME                 STATE     VRAM   LEFT  PIDS
            L1     a name that is far…  parked  16 GiB      -  4312,4313
            L12    b                    active   8 GiB  4 min  -
        "#]]
        .assert_eq(&leases().show("", TextFormat::wide(60)));
        expect![[r#"
            LEASE  NAME              STATE     VRAM   LEFT
            L1     a name that is …  parked  16 GiB      -
            L12    b                 active   8 GiB  4 min
        "#]]
        .assert_eq(&leases().show("", TextFormat::wide(47)));
        expect![[r#"
            LEASE  NAME      STATE    LEFT
            L1     a name …  parked      -
            L12    b         active  4 min
        "#]]
        .assert_eq(&leases().show("", TextFormat::wide(30)));
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_all_of_it_is_shown_without_one() {
        for columns in 28..100 {
            let text = leases().show("", TextFormat::wide(columns));
            assert!(text.lines().all(|line| width(line) <= columns), "{columns}:\n{text}");
        }
        assert!(leases().show("", TextFormat::default()).contains("a name that is far too long"));
    }

    #[test]
    fn a_column_without_values_is_left_out_first() {
        let mut table = Table::new(&["LEASE", "PIDS", ">STARTS"]).drops(&["PIDS", "STARTS"]);
        table.row(["L1", "4312,4313", "-"]);
        expect![[r#"
            LEASE  PIDS
            L1     4312,4313
        "#]]
        .assert_eq(&table.show("", TextFormat::wide(20)));
    }

    #[test]
    fn colour_is_for_what_needs_attention_and_does_not_move_columns() {
        let mut table = leases();
        table.set_tone("STATE", Tone::Notable);
        let coloured = table.show("", TextFormat { colour: Colour::On, ..TextFormat::wide(60) });
        assert!(coloured.contains("\x1b[33mactive\x1b[0m   8 GiB"), "{coloured}");
        let stripped = anstream::adapter::strip_str(&coloured).to_string();
        assert_eq!(stripped, leases().show("", TextFormat::wide(60)));
    }

    #[test]
    fn a_sentence_is_said_once_for_all_that_it_is_about() {
        let all = [("L1", "no room"), ("L2", "drained"), ("L3", "no room")].map(|(id, why)| (id, why.to_owned()));
        assert_eq!(once(all), [(vec!["L1", "L3"], "no room".to_owned()), (vec!["L2"], "drained".to_owned())]);
    }

    #[test]
    fn text_is_wrapped_between_words_and_a_command_stays_whole() {
        let text = "L8 waits: GPU 0 has 7.7 GiB free, and `sublet accept L8` takes a smaller lease";
        expect![[r#"
            L8 waits: GPU 0 has
              7.7 GiB free, and
              `sublet accept L8` takes
              a smaller lease"#]]
        .assert_eq(&wrapped(text, 2, TextFormat::wide(26)));
        assert_eq!(wrapped(text, 2, TextFormat::default()), text);
    }
}
