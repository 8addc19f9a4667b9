//! What was committed is found again, to the last bit.

use crate::Dir;
use crate::generate::{World, answer, ask, facts};
use sublet_core::aside::{Aside, Asides};
use sublet_core::audit::{Accounted, Ancestor, Audit, FileKey, Through};
use sublet_core::cost::{Costs, Direction};
use sublet_core::durations::{DurationOutcome, Durations, LeaseKind};
use sublet_core::event::{Caller, Event};
use sublet_core::facts::{DaemonEvent, GpuEvent, LeaseEvent};
use sublet_core::ids::{Fence, GpuId, LeaseId, ProcKey, TenantId, TokenId};
use sublet_core::lateness::{ExpectedWait, Lateness};
use sublet_core::method::Method;
use sublet_core::reading::{GpuFacts, GpuReading, GpuUsage, Reading};
use sublet_core::request::{Exclusivity, GpuSelector, LeaseRequest, Notice, Preempt, Term, Tier, Vram};
use sublet_core::rows::{
    EndNotice, EndReason, EndedLease, Gpu, GpuService, Hold, HoldHistory, Lease, LeaseEnd, Meta, Overuse, ParkState,
    Phase, Rows, Tenant,
};
use sublet_core::settings::Policy;
use sublet_core::token::{Token, TokenCaps, TokenHash};
use sublet_core::units::{Bytes, Span, Time};
use sublet_core::unleased::{Mode, Rule, RuleAction, RuleId, RuleSubject, UnleasedId, UnleasedProcess, UnleasedStep};
use sublet_core::{State, decide};
use sublet_journal::{Batch, StoredAnswer, verify};

const REASONS: [EndReason; 15] = [
    EndReason::Released,
    EndReason::Expired,
    EndReason::HoldCap,
    EndReason::TermOver,
    EndReason::HolderExited,
    EndReason::Revoked,
    EndReason::ParkExpired,
    EndReason::Preempted,
    EndReason::OverUse,
    EndReason::DeviceLost,
    EndReason::RestoreFailed,
    EndReason::DiedParking,
    EndReason::HostRebooted,
    EndReason::WaitOver,
    EndReason::NotMoved,
];

fn extreme_ask() -> LeaseRequest {
    LeaseRequest {
        vram: Vram::Whole,
        gpus: u16::MAX,
        term: Term::Fixed(Span(u64::MAX)),
        tier: Tier::Spot,
        priority: i8::MIN,
        exclusivity: Exclusivity::Device,
        preempt: Preempt::Usual,
        at_least: None,
        gpus_allowed: Some(GpuSelector::Uuid("GPU-\u{0}'\"\\".to_owned())),
        has_hook: true,
        may_lose_state: true,
        is_measured: true,
        notice: Some(Notice { signal: u8::MAX, before: Span(u64::MAX) }),
        name: Some("名前 🦀".to_owned()),
    }
}

fn asides() -> Asides {
    let aside = |key: &str| {
        let (by, key) = ("uid:7".to_owned(), key.to_owned());
        Aside { by, key, since: Time(0), renewed: Time(1), until: Time(u64::MAX) }
    };
    Asides { now: vec![aside(""), aside("'; --")], ended: Some(Time(u64::MAX)) }
}

fn extreme_hold() -> Hold {
    Hold {
        gpus: vec![GpuId(0), GpuId(2)],
        vram: Bytes(u64::MAX),
        fence: Fence(u64::MAX),
        granted: Time(u64::MAX),
        renewed: Time(1 << 63),
        until: Time(u64::MAX),
        idle: true,
        prepaid: Span(7),
        not_beyond: Some(Time(9)),
        day: 3,
        history: Some(HoldHistory {
            began: Time(u64::MAX),
            stopped: Some(Time(1 << 63)),
            spent_us: u64::MAX,
            spent_byte_us: u128::MAX,
            booked: Bytes(u64::MAX),
            false_report: Some((Method::Driver, Time(u64::MAX))),
            never_moved: true,
            overuse: Some(Overuse { since: Time(u64::MAX), seen_bytes: Bytes(u64::MAX) }),
            uncharged_byte_us: u128::MAX,
        }),
        notice: None,
    }
}

