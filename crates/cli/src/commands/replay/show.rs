//! A replay's report as tables, with the policies side by side.

use super::Speed;
use crate::table::{Table, TextFormat, plain};
use crate::text;
use sublet_replay::calibration::CalibrationReport;
use sublet_replay::report::{PolicyOutcome, ReplayReport};
use sublet_replay::stats::WaitStats;
use sublet_wire::span;

/// If there are more tenants, they are in the JSON output only.
const TENANTS_SHOWN: usize = 25;

/// The whole report.
pub fn render(report: &ReplayReport, speed: &[Speed], format: TextFormat) -> String {
    let about = &report.trace;
    let mut page = format!("trace   {}\n", plain(&about.source));
    page.push_str(&format!(
        "        {} jobs, {} tenants, {} from first to last arrival; load {:.2} on {}; leases {}\n",
        about.jobs,
        about.tenants,
        span::show(about.span_s),
        about.load,
        about.cards,
        about.leases
    ));
    for note in &about.notes {
        page.push_str(&format!("note    {}\n", plain(note)));
    }
    page.push('\n');
    page.push_str(&summary(report, speed, format));
    for outcome in &report.policies {
        for refused in &outcome.refusals {
            page.push_str(&format!("{}: {} refused: {}\n", outcome.policy, refused.jobs, refused.why));
        }
    }
    page.push_str(&format!(
        "\nexpected starts beside real ones, of requests that had to wait\n{}",
        calibration(report, format)
    ));
    page.push_str(&format!("\nwait by tier\n{}", waits(report, &tiers(report), format)));
    let (rows, left_out) = tenants(report);
    page.push_str(&format!("\nwait by tenant\n{}", waits(report, &rows, format)));
    if left_out > 0 {
        page.push_str(&format!("  and {left_out} tenants with fewer jobs: see --json\n"));
    }
    page
}

