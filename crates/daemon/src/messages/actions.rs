//! Sentences about the actions of the log.

use super::{ended, service};
use crate::loss;
use crate::signals;
use sublet_core::action::Action;
use sublet_core::aside::AsideOver;
use sublet_core::facts::{
    DaemonAction, GpuAction, Hint, LeaseAction, TenantAction, TokenAction, UnleasedAction, UnparkReason, Wake,
};
use sublet_core::ids::ProcKey;
use sublet_core::method::Method;
use sublet_core::request::Vram;
use sublet_core::rows::EndReason;
use sublet_core::unleased::{self, RuleAction};
use sublet_wire::size::show;
use sublet_wire::span;

/// An action of the log, in one sentence.
pub fn action(action: &Action) -> String {
    match action {
        Action::Daemon(action) => about_daemon(action),
        Action::Gpu(action) => about_gpu(action),
        Action::Tenant(action) => about_tenant(action),
        Action::Lease(action) => about_lease(action),
        Action::Token(action) => about_token(action),
        Action::Unleased(action) => about_unleased(action),
    }
}

fn about_daemon(action: &DaemonAction) -> String {
    match action {
        DaemonAction::Start { .. } => "the daemon started".to_owned(),
        DaemonAction::GrantGrace { .. } => "the daemon was not running; no lease expires for a while".to_owned(),
        DaemonAction::BeginDay { .. } => "a new day began: daily budgets are reset".to_owned(),
        DaemonAction::AcceptLoss { loss: missing } => {
            format!("an operator accepts a loss: {}", loss::sentence(missing))
        }
    }
}

fn about_gpu(action: &GpuAction) -> String {
    match action {
        GpuAction::SetFacts { facts, .. } => {
            format!("GPU {} is {} with {} ({})", facts.index, facts.name, show(facts.total.0), facts.uuid)
        }
        GpuAction::SetService { gpu, service: now } => {
            format!("GPU #{gpu} {}", service(now).unwrap_or_else(|| "is in service".to_owned()))
        }
        GpuAction::SetAside { gpu, aside } => {
            let (by, left) = (&aside.by, span::show(aside.until.since(aside.renewed).as_secs_f64()));
            let goes_on = if aside.since == aside.renewed { "steps aside" } else { "goes on stepping aside" };
            format!("GPU #{gpu} {goes_on} for {by}, for {left} at most")
        }
        GpuAction::EndAside { gpu, by, how, .. } => {
            let why = match how {
                AsideOver::Asked => "it was ended",
                AsideOver::Time => "its time is over",
                AsideOver::HostRebooted => "the host was rebooted",
            };
            format!("GPU #{gpu} no longer steps aside for {by}: {why}")
        }
        GpuAction::SetMode { gpu, mode } => {
            format!("GPU #{gpu}: unleased processes are handled by mode `{mode}`")
        }
    }
}

fn about_tenant(action: &TenantAction) -> String {
    match action {
        TenantAction::Add { name, .. } => format!("{name} made its first request"),
        TenantAction::SetGroups { tenant, groups } if groups.is_empty() => {
            format!("tenant #{tenant} is in no capped group")
        }
        TenantAction::SetGroups { tenant, groups } => format!("tenant #{tenant} belongs to {}", groups.join(", ")),
    }
}

