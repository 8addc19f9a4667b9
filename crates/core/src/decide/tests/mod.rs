//! Stories: what happens at which second, and what is decided.
//!
//! One line is one event. `card 0 4G` is a look at a card; `card 0 L1=2G
//! stray=1G` names whose bytes they are (a lease is bound to a process of its
//! own by `bind`). Between lines time passes as in the daemon: a tick and a
//! look at each card every second, seeing what was last seen; `stall` is the
//! exception.

mod abroad;
mod aside;
mod back;
mod coarse;
mod deep;
mod driver;
mod ends;
mod enforce;
mod expected;
mod fair;
mod finish;
mod hops;
mod hostile;
mod moving;
mod order;
mod over;
mod park;
mod passive;
mod preempt;
mod room;
mod term;
mod tokens;

use crate::model::audit::{Audit, FileKey, Through};
use crate::model::event::{AsideRequest, Caller, Event, EventAnswer};
use crate::model::facts::{
    DaemonAction, DaemonEvent, GpuAction, GpuEvent, Hint, LeaseAction, LeaseEvent, TenantAction, TokenAction,
    TokenEvent, UnleasedAction, UnleasedEvent,
};
use crate::model::ids::{Fence, GpuId, LeaseId, ProcKey};
use crate::model::loss::Loss;
use crate::model::method::Method;
use crate::model::movers::MoverReport;
use crate::model::reading::{GpuFacts, GpuReading, GpuUsage, Reading, Resident, Unreadable};
use crate::model::request::{Exclusivity, GpuSelector, LeaseRequest, Notice, Preempt, Term, Tier, Vram};
use crate::model::restrictions::Restriction;
use crate::model::rows::Rows;
use crate::model::settings::Policy;
use crate::model::token::{TokenCaps, TokenHash, TokenRequest};
use crate::model::units::{Bytes, Span, Time};
use crate::model::unleased::{Mode, RuleAction, RuleId, SignalOutcome, UnleasedId, UnleasedStep};
use crate::{State, action::Action, decide};
use expect_test::Expect;
use std::collections::BTreeMap;
use std::fmt::Write;

fn check(story: &str, expect: Expect) {
    expect.assert_eq(&tell(story, Policy::default()));
}

fn check_with(policy: Policy, story: &str, expect: Expect) {
    expect.assert_eq(&tell(story, policy));
}

fn tell(story: &str, policy: Policy) -> String {
    told(story, policy).out
}

fn told(story: &str, policy: Policy) -> Teller {
    let state = State::new(Rows::default(), policy);
    let mut teller = Teller { state, now: Time::ZERO, looks: BTreeMap::new(), out: String::new() };
    for line in story.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (at, rest) = line.split_once(' ').expect("a time and an event");
        let at = Time((at.trim_end_matches('s').parse::<f64>().expect("seconds") * 1e6) as u64);
        match rest.trim() {
            "stall" => teller.now = at,
            "restart" => {
                teller.now = at;
                teller.state = State::new(teller.state.rows().clone(), teller.state.policy().clone());
                let cards = teller.state.rows().gpus.iter().map(|card| card.facts.clone()).collect();
                teller.step(
                    at,
                    Event::Daemon(DaemonEvent::Started {
                        boot: String::new(),
                        clock_offset_us: 0,
                        fence_floor: Fence(1),
                        lease_floor: 1,
                    }),
                );
                teller.step(at, Event::Gpu(GpuEvent::Listed(cards)));
            }
            event => teller.line(at, event),
        }
    }
    teller
}

struct Teller {
    state: State,
    now: Time,
    looks: BTreeMap<String, Reading>,
    out: String,
}

fn bytes(text: &str) -> Bytes {
    match text.split_at(text.len() - 1) {
        (n, "G") => Bytes::gib(n.parse().expect("a number")),
        (n, "M") => Bytes::mib(n.parse().expect("a number")),
        _ => Bytes(text.parse().expect("bytes")),
    }
}

fn lease(text: &str) -> LeaseId {
    text.parse().expect("a lease")
}

fn process(text: &str) -> ProcKey {
    let pid = text.bytes().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    ProcKey { pid, start: 1 }
}

