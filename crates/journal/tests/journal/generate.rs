//! A small world that emits plausible actions from a seed.

use std::sync::Arc;
use sublet_core::action::Action;
use sublet_core::aside::{Aside, AsideOver};
use sublet_core::audit::{Accounted, Ancestor, Audit, FileKey, Through};
use sublet_core::facts::{
    DaemonAction, GpuAction, LeaseAction, TenantAction, TokenAction, UnleasedAction, UnparkReason,
};
use sublet_core::ids::{Fence, GpuId, LeaseId, ProcKey, TenantId, TokenId};
use sublet_core::lateness::ExpectedWait;
use sublet_core::method::Method;
use sublet_core::reading::GpuFacts;
use sublet_core::request::{GpuSelector, LeaseRequest, Term};
use sublet_core::rows::{EndReason, EndedLease, GpuService, Phase, Rows};
use sublet_core::token::{Token, TokenCaps, TokenHash};
use sublet_core::units::{Bytes, Span, Time};
use sublet_core::unleased::{
    Mode, Rule, RuleAction, RuleId, RuleSubject, SignalOutcome, UnleasedEnd, UnleasedId, UnleasedProcess, UnleasedStep,
};
use sublet_journal::{Batch, LogEntry, OpenBatch, StoredAnswer};

/// Numbers from a seed (splitmix64).
pub struct Dice(u64);

impl Dice {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// The state beside the journal, and the batch that is open.
pub struct World {
    pub rows: Rows,
    pub ended: Vec<EndedLease>,
    pub open: OpenBatch,
    pub now: Time,
    pub dice: Dice,
}

pub fn ask() -> LeaseRequest {
    LeaseRequest::plain(Bytes::gib(16), Term::Renewed(Span::secs(300)))
}

pub fn facts(index: u32) -> GpuFacts {
    GpuFacts { node: Some(1), ..GpuFacts::plain(index, Bytes::gib(141)) }
}

pub fn answer(tenant: u32, key: &str, wall_us: u64) -> StoredAnswer {
    let body = r#"{"id":"L1"}"#.to_owned();
    StoredAnswer { tenant: TenantId(tenant), key: key.to_owned(), fingerprint: [7; 32], status: 201, body, wall_us }
}

impl World {
    /// Two tenants and two GPUs, none of it committed yet.
    pub fn new(seed: u64) -> World {
        let mut world = World::with(Rows::default(), Time::ZERO, seed);
        let boot = "boot-1".to_owned();
        world.act(DaemonAction::Start { boot, clock_offset_us: -5, fence_floor: Fence(1_000), lease_floor: 1 });
        for n in 0..2 {
            world.act(TenantAction::Add { tenant: TenantId(n), name: format!("uid:{}", 1000 + n) });
            world.act(GpuAction::SetFacts { gpu: GpuId(n as u16), facts: facts(n) });
        }
        world
    }

    /// Goes on from what a journal had.
    pub fn with(rows: Rows, now: Time, seed: u64) -> World {
        World { rows, ended: Vec::new(), open: OpenBatch::default(), now, dice: Dice(seed) }
    }

    /// Applies an action and puts it into the open batch.
    pub fn act(&mut self, action: impl Into<Action>) {
        let action = action.into();
        let ended = self.rows.apply(&action).unwrap();
        self.ended.extend(ended.clone());
        let entry = LogEntry {
            actor: Arc::from("uid:1000"),
            action,
            at: self.now,
            wall_us: 1_700_000_000_000_000 + self.now.0,
        };
        self.open.push(entry, ended);
    }

    pub fn close(&mut self) -> Batch {
        self.open.close(&self.rows, self.now)
    }

    /// A request, granted at once.
    pub fn lease(&mut self) -> LeaseId {
        let id = self.queue();
        self.grant(id);
        id
    }

    pub fn queue(&mut self) -> LeaseId {
        let tenant = TenantId(self.dice.below(self.rows.tenants.len() as u64) as u32);
        self.queue_for(tenant)
    }

    fn queue_for(&mut self, tenant: TenantId) -> LeaseId {
        let lease = LeaseId(self.rows.meta.next_lease);
        let mut ask = ask();
        ask.priority = self.dice.below(21) as i8 - 10;
        if self.dice.below(3) == 0 {
            ask.gpus_allowed = Some(GpuSelector::read("h200"));
            ask.name = Some("Größe \"x\" 🦀".to_owned());
        }
        let root = (self.dice.below(2) == 0).then(|| self.process());
        let token = self.some_token().filter(|_| self.dice.below(2) == 0);
        self.act(LeaseAction::Queue {
            lease,
            tenant,
            request: ask,
            at: self.now,
            give_up: Time(u64::MAX),
            root,
            token,
        });
        lease
    }

