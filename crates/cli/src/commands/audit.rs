//! `sublet audit`: what was decided, on whose word, oldest first.

use crate::args::{Globals, LeaseName};
use crate::client::Client;
use crate::failure::Failure;
use crate::output;
use crate::table::plain;
use crate::text;
use clap::Args;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::thread;
use std::time::Duration;
use sublet_wire::{AuditLine, AuditPage, exit};

/// Lines of one request.
const PAGE: usize = 500;
/// Between two looks for more.
const FOLLOW_PAUSE: Duration = Duration::from_millis(500);

/// Show what was decided, on whose word, oldest first
#[derive(Args, Clone, Debug)]
pub struct AuditArgs {
    /// Only lines after this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    after: u64,
    /// Only lines about this lease
    #[arg(long, value_name = "LEASE")]
    lease: Option<LeaseName>,
    /// Go on as lines are written
    #[arg(short, long)]
    follow: bool,
}

/// Shows it.
pub fn run(globals: &Globals, args: &AuditArgs) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let zone = TimeZone::system();
    let mut after = args.after;
    let mut all = Vec::new();
    loop {
        let page = page(&client, args, after)?;
        after = page.next.or(page.lines.last().map(|line| line.seq)).unwrap_or(after);
        match (globals.json, args.follow) {
            (true, true) => page.lines.iter().try_for_each(output::json_line)?,
            (true, false) => all.extend(page.lines),
            (false, _) => output::print(&render(&page.lines, &zone))?,
        }
        match (page.next, args.follow) {
            (Some(_), _) => {}
            (None, true) => thread::sleep(FOLLOW_PAUSE),
            (None, false) => break,
        }
    }
    if globals.json {
        output::json(&AuditPage { lines: all, next: None })?;
    }
    Ok(exit::OK)
}

fn page(client: &Client, args: &AuditArgs, after: u64) -> Result<AuditPage, Failure> {
    let lease = args.lease.as_ref().map_or_else(String::new, |lease| format!("&lease={lease}"));
    client.get(&format!("/v1/audit?after={after}&limit={PAGE}{lease}"))
}

fn render(lines: &[AuditLine], zone: &TimeZone) -> String {
    lines.iter().map(|line| show(line, zone) + "\n").collect()
}

fn show(line: &AuditLine, zone: &TimeZone) -> String {
    let lease = text::or_none(line.lease.as_deref());
    let (at, who) = (time(line.at_unix_s, zone), plain(&line.actor));
    format!("{:>6}  {at}  {who:<14} {lease:<6} {:<12} {}", line.seq, plain(&line.kind), plain(&line.sentence))
}

/// As the caller's clock on the wall shows it.
fn time(unix_s: f64, zone: &TimeZone) -> String {
    match Timestamp::from_second(unix_s as i64) {
        Ok(at) => at.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => format!("{unix_s}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::NOW;
    use expect_test::expect;

    #[test]
    fn each_line_says_when_who_and_what() {
        let line = AuditLine {
            seq: 41,
            at_unix_s: NOW,
            actor: "uid:1000".into(),
            lease: Some("L7".into()),
            kind: "grant".into(),
            sentence: "granted 10 GiB on card 0 to ana".into(),
            action: serde_json::Value::Null,
            hash: "ab".into(),
        };
        let start = AuditLine {
            seq: 104_200,
            actor: "sublet".into(),
            lease: None,
            kind: "start".into(),
            sentence: "started\x1b[2J".into(),
            ..line.clone()
        };
        expect![[r#"
                41  2023-11-14 22:13:20  uid:1000       L7     grant        granted 10 GiB on card 0 to ana
            104200  2023-11-14 22:13:20  sublet         -      start        started [2J
        "#]]
        .assert_eq(&render(&[line, start], &TimeZone::UTC));
    }
}