fn members(lease: LeaseId, names: &[&str]) -> Event {
    let named = |name: &&str| process(name.split_once('=').map_or(*name, |(name, _)| name));
    let restriction = |name: &&str| {
        let restriction = match name.split_once('=')?.1 {
            "stopped" => Restriction { is_stopped: true, ..Restriction::default() },
            uid => Restriction { runs_as: uid.strip_prefix("uid")?.parse().ok(), ..Restriction::default() },
        };
        Some((named(name), restriction))
    };
    let restricted = names.iter().filter_map(restriction).collect();
    Event::Lease(LeaseEvent::MembersRead { lease, processes: names.iter().map(named).collect(), restricted })
}

impl Teller {
    fn line(&mut self, now: Time, text: &str) {
        while self.now + Span::secs(1) <= now {
            self.now = self.now + Span::secs(1);
            self.pass();
        }
        self.now = now;
        let words: Vec<&str> = text.split_whitespace().collect();
        if words == ["restart"] {
            self.state = State::new(self.state.rows().clone(), self.state.policy().clone());
        }
        let event = self.event(now, &words);
        if let Event::Gpu(GpuEvent::ReadingTaken { gpu: card, reading: observation }) = &event {
            self.looks.insert(card.clone(), observation.reading.clone());
        }
        self.step(now, event);
    }

    fn pass(&mut self) {
        let now = self.now;
        for (card, reading) in self.looks.clone() {
            self.step(
                now,
                Event::Gpu(GpuEvent::ReadingTaken { gpu: card, reading: GpuReading { begun: now, reading } }),
            );
        }
        self.step(now, Event::Daemon(DaemonEvent::Ticked));
    }

    fn step(&mut self, now: Time, event: Event) {
        let outcome = decide(&mut self.state, now, event);
        for action in &outcome.actions {
            self.say(now, action);
        }
        if let EventAnswer::Refused(refusal) = outcome.answer {
            writeln!(self.out, "{now} refuse: {refusal}").unwrap();
        }
    }