fn durations() -> Durations {
    let mut durations = Durations::default();
    let kind = LeaseKind::new(Tier::Spot, Bytes(u64::MAX), 64);
    durations.learn("\"é\"", kind, Span(u64::MAX), DurationOutcome::Done, Time(u64::MAX));
    durations.learn(
        "",
        LeaseKind::new(Tier::Interactive, Bytes::ZERO, 0),
        Span::ZERO,
        DurationOutcome::Cut,
        Time::ZERO,
    );
    durations
}

fn lateness() -> Lateness {
    let mut lateness = Lateness::default();
    let most = ExpectedWait { p50: Span(u64::MAX), p90: Span(u64::MAX) };
    lateness.learn(most, Span::ZERO, DurationOutcome::Done, Time(u64::MAX));
    lateness.learn(ExpectedWait { p50: Span::ZERO, p90: Span::ZERO }, Span(u64::MAX), DurationOutcome::Cut, Time::ZERO);
    lateness
}

fn costs() -> Costs {
    let mut costs = Costs::default();
    costs.learn("é'\"", Method::Driver, Direction::OntoGpu, Bytes(u64::MAX), Span(u64::MAX), Time(u64::MAX));
    costs
}

fn extreme_away() -> ParkState {
    ParkState {
        since: Time(u64::MAX),
        method: Method::Driver,
        had_bytes: Bytes(u64::MAX),
        program: "é'\"".to_owned(),
        with_driver: true,
        is_passive: true,
        with_context: true,
        processes: vec![ProcKey { pid: u32::MAX, start: u64::MAX }],
        requests_again_at: Some(Time(1 << 63)),
        was_resumed: true,
        queued_since: Some(Time(u64::MAX)),
        first_request: Some(LeaseRequest {
            gpus_allowed: Some(GpuSelector::These(vec![GpuId(u16::MAX)])),
            ..extreme_ask()
        }),
        term_left: Some(Span(u64::MAX)),
    }
}

fn lease(id: u64, phase: Phase) -> Lease {
    let roots = vec![ProcKey { pid: u32::MAX, start: u64::MAX }, ProcKey { pid: 0, start: 0 }];
    let (tenant, asked, token) = (TenantId(0), Time(u64::MAX), Some(TokenId(u32::MAX)));
    Lease { id: LeaseId(id), tenant, request: extreme_ask(), requested: asked, roots, phase, token }
}

fn token(id: u32) -> Token {
    Token {
        id: TokenId(id),
        tenant: "user:'\"\u{0}".to_owned(),
        name: Some(String::new()),
        hash: TokenHash([255; 32]),
        read_only: true,
        caps: TokenCaps { vram: Some(Bytes(u64::MAX)), leases: Some(u32::MAX) },
        made_wall_us: u64::MAX,
        expires_wall_us: Some(u64::MAX),
    }
}

fn extreme_audit() -> Audit {
    let process = ProcKey { pid: u32::MAX, start: u64::MAX };
    let parent =
        Ancestor { process, uid: Some(u32::MAX), name: "\u{0}".to_owned(), exe: Some("é".to_owned()), ended: true };
    Audit {
        process,
        uid: u32::MAX,
        name: "'; DROP TABLE strangers".to_owned(),
        exe: Some("/名前/🦀".to_owned()),
        exe_file: Some(FileKey { dev: u64::MAX, ino: u64::MAX }),
        exe_deleted: true,
        exe_inside: true,
        command: vec![String::new(), "\"".to_owned()],
        cwd: Some("/".to_owned()),
        cgroup: String::new(),
        unit: Some("user@1000.service/app.service".to_owned()),
        container: Some("f".repeat(64)),
        seat: Some("seat0".into()),
        session: u32::MAX,
        started_s: u64::MAX,
        ancestry: vec![parent],
        devices: vec!["/dev/nvidia0".to_owned()],
        crowded: true,
        through: Some(Through { pid: u32::MAX, alone: true }),
        ran: Some(Accounted { cpu_ms: u64::MAX, io_bytes: Some(u64::MAX), peak_memory_bytes: Some(u64::MAX) }),
        unread: vec!["its open files".to_owned()],
    }
}

