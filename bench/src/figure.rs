//! Figures with their targets, and the report made of them.

use crate::machine::{self, BenchMachine};
use crate::rig::BenchRig;
use anyhow::Result;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;

/// What a bench hands back.
pub struct BenchOutcome {
    /// The rows of the table.
    pub figures: Vec<Figure>,
    /// Everything that was measured on the way.
    pub raw: Value,
}

/// One number that has a target.
#[derive(Serialize)]
pub struct Figure {
    /// What was measured, in words.
    pub what: &'static str,
    /// Where it should be.
    pub target: FigureTarget,
    /// Where it is.
    pub measured: f64,
    /// The unit of both; `×` for a ratio.
    pub unit: &'static str,
    /// The two sides of a ratio, or where the number comes from, in words.
    pub note: String,
}

/// The bound a figure should keep.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureTarget {
    /// Not above this.
    AtMost(f64),
    /// Not below this.
    AtLeast(f64),
}

impl Figure {
    fn is_met(&self) -> bool {
        match self.target {
            FigureTarget::AtMost(bound) => self.measured <= bound,
            FigureTarget::AtLeast(bound) => self.measured >= bound,
        }
    }
}

/// All outcomes of a run, and the machine they come from.
pub struct BenchReport {
    machine: BenchMachine,
    parts: Vec<(String, Result<BenchOutcome>)>,
}

impl BenchReport {
    /// Without outcomes yet.
    pub fn new(rig: &BenchRig) -> Result<BenchReport> {
        Ok(BenchReport { machine: machine::inspect(&rig.state_root()?)?, parts: Vec::new() })
    }

    /// Keeps what a bench gave, or why it gave nothing.
    pub fn add(&mut self, bench: &str, outcome: Result<BenchOutcome>) {
        self.parts.push((bench.to_owned(), outcome));
    }

    /// Whether every bench gave figures.
    pub fn all_ran(&self) -> bool {
        self.parts.iter().all(|(_, outcome)| outcome.is_ok())
    }

    /// The table for people.
    pub fn markdown(&self) -> String {
        let mut text = format!("# Measurements\n\n{}\n", self.machine);
        text.push_str("| bench | figure | target | measured | met? | from |\n|---|---|---|---|---|---|\n");
        for (bench, outcome) in &self.parts {
            match outcome {
                Ok(outcome) => outcome.figures.iter().for_each(|figure| row(&mut text, bench, figure)),
                Err(error) => {
                    let why = format!("{error:#}").replace('|', "\\|").replace('\n', " ");
                    // Writing to a String cannot fail.
                    let _ = writeln!(text, "| {bench} | — | — | not measured | — | {why} |");
                }
            }
        }
        text
    }

    /// Writes the table and the raw numbers into `folder`.
    pub fn write(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("measurements.md"), self.markdown())?;
        let parts: serde_json::Map<String, Value> = self
            .parts
            .iter()
            .map(|(bench, outcome)| {
                let part = match outcome {
                    Ok(outcome) => serde_json::json!({ "figures": outcome.figures, "raw": outcome.raw }),
                    Err(error) => serde_json::json!({ "error": format!("{error:#}") }),
                };
                (bench.clone(), part)
            })
            .collect();
        let whole = serde_json::json!({ "machine": self.machine, "benches": parts });
        std::fs::write(folder.join("measurements.json"), serde_json::to_string_pretty(&whole)? + "\n")?;
        Ok(())
    }
}

fn row(text: &mut String, bench: &str, figure: &Figure) {
    let (sign, bound) = match figure.target {
        FigureTarget::AtMost(bound) => ("≤", bound),
        FigureTarget::AtLeast(bound) => ("≥", bound),
    };
    let met = if figure.is_met() { "yes" } else { "**no**" };
    let Figure { what, unit, measured, note, .. } = figure;
    // Writing to a String cannot fail.
    let _ =
        writeln!(text, "| {bench} | {what} | {sign} {bound} {unit} | {} {unit} | {met} | {note} |", digits(*measured));
}

/// Three digits that matter, without an exponent.
pub fn digits(value: f64) -> String {
    let places = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        v => 2 - (v.log10().floor() as i32),
    };
    format!("{value:.*}", places.max(0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_matter() {
        for (value, text) in
            [(0.0, "0"), (1234.5, "1234"), (12.34, "12.3"), (1.234, "1.23"), (0.1234, "0.123"), (0.00123, "0.00123")]
        {
            assert_eq!(digits(value), text);
        }
    }

    #[test]
    fn a_bound_itself_is_met() {
        let figure = |target| Figure { what: "", target, measured: 5.0, unit: "×", note: String::new() };
        assert!(figure(FigureTarget::AtMost(5.0)).is_met() && figure(FigureTarget::AtLeast(5.0)).is_met());
        assert!(!figure(FigureTarget::AtMost(4.9)).is_met() && !figure(FigureTarget::AtLeast(5.1)).is_met());
    }
}