    fn grant(&mut self, lease: LeaseId) {
        let cards = vec![GpuId(self.dice.below(2) as u16)];
        let (epoch, at, until) = (self.rows.meta.next_fence, self.now, self.now + Span::secs(300));
        let told = (self.dice.below(2) == 0).then_some(ExpectedWait { p50: Span::secs(5), p90: Span::secs(9) });
        self.act(LeaseAction::Grant {
            lease,
            gpus: cards,
            vram: Bytes::gib(16),
            fence: epoch,
            at,
            until,
            debt_clock: Some(until),
            not_beyond: None,
            first_since: Some(at),
            expected: told,
        });
    }

    pub fn end(&mut self, lease: LeaseId) {
        let reasons = [EndReason::Released, EndReason::Expired, EndReason::HolderExited, EndReason::WaitOver];
        let reason = reasons[self.dice.below(4) as usize];
        let peak = (self.dice.below(2) == 0).then_some(Bytes::mib(650));
        let why = (self.dice.below(4) == 0).then(|| "out of memory".to_owned());
        let ran = (self.dice.below(4) > 0).then(|| ["train", ""][self.dice.below(2) as usize].to_owned());
        let (at, told) = (self.now, None);
        self.act(LeaseAction::End {
            lease,
            reason,
            at,
            peak,
            debt_clock: None,
            first_since: None,
            why,
            program: ran,
            expected: told,
        });
    }

    pub fn cycle(&mut self) {
        let lease = self.lease();
        self.finish(lease);
    }

    /// A lease of this tenant that begins and ends: four lines, and one ended lease.
    pub fn cycle_of(&mut self, tenant: u32) -> LeaseId {
        let lease = self.queue_for(TenantId(tenant));
        self.grant(lease);
        self.finish(lease);
        lease
    }

    /// An operator ends a lease.
    pub fn revoke_lease(&mut self, lease: LeaseId) {
        let (reason, at) = (EndReason::Revoked, self.now);
        let (peak, mark, turn, why, ran, told) = (None, None, None, None, None, None);
        self.act(LeaseAction::End {
            lease,
            reason,
            at,
            peak,
            debt_clock: mark,
            first_since: turn,
            why,
            program: ran,
            expected: told,
        });
        self.act(LeaseAction::Retire { lease, ran: None });
    }

    fn finish(&mut self, lease: LeaseId) {
        self.now = self.now + Span::millis(10);
        self.end(lease);
        self.act(LeaseAction::Retire { lease, ran: None });
    }

    /// A token with random values.
    pub fn issue(&mut self) -> TokenId {
        let id = TokenId(self.rows.meta.next_token);
        let (vram, leases) = (self.dice.below(2) == 0, self.dice.below(2) == 0);
        let token = Token {
            id,
            tenant: format!("user:{}", self.dice.below(9)),
            name: (self.dice.below(2) == 0).then(|| "Größe".to_owned()),
            hash: TokenHash([self.dice.below(256) as u8; 32]),
            read_only: self.dice.below(2) == 0,
            caps: TokenCaps { vram: vram.then_some(Bytes::gib(3)), leases: leases.then_some(4) },
            made_wall_us: self.now.0,
            expires_wall_us: (self.dice.below(2) == 0).then_some(u64::MAX),
        };
        self.act(TokenAction::Issue { token });
        id
    }

    pub fn revoke(&mut self, token: TokenId) {
        let tenant = self.rows.tokens[&token].tenant.clone();
        self.act(TokenAction::Revoke { token, tenant, at_wall_us: self.now.0 });
    }

    fn some_token(&mut self) -> Option<TokenId> {
        let nth = self.dice.below(self.rows.tokens.len().max(1) as u64) as usize;
        self.rows.tokens.keys().nth(nth).copied()
    }

    fn process(&mut self) -> ProcKey {
        ProcKey { pid: self.dice.below(1 << 22) as u32, start: self.dice.below(1 << 40) }
    }

    fn some_lease(&mut self) -> Option<LeaseId> {
        let nth = self.dice.below(self.rows.leases.len().max(1) as u64) as usize;
        self.rows.leases.keys().nth(nth).copied()
    }