fn about_lease(action: &LeaseAction) -> String {
    match action {
        LeaseAction::Queue { lease, request, .. } => {
            let size = match request.vram {
                Vram::Bytes(bytes) => show(bytes.0),
                Vram::Whole => "a whole GPU".to_owned(),
            };
            let gpus = if request.gpus == 1 { String::new() } else { format!(" on each of {} GPUs", request.gpus) };
            format!("{lease} requests {size}{gpus}")
        }
        LeaseAction::Grant { lease, vram, fence, .. } => {
            format!("{lease} is granted {} with fence {fence}", show(vram.0))
        }
        LeaseAction::Renew { lease, idle: false, .. } => format!("{lease} is renewed"),
        LeaseAction::Renew { lease, idle: true, .. } => format!("{lease} is extended unused, because no request waits"),
        LeaseAction::Bind { lease, process } => format!("process {process} belongs to {lease}"),
        LeaseAction::FlagOveruse { lease, seen_bytes, .. } => {
            format!("{lease} uses {} on a GPU, more than its lease; its program is told", show(seen_bytes.0))
        }
        LeaseAction::ClearOveruse { lease } => format!("{lease} no longer exceeds its lease"),
        LeaseAction::Enlarge { lease, vram, .. } => format!("{lease} is enlarged to {} per GPU", show(vram.0)),
        LeaseAction::GiveNotice { lease, at, until, room_for } => {
            let left = until.since(*at).secs_ceil();
            match lease == room_for {
                true => format!("{lease} is told that its term is over in {left} s"),
                false => format!("{lease} is told that it ends in {left} s, for {room_for}"),
            }
        }
        LeaseAction::CancelNotice { lease } => format!("{lease} continues: no request needs its GPUs any more"),
        LeaseAction::Signal { lease, signal, processes, left_out, .. } => {
            let pids = |of: &[ProcKey]| of.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let sent = format!("{} is sent to {} of {lease}", signals::name(*signal), pids(processes));
            match left_out.as_slice() {
                [] => sent,
                others => format!("{sent}; not to {}, run by another user", pids(others)),
            }
        }
        LeaseAction::End { lease, reason, why, .. } => {
            let said = match (reason, why) {
                (_, None) => String::new(),
                (EndReason::DiedParking, Some(why)) => format!(" ({why})"),
                (_, Some(why)) => format!(" (it said: {why})"),
            };
            ended(&lease.to_string(), *reason) + &said
        }
        LeaseAction::RecordDeath { lease, why, .. } => {
            format!("{} ({why})", ended(&lease.to_string(), EndReason::DiedParking))
        }
        LeaseAction::Retire { lease, .. } => format!("the GPUs of {lease} were read again; its bytes no longer count"),
        LeaseAction::FinishPark { .. }
        | LeaseAction::FinishResume { .. }
        | LeaseAction::KeepContexts { .. }
        | LeaseAction::Park { .. }
        | LeaseAction::ParkAgain { .. }
        | LeaseAction::QueueParked { .. }
        | LeaseAction::RemoveContexts { .. }
        | LeaseAction::Resume { .. }
        | LeaseAction::Unpark { .. } => about_parking(action),
    }
}

/// What is said of parks and resumes.
fn about_parking(action: &LeaseAction) -> String {
    match action {
        LeaseAction::Park { lease, booked, method, room_for, aside, .. } => {
            let room_for = room_for.map(|waiter| format!(" for {waiter}"));
            let aside = aside.map(|gpu| format!(" because GPU #{gpu} steps aside"));
            let room_for = room_for.or(aside).unwrap_or_default();
            match method {
                Method::Hook => format!("{lease} is being parked{room_for} by its hook"),
                Method::Driver => format!(
                    "{lease} is being parked{room_for} by the driver; {} of host memory are booked",
                    show(booked.0)
                ),
                Method::Shim | Method::End => {
                    format!("{lease} is being parked{room_for}; {} of host memory are booked", show(booked.0))
                }
            }
        }
        LeaseAction::Unpark { lease, why, .. } => {
            let why = match why {
                UnparkReason::Refused(why) => why.clone(),
                UnparkReason::Silent => "one of its programs did not answer in time".to_owned(),
                UnparkReason::Unclear => {
                    "the driver reports no bytes per process, and the readings of its GPUs did not drop".to_owned()
                }
                UnparkReason::NotSeen => {
                    "its programs reported that they freed their VRAM, and the readings show otherwise".to_owned()
                }
            };
            format!("{lease} stays on its GPUs: {why}")
        }
        LeaseAction::FinishPark { lease, .. } => {
            format!("{lease} is parked: two readings show its GPUs without its bytes")
        }
        LeaseAction::QueueParked { lease, wake, .. } => match wake {
            Some(Wake::Use) | None => format!("{lease} needs its GPUs and waits for them"),
            Some(Wake::Resume) => format!("{lease} was asked to resume, and waits for its GPUs"),
            Some(Wake::Hint(Hint::Terminal)) => {
                format!("{lease} got input at its terminal, and waits for its GPUs")
            }
            Some(Wake::Hint(Hint::BlockedCall)) => format!("{lease} called CUDA, and waits for its GPUs"),
        },
        LeaseAction::Resume { lease, vram, .. } => {
            format!("{lease} is being resumed, with {} per GPU", show(vram.0))
        }
        LeaseAction::RemoveContexts { lease, .. } => {
            format!("{lease} is parked further: its CUDA contexts leave the GPUs too")
        }
        LeaseAction::KeepContexts { lease, why, .. } => format!("the CUDA contexts of {lease} stay on its GPUs: {why}"),
        LeaseAction::ParkAgain { lease, .. } => {
            format!("{lease} found no room when it was resumed, and is parked again")
        }
        LeaseAction::FinishResume { lease, .. } => format!("{lease} is resumed"),
        other => about_lease(other),
    }
}

