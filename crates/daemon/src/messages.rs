//! Sentences for people, where machines read codes.

mod actions;

pub use actions::action;

use crate::idempotency::{ANSWERS_OF_TENANT, KEPT_AT_LEAST};
use crate::loss;
use sublet_core::event::Refusal;
use sublet_core::ids::{GpuId, LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::movers::{NotParkable, RestoreObstacle};
use sublet_core::policy::explain::NoBound;
use sublet_core::policy::preemption::NotPreemptable;
use sublet_core::policy::room_plan::RoomPlan;
use sublet_core::queue::QueuePlace;
use sublet_core::quota::{CappedResource, QuotaBlock};
use sublet_core::reading::Unreadable;
use sublet_core::request::RequestError;
use sublet_core::rows::{EndReason, GpuService, Lease};
use sublet_core::settings::AsideAllow;
use sublet_core::state::State;
use sublet_core::units::{Bytes, Time};
use sublet_wire::size::show;
use sublet_wire::span;
use sublet_wire::{self as wire, Code, Problem};

/// How a lease ended, and what to do next.
pub fn ended(id: &str, reason: EndReason) -> String {
    match reason {
        EndReason::Released => format!("lease {id} was released"),
        EndReason::Expired => {
            format!(
                "lease {id} ended: it was not used, and another request waits for the GPU; request a lease again to continue"
            )
        }
        EndReason::HoldCap => format!(
            "lease {id} ended: it reached the longest time (`renewal_cap`) while other requests wait; request a lease again, your processes were not stopped"
        ),
        EndReason::TermOver => format!("lease {id} ended: its term is over; request a lease again to continue"),
        EndReason::HolderExited => format!("lease {id} ended: its last process exited"),
        EndReason::Revoked => {
            format!("lease {id} was ended by an operator; ask the operator before you request another")
        }
        EndReason::DeviceLost => {
            format!("lease {id} ended: its GPU is gone; request another lease, and tell an operator")
        }
        EndReason::RestoreFailed => format!(
            "lease {id} ended: the driver could not resume it, and its parked VRAM is lost; stop its processes and start again"
        ),
        EndReason::DiedParking => format!(
            "lease {id} ended: its program died while it was being parked; if the kernel killed it for lack of memory, raise the limit of its memory cgroup (`MemoryMax=`, `--memory`, `--mem`), then start it again"
        ),
        EndReason::HostRebooted => format!("lease {id} ended: the host was rebooted; request a lease again"),
        EndReason::Budget => {
            format!("lease {id} ended: the day's GPU time is used up; it is available again at midnight")
        }
        EndReason::ParkExpired => format!(
            "lease {id} ended: it was parked for the longest time (`[parking] time_max`), and its parked VRAM is lost; request a lease and start again"
        ),
        EndReason::Preempted => format!(
            "lease {id} ended: other requests needed its GPU, and it allowed that (`--preempt end`); request a lease again, or use `--requeue`"
        ),
        EndReason::NotMoved => format!(
            "lease {id} ended: it was made to park an unleased process, and that failed; the process is unleased again"
        ),
        EndReason::OverUse => format!(
            "lease {id} ended: its program used more than the lease, other requests needed the GPU, and it could not be parked; request as much as the program needs"
        ),
        EndReason::WaitOver => {
            format!("{id} was not granted within its waiting time; request it again with a longer `--wait`")
        }
    }
}

/// When a passive lease is resumed.
pub const PASSIVE: &str = "it comes back when there is room that no waiter needs";

/// The state of a resuming lease.
pub const RESUMING: &str = "its bytes are coming back to its GPUs";

/// The state of a lease that is active or parking.
pub fn on_gpus(shown: &wire::Lease) -> &'static str {
    match () {
        () if shown.state == wire::LeaseState::Parking => "its bytes are leaving its GPUs",
        () if shown.overuse.is_some() => {
            "it is active and has more on a GPU than its lease is for; if another request waits it may be parked"
        }
        () if shown.idle => "it is active but was not used in its last term; it goes on because no request waits",
        () => "it is active",
    }
}