    /// One plausible action, or two.
    pub fn step(&mut self) {
        self.now = self.now + Span::millis(self.dice.below(2_000));
        let lease = self.some_lease();
        let phase = lease.map(|id| self.rows.leases[&id].phase.clone());
        match (self.dice.below(12), lease, phase) {
            (0, ..) => self.step_of_the_host(),
            (10.., ..) => self.step_of_strangers(),
            (1..=2, ..) | (_, None, _) => drop(self.queue()),
            (3..=8, Some(id), Some(Phase::Waiting { .. })) => self.grant(id),
            (3..=5, Some(id), Some(Phase::Active(_))) => {
                let (at, until, idle) = (self.now, self.now + Span::secs(300), self.dice.below(2) == 0);
                self.act(LeaseAction::Renew {
                    lease: id,
                    at,
                    until,
                    idle,
                    debt_clock: Some(until),
                    not_beyond: idle.then_some(until),
                });
            }
            (6..=8, Some(lease), Some(Phase::Active(_))) if self.dice.below(2) == 0 => {
                let (at, booked) = (self.now, Bytes(self.dice.below(1 << 40)));
                let again = (booked.0 % 2 == 0).then_some(at);
                let rung = Method::REVERSIBLE[(booked.0 % 3) as usize];
                let (had, program) = (booked, format!("p{}", booked.0 % 5));
                self.act(LeaseAction::Park {
                    lease,
                    at,
                    booked,
                    requests_again_at: again,
                    method: rung,
                    had_bytes: had,
                    program,
                    room_for: None,
                    aside: (booked.0 % 5 == 0).then_some(GpuId(1)),
                    processes: vec![],
                    is_passive: false,
                    with_context: false,
                });
            }
            (9, Some(lease), Some(Phase::Active(hold))) if self.dice.below(2) == 0 => {
                let (at, seen) = (self.now, hold.vram + Bytes(self.dice.below(1 << 34)));
                let mark = (self.dice.below(2) == 0).then(|| at + Span::secs(3));
                let draw = self.dice.below(3);
                self.act(match (hold.overuse(), draw) {
                    (None, _) | (Some(_), 0) => Action::Lease(LeaseAction::FlagOveruse { lease, at, seen_bytes: seen }),
                    (Some(_), 1) => Action::Lease(LeaseAction::ClearOveruse { lease }),
                    (Some(_), _) => Action::Lease(LeaseAction::Enlarge { lease, at, vram: seen, debt_clock: mark }),
                });
            }
            (9, Some(lease), Some(Phase::Active(hold))) => {
                let (at, until) = (self.now, self.now + Span::secs(60));
                let room_for = LeaseId(lease.0 + self.dice.below(2));
                self.act(match hold.notice {
                    None => Action::Lease(LeaseAction::GiveNotice { lease, at, until, room_for }),
                    Some(_) => Action::Lease(LeaseAction::CancelNotice { lease }),
                });
            }
            (3, Some(lease), Some(Phase::Ending(..))) if self.dice.below(2) == 0 => {
                let (at, why) = (self.now, "killed for lack of memory".to_owned());
                self.act(LeaseAction::RecordDeath { lease, at, why });
            }
            (3..=5, Some(lease), Some(Phase::Ending(..))) => {
                let (at, processes) = (self.now, vec![ProcKey { pid: 7, start: 9 }]);
                let left_out = (0..self.dice.below(2)).map(|start| ProcKey { pid: 8, start }).collect();
                self.act(LeaseAction::Signal { lease, signal: 15, at, processes, left_out });
            }
            (3..=7, Some(lease), Some(Phase::Parking(..))) => {
                let (at, draw) = (self.now, self.dice.below(4));
                self.act(match draw {
                    0 => Action::Lease(LeaseAction::Unpark {
                        lease,
                        at,
                        why: UnparkReason::Refused("a capture is open".to_owned()),
                    }),
                    _ => Action::Lease(LeaseAction::FinishPark { lease, at, debt_clock: Some(at) }),
                });
            }
            (3..=7, Some(lease), Some(Phase::Parked(hold, away))) => {
                let at = self.now;
                self.act(match away.queued_since {
                    None => Action::Lease(LeaseAction::QueueParked {
                        lease,
                        at,
                        vram: hold.vram,
                        at_least: Some(Bytes(1)),
                        wake: None,
                    }),
                    Some(_) => Action::Lease(LeaseAction::Resume {
                        lease,
                        at,
                        vram: hold.vram,
                        until: at + Span::secs(300),
                        debt_clock: Some(at),
                        not_beyond: None,
                        first_since: Some(at),
                    }),
                });
            }
            (3..=7, Some(lease), Some(Phase::Resuming(..))) => {
                let (at, draw) = (self.now, self.dice.below(4));
                self.act(match draw {
                    0 => Action::Lease(LeaseAction::ParkAgain { lease, at }),
                    _ => Action::Lease(LeaseAction::FinishResume { lease, at }),
                });
            }
            (6, Some(lease), _) => {
                let process = self.process();
                self.act(LeaseAction::Bind { lease, process });
            }
            (_, Some(lease), Some(Phase::Ending(..))) => {
                let ran = (self.dice.below(2) == 0).then(|| ("python3".to_owned(), self.now));
                self.act(LeaseAction::Retire { lease, ran });
            }
            (_, Some(id), _) => self.end(id),
        }
    }