/// One of every step.
fn strangers() -> Vec<UnleasedProcess> {
    let steps = [
        UnleasedStep::Found,
        UnleasedStep::Warned { since: Time(u64::MAX), until: Time(u64::MAX) },
        UnleasedStep::Parking { lease: LeaseId(u64::MAX), since: Time(u64::MAX) },
        UnleasedStep::NotParked { since: Time(u64::MAX) },
        UnleasedStep::Signalled { signal: u8::MAX, since: Time(u64::MAX), sent: true },
        UnleasedStep::Survived,
    ];
    let ids = [0, 1, 2, 3, 1 << 63, u64::MAX];
    let stranger = |(id, step)| {
        let cards = vec![GpuId(0), GpuId(2)];
        UnleasedProcess {
            id: UnleasedId(id),
            audit: extreme_audit(),
            since: Time(u64::MAX),
            gpus: cards,
            step,
            successor_of: Some(UnleasedId(u64::MAX)),
            must_leave_by: Some(Time(u64::MAX)),
            why_not_parked: Some("'\u{0}\"".to_owned()),
            lease: Some(LeaseId(u64::MAX)),
        }
    };
    ids.into_iter().zip(steps).map(stranger).collect()
}

/// One rule for each variant of [`Who`].
fn rules() -> Vec<Rule> {
    let about = [
        RuleSubject::Exe("/'\"".to_owned()),
        RuleSubject::Unit("é.service".to_owned()),
        RuleSubject::Container("f".repeat(64)),
        RuleSubject::Uid(u32::MAX),
    ];
    let ids = [0, 1, 2, u32::MAX];
    let treat = |id| if id == 0 { RuleAction::Allow } else { RuleAction::Deny };
    ids.into_iter().zip(about).map(|(id, who)| Rule { id: RuleId(id), subject: who, action: treat(id) }).collect()
}

fn extreme_rows() -> Rows {
    let finish = LeaseEnd {
        reason: EndReason::DeviceLost,
        at: Time(u64::MAX),
        peak: Some(Bytes(u64::MAX)),
        signal: Some((u8::MAX, Time(u64::MAX))),
    };
    let leases = [
        lease(0, Phase::Waiting { give_up: Time(u64::MAX) }),
        Lease { request: ask(), roots: vec![], token: None, ..lease(7, Phase::Active(extreme_hold())) },
        lease(
            8,
            Phase::Active(Hold { history: None, notice: Some(EndNotice::ForOthers(Time(u64::MAX))), ..extreme_hold() }),
        ),
        lease(
            12,
            Phase::Active(Hold { notice: Some(EndNotice::Term { term_over: Time(u64::MAX) }), ..extreme_hold() }),
        ),
        lease(9, Phase::Parking(extreme_hold(), extreme_away())),
        lease(10, Phase::Parked(extreme_hold(), extreme_away())),
        lease(11, Phase::Resuming(extreme_hold(), extreme_away())),
        lease(u64::MAX, Phase::Ending(Hold { idle: false, gpus: vec![], ..extreme_hold() }, finish)),
    ];
    Rows {
        meta: Meta {
            boot: "é\u{0}".to_owned(),
            clock_offset_us: i64::MIN,
            next_lease: u64::MAX - 1,
            next_fence: Fence(u64::MAX - 1),
            next_token: u32::MAX - 1,
            grace_from: Time(u64::MAX),
            grace_until: Time(u64::MAX),
            day: u32::MAX,
            next_unleased: u64::MAX - 1,
            next_rule: u32::MAX - 1,
            lateness: lateness(),
        },
        tenants: vec![
            Tenant {
                name: "uid:0".to_owned(),
                leases: u64::MAX,
                gpu_us: u64::MAX,
                byte_us: u128::MAX,
                debt_clock: Time(u64::MAX),
                first_since: Time(u64::MAX),
                groups: vec!["lab".to_owned(), "\"".to_owned()],
                today_us: u64::MAX,
                parked_byte_us: u128::MAX,
                costs: costs(),
                durations: durations(),
            },
            Tenant::default(),
        ]
        .into(),
        gpus: vec![
            Gpu { mode: Mode::Enforce, ..Gpu::new(facts(0)) },
            Gpu { service: GpuService::Draining, aside: asides(), ..Gpu::new(facts(1)) },
            Gpu {
                facts: GpuFacts {
                    index: u32::MAX,
                    total: Bytes(u64::MAX),
                    display: true,
                    context: Some(Bytes(u64::MAX)),
                    node: Some(1),
                    unusable: Some("MIG".to_owned()),
                    ..facts(2)
                },
                service: GpuService::Out { why: "'; DROP TABLE leases".to_owned() },
                mode: Mode::Adopt,
                aside: Asides::default(),
            },
        ]
        .into(),
        leases: leases.into_iter().map(|lease| (lease.id, lease)).collect(),
        tokens: [token(u32::MAX), Token { name: None, caps: TokenCaps::default(), expires_wall_us: None, ..token(0) }]
            .into_iter()
            .map(|token| (token.id, token))
            .collect(),
        unleased: strangers().into_iter().map(|stranger| (stranger.id, stranger)).collect(),
        rules: rules().into_iter().map(|rule| (rule.id, rule)).collect(),
    }
}