    fn event(&self, now: Time, words: &[&str]) -> Event {
        // `ann/lab` is ann, a member of lab; `ann@K1` is ann, through token K1.
        let by = |name: &str| {
            let (name, token) = name.split_once('@').map_or((name, None), |(name, token)| (name, Some(token)));
            let token = token.map(|token| token.parse().expect("a token"));
            let (tenant, groups) = name.split_once('/').map_or((name, Vec::new()), |(n, g)| (n, vec![g.to_owned()]));
            Caller { tenant: tenant.to_owned(), groups, operator: tenant == "root" && token.is_none(), token }
        };
        match words {
            // `24G@1` is nearest to memory node 1, and `24G@1#7` on board 7.
            ["cards", sizes @ ..] => Event::Gpu(GpuEvent::Listed(
                sizes
                    .iter()
                    .zip(0..)
                    .map(|(size, number)| {
                        let (size, board) =
                            size.split_once('#').map_or((*size, None), |(size, board)| (size, Some(board)));
                        let board = board.map(|board| board.parse().expect("a board"));
                        let (size, node) = size.split_once('@').map_or((size, None), |(size, node)| (size, Some(node)));
                        let node = node.map(|node| node.parse().expect("a node"));
                        GpuFacts { board, node, ..facts(number, bytes(size)) }
                    })
                    .collect(),
            )),
            ["card", index, "unreadable"] => self.look(now, index, Reading::Unreadable(Unreadable::NoAnswer)),
            ["card", index, "lost"] => self.look(now, index, Reading::Unreadable(Unreadable::Lost)),
            ["card", index, rest @ ..] => self.look(now, index, self.used(index, rest)),
            ["ask", who, vram, rest @ ..] => ask(by(who), vram, rest),
            // `bind L2 L1` binds the process of L1's to L2.
            ["bind", id, rest @ ..] => {
                let name = rest.first().unwrap_or(id);
                let row = self.state.lease(lease(id)).expect("a lease to bind");
                let owner = self.state.tenant_name(row.tenant);
                let epoch = row.hold().expect("a held lease").fence;
                Event::Lease(LeaseEvent::BindRequested {
                    by: by(owner),
                    lease: row.id,
                    fence: epoch,
                    process: process(name),
                })
            }
            ["alive", id] => members(lease(id), &[*id]),
            // `alive L1 a b=uid0 c=stopped`: b runs as root, c is stopped.
            ["alive", id, more @ ..] => members(lease(id), more),
            ["worked", id] => Event::Lease(LeaseEvent::UseSeen { lease: lease(id) }),
            ["gone", id] => Event::Lease(LeaseEvent::HolderExited { lease: lease(id) }),
            ["release", id, who] => {
                Event::Lease(LeaseEvent::ReleaseRequested { by: by(who), lease: lease(id), fence: None })
            }
            ["accept", id, who, vram, gpus] => {
                let gpus = gpus.parse().expect("a number");
                Event::Lease(LeaseEvent::OfferAccepted { by: by(who), lease: lease(id), vram: bytes(vram), gpus })
            }
            ["day", number] => Event::Daemon(DaemonEvent::DayRead { number: number.parse().expect("a number") }),
            ["renew", id, who] => {
                let epoch = self.state.lease(lease(id)).and_then(|row| row.hold()).map_or(Fence(0), |hold| hold.fence);
                Event::Lease(LeaseEvent::RenewalRequested { by: by(who), lease: lease(id), fence: epoch })
            }
            ["renew", id, who, epoch] => Event::Lease(LeaseEvent::RenewalRequested {
                by: by(who),
                lease: lease(id),
                fence: Fence(epoch.parse().expect("an epoch")),
            }),
            ["token", who, rest @ ..] => {
                Event::Token(TokenEvent::IssueRequested { by: by(who), request: Box::new(token(rest)), wall_us: now.0 })
            }
            ["revoke", id, who] => Event::Token(TokenEvent::RevokeRequested {
                by: by(who),
                token: id.parse().expect("a token"),
                wall_us: now.0,
            }),
            ["park", id, who] => Event::Lease(LeaseEvent::ParkRequested { by: by(who), lease: lease(id) }),
            ["resume", id, who] => Event::Lease(LeaseEvent::ResumeRequested { by: by(who), lease: lease(id) }),
            ["typed", id] => Event::Lease(LeaseEvent::Hinted { lease: lease(id), hint: Hint::Terminal }),
            ["ram", "unknown"] => Event::Daemon(DaemonEvent::HostMemoryRead { available: None }),
            ["ram", size] => Event::Daemon(DaemonEvent::HostMemoryRead { available: Some(bytes(size)) }),
            ["runs", id, program] => {
                Event::Lease(LeaseEvent::ProgramRead { lease: lease(id), program: program.to_string() })
            }
            ["hook", id, who, said @ ..] => {
                let said = match said {
                    ["yielded"] => MoverReport::Parked(Bytes::ZERO),
                    ["resumed"] => MoverReport::Resumed,
                    ["failed", why @ ..] => MoverReport::Refused(why.join(" ")),
                    ["wants"] => MoverReport::Used,
                    other => panic!("no such word: {other:?}"),
                };
                let epoch = self.state.lease(lease(id)).and_then(|row| row.hold()).map_or(Fence(0), |hold| hold.fence);
                Event::Lease(LeaseEvent::HookReported { by: by(who), lease: lease(id), fence: epoch, report: said })
            }
            [rung @ ("shim" | "driver"), id, said @ ..] => {
                let rung = if *rung == "shim" { Method::Shim } else { Method::Driver };
                let said = match said {
                    ["here"] => MoverReport::Present { parked: None },
                    ["here", "parked", size] => MoverReport::Present { parked: Some(bytes(size)) },
                    ["cannot", why @ ..] => MoverReport::Cannot(Some(why.join(" "))),
                    ["can"] => MoverReport::Cannot(None),
                    ["parked", size] => MoverReport::Parked(bytes(size)),
                    ["resumed"] => MoverReport::Resumed,
                    ["refused", why @ ..] => MoverReport::Refused(why.join(" ")),
                    ["outgrown", why @ ..] => MoverReport::Outgrown(why.join(" ")),
                    ["lost", why @ ..] => MoverReport::Lost(why.join(" ")),
                    ["unknown"] => MoverReport::Unknown,
                    ["wants"] => MoverReport::Used,
                    ["deep"] => MoverReport::KeepsStill(true),
                    ["shallow"] => MoverReport::KeepsStill(false),
                    ["left"] => MoverReport::Gone,
                    ["died", why @ ..] => MoverReport::Died(why.join(" ")),
                    other => panic!("no such word: {other:?}"),
                };
                // `L1/x` is another program of L1's.
                let lease = lease(id.split('/').next().expect("a lease"));
                Event::Lease(LeaseEvent::MoverReported { lease, method: rung, process: process(id), report: said })
            }
            ["audit", name, rest @ ..] => audited(name, rest),
            ["sent", id, signal] => {
                Event::Lease(LeaseEvent::SignalSent { lease: lease(id), signal: signal.parse().expect("a signal") })
            }
            ["left", name] => Event::Unleased(UnleasedEvent::Exited { process: process(name) }),
            ["tested"] => Event::Unleased(UnleasedEvent::SelfTested { result: Ok(()) }),
            ["tested", why @ ..] => Event::Unleased(UnleasedEvent::SelfTested { result: Err(why.join(" ")) }),
            ["struck", id, signal, name, refused @ ..] => {
                let stranger = UnleasedId(id.trim_start_matches('X').parse().expect("a stranger"));
                let refused = (!refused.is_empty()).then(|| refused.join(" "));
                let changed = refused.as_deref().is_some_and(|why| why.starts_with("it is not what"));
                let outcome = vec![SignalOutcome { process: process(name), refused, changed, uid: None }];
                let signal = signal.parse().expect("a signal");
                let step = self.state.rows().unleased.get(&stranger).map(|stranger| stranger.step);
                let of = match step {
                    Some(UnleasedStep::Signalled { since, .. }) => since,
                    _ => Time::ZERO,
                };
                Event::Unleased(UnleasedEvent::SignalSent { id: stranger, signal, decided_at: of, outcome })
            }
            ["adopt", name, who, rest @ ..] => {
                let vram = rest.first().map(|size| bytes(size));
                Event::Unleased(UnleasedEvent::AdoptRequested {
                    by: by(who),
                    process: process(name),
                    vram,
                    tier: Tier::Batch,
                })
            }
            ["mode", index, mode, who] => {
                let mode = Mode::ALL.into_iter().find(|known| known.name() == *mode).expect("a mode");
                Event::Gpu(GpuEvent::ModeRequested { by: by(who), gpu: uuid(index), mode })
            }
            ["allow", rule, who] => Event::Unleased(UnleasedEvent::RuleRequested {
                by: by(who),
                subject: rule.parse().expect("a rule"),
                action: RuleAction::Allow,
            }),
            ["deny", rule, who] => Event::Unleased(UnleasedEvent::RuleRequested {
                by: by(who),
                subject: rule.parse().expect("a rule"),
                action: RuleAction::Deny,
            }),
            ["attach", rule, vram, who] => {
                let treat = RuleAction::Adopt { vram: Some(bytes(vram)), tier: Tier::Interactive };
                Event::Unleased(UnleasedEvent::RuleRequested {
                    by: by(who),
                    subject: rule.parse().expect("a rule"),
                    action: treat,
                })
            }
            ["unrule", rule, who] => {
                let rule = RuleId(rule.trim_start_matches('R').parse().expect("a rule"));
                Event::Unleased(UnleasedEvent::RuleRemovalRequested { by: by(who), rule })
            }
            ["drain", index, who] => Event::Gpu(GpuEvent::DrainRequested { by: by(who), gpu: uuid(index) }),
            ["clear", index, who] => Event::Gpu(GpuEvent::ClearRequested { by: by(who), gpu: uuid(index) }),
            // `aside 0 ann seat for=60s key=game renew`; `end-aside 0 ann key=game`.
            ["aside", index, who, rest @ ..] => {
                let value = |name: &str| rest.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
                let secs = |text: &str| Span::secs(text.trim_end_matches('s').parse().expect("seconds"));
                let ask = AsideRequest {
                    span: value("for").map(secs),
                    key: value("key").unwrap_or_default().to_owned(),
                    renews: rest.contains(&"renew"),
                    at_seat: rest.contains(&"seat"),
                };
                Event::Gpu(GpuEvent::AsideRequested { by: by(who), gpu: uuid(index), request: ask })
            }
            ["end-aside", index, who, rest @ ..] => {
                let key = rest.iter().find_map(|word| word.strip_prefix("key=")).map(str::to_owned);
                Event::Gpu(GpuEvent::AsideEndRequested { by: by(who), gpu: uuid(index), key })
            }
            ["start", boot] => Event::Daemon(DaemonEvent::Started {
                boot: boot.to_string(),
                clock_offset_us: 0,
                fence_floor: Fence(1),
                lease_floor: 1,
            }),
            ["restart", "at", lease] => {
                let lease_floor = lease.trim_start_matches('L').parse().expect("a lease");
                let boot = self.state.rows().meta.boot.clone();
                Event::Daemon(DaemonEvent::Started { boot, clock_offset_us: 0, fence_floor: Fence(1), lease_floor })
            }
            ["restart"] => {
                let boot = self.state.rows().meta.boot.clone();
                Event::Daemon(DaemonEvent::Started { boot, clock_offset_us: 0, fence_floor: Fence(1), lease_floor: 1 })
            }
            ["awoke"] => Event::Daemon(DaemonEvent::Awoke),
            ["disk", "full"] => Event::Daemon(DaemonEvent::DiskFilled),
            ["disk", "freed"] => Event::Daemon(DaemonEvent::DiskFreed),
            ["lost", lines] => {
                let lines = lines.parse().expect("a number");
                Event::Daemon(DaemonEvent::LossFound(Loss::Missing {
                    lines,
                    after: 1,
                    since_wall_us: None,
                    until_wall_us: 0,
                }))
            }
            ["accept-loss", who] => Event::Daemon(DaemonEvent::LossAccepted { by: by(who) }),
            ["tick"] => Event::Daemon(DaemonEvent::Ticked),
            other => panic!("no such event: {other:?}"),
        }
    }

