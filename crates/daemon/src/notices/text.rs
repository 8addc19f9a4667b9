//! The lines that notices are made of.

use std::time::Duration;
use sublet_core::audit::Audit;
use sublet_core::ids::GpuId;
use sublet_core::policy::enforcement;
use sublet_core::request::Tier;
use sublet_core::state::State;
use sublet_core::units::Time;
use sublet_core::unleased::{NextStep, UnleasedProcess};
use sublet_wire::{Lease, LeaseState, ParkMethod, size, span};

/// How many characters of a program's name are shown.
const NAME_MAX: usize = 32;
/// How many bytes the kernel keeps of a process's name.
const KERNEL_NAME_MAX: usize = 15;

/// `GPU 0`, `GPUs 0 and 1`, `GPUs 0, 1 and 2`.
pub fn gpus(indices: &[u32]) -> String {
    let all: Vec<String> = indices.iter().map(u32::to_string).collect();
    match all.split_last() {
        None => "its GPU".to_owned(),
        Some((only, [])) => format!("GPU {only}"),
        Some((last, others)) => format!("GPUs {} and {last}", others.join(", ")),
    }
}

/// The name of an audited process: what the kernel calls it, or its executable if the kernel cut that name.
pub fn name(audit: &Audit) -> &str {
    let file = audit.exe.as_deref().and_then(|exe| exe.rsplit('/').next());
    let is_cut = audit.name.len() == KERNEL_NAME_MAX;
    file.filter(|file| is_cut && file.starts_with(&audit.name)).unwrap_or(&audit.name)
}

/// `your python3 (pid 4312)`.
pub fn process(name: &str, pid: u32) -> String {
    match name {
        "" => format!("your process {pid}"),
        name => format!("your {} (pid {pid})", name.chars().take(NAME_MAX).collect::<String>()),
    }
}

/// A tier as it is typed.
pub fn tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Interactive => "interactive",
        Tier::Batch => "batch",
        Tier::Spot => "spot",
    }
}

/// The indices of GPUs.
pub fn indices(state: &State, gpus: &[GpuId]) -> Vec<u32> {
    gpus.iter().filter_map(|gpu| state.rows().gpus.find(*gpu)).map(|row| row.facts.index).collect()
}

/// What happens to an unleased process after its warning, and in how many seconds; `None` if nothing does.
fn consequence(state: &State, unleased: &UnleasedProcess, now: Time) -> Option<(&'static str, f64)> {
    match enforcement::next_step(state, unleased, None, now) {
        NextStep::Park(due) => Some(("will be parked, or ended if it cannot be,", due.since(now).as_secs_f64())),
        NextStep::Signal(_, due) => Some(("will be ended", due.since(now).as_secs_f64())),
        _ => None,
    }
}

/// The line for an unleased process that is warned, and the seconds until something happens to it.
pub fn warning(state: &State, unleased: &UnleasedProcess, now: Time) -> (String, Option<f64>) {
    let pid = unleased.audit.process.pid;
    let on = enforcement::residence(state, unleased, now).map(|(on, _)| on).unwrap_or_default();
    let bytes = on.iter().map(|(_, bytes)| bytes.map(|bytes| bytes.0)).sum::<Option<u64>>().filter(|bytes| *bytes > 0);
    let where_it_is = gpus(&indices(state, &unleased.gpus));
    let uses = bytes.map_or(where_it_is.clone(), |bytes| format!("{} of {where_it_is}", size::show(bytes)));
    let follows = consequence(state, unleased, now);
    let threat = follows.map_or_else(String::new, |(what, s)| format!("; it {what} in {}", span::show(s.ceil())));
    let subject = process(name(&unleased.audit), pid);
    let line = match state.lease_of(unleased) {
        None => format!("{subject} uses {uses} without a lease{threat}; `sublet adopt {pid}` gives it a lease"),
        Some(lease) => format!(
            "{subject} uses {uses}, and its lease {lease} is for other GPUs{threat}; use only what CUDA_VISIBLE_DEVICES names, or request all of them in one lease"
        ),
    };
    (line, follows.map(|(_, s)| s))
}

/// The line for an unleased process that got SIGTERM, or SIGKILL.
pub fn signalled(subject: &str, gpus: &str, signal: &str, kill_in_s: Option<f64>) -> String {
    match kill_in_s {
        Some(s) => format!(
            "{subject} was sent {signal}: it uses {gpus} without a lease; SIGKILL follows in {}",
            span::show(s.ceil())
        ),
        None => format!("{subject} was sent {signal}: it used {gpus} without a lease and did not end on SIGTERM"),
    }
}

/// When a parked lease is expected back: `expected back in about 40 s`; `None` if it is back only when it is resumed.
pub fn expected_back(lease: &Lease) -> Option<String> {
    let estimate = lease.waiting.as_ref().map(|waiting| waiting.planned_s);
    match (lease.state, estimate) {
        (LeaseState::Parking, _) => Some("its memory is being moved to host memory".to_owned()),
        (LeaseState::Resuming, _) => Some("its memory is being moved back".to_owned()),
        (_, Some(Some(s))) => Some(format!("expected back in about {}", span::show(s.max(1.0).ceil()))),
        (_, Some(None)) => Some("there is no estimate of when it comes back".to_owned()),
        (_, None) if lease.method == Some(ParkMethod::Shim) => {
            Some("it comes back when it uses the GPU again".to_owned())
        }
        (_, None) => None,
    }
}

/// How a parked program is brought back, and how it is ended.
pub fn remedies(lease: &str, unleased_pid: Option<u32>) -> String {
    match unleased_pid {
        Some(pid) => format!("`sublet resume {lease}` brings it back with a lease, `kill -9 {pid}` ends it"),
        None => format!("`sublet resume {lease}` asks for it back now, `sublet stop {lease}` ends it"),
    }
}

/// A line with how long it took.
pub fn after(line: &str, elapsed: Duration) -> String {
    format!("{line} after {}", span::show(elapsed.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_listed_as_people_write_them() {
        assert_eq!(gpus(&[]), "its GPU");
        assert_eq!(gpus(&[3]), "GPU 3");
        assert_eq!(gpus(&[0, 1]), "GPUs 0 and 1");
        assert_eq!(gpus(&[0, 1, 7]), "GPUs 0, 1 and 7");
    }

    #[test]
    fn a_signal_is_told_with_what_follows() {
        let subject = process("python3", 4312);
        assert_eq!(
            signalled(&subject, "GPU 0", "SIGTERM", Some(299.2)),
            "your python3 (pid 4312) was sent SIGTERM: it uses GPU 0 without a lease; SIGKILL follows in 5 min"
        );
        assert_eq!(
            signalled(&subject, "GPU 0", "SIGKILL", None),
            "your python3 (pid 4312) was sent SIGKILL: it used GPU 0 without a lease and did not end on SIGTERM"
        );
    }
}