fn image(rows: &Rows) -> Batch {
    Batch {
        at: Time(u64::MAX),
        meta: Some(rows.meta.clone()),
        tenants: (0..).map(TenantId).zip(rows.tenants.iter().cloned()).collect(),
        cards: (0..).map(GpuId).zip(rows.gpus.iter().cloned()).collect(),
        leases: rows.leases.values().cloned().collect(),
        tokens: rows.tokens.values().cloned().collect(),
        strangers: rows.unleased.values().cloned().collect(),
        rules: rows.rules.values().cloned().collect(),
        ..Batch::default()
    }
}

#[test]
fn every_column_holds_the_extremes_of_its_type() {
    let dir = Dir::new();
    let rows = extreme_rows();
    let stored = StoredAnswer {
        tenant: TenantId(u32::MAX),
        key: "k\u{0}é".to_owned(),
        fingerprint: [255; 32],
        status: u16::MAX,
        body: "\u{0}🦀".repeat(10_000),
        wall_us: u64::MAX,
    };
    {
        let (mut journal, loaded) = dir.open();
        assert_eq!(loaded.rows, Rows::default());
        journal.commit(&Batch { answers: vec![stored.clone()], ..image(&rows) }).unwrap();
    }
    let (_, loaded) = dir.open();
    assert_eq!(loaded.rows, rows);
    assert_eq!(loaded.clock, Time(u64::MAX));
    assert_eq!(loaded.answers, [stored]);
}

#[test]
fn ended_leases_keep_every_reason_and_the_extremes() {
    let dir = Dir::new();
    let (mut journal, _) = dir.open();
    let reasons = (1..).zip(REASONS);
    let past: Vec<EndedLease> = reasons
        .map(|(id, reason)| EndedLease {
            id: LeaseId(id),
            tenant: TenantId((id % 2) as u32),
            request: extreme_ask(),
            requested: Time(u64::MAX),
            hold: (id > 3).then(extreme_hold),
            end: LeaseEnd { reason, at: Time(u64::MAX), peak: (id > 5).then_some(Bytes(u64::MAX)), signal: None },
        })
        .collect();
    journal.commit(&Batch { past: past.clone(), ..Batch::default() }).unwrap();
    let reader = journal.reader().unwrap();
    for ended in &past {
        assert_eq!(reader.ended(ended.id).unwrap().as_ref(), Some(ended));
    }
    assert_eq!(reader.ended(LeaseId(99)).unwrap(), None);
    let ids = |tenant, before, limit| -> Vec<u64> {
        reader.ended_of(tenant, before, limit).unwrap().iter().map(|ended| ended.id.0).collect()
    };
    assert_eq!(ids(None, None, 3), [15, 14, 13]);
    assert_eq!(ids(None, Some(LeaseId(3)), 10), [2, 1]);
    assert_eq!(ids(Some(TenantId(1)), None, 10), [15, 13, 11, 9, 7, 5, 3, 1]);
    assert_eq!(ids(Some(TenantId(0)), Some(LeaseId(6)), 1), [4]);
}

