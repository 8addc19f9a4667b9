//! `sublet audit`: the decisions, with the user or process that caused them, oldest first.

use crate::args::{Globals, LeaseName, UnleasedName};
use crate::client::{Client, RESTART};
use crate::commands::journal;
use crate::completion;
use crate::failure::Failure;
use crate::output;
use crate::table::{TextFormat, plain, wrapped};
use crate::text;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;
use sublet_wire::{AuditLine, AuditPage, exit};

/// The number of lines in one request.
const PAGE: usize = 500;
/// The pause between two reads with `--follow`.
const FOLLOW_PAUSE: Duration = Duration::from_millis(500);

/// Show what was decided, and by which user, oldest first
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct AuditArgs {
    #[command(subcommand)]
    what: Option<AuditAction>,
    #[command(flatten)]
    lines: LinesArgs,
}

/// What else to do with the trail.
#[derive(Subcommand, Clone, Debug)]
enum AuditAction {
    Show(ShowArgs),
    /// Check that no line was changed, left out or put in (on the host, where the journal is)
    Verify(VerifyArgs),
}

/// Tell the whole story of one process that was on a GPU without a lease
#[derive(Args, Clone, Debug)]
struct ShowArgs {
    /// The id of an unleased process, such as X3
    #[arg(value_name = "PROCESS")]
    process: UnleasedName,
}

#[derive(Args, Clone, Debug)]
struct VerifyArgs {
    /// The daemon's state directory, or a backup [default: as for `serve`]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
struct LinesArgs {
    /// Only lines after this number
    #[arg(long, value_name = "N", default_value_t = 0)]
    after: u64,
    /// Only lines about this lease: its id, or its name
    #[arg(long, value_name = "LEASE", add = completion::any_lease())]
    lease: Option<LeaseName>,
    /// Go on as lines are written
    #[arg(short, long)]
    follow: bool,
}

/// Runs `sublet audit`.
pub fn run(globals: &Globals, args: &AuditArgs) -> Result<u8, Failure> {
    match &args.what {
        None => lines(globals, &args.lines),
        Some(AuditAction::Show(args)) => story(globals, &args.process),
        Some(AuditAction::Verify(args)) => journal::check(globals, args.state_dir.as_deref()),
    }
}

/// Prints every decision about one unleased process, and the facts about that process.
fn story(globals: &Globals, process: &UnleasedName) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let mut lines = Vec::new();
    let mut after = 0;
    loop {
        let page: AuditPage = client.get(&format!("/v1/audit?after={after}&limit={PAGE}&process={process}"))?;
        lines.extend(page.lines);
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    if lines.is_empty() {
        return Err(Failure::new(exit::FAILURE, format!("the audit trail has no line about {process}"))
            .hint("`sublet enforce status` lists those that are on GPUs now; old lines are trimmed"));
    }
    if globals.json {
        lines.iter().try_for_each(output::json_line)?;
        return Ok(exit::OK);
    }
    output::print(&tell(&lines, &TimeZone::system()))?;
    Ok(exit::OK)
}

fn tell(lines: &[AuditLine], zone: &TimeZone) -> String {
    let mut text = String::new();
    for line in lines {
        text.push_str(&format!("{}  {}\n", time(line.at_unix_s, zone), plain(&line.sentence)));
        let audit = line.action.pointer("/stranger/audit").or_else(|| line.action.get("audit"));
        if let Some(audit) = audit {
            text.push_str(&who(audit));
        }
    }
    text
}

/// The facts about a process, one per line.
fn who(audit: &Value) -> String {
    let mut facts: Vec<(&str, String)> = Vec::new();
    let words = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Array(all) => all
            .iter()
            .map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned))
            .collect::<Vec<_>>()
            .join(" "),
        other => other.to_string(),
    };
    for (label, key) in [
        ("executable", "exe"),
        ("command", "command"),
        ("directory", "cwd"),
        ("unit", "unit"),
        ("container", "container"),
        ("control group", "cgroup"),
        ("device files", "devices"),
        ("not read", "unread"),
    ] {
        facts.extend(audit.get(key).map(|value| (label, words(value))));
    }
    let parents = audit.get("ancestry").and_then(Value::as_array).map(|parents| {
        let one = |parent: &Value| {
            let pid = parent.pointer("/process/pid").and_then(Value::as_u64).unwrap_or(0);
            let ended = if parent.get("ended") == Some(&Value::Bool(true)) { ", ended" } else { "" };
            format!("{} ({pid}{ended})", parent.get("name").and_then(Value::as_str).unwrap_or("?"))
        };
        parents.iter().map(one).collect::<Vec<_>>().join(" < ")
    });
    facts.extend(parents.filter(|parents| !parents.is_empty()).map(|parents| ("parents", parents)));
    facts.iter().map(|(label, fact)| format!("    {label:<14} {}\n", plain(fact))).collect()
}

fn lines(globals: &Globals, args: &LinesArgs) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let lease = args.lease.as_ref().map(|lease| client.id_of(lease)).transpose()?;
    let zone = TimeZone::system();
    let mut after = args.after;
    let (mut all, mut found) = (Vec::new(), false);
    loop {
        let page = page(&client, lease.as_deref(), after)?;
        found |= !page.lines.is_empty();
        if let (Some(lease), false, None) = (&lease, found, page.next) {
            // A lease that existed may have no lines left. For a lease that never existed there is nothing to wait for:
            // an error.
            client.lease(lease, RESTART).map_err(|error| client.failure(error).about(lease))?;
            found = true;
        }
        after = page.next.or(page.lines.last().map(|line| line.seq)).unwrap_or(after);
        match (globals.json, args.follow) {
            (true, true) => page.lines.iter().try_for_each(output::json_line)?,
            (true, false) => all.extend(page.lines),
            (false, _) => output::print(&render(&page.lines, &zone, TextFormat::of_stdout()))?,
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

fn page(client: &Client, lease: Option<&str>, after: u64) -> Result<AuditPage, Failure> {
    let lease = lease.map_or_else(String::new, |lease| format!("&lease={lease}"));
    client.get(&format!("/v1/audit?after={after}&limit={PAGE}{lease}"))
}

fn render(lines: &[AuditLine], zone: &TimeZone, format: TextFormat) -> String {
    lines.iter().map(|line| show(line, zone, format) + "\n").collect()
}

/// A line of the trail. On a terminal the sentence is wrapped below the rest if it does not fit beside it.
fn show(line: &AuditLine, zone: &TimeZone, format: TextFormat) -> String {
    let lease = text::or_none(line.lease.as_deref());
    let (at, who) = (time(line.at_unix_s, zone), plain(&line.actor));
    let (kind, sentence) = (plain(&line.kind), plain(&line.sentence));
    let head = format!("{:>6}  {at}  {who:<14} {lease:<6}", line.seq);
    let whole = format!("{head} {kind:<12} {sentence}");
    match format.columns {
        Some(columns) if whole.chars().count() > columns => {
            format!("{head} {kind}\n{}", wrapped(&format!("        {sentence}"), 8, format))
        }
        _ => whole,
    }
}

/// The local time.
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
            sentence: "granted 10 GiB on GPU 0 to ana".into(),
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
                41  2023-11-14 22:13:20  uid:1000       L7     grant        granted 10 GiB on GPU 0 to ana
            104200  2023-11-14 22:13:20  sublet         -      start        started [2J
        "#]]
        .assert_eq(&render(&[line, start], &TimeZone::UTC, TextFormat::default()));
    }
}