/// The headers of a table with a column for each policy.
fn columns(report: &ReplayReport, first: &[&'static str]) -> Vec<&'static str> {
    let names = report.policies.iter().map(|outcome| match outcome.policy.as_str() {
        "fifo" => ">FIFO",
        "fair" => ">FAIR",
        _ => ">POLICY",
    });
    first.iter().copied().chain(names).collect()
}

fn summary(report: &ReplayReport, speed: &[Speed], format: TextFormat) -> String {
    let mut table = Table::new(&columns(report, &[""]));
    let mut row = |what: &str, of: &dyn Fn(&PolicyOutcome) -> String| {
        table.row([what.to_owned()].into_iter().chain(report.policies.iter().map(of)));
    };
    row("jobs", &|o| o.jobs.to_string());
    row("  finished", &|o| o.finished.to_string());
    row("  refused", &|o| o.refused.to_string());
    row("  running / waiting at the end", &|o| format!("{} / {}", o.running, o.waiting));
    row("time until the last event", &|o| span::show(o.ran_s));
    row("wait, mean", &|o| wait(o.wait.mean_s));
    row("  p50", &|o| wait(o.wait.p50_s));
    row("  p95", &|o| wait(o.wait.p95_s));
    row("  p99", &|o| wait(o.wait.p99_s));
    row("  max", &|o| wait(o.wait.max_s));
    row("completion, mean", &|o| wait(o.completion.mean_s));
    row("  p50 / p95", &|o| format!("{} / {}", wait(o.completion.p50_s), wait(o.completion.p95_s)));
    row("first start, p50 / p99", &|o| format!("{} / {}", wait(o.first_wait.p50_s), wait(o.first_wait.p99_s)));
    row("utilisation", &|o| percent(o.utilisation.share));
    row("  idle while a request waited", &|o| percent(o.utilisation.idle_while_waiting));
    row("time a request waited", &|o| percent(o.utilisation.time_somebody_waited));
    row("  beside room kept for others", &|o| percent(o.utilisation.time_waited_beside_room));
    row("fairness (Jain, 1 is even)", &|o| format!("{:.3}", o.fairness.jain));
    row("  in each contended slot, mean", &|o| format!("{:.3}", o.fairness.jain_per_slot));
    row("  contended slots", &|o| format!("{} of {}", o.fairness.contended_slots, o.fairness.slots));
    row("starved jobs", &|o| o.starvation.jobs.to_string());
    row("  of tenants", &|o| o.starvation.tenants.to_string());
    row("turns", &|o| o.turns.to_string());
    row("  ended before the work", &|o| o.cut.to_string());
    row("preemptions", &|o| o.preemptions.to_string());
    row("events", &|o| o.events.to_string());
    let rate =
        |o: &PolicyOutcome| speed.iter().find(|s| s.policy == o.policy).map(|s| format!("{:.0}", s.events_per_s));
    row("  per second", &|o| rate(o).unwrap_or_else(|| text::NONE.into()));
    table.show("", format)
}

/// The accuracy of the estimated starts of requests that had to wait.
fn calibration(report: &ReplayReport, format: TextFormat) -> String {
    let mut table = Table::new(&columns(report, &[""]));
    let mut row = |what: &str, of: &dyn Fn(&CalibrationReport) -> Option<String>| {
        let cells = report.policies.iter().map(|o| of(&o.calibration).unwrap_or_else(|| text::NONE.into()));
        table.row([what.to_owned()].into_iter().chain(cells));
    };
    row("requests that waited", &|c| Some(c.waited.to_string()));
    row("  told an expected start", &|c| Some(c.known.to_string()));
    row("started within the median", &|c| c.within_p50.map(percent));
    row("started within the 90 % time", &|c| c.within_p90.map(percent));
    row("error of the median, mean", &|c| c.expected.as_ref().map(|error| wait(error.mean_s)));
    row("  median", &|c| c.expected.as_ref().map(|error| wait(error.median_s)));
    row("told a worst case too", &|c| c.bound.as_ref().map(|both| both.requests.to_string()));
    row("  error of the median, mean", &|c| c.bound.as_ref().map(|both| wait(both.expected.mean_s)));
    row("  error of the worst case, mean", &|c| c.bound.as_ref().map(|both| wait(both.other.mean_s)));
    row("told what follows if leases last as long as they may", &|c| {
        c.plan.as_ref().map(|both| both.requests.to_string())
    });
    row("  error of the median, mean", &|c| c.plan.as_ref().map(|both| wait(both.expected.mean_s)));
    row("  error of that, mean", &|c| c.plan.as_ref().map(|both| wait(both.other.mean_s)));
    table.show("  ", format)
}

/// A name, and its waits and fair-share score under each policy.
type Row = (String, Vec<(WaitStats, Option<f64>)>);

fn tiers(report: &ReplayReport) -> Vec<Row> {
    let names = report.policies.first().map(|o| &o.tiers[..]).unwrap_or_default();
    let all = |n: usize| report.policies.iter().map(|o| (o.tiers[n].wait.clone(), None)).collect();
    let rows = names.iter().enumerate().map(|(n, tier)| (tier.tier.to_owned(), all(n)));
    rows.filter(|(_, waits): &Row| waits.iter().any(|(wait, _)| wait.jobs > 0)).collect()
}

fn tenants(report: &ReplayReport) -> (Vec<Row>, usize) {
    let names = report.policies.first().map(|o| &o.tenants[..]).unwrap_or_default();
    let all = |n: usize| report.policies.iter().map(move |o| (o.tenants[n].wait.clone(), o.tenants[n].of_fair_share));
    let mut rows: Vec<Row> =
        names.iter().enumerate().map(|(n, tenant)| (tenant.tenant.clone(), all(n).collect())).collect();
    let jobs = |row: &Row| row.1.first().map_or(0, |(wait, _)| wait.jobs);
    rows.sort_by_key(|row| std::cmp::Reverse(jobs(row)));
    let left_out = rows.len().saturating_sub(TENANTS_SHOWN);
    rows.truncate(TENANTS_SHOWN);
    (rows, left_out)
}

/// One block for each name, with a line for each policy. Only tenants have a fair share.
fn waits(report: &ReplayReport, rows: &[Row], format: TextFormat) -> String {
    let mut headers = vec!["~WHO", "POLICY", ">JOBS", ">MEAN", ">P50", ">P95", ">P99", ">MAX"];
    let scored = rows.iter().flat_map(|(_, waits)| waits).any(|(_, score)| score.is_some());
    headers.extend(scored.then_some(">OF FAIR SHARE"));
    let mut table = Table::new(&headers).drops(&["P50", "P99", "JOBS"]);
    for (name, waits) in rows {
        for (n, (outcome, (w, score))) in report.policies.iter().zip(waits).enumerate() {
            let who = if n == 0 { name.clone() } else { String::new() };
            let score = scored.then(|| score.map_or_else(|| text::NONE.into(), percent));
            let times = [w.mean_s, w.p50_s, w.p95_s, w.p99_s, w.max_s].map(wait);
            let first = [who, outcome.policy.clone(), w.jobs.to_string()];
            table.row(first.into_iter().chain(times).chain(score));
        }
    }
    table.show("  ", format)
}

/// A wait, with tenths of a second below 10 s: interactive users notice them.
fn wait(seconds: f64) -> String {
    if seconds > 0.0 && seconds < 10.0 { format!("{seconds:.1} s") } else { span::show(seconds) }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use sublet_replay::drive::LeaseTerms;
    use sublet_replay::policies::PolicyName;
    use sublet_replay::report::{ReplayOptions, replay};

    #[test]
    fn policies_stand_side_by_side() {
        let text = "arrival_s,tenant,vram,gpus,duration_s,tier\n\
                    0,ann,6GiB,1,3600,batch\n10,ben,6GiB,1,3600,batch\n20,ca\u{7}t,6GiB,1,30,interactive\n\
                    30,ann,60GiB,1,30,batch\n";
        assert!(sublet_replay::csv::read(text, "").is_err(), "no control characters");
        let trace = sublet_replay::csv::read(&text.replace('\u{7}', ""), "a made-up\u{7} trace").unwrap();
        let options = ReplayOptions {
            rules: sublet_daemon::Policy::default(),
            policies: PolicyName::ALL.to_vec(),
            leases: LeaseTerms::Renewed,
            starved: 10.0,
            places: None,
            until: None,
            parking: None,
        };
        let report = replay(&trace, &"1x10GiB".parse().unwrap(), &options, |_| {});
        let speed = |policy: &str| Speed { policy: policy.into(), events: 0, wall_s: 1.0, events_per_s: 300_000.0 };
        expect![[r#"
            trace   a made-up  trace
                    4 jobs, 3 tenants, 30 s from first to last arrival; load 154.46 on 1x10GiB; leases renewed

                                                          FIFO                FAIR
            jobs                                             4                   4
              finished                                       3                   3
              refused                                        1                   1
              running / waiting at the end               0 / 0               0 / 0
            time until the last event                2 h 0 min           2 h 0 min
            wait, mean                                  50 min              40 min
              p50                                       60 min              31 min
              p95                                       60 min              60 min
              p99                                       60 min              60 min
              max                                       60 min              60 min
            completion, mean                            90 min              80 min
              p50 / p95                     91 min / 2 h 0 min  91 min / 2 h 0 min
            first start, p50 / p99             30 min / 60 min     30 min / 30 min
            utilisation                                 61.5 %              61.5 %
              idle while a request waited               28.8 %              28.8 %
            time a request waited                       75.0 %              75.0 %
              beside room kept for others                0.0 %               0.0 %
            fairness (Jain, 1 is even)                   0.729               0.809
              in each contended slot, mean               0.407               0.468
              contended slots                          9 of 13             9 of 13
            starved jobs                                     1                   0
              of tenants                                     1                   0
            turns                                            5                   5
              ended before the work                          2                   2
            preemptions                                      0                   0
            events                                          52                  52
              per second                                300000              300000
            fifo: 1 refused: this can never be granted (suitable GPUs: 1, largest lease there: 9.8 GiB)
            fair: 1 refused: this can never be granted (suitable GPUs: 1, largest lease there: 9.8 GiB)

            expected starts beside real ones, of requests that had to wait
                                                                    FIFO  FAIR
              requests that waited                                     2     2
                told an expected start                                 0     0
              started within the median                                -     -
              started within the 90 % time                             -     -
              error of the median, mean                                -     -
                median                                                 -     -
              told a worst case too                                    -     -
                error of the median, mean                              -     -
                error of the worst case, mean                          -     -
              told what follows if leases last as long as they may     -     -
                error of the median, mean                              -     -
                error of that, mean                                    -     -

            wait by tier
              WHO          POLICY  JOBS    MEAN     P50     P95     P99     MAX
              interactive  fifo       1  60 min  60 min  60 min  60 min  60 min
                           fair       1  30 min  30 min  30 min  30 min  30 min
              batch        fifo       2  45 min  31 min  60 min  60 min  60 min
                           fair       2  45 min  31 min  60 min  60 min  60 min

            wait by tenant
              WHO  POLICY  JOBS    MEAN     P50     P95     P99     MAX  OF FAIR SHARE
              ann  fifo       1  31 min  31 min  31 min  31 min  31 min         83.4 %
                   fair       1  31 min  31 min  31 min  31 min  31 min         82.5 %
              ben  fifo       1  60 min  60 min  60 min  60 min  60 min         42.0 %
                   fair       1  60 min  60 min  60 min  60 min  60 min         41.6 %
              cat  fifo       1  60 min  60 min  60 min  60 min  60 min         14.3 %
                   fair       1  30 min  30 min  30 min  30 min  30 min         25.0 %
        "#]]
        .assert_eq(&render(&report, &[speed("fifo"), speed("fair")], TextFormat::default()));
    }
}
