//! Verifies, copies and lists the files of a journal. No running daemon is needed, and none is called.

use crate::daemon;
use crate::failure::Failure;
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use sublet_daemon::journal::{self, HeadComparison, OpenError};
use sublet_wire::exit;

/// The result of checking a journal.
#[derive(Clone, Debug, Serialize)]
pub struct Verified {
    /// One sentence for each problem.
    pub findings: Vec<String>,
    /// The first line of the log.
    pub first_seq: u64,
    /// The last line of the log.
    pub last_seq: u64,
    /// The chain's value at the last line, in hex.
    pub head: String,
    /// Leases that have not ended.
    pub leases: u64,
    /// Ended leases that the log explains.
    pub ended: u64,
    /// Ended leases that are older than the log, and cannot be checked.
    pub ended_before_log: u64,
    /// True if there is a `journal.head` beside the journal, so that lines missing at its end were looked for.
    pub has_head_file: bool,
    /// Numbers of trimmed lines by owner, the largest first. An owner is a tenant, or `sublet` for operators and the
    /// daemon.
    pub trimmed: Vec<Trimmed>,
}

/// The number of trimmed lines of one owner.
#[derive(Clone, Debug, Serialize)]
pub struct Trimmed {
    /// The tenant, or `sublet`.
    pub owner: String,
    /// The number of lines.
    pub lines: u64,
}

/// A lease in a journal.
#[derive(Clone, Debug, Serialize)]
pub struct JournalLease {
    /// The lease id.
    pub id: String,
    /// The tenant that requested it.
    pub tenant: String,
    /// The name that its owner gave it.
    pub name: Option<String>,
    /// `waiting`, `active` or `ending`.
    pub state: String,
    /// The indices of its GPUs.
    pub gpus: Vec<u32>,
    /// The bytes reserved on each GPU.
    pub vram_bytes: Option<u64>,
    /// The fence of the lease.
    pub fence: Option<u64>,
}

/// Checks a journal.
pub fn verify(at: &Path) -> Result<Verified, Failure> {
    let report = journal::verify(at).map_err(|error| cannot_open(&error))?;
    let lost = match &report.beside {
        HeadComparison::Lost(loss) => {
            Some(format!("{}\nhint: {}", sublet_daemon::loss_sentence(loss), sublet_daemon::LOSS_REMEDY))
        }
        HeadComparison::NoNote | HeadComparison::Fits => None,
    };
    Ok(Verified {
        has_head_file: report.beside != HeadComparison::NoNote,
        head: report.head.iter().map(|byte| format!("{byte:02x}")).collect(),
        findings: lost.into_iter().chain(report.findings).collect(),
        first_seq: report.first_seq,
        last_seq: report.last_seq,
        leases: report.leases,
        ended: report.ended,
        ended_before_log: report.ended_before_log,
        trimmed: report.trimmed.into_iter().map(|(owner, lines)| Trimmed { owner, lines }).collect(),
    })
}

/// Copies a journal to a new file.
pub fn backup(at: &Path, to: &Path) -> Result<(), Failure> {
    journal::backup(at, to).map_err(|error| cannot_open(&error))
}

/// The leases in a journal that have not ended.
pub fn leases(at: &Path) -> Result<Vec<JournalLease>, Failure> {
    let rows = journal::read_state(at).map_err(|error| cannot_open(&error))?;
    let held = rows.leases.values().map(|lease| JournalLease {
        id: lease.id.to_string(),
        tenant: rows.tenants.get(lease.tenant.0 as usize).map_or_else(String::new, |tenant| tenant.name.clone()),
        name: lease.request.name.clone(),
        state: state(&serde_json::to_value(&lease.phase).unwrap_or_default()),
        gpus: lease.hold().map_or_else(Vec::new, |hold| {
            hold.gpus.iter().filter_map(|id| rows.gpus.get(usize::from(id.0))).map(|gpu| gpu.facts.index).collect()
        }),
        vram_bytes: lease.hold().map(|hold| hold.vram.0),
        fence: lease.hold().map(|hold| hold.fence.0),
    });
    Ok(held.collect())
}

/// The name of a phase. A phase is written as an object with one key, its name.
fn state(phase: &Value) -> String {
    phase.as_object().and_then(|object| object.keys().next().cloned()).unwrap_or_default()
}

fn cannot_open(error: &OpenError) -> Failure {
    Failure::new(exit::FAILURE, daemon::chain(error)).maybe_hint(error.hint())
}