    fn look(&self, now: Time, index: &str, reading: Reading) -> Event {
        Event::Gpu(GpuEvent::ReadingTaken { gpu: uuid(index), reading: GpuReading { begun: now, reading } })
    }

    fn used(&self, index: &str, rest: &[&str]) -> Reading {
        let card = self.state.gpu(&uuid(index)).expect("a card");
        let mut free = self.state.room(card).total();
        let mut used = GpuUsage { free, processes: Vec::new(), coarse: rest.contains(&"coarse") };
        for part in rest {
            match part.split_once('=') {
                Some((who, size)) => {
                    free = free.less(bytes(size));
                    // `~x` only draws.
                    let (process, graphics) = (process(who.trim_start_matches('~')), who.starts_with('~'));
                    let told = (!used.coarse).then(|| bytes(size));
                    used.processes.push(Resident { process, bytes: told, only_draws: graphics });
                }
                None if part.ends_with(['G', 'M']) => free = free.less(bytes(part)),
                None => {}
            }
        }
        used.free = free;
        Reading::Used(used)
    }

    fn say(&mut self, now: Time, action: &Action) {
        let out = &mut self.out;
        match action {
            Action::Lease(LeaseAction::Queue { lease, .. }) => writeln!(out, "{now} queue {lease}"),
            Action::Lease(LeaseAction::Grant { lease, gpus, vram, fence, until, not_beyond, .. }) => {
                let names: Vec<String> = gpus.iter().map(GpuId::to_string).collect();
                let not_beyond = not_beyond.map_or(String::new(), |not_beyond| format!(", over by {not_beyond}"));
                writeln!(
                    out,
                    "{now} grant {lease} {vram} on {} epoch {fence} until {until}{not_beyond}",
                    names.join("+")
                )
            }
            Action::Lease(LeaseAction::Renew { lease, until, idle, .. }) => {
                writeln!(out, "{now} renew {lease} until {until}{}", if *idle { " (idle)" } else { "" })
            }
            Action::Lease(LeaseAction::Bind { lease, .. }) => writeln!(out, "{now} bind {lease}"),
            Action::Lease(LeaseAction::Park { lease, booked, requests_again_at, method, room_for, aside, .. }) => {
                let again = if requests_again_at.is_some() { ", and asks again" } else { "" };
                let by = if *method == Method::Shim { String::new() } else { format!(" by {method}") };
                let room_for = room_for.map_or(String::new(), |waiter| format!(" for {waiter}"));
                let aside = aside.map_or(String::new(), |card| format!(", GPU {card} steps aside"));
                writeln!(out, "{now} park {lease}{by}{room_for} ({booked} booked{again}{aside})")
            }
            Action::Lease(LeaseAction::FlagOveruse { lease, seen_bytes, .. }) => {
                writeln!(out, "{now} over {lease}: {seen_bytes}")
            }
            Action::Lease(LeaseAction::ClearOveruse { lease }) => writeln!(out, "{now} within {lease}"),
            Action::Lease(LeaseAction::Enlarge { lease, vram, .. }) => writeln!(out, "{now} grow {lease} to {vram}"),
            Action::Lease(LeaseAction::GiveNotice { lease, until, room_for, .. }) => {
                writeln!(out, "{now} notice {lease} until {until} for {room_for}")
            }
            Action::Lease(LeaseAction::CancelNotice { lease }) => writeln!(out, "{now} spare {lease}"),
            Action::Lease(LeaseAction::Signal { lease, signal, processes, left_out, .. }) => {
                let left_out = match left_out.len() {
                    0 => String::new(),
                    count => format!(", not to {count} of other users"),
                };
                writeln!(out, "{now} signal {signal} to {} of {lease}{left_out}", processes.len())
            }
            Action::Lease(LeaseAction::Unpark { lease, why, .. }) => writeln!(out, "{now} unpark {lease} ({why:?})"),
            Action::Lease(LeaseAction::FinishPark { lease, .. }) => writeln!(out, "{now} parked {lease}"),
            Action::Lease(LeaseAction::QueueParked { lease, at, vram, at_least, .. }) => {
                let least = at_least.map_or(String::new(), |least| format!(", or {least}"));
                writeln!(out, "{now} {lease} wants {vram}{least} as of {at}")
            }
            Action::Lease(LeaseAction::Resume { lease, vram, until, not_beyond, .. }) => {
                let not_beyond = not_beyond.map_or(String::new(), |not_beyond| format!(", over by {not_beyond}"));
                writeln!(out, "{now} resume {lease} {vram} until {until}{not_beyond}")
            }
            Action::Lease(LeaseAction::ParkAgain { lease, .. }) => writeln!(out, "{now} retreat {lease}"),
            Action::Lease(LeaseAction::RemoveContexts { lease, processes, booked, .. }) => {
                let booked = booked.map_or(String::new(), |booked| format!(" ({booked} booked)"));
                writeln!(out, "{now} deepen {lease}, {} processes{booked}", processes.len())
            }
            Action::Lease(LeaseAction::RecordDeath { lease, why, .. }) => writeln!(out, "{now} died {lease}: {why}"),
            Action::Lease(LeaseAction::KeepContexts { lease, why, .. }) => {
                writeln!(out, "{now} shallow {lease}: {why}")
            }
            Action::Lease(LeaseAction::FinishResume { lease, .. }) => writeln!(out, "{now} resumed {lease}"),
            Action::Daemon(DaemonAction::AcceptLoss { loss }) => writeln!(out, "{now} accept {loss:?}"),
            Action::Lease(LeaseAction::End { lease, reason, .. }) => writeln!(out, "{now} end {lease} ({reason:?})"),
            Action::Lease(LeaseAction::Retire { lease, .. }) => writeln!(out, "{now} retire {lease}"),
            Action::Gpu(GpuAction::SetAside { gpu, aside }) => {
                let key = if aside.key.is_empty() { String::new() } else { format!(" ({})", aside.key) };
                writeln!(out, "{now} GPU {gpu} steps aside for {}{key} until {}", aside.by, aside.until)
            }
            Action::Gpu(GpuAction::EndAside { gpu, by, key, how, .. }) => {
                let key = if key.is_empty() { String::new() } else { format!(" ({key})") };
                writeln!(out, "{now} GPU {gpu} no longer steps aside for {by}{key} ({how:?})")
            }
            Action::Gpu(GpuAction::SetService { gpu, service }) => writeln!(out, "{now} card {gpu} {service:?}"),
            Action::Daemon(DaemonAction::GrantGrace { until, .. }) => writeln!(out, "{now} grace until {until}"),
            Action::Daemon(DaemonAction::BeginDay { number }) => writeln!(out, "{now} day {number}"),
            Action::Token(TokenAction::Issue { token }) => {
                writeln!(out, "{now} issue {} to {}", token.id, token.tenant)
            }
            Action::Token(TokenAction::Revoke { token, .. }) => writeln!(out, "{now} revoke {token}"),
            Action::Unleased(UnleasedAction::Add { process: stranger }) => {
                let again = stranger.successor_of.map_or_else(String::new, |former| format!(", {former} again"));
                let of = stranger.lease.map_or_else(String::new, |lease| format!(", a process of {lease}"));
                writeln!(out, "{now} find {} of uid {}{of}{again}", stranger.id, stranger.audit.uid)
            }
            Action::Unleased(UnleasedAction::SetAudit { id, audit, .. }) => {
                writeln!(out, "{now} {id} is {}", audit.exe.as_deref().unwrap_or("?"))
            }
            Action::Unleased(UnleasedAction::Warn { id, until, .. }) => {
                writeln!(out, "{now} warn {id} until {until}")
            }
            Action::Unleased(UnleasedAction::Signal { id, signal, processes, at, .. }) => {
                let at = if *at == now { String::new() } else { format!(" as of {at}") };
                writeln!(out, "{now} strike {id} with {signal}, {} processes{at}", processes.len())
            }
            Action::Unleased(UnleasedAction::RecordSignal { id, signal, outcome, .. }) => {
                let refused = outcome.iter().find_map(|struck| struck.refused.clone());
                let refused = refused.map_or(String::new(), |why| format!(", refused: {why}"));
                writeln!(out, "{now} struck {id} with {signal}{refused}")
            }
            Action::Unleased(UnleasedAction::Park { id, lease, .. }) => {
                writeln!(out, "{now} take {id} off by {lease}")
            }
            Action::Unleased(UnleasedAction::RecordParkFailure { id, why, .. }) => {
                writeln!(out, "{now} {id} stays: {why}")
            }
            Action::Unleased(UnleasedAction::Spare { id, until: None, .. }) => {
                writeln!(out, "{now} relent {id}")
            }
            Action::Unleased(UnleasedAction::Spare { id, until: Some(until), .. }) => {
                writeln!(out, "{now} {id} is looked into again, warned until {until}")
            }
            Action::Unleased(UnleasedAction::RecordSurvival { id, .. }) => {
                writeln!(out, "{now} {id} survived")
            }
            Action::Unleased(UnleasedAction::Close { id, how, .. }) => {
                writeln!(out, "{now} close {id} ({how:?})")
            }
            Action::Gpu(GpuAction::SetMode { gpu, mode }) => writeln!(out, "{now} card {gpu} mode {mode}"),
            Action::Unleased(UnleasedAction::SetRule { rule }) => {
                writeln!(out, "{now} rule {}: {:?} {}", rule.id, rule.action, rule.subject)
            }
            Action::Unleased(UnleasedAction::RemoveRule { rule }) => writeln!(out, "{now} drop rule {rule}"),
            Action::Daemon(DaemonAction::Start { .. })
            | Action::Tenant(TenantAction::Add { .. } | TenantAction::SetGroups { .. })
            | Action::Gpu(GpuAction::SetFacts { .. }) => Ok(()),
        }
        .unwrap();
    }
}