/// Where the bytes of a parked lease are, and what brings them back: only the shim in a program notices its use.
pub fn parked(lease: &Lease) -> String {
    let by_hand = match lease.is_passive() {
        true => format!("{PASSIVE}; `sublet resume {}` puts it into the queue", lease.id),
        false => format!("`sublet resume {}` brings it back", lease.id),
    };
    match lease.park_state().map(|away| away.method) {
        Some(Method::Driver) => {
            format!("it is parked: the driver has its bytes in host memory, and it stands still; {by_hand}")
        }
        Some(Method::Hook) => format!("it is parked: it gave up its bytes by its own hook; {by_hand}"),
        _ if lease.is_passive() => {
            format!("it is parked: its bytes are in host memory, and come back when it is used; {by_hand}")
        }
        _ => "it is parked: its bytes are in host memory, and come back when it is used".to_owned(),
    }
}

/// Why a GPU cannot be read.
pub fn unreadable(index: u32, why: &Unreadable) -> String {
    match why {
        Unreadable::NotYet => format!("GPU {index} was not read yet; no new leases there until it is"),
        Unreadable::NoAnswer => format!("GPU {index} did not answer; no new leases there until it does"),
        Unreadable::Failed(error) => {
            format!("GPU {index} answered with an error ({error}); no new leases there until it recovers")
        }
        Unreadable::Lost => format!("the driver lost GPU {index}; reset it or reboot, then clear it"),
    }
}

/// Why a GPU is not leased; `None` while it is.
pub fn service(service: &GpuService) -> Option<String> {
    match service {
        GpuService::In => None,
        GpuService::Draining => Some("an operator drains it".to_owned()),
        GpuService::Out { why } => Some(format!("{why}; an operator must clear it")),
    }
}

/// Why one waiter is served before another, in a few words.
pub fn why_ahead(state: &State, first: &Lease, second: &Lease, now: Time) -> String {
    let policy = state.policy();
    let (ahead, behind) = (state.place_of(first), state.place_of(second));
    let owes = |lease: &Lease, arrival: Time| {
        let mark = state.rows().tenants[lease.tenant].debt_clock;
        mark.since(arrival.max(now)).0.min(policy.debt_max.0)
    };
    let (owed_ahead, owed_behind) = (owes(first, ahead.arrival), owes(second, behind.arrival));
    let head_start = |place: &QueuePlace| place.arrival.0 as i64 - place.rank;
    let more_urgent = head_start(&ahead) - head_start(&behind);
    let is_equal = (first.request.tier, first.request.priority) == (second.request.tier, second.request.priority);
    let minutes = |us: u64| span::show((us as f64 / 6e7).ceil() * 60.0);
    if ahead.arrival <= behind.arrival {
        "came earlier".to_owned()
    } else if first.tenant != second.tenant && owed_ahead < owed_behind {
        let more = owed_behind - owed_ahead;
        format!("used less of its share lately: your debt counts as arriving {} later", minutes(more))
    } else if more_urgent > 0 && !is_equal {
        format!("its tier and priority count as {} of waiting", minutes(more_urgent as u64))
    } else if first.tenant != second.tenant {
        "its user was served less recently".to_owned()
    } else {
        "is served first".to_owned()
    }
}

/// What must happen before a quota has room.
pub(crate) fn when_quota_returns(held: &QuotaBlock) -> &'static str {
    match (held.resource, &held.group) {
        (CappedResource::Never { cap: Bytes::ZERO, .. }, _) => {
            "request without `--preempt never`, or ask the operator for a quota"
        }
        _ if held.is_permanent => "request less, or ask the operator for a larger quota",
        (CappedResource::GpuDay { .. }, _) => "it is available again at midnight",
        (_, None) => "it starts when another of your leases ends",
        (_, Some(_)) => "it starts when another lease of the group ends",
    }
}

/// Why no bound is known for a waiter.
pub fn no_bound(why: &NoBound) -> String {
    match why {
        NoBound::Quota(held) => format!("{held}; {}", when_quota_returns(held)),
        NoBound::Cards => "too few suitable GPUs can be read and are known to have no unleased process".to_owned(),
        NoBound::Holder(_) => "a lease on its GPUs has a long fixed term, or is never preempted".to_owned(),
        NoBound::Ahead(_) => "a request ahead has a long fixed term, or is never preempted".to_owned(),
        NoBound::OwnAhead => "other requests of yours are ahead; there is a bound once this is your first".to_owned(),
        NoBound::Budget => "your GPU time of the day may be used up before".to_owned(),
        NoBound::Far => "too many requests are ahead".to_owned(),
        NoBound::Disk => "the disk is full".to_owned(),
        NoBound::Loss => "lines of the journal are missing, and no operator has accepted that".to_owned(),
    }
}

