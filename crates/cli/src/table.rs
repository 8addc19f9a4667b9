//! Tables in the style of `ps`: a header, columns two spaces apart, no lines.

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// Rows under a header.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table. A header that begins with `>` is for a column of numbers.
    pub fn new(headers: &[&'static str]) -> Table {
        let column = |header: &&'static str| match header.strip_prefix('>') {
            Some(header) => (header, Align::Right),
            None => (*header, Align::Left),
        };
        Table { columns: headers.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row. Control characters could move the cursor, so they become spaces.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let row: Vec<String> = cells.into_iter().map(|cell| plain(&cell.into())).collect();
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The whole table as text. Each line begins with `indent` and ends with a newline.
    pub fn show(&self, indent: &str) -> String {
        let headers: Vec<String> = self.columns.iter().map(|(header, _)| (*header).to_owned()).collect();
        let widths: Vec<usize> = (0..headers.len())
            .map(|n| self.rows.iter().map(|row| width(&row[n])).chain([width(&headers[n])]).max().unwrap_or(0))
            .collect();
        let mut text = String::new();
        for row in std::iter::once(&headers).chain(&self.rows) {
            let line: Vec<String> = row
                .iter()
                .zip(&widths)
                .zip(&self.columns)
                .map(|((cell, w), (_, align))| pad(cell, *w, *align))
                .collect();
            text.push_str(format!("{indent}{}", line.join("  ")).trim_end());
            text.push('\n');
        }
        text
    }
}

/// Text from other users without control characters, which could disturb a terminal.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn width(cell: &str) -> usize {
    cell.chars().count()
}

fn pad(cell: &str, width: usize, align: Align) -> String {
    match align {
        Align::Left => format!("{cell:<width$}"),
        Align::Right => format!("{cell:>width$}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn columns_line_up_and_nobody_moves_the_cursor() {
        let mut table = Table::new(&["NAME", ">VRAM", "WHY"]);
        table.row(["train", "16 GiB", "first"]);
        table.row(["évil\x1b[2J", "4 GiB", ""]);
        expect![[r#"
            NAME        VRAM  WHY
            train     16 GiB  first
            évil [2J   4 GiB
        "#]]
        .assert_eq(&table.show(""));
    }
}