/// `exe=/usr/bin/x uid=7 seat=… unit=… container=… tree=a,b unread=…`; `nodev`: no device file is open;
/// `through=77`: it holds what that one left, `through=77+more`: or others do; `title=x`: what it calls itself; `crowded`: too many files are; `nopath`: its executable has no path that could be read.
fn audited(name: &str, words: &[&str]) -> Event {
    let mut audit = Audit {
        process: process(name),
        uid: 7,
        name: name.to_owned(),
        exe: Some("/usr/bin/python3".to_owned()),
        exe_file: None,
        exe_deleted: false,
        exe_inside: false,
        command: vec!["python3".to_owned(), "train.py".to_owned()],
        cwd: None,
        cgroup: "/".to_owned(),
        unit: None,
        container: None,
        seat: None,
        session: 1,
        started_s: 0,
        ancestry: Vec::new(),
        devices: vec!["/dev/nvidia0".to_owned()],
        crowded: false,
        through: None,
        ran: None,
        unread: Vec::new(),
    };
    let mut tree = vec![process(name)];
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("seat", seat) => audit.seat = Some(seat.to_owned()),
            ("uid", uid) => audit.uid = uid.parse().expect("a uid"),
            ("exe", exe) => audit.exe = Some(exe.to_owned()),
            ("unit", unit) => audit.unit = Some(unit.to_owned()),
            ("container", id) => audit.container = Some(id.to_owned()),
            ("tree", names) => tree.extend(names.split(',').map(process)),
            ("unread", what) => (audit.unread, audit.devices) = (vec![what.to_owned()], Vec::new()),
            ("title", title) => audit.command = vec![title.to_owned()],
            ("nopath", _) => {
                (audit.exe, audit.exe_file) = (None, Some(FileKey { dev: 1, ino: 2 }));
                audit.unread = vec!["its executable: its path is too long".to_owned()];
            }
            ("crowded", _) => {
                (audit.devices, audit.crowded) = (Vec::new(), true);
                audit.unread = vec!["which files it has open: too many".to_owned()];
            }
            ("through", pid) => {
                let (pid, alone) = pid.strip_suffix("+more").map_or((pid, true), |pid| (pid, false));
                audit.through = Some(Through { pid: pid.parse().expect("a pid"), alone });
            }
            ("nodev", _) => audit.devices = Vec::new(),
            other => panic!("no such word: {other:?}"),
        }
    }
    Event::Unleased(UnleasedEvent::Audited { audit: Box::new(audit), tree })
}