/// Why a holder cannot be parked.
pub fn not_parkable(why: &NotParkable) -> String {
    match why {
        NotParkable::NoSpace { need, room } => {
            let (need, room) = (show(need.0), show(room.0));
            format!("it needs {need} of host memory, and the parking space has {room} free now (`[parking] ram`)")
        }
        NotParkable::Quota { cap } => format!("its user may have {} parked at once", show(cap.0)),
        other => other.to_string(),
    }
}

/// Processes named in a sentence; further ones are counted.
const NAMED_MAX: usize = 4;

/// Which processes of a lease run as other users, and what that means; `None` if none does.
pub fn foreign_processes(others: impl Iterator<Item = (ProcKey, u32)>) -> Option<String> {
    let others: Vec<String> = others.map(|(process, uid)| format!("{} (uid {uid})", process.pid)).collect();
    let named = others.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    let more = others.len().saturating_sub(NAMED_MAX);
    let and_more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let (process, runs, gets) = match others.len() {
        0 => return None,
        1 => ("process", "runs as another user than the lease's", "it gets none of the lease's signals and is"),
        _ => ("processes", "run as other users than the lease's", "they get none of the lease's signals and are"),
    };
    Some(format!("{process} {named}{and_more} {runs}: {gets} not parked by the driver"))
}

/// Why the driver does not bring a lease back yet, and what helps. `name` is the lease or process in the way, as far as
/// the reader may see it.
pub fn restore_obstacle(state: &State, who: RestoreObstacle, name: Option<String>) -> String {
    let index = |gpu: GpuId| state.rows().gpus[gpu].facts.index;
    let lost = "a restore kills the process if another one takes its VRAM";
    match (who, name) {
        (RestoreObstacle::Unreadable(gpu), _) => {
            format!("it waits until GPU {} can be read: {lost}; tell an operator if that lasts", index(gpu))
        }
        (RestoreObstacle::Unleased(gpu, count), Some(name)) => {
            let others = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
            let (has, leaves) = if count > 1 { ("have", "leave") } else { ("has", "leaves") };
            format!(
                "it waits until {name}{others}, which {has} no lease, {leaves} GPU {}: {lost}; end what is there, or ask its user to",
                index(gpu)
            )
        }
        (RestoreObstacle::Unleased(gpu, count), None) => {
            let (processes, leave) = if count == 1 { ("process", "leaves") } else { ("processes", "leave") };
            format!(
                "it waits until {count} {processes} without a lease {leave} GPU {index}: {lost}; `sublet gpus` shows what is there; end it, or ask its user to",
                index = index(gpu)
            )
        }
        (RestoreObstacle::Uncapped(gpu, _), name) => {
            let name = name.unwrap_or_else(|| "another lease".to_owned());
            format!(
                "it waits until {name} has left GPU {}, because nothing limits it to its size: {lost}; ask its user to end it, or to start it with Sublet's library",
                index(gpu)
            )
        }
    }
}

/// Why a lease is not preempted.
pub fn not_preempted(spared: &NotPreemptable, now: Time) -> String {
    match spared {
        NotPreemptable::Turn { until } => {
            format!("it is busy, and its time slice ends in {}", span::show(until.since(now).as_secs_f64()))
        }
        NotPreemptable::Stays(whys) => {
            let said = |method: Method| whys.iter().find(|(of, _)| *of == method).map(|(_, why)| why);
            match (said(Method::Shim), said(Method::Driver)) {
                (Some(NotParkable::NoShim), Some(why)) if *why != NotParkable::NotInspected => not_parkable(why),
                (Some(why), _) | (None, Some(why)) => not_parkable(why),
                (None, None) => spared.to_string(),
            }
        }
        other => other.to_string(),
    }
}

/// Whether room is made for a waiter, by which leases, at what cost, and why.
pub fn preemption(state: &State, making: Option<&RoomPlan>, now: Time, name: impl Fn(LeaseId) -> String) -> String {
    let seconds = |span: sublet_core::units::Span| span::show(span.as_secs_f64());
    match making {
        None if !state.policy().parking.preempt => {
            "leases are not preempted here: `[preemption] enabled` is false".to_owned()
        }
        None => "leases are preempted for the requests ahead of it first".to_owned(),
        Some(RoomPlan::Coming(_)) => "its room is being made: leases are being parked or ended".to_owned(),
        Some(RoomPlan::Plan { victims, price, .. }) => {
            let each: Vec<String> =
                victims.iter().map(|(lease, prospect)| format!("{} ({})", name(*lease), prospect.method)).collect();
            format!("{} can be preempted, which costs {} in all", each.join(", "), seconds(*price))
        }
        Some(RoomPlan::Wait { until, price }) => format!(
            "its room is free by itself in {}, and preempting leases would cost {}",
            seconds(until.since(now)),
            seconds(*price)
        ),
        Some(RoomPlan::Ram { need, room }) => lacking_space(state, *need, *room),
        Some(RoomPlan::Cap { cap }) => {
            format!("the leases that would be parked belong to one user, which may have {} parked at once", show(cap.0))
        }
        Some(RoomPlan::Pauses) => {
            "no lease is preempted for it yet: it was parked a moment ago, or its last resume failed".to_owned()
        }
        Some(RoomPlan::Nothing) => "no running lease can be preempted for this one right now".to_owned(),
    }
}