#[test]
fn a_restart_reads_what_was_committed_and_the_log_has_each_action() {
    let dir = Dir::new();
    let mut world = World::new(1);
    world.lease();
    {
        let (mut journal, _) = dir.open();
        let seq = journal.commit(&world.close()).unwrap();
        assert_eq!(seq, 7);
        world.cycle();
        let mut batch = world.close();
        assert!(
            batch.new.is_empty() && batch.leases.is_empty() && batch.gone.is_empty(),
            "it came and went in one batch"
        );
        batch.answers.push(answer(0, "k", 5));
        assert_eq!(journal.commit(&batch).unwrap(), 11);
    }
    let (mut journal, loaded) = dir.open();
    assert_eq!((&loaded.rows, loaded.clock, loaded.seq), (&world.rows, world.now, 11));
    assert_eq!(loaded.answers, [answer(0, "k", 5)]);
    assert_eq!(journal.reload().unwrap(), loaded);
    let reader = journal.reader().unwrap();
    let lines = reader.log(7, 100).unwrap();
    let kinds: Vec<_> = lines.iter().map(|line| line.action().unwrap().kind()).collect();
    assert_eq!(kinds, ["queue", "grant", "end", "retire"]);
    assert!(lines.iter().all(|line| line.lease == Some(LeaseId(2)) && &*line.actor == "uid:1000"));
    assert_eq!((lines[3].seq, lines[3].hash), journal.head());
    assert_eq!(reader.log(0, 3).unwrap().len(), 3);
    assert_eq!((reader.first_seq().unwrap(), reader.last_seq().unwrap()), (1, 11));
    assert_eq!(reader.tenants().unwrap(), world.rows.tenants.to_vec());
    assert_eq!(reader.answer(TenantId(0), "k").unwrap(), Some(answer(0, "k", 5)));
    assert_eq!(reader.answer(TenantId(1), "k").unwrap(), None);
}

#[test]
fn folding_any_log_gives_the_rows() {
    for seed in 0..12 {
        let dir = Dir::new();
        let mut world = World::new(seed);
        let (mut journal, _) = dir.open();
        for _ in 0..60 {
            for _ in 0..=world.dice.below(20) {
                world.step();
            }
            journal.commit(&world.close()).unwrap();
            if world.dice.below(8) == 0 {
                let keep = world.dice.below(200);
                while journal.trim(keep).unwrap() > 0 {}
            }
            if world.dice.below(16) == 0 {
                drop(journal);
                let loaded;
                (journal, loaded) = dir.open();
                assert_eq!(loaded.rows, world.rows, "seed {seed}");
                assert_eq!(loaded.clock, world.now, "seed {seed}");
            }
        }
        let report = verify(&dir.path()).unwrap();
        assert_eq!(report.findings, [""; 0], "seed {seed}");
        assert_eq!(report.ended + report.ended_before_log, world.ended.len() as u64, "seed {seed}");
        assert_eq!((report.last_seq, report.head), journal.head());
        let reader = journal.reader().unwrap();
        for ended in &world.ended {
            assert_eq!(reader.ended(ended.id).unwrap().as_ref(), Some(ended), "seed {seed}");
        }
    }
}

#[test]
fn an_empty_batch_only_moves_the_clock_forward() {
    let dir = Dir::new();
    let (mut journal, _) = dir.open();
    journal.commit(&Batch { at: Time(50), ..Batch::default() }).unwrap();
    journal.commit(&Batch { at: Time(20), ..Batch::default() }).unwrap();
    assert_eq!(journal.reload().unwrap().clock, Time(50));
}

#[test]
fn a_key_that_is_used_again_keeps_its_last_answer() {
    let dir = Dir::new();
    let (mut journal, _) = dir.open();
    for wall_us in [1, 2] {
        journal.commit(&Batch { answers: vec![answer(3, "k", wall_us)], ..Batch::default() }).unwrap();
    }
    assert_eq!(journal.reload().unwrap().answers, [answer(3, "k", 2)]);
}

#[test]
fn a_start_from_rows_at_the_ends_of_their_types_goes_on() {
    for (boot, now) in [("\u{e9}\u{0}", Time(5)), ("\u{e9}\u{0}", Time(u64::MAX - 5)), ("another", Time(u64::MAX - 5))]
    {
        let mut state = State::new(extreme_rows(), Policy::default());
        let ask = LeaseRequest::plain(Bytes::gib(1), Term::Renewed(Span::secs(60)));
        let used = GpuUsage { free: Bytes(u64::MAX), processes: Vec::new(), coarse: false };
        for event in [
            Event::Daemon(DaemonEvent::Started {
                boot: boot.to_owned(),
                clock_offset_us: i64::MIN,
                fence_floor: Fence(1),
                lease_floor: 1,
            }),
            Event::Gpu(GpuEvent::Listed(vec![facts(0), facts(1)])),
            Event::Gpu(GpuEvent::ReadingTaken {
                gpu: facts(0).uuid,
                reading: GpuReading { begun: now, reading: Reading::Used(used) },
            }),
            Event::Lease(LeaseEvent::Requested { by: Caller::user("uid:0"), request: ask, wait: None, root: None }),
            Event::Daemon(DaemonEvent::Ticked),
        ] {
            drop(decide(&mut state, now, event));
        }
    }
}