    /// A random identity of a process.
    pub fn audit(&mut self) -> Audit {
        let process = self.process();
        let parent = Ancestor { process: self.process(), uid: None, name: "sh".to_owned(), exe: None, ended: false };
        let unread = if self.dice.below(3) == 0 { vec!["its open files".to_owned()] } else { Vec::new() };
        Audit {
            process,
            uid: 1000 + self.dice.below(3) as u32,
            name: "Größe \"x\" 🦀".to_owned(),
            exe: (self.dice.below(4) > 0).then(|| format!("/opt/tool{}", self.dice.below(3))),
            exe_file: (self.dice.below(2) == 0).then_some(FileKey { dev: 3, ino: self.now.0 }),
            exe_deleted: self.dice.below(2) == 0,
            exe_inside: self.dice.below(2) == 0,
            command: vec!["tool".to_owned(), "--quiet".to_owned()],
            cwd: None,
            cgroup: "/system.slice".to_owned(),
            unit: (self.dice.below(2) == 0).then(|| "ollama.service".to_owned()),
            container: (self.dice.below(2) == 0).then(|| "3f4e".repeat(16)),
            seat: None,
            session: 7,
            started_s: self.now.0,
            ancestry: vec![parent],
            devices: vec!["/dev/nvidia0".to_owned()],
            crowded: self.dice.below(4) == 0,
            through: (self.dice.below(4) == 0).then_some(Through { pid: 7, alone: false }),
            ran: Some(Accounted { cpu_ms: self.now.0, io_bytes: Some(3), peak_memory_bytes: None }),
            unread,
        }
    }

    fn some_stranger(&mut self) -> Option<UnleasedProcess> {
        let nth = self.dice.below(self.rows.unleased.len().max(1) as u64) as usize;
        self.rows.unleased.values().nth(nth).cloned()
    }

    fn step_of_strangers(&mut self) {
        match (self.dice.below(9), self.some_stranger()) {
            (0, _) => {
                let (card, mode) = (GpuId(self.dice.below(2) as u16), Mode::ALL[self.dice.below(4) as usize]);
                self.act(GpuAction::SetMode { gpu: card, mode });
            }
            (1, _) => self.step_of_rules(),
            (2..=3, _) | (_, None) => {
                let (id, audit) = (UnleasedId(self.rows.meta.next_unleased), self.audit());
                let again = (self.dice.below(4) == 0).then_some(UnleasedId(1));
                let (cards, step) = (vec![GpuId(0)], UnleasedStep::Found);
                let of = (self.dice.below(4) == 0).then_some(LeaseId(1));
                let stranger = UnleasedProcess {
                    id,
                    audit,
                    since: self.now,
                    gpus: cards,
                    step,
                    successor_of: again,
                    must_leave_by: None,
                    why_not_parked: None,
                    lease: of,
                };
                self.act(UnleasedAction::Add { process: Box::new(stranger) });
            }
            (4, Some(UnleasedProcess { id, .. })) => {
                let (audit, cards) = (Box::new(self.audit()), vec![GpuId(1), GpuId(0)]);
                self.act(UnleasedAction::SetAudit { id, audit, gpus: cards });
            }
            (5, Some(UnleasedProcess { id, .. })) => {
                let lease = LeaseId(self.rows.meta.next_lease);
                let mine = [UnleasedEnd::Adopted(lease), UnleasedEnd::Parked(lease), UnleasedEnd::Matched(lease)];
                let all = [UnleasedEnd::Exited, UnleasedEnd::OffGpus].into_iter().chain(mine).collect::<Vec<_>>();
                let how = all[self.dice.below(5) as usize];
                self.act(UnleasedAction::Close { id, at: self.now, how });
            }
            (_, Some(stranger)) => self.step_of_stranger(&stranger),
        }
    }

