//! A picture in the making: lines, boxes and words, written as SVG by hand.
//!
//! Colours are classes, so that one file suits a light page and a dark one; lines
//! of different policies differ in their dashes too, for readers that cannot tell the colours apart.

use std::fmt::Write as _;

/// How things look. The colours of the series keep their contrast on both grounds.
const STYLE: &str = "\
text{font-family:'DejaVu Sans',Helvetica,Arial,sans-serif;font-size:12px;fill:#1f2328}\
.title{font-size:17px;font-weight:600}.dim{fill:#59636e}.small{font-size:11px}\
.ground{fill:#ffffff}.grid{stroke:#d8dee4;stroke-width:1}.axis{stroke:#8c959f;stroke-width:1}\
.line{fill:none;stroke-width:1.9;stroke-linejoin:round}\
.line.s0{stroke:#d9730d;stroke-dasharray:7 3}.line.s1{stroke:#2f7de1}\
.bar.s0{fill:#d9730d}.bar.s1{fill:#2f7de1}\
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.dim{fill:#9198a1}.ground{fill:#0d1117}\
.grid{stroke:#2a3038}.axis{stroke:#6e7681}}";

/// The alignment of words at their point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// They begin there.
    Start,
    /// They are centred on it.
    Middle,
    /// They end there.
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

/// A picture.
#[derive(Debug)]
pub struct Picture {
    body: String,
    width: f64,
    height: f64,
    title: String,
}

impl Picture {
    /// An empty one with a title and lines below it.
    pub fn new(width: f64, height: f64, title: &str, below: &[String]) -> Picture {
        let mut picture = Picture { body: String::new(), width, height, title: title.to_owned() };
        picture.text(24.0, 32.0, Anchor::Start, "title", title);
        for (n, line) in below.iter().enumerate() {
            picture.text(24.0, 52.0 + 17.0 * n as f64, Anchor::Start, "dim small", line);
        }
        picture
    }

    /// Puts words somewhere.
    pub fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, words: &str) {
        let anchor = anchor.name();
        let words = escape(words);
        self.append(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">{words}</text>"
        ));
    }

    /// Words that run upwards, for an axis on the left.
    pub fn text_upwards(&mut self, x: f64, y: f64, words: &str) {
        let words = escape(words);
        self.append(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"dim\" text-anchor=\"middle\" \
             transform=\"rotate(-90 {x:.1} {y:.1})\">{words}</text>"
        ));
    }

    /// A straight line.
    pub fn rule(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        self.append(&format!(
            "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>",
            from.0, from.1, to.0, to.1
        ));
    }

    /// A line through points, of the n-th series.
    pub fn line(&mut self, series: usize, points: &[(f64, f64)]) {
        let mut path = String::new();
        for (x, y) in points {
            // Writing to a string cannot fail.
            let _ = write!(path, "{x:.1},{y:.1} ");
        }
        self.append(&format!("<polyline class=\"line s{}\" points=\"{}\"/>", series % 2, path.trim_end()));
    }

    /// A box of the n-th series; `says` is shown when the pointer is over it.
    pub fn bar(&mut self, series: usize, at: (f64, f64), size: (f64, f64), says: &str) {
        self.append(&format!(
            "<rect class=\"bar s{}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"1.5\"><title>{}</title></rect>",
            series % 2,
            at.0,
            at.1,
            size.0,
            size.1,
            escape(says)
        ));
    }

    /// Says in the upper right corner which series is which.
    pub fn legend(&mut self, names: &[&str], filled: bool) {
        let mut x = self.width - 24.0;
        for (series, name) in names.iter().enumerate().rev() {
            x -= 7.5 * name.chars().count() as f64;
            self.text(x, 32.0, Anchor::Start, "", name);
            x -= 36.0;
            if filled {
                self.bar(series, (x + 12.0, 22.0), (16.0, 11.0), name);
            } else {
                self.line(series, &[(x, 28.0), (x + 28.0, 28.0)]);
            }
            x -= 14.0;
        }
    }

    fn append(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }

    /// The file.
    pub fn finish(self) -> String {
        let Picture { body, width, height, title } = self;
        let title = escape(&title);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" role=\"img\" aria-label=\"{title}\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
             <rect class=\"ground\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n{body}</svg>\n"
        )
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