/// That parking space keeps a request waiting, how much is missing, and what an operator can change.
pub fn lacking_space(state: &State, need: Bytes, room: Option<Bytes>) -> String {
    let parking = &state.policy().parking;
    let Some(room) = room else {
        return format!(
            "{} would have to be parked for it, and the memory of the host cannot be read now",
            show(need.0)
        );
    };
    let budget = parking.space.less(state.booked_host_memory());
    let remedy = match room < budget {
        true => format!("the host must keep {} available (`[parking] keep_free`)", show(parking.keep_available.0)),
        false => format!("an operator can raise `[parking] ram`, now {}", show(parking.space.0)),
    };
    format!(
        "{} would have to be parked for it, and the parking space has {} free; {remedy}",
        show(need.0),
        show(room.0)
    )
}

/// A refusal as a problem.
pub fn problem(refusal: &Refusal) -> Problem {
    let detail = detail(refusal);
    match refusal {
        Refusal::BadAsk(bad) => Problem::new(Code::BadValue, detail).hint(sensible(bad)),
        Refusal::NoSuchLease => {
            Problem::new(Code::NoSuchLease, detail).hint("`sublet ps` lists yours; leases of other users, and old ones, are not found")
        }
        Refusal::NoSuchCard => Problem::new(Code::NoSuchGpu, detail).hint("`sublet gpus` lists them"),
        Refusal::NotOperator => Problem::new(Code::Denied, detail).hint(
            "operators are root, the daemon's own user, and members of the group that `operators` names in its configuration",
        ),
        Refusal::MayNotPutAside(AsideAllow::Operators) => Problem::new(Code::Denied, detail)
            .hint("ask an operator: `[aside] users = [\"NAME\"]` in the configuration lets a user do it"),
        Refusal::MayNotPutAside(_) => Problem::new(Code::Denied, detail).hint(
            "run it in your session at this host's screen, or ask an operator: `[aside] users = [\"NAME\"]` in the configuration lets a user do it",
        ),
        Refusal::BadAside => Problem::new(Code::BadValue, detail),
        Refusal::NoSuchAside => Problem::new(Code::NoSuchAside, detail).hint("`sublet aside` begins a new one"),
        Refusal::AnothersAside(_) => Problem::new(Code::Denied, detail),
        Refusal::TooManyAsides => {
            Problem::new(Code::TooManyAsides, detail).hint("end those that are not needed: `sublet aside --end`")
        }
        Refusal::StepsAside { .. } => Problem::new(Code::NoRoom, detail).hint("ask without `--no-wait` to wait for it"),
        Refusal::Fenced { .. } => Problem::new(Code::Fenced, detail).hint("stop using the GPU: the lease was granted anew since"),
        Refusal::Ended => Problem::new(Code::LeaseEnded, detail).hint("request a new lease"),
        Refusal::StillWaiting => Problem::new(Code::LeaseNotActive, detail).hint("wait until it is active"),
        Refusal::TtlTooLong { .. } => {
            Problem::new(Code::BadValue, detail).hint("give `time_s` (`--time`) for a longer fixed term")
        }
        Refusal::TooManyProcesses => {
            Problem::new(Code::TooManyProcesses, detail).hint("bind a parent: its descendants belong to it")
        }
        Refusal::ProcessAway(Some(lease)) => Problem::new(Code::ProcessParked, detail)
            .hint(format!("bring it back with `sublet resume {lease}`, and bind it when that is active again")),
        Refusal::ProcessAway(None) => {
            Problem::new(Code::ProcessParked, detail).hint("bind it when that lease is active again")
        }
        Refusal::NoCards => Problem::new(Code::NoGpus, detail).hint("run `sublet doctor` to see why"),
        Refusal::NeverFits { largest: None, .. } => {
            Problem::new(Code::NeverFits, detail).hint("`sublet gpus` lists them")
        }
        Refusal::NeverFits { .. } => {
            Problem::new(Code::NeverFits, detail).hint("request less, fewer GPUs, or other ones")
        }
        Refusal::BelowContext { context } => Problem::new(Code::BelowContext, detail)
            .hint(format!("request at least {} more than your tensors need", show(context.0))),
        Refusal::OverQuota(held) => {
            Problem::new(Code::OverCap, detail).hint(when_quota_returns(held))
        }
        Refusal::NotParkable(_) => Problem::new(Code::NotParkable, detail)
            .hint("start programs with `sublet run`; `sublet ps` says what keeps each lease from being parked"),
        Refusal::NotWaiting => Problem::new(Code::LeaseActive, detail).hint("it is granted already"),
        Refusal::NoSuchOffer { .. } => {
            Problem::new(Code::NoRoom, detail).hint("see what is offered now, or keep waiting").retry_after(5)
        }
        Refusal::NotLarger { .. } => Problem::new(Code::NoRoom, detail)
            .hint("`sublet ps` shows what is offered; let the program use less, or request a new lease")
            .retry_after(5),
        Refusal::NoRoom { .. } => {
            Problem::new(Code::NoRoom, detail).hint("request less, or wait for it").retry_after(5)
        }
        Refusal::QueueFull { .. } => {
            Problem::new(Code::QueueFull, detail).hint("try again when some of them are served").retry_after(10)
        }
        Refusal::DiskFull => Problem::new(Code::DiskFull, detail)
            .hint("free space on the disk of the state directory; granted leases continue")
            .retry_after(30),
        Refusal::LossNotAccepted(lost) => {
            let problem = Problem::new(Code::JournalLoss, format!("{detail}: {}", loss::sentence(lost)));
            problem.hint(format!("an operator can {}; granted leases continue", loss::REMEDY)).retry_after(30)
        }
        Refusal::NoLoss => Problem::new(Code::NoLoss, detail).hint("`sublet journal verify` checks all of it"),
        Refusal::NoSuchStranger => Problem::new(Code::NoSuchUnleasedProcess, detail)
            .hint("`sublet enforce status` lists them; a process is listed a second after it started"),
        Refusal::NotAdoptable(_) => Problem::new(Code::NotAdoptable, detail),
        Refusal::CannotEnforce(_) => {
            Problem::new(Code::CannotEnforce, detail).hint("modes `observe` and `warn` work here")
        }
        Refusal::BadRule => Problem::new(Code::BadValue, detail),
        Refusal::TooManyRules => Problem::new(Code::TooManyRules, detail)
            .hint("remove rules that are not needed: `sublet enforce forget R1`"),
        Refusal::NoSuchRule => Problem::new(Code::NoSuchRule, detail).hint("`sublet enforce status` lists them"),
        Refusal::BadToken(_) => Problem::new(Code::BadValue, detail),
        Refusal::NoSuchToken => Problem::new(Code::NoSuchToken, detail),
        Refusal::ThroughToken => {
            Problem::new(Code::Denied, detail).hint("make it on the host itself, or ask an operator for one")
        }
        Refusal::TokenGone => Problem::new(Code::Unauthenticated, detail).hint("ask for a new token"),
        Refusal::TooManyTokens { .. } => {
            Problem::new(Code::TooManyTokens, detail).hint("revoke those that are not used: `sublet token list`")
        }
        Refusal::TokenLeases { .. } | Refusal::TokenVram { .. } => {
            Problem::new(Code::TokenCap, detail).hint("release a lease of this token, request less, or use another token")
        }
    }
}

