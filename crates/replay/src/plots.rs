//! Three plots of a report. Every point of them is in the report itself.

use crate::report::{PolicyOutcome, ReplayReport};
use crate::svg::{Anchor, Picture};

const WIDTH: f64 = 900.0;
/// More tenants than this make bars too thin to read.
const TENANTS_MAX: usize = 24;
/// The number of small letters that fit on a line.
const SOURCE_CHARS_MAX: usize = 130;

/// All plots, each with its file's name.
pub fn all_plots(report: &ReplayReport) -> Vec<(&'static str, String)> {
    vec![
        ("wait-distribution.svg", wait_distribution(report)),
        ("p99-by-tenant.svg", p99_by_tenant(report)),
        ("over-time.svg", over_time(report)),
    ]
}

fn policy_names(report: &ReplayReport) -> Vec<&str> {
    report.policies.iter().map(|outcome| outcome.policy.as_str()).collect()
}

/// The lines below a plot: what a reader needs without the report.
fn footer_lines(report: &ReplayReport) -> [String; 2] {
    let about = &report.trace;
    let source: String = about.source.chars().take(SOURCE_CHARS_MAX).collect();
    let dots = if about.source.chars().count() > SOURCE_CHARS_MAX { "…" } else { "" };
    let mut facts =
        format!("{} jobs of {} tenants on {} · leases {}", about.jobs, about.tenants, about.cards, about.leases);
    if let Some(changed) = &about.changed {
        facts = format!("{facts} · {changed}");
    }
    [format!("{source}{dots}"), facts]
}

/// The part of a picture that is drawn to scale.
#[derive(Clone, Copy)]
struct Panel {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Panel {
    /// The coordinate of a share of its width.
    fn x(&self, share: f64) -> f64 {
        self.left + share.clamp(0.0, 1.0) * (self.right - self.left)
    }
    /// The coordinate of a share of its height, from below.
    fn y(&self, share: f64) -> f64 {
        self.bottom - share.clamp(0.0, 1.0) * (self.bottom - self.top)
    }

    fn horizontal_line(&self, picture: &mut Picture, share: f64, label: &str) {
        let y = self.y(share);
        picture.rule("grid", (self.left, y), (self.right, y));
        picture.text(self.left - 8.0, y + 4.0, Anchor::End, "dim small", label);
    }

    fn vertical_line(&self, picture: &mut Picture, share: f64, label: &str) {
        let x = self.x(share);
        picture.rule("grid", (x, self.top), (x, self.bottom));
        picture.text(x, self.bottom + 17.0, Anchor::Middle, "dim small", label);
    }

