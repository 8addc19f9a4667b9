//! `sublet journal`: verifies, copies and lists the journal's files, which needs no running daemon; and tells a running
//! daemon to accept that lines are missing.

use super::serve::no_home;
use crate::args::Globals;
use crate::client::Client;
use crate::failure::Failure;
use crate::journal_files::{self, JournalLease, Verified};
use crate::output;
use crate::place;
use crate::table::{Table, TextFormat};
use crate::text;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::{Path, PathBuf};
use sublet_wire::exit;

/// Check, copy or read the journal's files
///
/// `verify`, `backup` and `leases` read the files, also while a daemon runs; `accept-loss` needs the daemon
#[derive(Args, Clone, Debug)]
pub struct JournalArgs {
    #[command(subcommand)]
    verb: JournalVerb,
    /// The daemon's state directory, or a backup [default: as for `serve`]
    #[arg(long, global = true, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

/// What to do with the journal.
#[derive(Subcommand, Clone, Debug)]
pub enum JournalVerb {
    /// Check the file, the hash chain, and that replaying the log gives the stored state
    Verify,
    /// Copy the journal to a new file, which is complete and can be used in its place
    Backup {
        /// The file to make
        to: PathBuf,
    },
    /// List the leases in the journal that have not ended
    Leases,
    /// Have the running daemon go on without lines that are missing (operators only)
    ///
    /// A damaged or lost write-ahead log, and a backup that was put back, leave the journal with fewer lines than were
    /// written. The daemon notices that when it starts, and grants nothing until an operator accepts it with this command;
    /// the audit trail records that. Programs of leases that were lost continue, as unleased processes.
    AcceptLoss,
}

/// Runs `sublet journal`.
pub fn run(globals: &Globals, args: &JournalArgs) -> Result<u8, Failure> {
    let dir = || place::state_dir(args.state_dir.as_deref()).ok_or_else(no_home);
    match &args.verb {
        JournalVerb::Verify => check(globals, args.state_dir.as_deref()),
        JournalVerb::Backup { to } => {
            journal_files::backup(&dir()?, to)?;
            match globals.json {
                true => output::json(&Copied::to(to))?,
                false => eprintln!("copied the journal to {}", to.display()),
            }
            Ok(exit::OK)
        }
        JournalVerb::Leases => leases(globals, &journal_files::leases(&dir()?)?),
        JournalVerb::AcceptLoss => accept_loss(globals, args.state_dir.as_deref()),
    }
}

fn accept_loss(globals: &Globals, state_dir: Option<&Path>) -> Result<u8, Failure> {
    if state_dir.is_some() {
        let failure = Failure::usage("the running daemon records it, so `--state-dir` has no meaning here");
        return Err(failure.hint("say `--socket` if there is more than one daemon"));
    }
    let accepted = Client::open(globals)?.accept_loss()?;
    match globals.json {
        true => output::json(&accepted)?,
        false => eprintln!("accepted: {}; leases are granted again", accepted.sentence),
    }
    Ok(exit::OK)
}

/// Checks the journal in this directory, or in the default one of `serve`.
pub fn check(globals: &Globals, state_dir: Option<&Path>) -> Result<u8, Failure> {
    let dir = place::state_dir(state_dir).ok_or_else(no_home)?;
    verify(globals, &journal_files::verify(&dir)?)
}

fn verify(globals: &Globals, found: &Verified) -> Result<u8, Failure> {
    if globals.json {
        output::json(found)?;
    } else {
        output::print(&render(found))?;
    }
    Ok(if found.findings.is_empty() { exit::OK } else { exit::FAILURE })
}

/// The most owners of trimmed lines that are printed.
const TRIMMED_SHOWN: usize = 10;

fn render(found: &Verified) -> String {
    let mut text: String = found.findings.iter().map(|finding| format!("wrong: {finding}\n")).collect();
    text.push_str(&format!(
        "{}; {}, {} ended\nhead {} {}\n",
        if found.last_seq < found.first_seq {
            "no log lines".into()
        } else {
            format!("log lines {} to {}", found.first_seq, found.last_seq)
        },
        text::count(found.leases, "live lease"),
        found.ended + found.ended_before_log,
        found.last_seq,
        found.head,
    ));
    for trimmed in found.trimmed.iter().take(TRIMMED_SHOWN) {
        text.push_str(&format!("trimmed: {} of {}\n", text::count(trimmed.lines, "line"), trimmed.owner));
    }
    if let Some(more) = found.trimmed.len().checked_sub(TRIMMED_SHOWN).filter(|more| *more > 0) {
        text.push_str(&format!("trimmed: lines of {} (`--json` lists all)\n", text::count(more as u64, "more owner")));
    }
    text.push_str(&match found.findings.len() as u64 {
        0 if found.has_head_file => "the journal is whole\n".into(),
        0 => "no problem was found; there is no `journal.head` beside the journal, so missing lines at its end cannot be \
              detected\n"
            .into(),
        n => format!("the journal is NOT whole: {}\n", text::count(n, "finding")),
    });
    text
}

/// What `--json` prints for a backup.
#[derive(Serialize)]
struct Copied {
    to: PathBuf,
    bytes: Option<u64>,
}

impl Copied {
    fn to(file: &Path) -> Copied {
        Copied { to: place::absolute(file), bytes: file.metadata().ok().map(|found| found.len()) }
    }
}

/// What `--json` prints for the leases.
#[derive(Serialize)]
struct JournalLeasesJson<'a> {
    leases: &'a [JournalLease],
}