/// What to do instead.
fn sensible(bad: &RequestError) -> &'static str {
    match bad {
        RequestError::Vram => "`vram_bytes` counts bytes: 16 GiB are 17179869184; \"whole\" is all of a GPU",
        RequestError::Gpus => "`sublet gpus` lists the GPUs there are",
        RequestError::Term => "leave both out for a lease that lasts while it is used",
        RequestError::Priority => "10 goes first within a tier, -10 last; 0 is the default",
        RequestError::Name => "use letters, digits, signs and spaces",
        RequestError::On => "`sublet gpus` lists indices, UUIDs and models; a list has commas, such as `0,2`",
        RequestError::AtLeast => "give less than `vram_bytes`, or leave it out",
        RequestError::Notice => {
            "such as {\"signal\": \"USR1\", \"before_s\": 60}; signals: HUP, INT, QUIT, USR1, USR2, TERM, CONT, URG, WINCH"
        }
    }
}

fn detail(refusal: &Refusal) -> String {
    match refusal {
        // Another user's is none of the caller's either, and is not told from one that never existed.
        Refusal::NoSuchLease => "you have no such lease".to_owned(),
        Refusal::NeverFits { largest: None, .. } => {
            "no GPU here has the index, UUID or model that `on` names".to_owned()
        }
        Refusal::NeverFits { largest: Some(largest), cards } => format!(
            "this can never be granted here: {cards} {} would do, with at most {}",
            if *cards == 1 { "GPU" } else { "GPUs" },
            show(largest.0) + if *cards == 1 { "" } else { " on each" }
        ),
        Refusal::BelowContext { context } => {
            format!("a CUDA context alone takes {} on the GPU, and a lease includes it", show(context.0))
        }
        Refusal::TtlTooLong { longest } => format!(
            "`ttl_s` may be at most {} here: the time for which other requests may have to wait",
            span::show(longest.as_secs_f64())
        ),
        Refusal::NoRoom { largest, gpu } => {
            let on = gpu.map_or_else(String::new, |gpu| format!(" on GPU {gpu}"));
            format!("no GPU has enough free VRAM now (largest lease that could be granted: {}{on})", show(largest.0))
        }
        Refusal::TokenVram { cap, has } => {
            let (cap, has) = (show(cap.0), show(has.0));
            format!("this token may lease {cap} at once and has {has}; the request is larger than the rest")
        }
        Refusal::NotLarger { instead: Some(vram) } => {
            format!("the lease can be enlarged to {} per GPU now, and not more", show(vram.0))
        }
        Refusal::NotParkable(why) => format!("its program cannot be parked: {}", not_parkable(why)),
        other => other.to_string(),
    }
}