fn about_token(action: &TokenAction) -> String {
    match action {
        TokenAction::Issue { token } => {
            let name = token.name.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
            let scope = if token.read_only { "may read" } else { "may request leases" };
            format!("token {}{name} of {} is made; it {scope}", token.id, token.tenant)
        }
        TokenAction::Revoke { token, tenant, .. } => format!("token {token} of {tenant} is revoked"),
    }
}

fn about_unleased(action: &UnleasedAction) -> String {
    match action {
        UnleasedAction::Add { process } => {
            let was = if process.must_leave_by.is_some() { "warned" } else { "ended" };
            let again = process.successor_of.map_or_else(String::new, |former| match process.step {
                // The very process that left its GPUs for a moment.
                unleased::UnleasedStep::Signalled { .. } => format!(", which is the same process as {former}"),
                _ => format!(", again after {former} was {was}"),
            });
            let (id, who) = (process.id, process.audit.owner_words());
            match process.lease {
                None => format!("{id} uses a GPU without a lease: {who}{again}"),
                Some(lease) => {
                    let gpus = if process.gpus.len() == 1 { "this GPU" } else { "these GPUs" };
                    format!("{id} uses a GPU and belongs to {lease}, which is not for {gpus}: {who}{again}")
                }
            }
        }
        UnleasedAction::SetAudit { id, audit, .. } => format!("{id} is {} now", audit.owner_words()),
        UnleasedAction::Warn { id, at, until } => {
            let left = until.since(*at).secs_ceil();
            format!("{id} is warned: it has {left} s to leave, or to get a lease with `sublet adopt`")
        }
        UnleasedAction::Signal { id, signal, processes, .. } => {
            let pids: Vec<String> = processes.iter().map(ToString::to_string).collect();
            format!("{} will be sent to {} of {id}", signals::name(*signal), pids.join(", "))
        }
        UnleasedAction::RecordSignal { id, signal, outcome, .. } => {
            let signal = signals::name(*signal);
            let told: Vec<String> = outcome
                .iter()
                .map(|one| match (&one.refused, one.uid) {
                    (None, None) => format!("{} got it", one.process),
                    (None, Some(uid)) => format!("{} got it, by then of uid {uid}", one.process),
                    (Some(why), _) => format!("{} did not: {why}", one.process),
                })
                .collect();
            format!("{signal} was sent to {id}: {}", told.join(", "))
        }
        UnleasedAction::Park { id, lease, .. } => {
            format!("{id} ignored its warning: it has {lease} now, in order to be parked")
        }
        UnleasedAction::RecordParkFailure { id, why, .. } => format!("{id} could not be parked: {why}"),
        UnleasedAction::Spare { id, until: None, .. } => format!("{id} is left alone for now"),
        UnleasedAction::Spare { id, .. } => {
            format!("{id} is not the process that was audited: it is audited again")
        }
        UnleasedAction::RecordSurvival { id, .. } => format!("{id} survived SIGKILL"),
        UnleasedAction::Close { id, how, .. } => match how {
            unleased::UnleasedEnd::Exited => format!("{id} exited"),
            unleased::UnleasedEnd::OffGpus => format!("{id} has left the GPUs"),
            unleased::UnleasedEnd::Adopted(lease) => format!("{id} has a lease now: {lease}"),
            unleased::UnleasedEnd::Parked(lease) => {
                format!("{id} is parked, and has {lease}: `sublet resume {lease}` brings it back")
            }
            unleased::UnleasedEnd::Matched(lease) => format!("{id} belongs to {lease}"),
            unleased::UnleasedEnd::HostRebooted => format!("{id} is gone: the host was rebooted"),
        },
        UnleasedAction::SetRule { rule } => {
            let what = match rule.action {
                RuleAction::Allow => "are left alone",
                RuleAction::Deny => "may be ended even in a container or if they only draw",
                RuleAction::Adopt { .. } => "get a lease where they are found",
            };
            format!("rule {}: processes of {} {what}", rule.id, rule.subject)
        }
        UnleasedAction::RemoveRule { rule } => format!("rule {rule} is removed"),
    }
}