    fn axes(&self, picture: &mut Picture) {
        picture.rule("axis", (self.left, self.bottom), (self.right, self.bottom));
        picture.rule("axis", (self.left, self.top), (self.left, self.bottom));
    }
}

// ---- waits of all jobs -------------------------------------------------------

/// Ticks of a scale of waits on which all steps are about equally wide.
const WAITS: [(f64, &str); 13] = [
    (1.0, "≤ 1 s"),
    (10.0, "10 s"),
    (60.0, "1 min"),
    (600.0, "10 min"),
    (3600.0, "1 h"),
    (6.0 * 3600.0, "6 h"),
    (86_400.0, "1 d"),
    (7.0 * 86_400.0, "7 d"),
    (30.0 * 86_400.0, "30 d"),
    (182.0 * 86_400.0, "½ y"),
    (1_000.0 * 86_400.0, "1000 d"),
    (10_000.0 * 86_400.0, "10⁴ d"),
    (100_000.0 * 86_400.0, "10⁵ d"),
];

fn wait_distribution(report: &ReplayReport) -> String {
    let mut picture = Picture::new(WIDTH, 458.0, "How long jobs waited", &footer_lines(report));
    let panel = Panel { left: 76.0, right: WIDTH - 30.0, top: 94.0, bottom: 398.0 };
    let longest = report.policies.iter().map(|outcome| outcome.wait.max_s).fold(10.0, f64::max);
    let last = WAITS.iter().position(|(mark, _)| *mark >= longest).unwrap_or(WAITS.len() - 1);
    let place = |seconds: f64| seconds.max(1.0).ln() / WAITS[last].0.ln();
    for percent in [0, 25, 50, 75, 100] {
        panel.horizontal_line(&mut picture, f64::from(percent) / 100.0, &format!("{percent} %"));
    }
    for (mark, label) in &WAITS[..=last] {
        panel.vertical_line(&mut picture, place(*mark), label);
    }
    panel.axes(&mut picture);
    for (series, outcome) in report.policies.iter().enumerate() {
        let points = outcome.wait_distribution.iter().map(|p| (panel.x(place(p.wait_s)), panel.y(p.share)));
        picture.line(series, &points.collect::<Vec<_>>());
    }
    picture.text(
        (panel.left + panel.right) / 2.0,
        442.0,
        Anchor::Middle,
        "dim",
        "time in the queue, all turns together (log scale)",
    );
    picture.text_upwards(24.0, (panel.top + panel.bottom) / 2.0, "jobs that waited no longer");
    picture.legend(&policy_names(report), false);
    picture.finish()
}

// ---- the slowest 1 % of each tenant ---------------------------------------------

fn p99_by_tenant(report: &ReplayReport) -> String {
    let mut rows: Vec<usize> = (0..report.policies.first().map_or(0, |outcome| outcome.tenants.len())).collect();
    let jobs = |n: &usize| report.policies[0].tenants[*n].wait.jobs;
    rows.sort_by_key(|n| std::cmp::Reverse(jobs(n)));
    let left_out = rows.len().saturating_sub(TENANTS_MAX);
    rows.truncate(TENANTS_MAX);
    let series = report.policies.len().max(1) as f64;
    let (bar, gap) = (13.0, 10.0);
    let step = bar * series + gap;
    let height = 94.0 + step * rows.len() as f64 + 62.0;
    let more = if left_out > 0 { format!(" · {left_out} tenants with fewer jobs not shown") } else { String::new() };
    let [source, facts] = footer_lines(report);
    let mut picture =
        Picture::new(WIDTH, height, "Wait of each tenant, 99th percentile", &[source, format!("{facts}{more}")]);
    let panel = Panel { left: 150.0, right: WIDTH - 100.0, top: 90.0, bottom: height - 56.0 };
    let wait = |outcome: &PolicyOutcome, n: usize| outcome.tenants[n].wait.p99_s;
    let longest = report.policies.iter().flat_map(|o| rows.iter().map(move |n| wait(o, *n))).fold(1.0, f64::max);
    let unit = TimeAxisUnit::of(longest);
    for mark in tick_positions(longest / unit.seconds) {
        panel.vertical_line(&mut picture, mark * unit.seconds / longest, &number(mark));
    }
    panel.axes(&mut picture);
    for (row, n) in rows.iter().enumerate() {
        let y = panel.top + gap / 2.0 + step * row as f64;
        let name: String = report.policies[0].tenants[*n].tenant.chars().take(18).collect();
        picture.text(panel.left - 10.0, y + bar * series / 2.0 + 4.0, Anchor::End, "small", &name);
        for (series, outcome) in report.policies.iter().enumerate() {
            let y = y + bar * series as f64;
            let (seconds, x) = (wait(outcome, *n), panel.x(wait(outcome, *n) / longest));
            let says = format!("{name}, {}: {}", outcome.policy, span(seconds));
            picture.bar(series, (panel.left, y), ((x - panel.left).max(1.0), bar - 1.0), &says);
            picture.text(x + 6.0, y + bar - 3.0, Anchor::Start, "dim small", &span(seconds));
        }
    }
    let axis = format!("99 in 100 jobs of the tenant waited no longer ({})", unit.name);
    picture.text((panel.left + panel.right) / 2.0, height - 16.0, Anchor::Middle, "dim", &axis);
    picture.legend(&policy_names(report), true);
    picture.finish()
}

// ---- over time -----------------------------------------------------------------

fn over_time(report: &ReplayReport) -> String {
    let mut picture = Picture::new(WIDTH, 578.0, "Queue and use of the GPUs over time", &footer_lines(report));
    let upper = Panel { left: 76.0, right: WIDTH - 30.0, top: 100.0, bottom: 302.0 };
    let lower = Panel { top: 334.0, bottom: 518.0, ..upper };
    let end = report.policies.iter().map(|outcome| outcome.ran_s).fold(1.0, f64::max);
    let moments = || report.policies.iter().flat_map(|outcome| &outcome.timeline);
    let most = moments().map(|moment| moment.queue).fold(1.0, f64::max);
    let unit = TimeAxisUnit::of(end);
    for mark in tick_positions(end / unit.seconds) {
        let share = mark * unit.seconds / end;
        upper.vertical_line(&mut picture, share, "");
        lower.vertical_line(&mut picture, share, &number(mark));
    }
    for mark in tick_positions(most) {
        upper.horizontal_line(&mut picture, mark / most, &number(mark));
    }
    for percent in [0, 25, 50, 75, 100] {
        lower.horizontal_line(&mut picture, f64::from(percent) / 100.0, &format!("{percent} %"));
    }
    upper.axes(&mut picture);
    lower.axes(&mut picture);
    for (series, outcome) in report.policies.iter().enumerate() {
        let x = |at_s: f64| upper.x(at_s / end);
        let queue = outcome.timeline.iter().map(|m| (x(m.at_s), upper.y(m.queue / most)));
        picture.line(series, &queue.collect::<Vec<_>>());
        let used = outcome.timeline.iter().map(|m| (x(m.at_s), lower.y(m.utilisation)));
        picture.line(series, &used.collect::<Vec<_>>());
    }
    picture.text_upwards(24.0, (upper.top + upper.bottom) / 2.0, "jobs waiting");
    picture.text_upwards(24.0, (lower.top + lower.bottom) / 2.0, "bytes granted");
    let axis = format!("time since the first arrival ({})", unit.name);
    picture.text((lower.left + lower.right) / 2.0, 562.0, Anchor::Middle, "dim", &axis);
    picture.legend(&policy_names(report), false);
    picture.finish()
}

// ---- scales --------------------------------------------------------------------

/// The unit of a time axis.
struct TimeAxisUnit {
    seconds: f64,
    name: &'static str,
}

impl TimeAxisUnit {
    /// The largest unit of which `longest_s` has at least two.
    fn of(longest_s: f64) -> TimeAxisUnit {
        let units = [(86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes")];
        let fits = units.into_iter().find(|(seconds, _)| longest_s >= 2.0 * seconds);
        let (seconds, name) = fits.unwrap_or((1.0, "seconds"));
        TimeAxisUnit { seconds, name }
    }
}

/// Round numbers from 0 to `most`, four to eight of them.
fn tick_positions(most: f64) -> Vec<f64> {
    let rough = (most / 7.5).max(1e-9);
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|n| n * power >= rough).unwrap_or(10.0) * power;
    (0..=(most / step) as u32).map(|n| f64::from(n) * step).collect()
}

fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn span(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7_200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3_600.0),
        s => format!("{:.1} d", s / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_end_within_the_scale() {
        assert_eq!(tick_positions(6.4), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(tick_positions(14.7), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]);
        assert_eq!([0.0, 2.5, 0.25, 0.6000000000000001, 100.0].map(number), ["0", "2.5", "0.25", "0.6", "100"]);
        assert_eq!(tick_positions(1000.0), [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        assert_eq!(tick_positions(0.9), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8]);
    }

    #[test]
    fn spans_have_the_unit_that_suits_them() {
        assert_eq!([0.0, 42.0, 600.0, 9_000.0, 864_000.0].map(span), ["0.0 s", "42 s", "10 min", "2.5 h", "10.0 d"]);
    }
}