/// The sentence that a tenant used as many Idempotency-Keys as are kept, all of them lately.
pub fn too_many_keys(after_s: u64) -> Problem {
    let (kept, lately) = (ANSWERS_OF_TENANT, KEPT_AT_LEAST.secs_ceil());
    let detail = format!("{kept} calls with an Idempotency-Key were made in the last {lately} s, and no more are kept");
    Problem::new(Code::TooManyRequests, detail)
        .hint("try again later, or send no key where the call may happen twice")
        .retry_after(after_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_core::decide::decide;
    use sublet_core::facts::GpuEvent;
    use sublet_core::reading::GpuFacts;
    use sublet_core::rows::Rows;
    use sublet_core::settings::Policy;

    #[test]
    fn a_restore_obstacle_names_the_lease_or_process_and_what_helps() {
        let mut state = State::new(Rows::default(), Policy::default());
        decide(&mut state, Time::ZERO, GpuEvent::Listed(vec![GpuFacts::plain(0, Bytes::gib(24))]).into());
        let says = |who: RestoreObstacle, name: Option<&str>| restore_obstacle(&state, who, name.map(str::to_owned));
        let gpu = GpuId(0);
        assert_eq!(
            says(RestoreObstacle::Unleased(gpu, 1), Some("process 4312 of ann")),
            "it waits until process 4312 of ann, which has no lease, leaves GPU 0: a restore kills the process if another one takes its VRAM; end what is there, or ask its user to"
        );
        assert_eq!(
            says(RestoreObstacle::Unleased(gpu, 3), Some("process 4312")),
            "it waits until process 4312 and 2 more, which have no lease, leave GPU 0: a restore kills the process if another one takes its VRAM; end what is there, or ask its user to"
        );
        assert_eq!(
            says(RestoreObstacle::Unleased(gpu, 1), None),
            "it waits until 1 process without a lease leaves GPU 0: a restore kills the process if another one takes its VRAM; `sublet gpus` shows what is there; end it, or ask its user to"
        );
        assert_eq!(
            says(RestoreObstacle::Unreadable(gpu), None),
            "it waits until GPU 0 can be read: a restore kills the process if another one takes its VRAM; tell an operator if that lasts"
        );
        // Another user's lease is not named where the reader is not known.
        let unnamed = says(RestoreObstacle::Uncapped(gpu, LeaseId(7)), None);
        assert!(
            unnamed.starts_with("it waits until another lease has left GPU 0, because nothing limits"),
            "{unnamed}"
        );
        assert!(!unnamed.contains("L7"), "{unnamed}");
    }
}