    /// The next action for an unleased process; mostly the one that follows its present step.
    fn step_of_stranger(&mut self, UnleasedProcess { id, audit, step, .. }: &UnleasedProcess) {
        let (stranger, at) = (*id, self.now);
        let processes = vec![audit.process, self.process()];
        let refused = (self.dice.below(3) == 0).then(|| "it is gone".to_owned());
        let action = match step {
            UnleasedStep::Found => {
                Action::Unleased(UnleasedAction::Warn { id: stranger, at, until: at + Span::secs(300) })
            }
            _ if self.dice.below(6) == 0 => Action::Unleased(UnleasedAction::Spare { id: stranger, at, until: None }),
            UnleasedStep::Warned { .. } if self.dice.below(2) == 0 => {
                Action::Unleased(UnleasedAction::Park { id: stranger, lease: LeaseId(self.rows.meta.next_lease), at })
            }
            UnleasedStep::Parking { .. } => Action::Unleased(UnleasedAction::RecordParkFailure {
                id: stranger,
                at,
                why: "it's \"managed\"".to_owned(),
            }),
            UnleasedStep::Warned { .. } | UnleasedStep::NotParked { .. } => {
                Action::Unleased(UnleasedAction::Signal { id: stranger, signal: 15, at, processes })
            }
            UnleasedStep::Signalled { signal, sent: false, .. } => {
                let outcome =
                    vec![SignalOutcome { process: audit.process, refused, changed: false, uid: Some(audit.uid) }];
                Action::Unleased(UnleasedAction::RecordSignal {
                    id: stranger,
                    signal: *signal,
                    at,
                    outcome,
                    late: self.dice.below(8) == 0,
                })
            }
            UnleasedStep::Signalled { signal: 15, .. } => {
                Action::Unleased(UnleasedAction::Signal { id: stranger, signal: 9, at, processes })
            }
            UnleasedStep::Signalled { .. } => Action::Unleased(UnleasedAction::RecordSurvival { id: stranger, at }),
            UnleasedStep::Survived => {
                Action::Unleased(UnleasedAction::Close { id: stranger, at, how: UnleasedEnd::HostRebooted })
            }
        };
        self.act(action);
    }

    fn step_of_rules(&mut self) {
        let nth = self.dice.below(self.rows.rules.len().max(1) as u64) as usize;
        let known = self.rows.rules.keys().nth(nth).copied();
        match known.filter(|_| self.dice.below(3) == 0) {
            Some(rule) => self.act(UnleasedAction::RemoveRule { rule }),
            None => {
                let id = known.filter(|_| self.dice.below(3) == 0).unwrap_or(RuleId(self.rows.meta.next_rule));
                let who = match self.dice.below(4) {
                    0 => RuleSubject::Exe("/opt/\"tool\"".to_owned()),
                    1 => RuleSubject::Unit("ollama".to_owned()),
                    2 => RuleSubject::Container("3f4e3f4e3f4e".to_owned()),
                    _ => RuleSubject::Uid(1000),
                };
                let treat = if self.dice.below(2) == 0 { RuleAction::Allow } else { RuleAction::Deny };
                self.act(UnleasedAction::SetRule { rule: Rule { id, subject: who, action: treat } });
            }
        }
    }

    fn step_of_the_host(&mut self) {
        let tenant = TenantId(self.rows.tenants.len() as u32);
        match self.dice.below(10) {
            8 => {
                let key = format!("k{}", self.dice.below(3));
                let (by, at) = ("uid:7".to_owned(), self.now);
                let until = at + Span::secs(60);
                let aside = Aside { by, key, since: at, renewed: at, until };
                self.act(GpuAction::SetAside { gpu: GpuId(1), aside });
            }
            9 => {
                let (by, key, at) = ("uid:7".to_owned(), format!("k{}", self.dice.below(3)), self.now);
                self.act(GpuAction::EndAside { gpu: GpuId(1), by, key, at, how: AsideOver::Time });
            }
            5 | 6 => drop(self.issue()),
            7 => {
                if let Some(token) = self.some_token() {
                    self.revoke(token);
                }
            }
            0 => self.act(TenantAction::Add { tenant, name: format!("uid:{}", 1000 + tenant.0) }),
            1 => self.act(GpuAction::SetService { gpu: GpuId(1), service: GpuService::Out { why: "lost".to_owned() } }),
            2 => self.act(GpuAction::SetService { gpu: GpuId(1), service: GpuService::Draining }),
            3 => self.act(DaemonAction::GrantGrace { from: self.now, until: self.now + Span::secs(30) }),
            _ => {
                let facts = GpuFacts { context: Some(Bytes::mib(500)), ..facts(0) };
                self.act(GpuAction::SetFacts { gpu: GpuId(0), facts });
            }
        }
    }
}