fn uuid(index: &str) -> String {
    format!("GPU-{index}")
}

fn facts(index: u32, total: Bytes) -> GpuFacts {
    GpuFacts { name: "Card 24G".to_owned(), context: Some(Bytes::mib(300)), ..GpuFacts::plain(index, total) }
}

fn token(words: &[&str]) -> TokenRequest {
    let mut ask = TokenRequest {
        tenant: None,
        name: None,
        hash: TokenHash([0; 32]),
        read_only: words.contains(&"read-only"),
        caps: TokenCaps::default(),
        expires_wall_us: None,
    };
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("secret", n) => ask.hash = TokenHash([n.parse().expect("a number"); 32]),
            ("for", tenant) => ask.tenant = Some(tenant.to_owned()),
            ("name", name) => ask.name = Some(name.to_owned()),
            ("vram", size) => ask.caps.vram = Some(bytes(size)),
            ("leases", n) => ask.caps.leases = Some(n.parse().expect("a number")),
            ("until", s) => {
                ask.expires_wall_us = Some(s.trim_end_matches('s').parse::<u64>().expect("seconds") * 1_000_000)
            }
            ("read-only", _) => {}
            other => panic!("no such wish: {other:?}"),
        }
    }
    ask
}

fn ask(by: Caller, vram: &str, rest: &[&str]) -> Event {
    let mut ask = LeaseRequest::plain(Bytes::ZERO, Term::Renewed(Span::secs(60)));
    ask.vram = if vram == "whole" { Vram::Whole } else { Vram::Bytes(bytes(vram)) };
    let mut wait = None;
    for word in rest {
        let seconds = |text: &str| Span::secs(text.trim_end_matches('s').parse().expect("seconds"));
        match word.split_once('=').unwrap_or((word, "")) {
            ("ttl", span) => ask.term = Term::Renewed(seconds(span)),
            ("time", span) => ask.term = Term::Fixed(seconds(span)),
            ("gpus", n) => ask.gpus = n.parse().expect("a number"),
            ("priority", n) => ask.priority = n.parse().expect("a number"),
            ("wait", span) => wait = Some(seconds(span)),
            ("on", text) => ask.gpus_allowed = Some(GpuSelector::read(text)),
            ("interactive", _) => ask.tier = Tier::Interactive,
            ("spot", _) => ask.tier = Tier::Spot,
            ("least", size) => ask.at_least = Some(bytes(size)),
            ("never", _) => ask.preempt = Preempt::Never,
            ("park", _) => ask.preempt = Preempt::Park,
            ("end", _) => ask.preempt = Preempt::End,
            ("yields", _) => ask.has_hook = true,
            ("may-lose", _) => ask.may_lose_state = true,
            ("notice", span) => ask.notice = Some(Notice { signal: 10, before: seconds(span) }),
            ("alone", _) => ask.exclusivity = Exclusivity::Device,
            ("private", _) => ask.exclusivity = Exclusivity::Session,
            other => panic!("no such wish: {other:?}"),
        }
    }
    Event::Lease(LeaseEvent::Requested { by, request: ask, wait, root: None })
}