fn leases(globals: &Globals, leases: &[JournalLease]) -> Result<u8, Failure> {
    if globals.json {
        output::json(&JournalLeasesJson { leases })?;
    } else if leases.is_empty() {
        eprintln!("no leases");
    } else {
        output::print(&list(leases, TextFormat::of_stdout()))?;
    }
    Ok(exit::OK)
}

fn list(leases: &[JournalLease], format: TextFormat) -> String {
    let mut table = Table::new(&["LEASE", "~TENANT", "~NAME", "STATE", "GPUS", ">VRAM", ">FENCE"]).drops(&["FENCE"]);
    for lease in leases {
        let gpus: Vec<String> = lease.gpus.iter().map(u32::to_string).collect();
        table.row([
            lease.id.clone(),
            lease.tenant.clone(),
            text::or_none(lease.name.as_deref()),
            lease.state.clone(),
            text::or_none(Some(&gpus.join(","))),
            text::bytes(lease.vram_bytes),
            lease.fence.map_or_else(|| text::NONE.into(), |fence| fence.to_string()),
        ]);
    }
    table.show("", format)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal_files::Trimmed;
    use expect_test::expect;

    fn whole() -> Verified {
        Verified {
            findings: vec![],
            first_seq: 1,
            last_seq: 42,
            head: "ab12".into(),
            leases: 1,
            ended: 7,
            ended_before_log: 0,
            has_head_file: true,
            trimmed: vec![],
        }
    }

    #[test]
    fn trimmed_lines_are_shown_by_owner() {
        let trimmed = (0..12).map(|n| Trimmed { owner: format!("uid:{}", 1000 + n), lines: 100 - n }).collect();
        let text = render(&Verified { trimmed, ..whole() });
        assert!(text.contains("head 42 ab12\ntrimmed: 100 lines of uid:1000\n"), "{text}");
        assert!(
            text.contains("trimmed: lines of 2 more owners (`--json` lists all)\nthe journal is whole\n"),
            "{text}"
        );
    }

    #[test]
    fn a_whole_journal_is_said_to_be_so() {
        expect![[r#"
            log lines 1 to 42; 1 live lease, 7 ended
            head 42 ab12
            the journal is whole
        "#]]
        .assert_eq(&render(&whole()));
    }

    #[test]
    fn what_is_wrong_comes_first() {
        let found = Verified { findings: vec!["line 7 does not continue the chain".into()], ..whole() };
        expect![[r#"
            wrong: line 7 does not continue the chain
            log lines 1 to 42; 1 live lease, 7 ended
            head 42 ab12
            the journal is NOT whole: 1 finding
        "#]]
        .assert_eq(&render(&found));
    }

    #[test]
    fn a_missing_head_file_is_named_with_what_it_means() {
        let text = render(&Verified { has_head_file: false, ..whole() });
        assert!(
            text.ends_with("no `journal.head` beside the journal, so missing lines at its end cannot be detected\n"),
            "{text}"
        );
    }

    #[test]
    fn rows_are_listed_as_they_are() {
        let held = JournalLease {
            id: "L7".into(),
            tenant: "uid:1000".into(),
            name: None,
            state: "active".into(),
            gpus: vec![0, 1],
            vram_bytes: Some(10 << 30),
            fence: Some(12),
        };
        expect![[r#"
            LEASE  TENANT    NAME  STATE   GPUS    VRAM  FENCE
            L7     uid:1000  -     active  0,1   10 GiB     12
        "#]]
        .assert_eq(&list(&[held], TextFormat::default()));
    }
}
