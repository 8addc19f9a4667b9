//! The head of a queue of a million: how long it takes to find, whether it is the right one, and
//! how the cost of a request grows.

use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::rig::BenchRig;
use crate::samples::{Samples, median};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::time::Instant;
use sublet_core::event::{Caller, Event};
use sublet_core::facts::{DaemonEvent, GpuEvent, LeaseEvent};
use sublet_core::ids::{GpuId, LeaseId, TenantId};
use sublet_core::reading::{GpuFacts, GpuReading, GpuUsage, Reading};
use sublet_core::request::{LeaseRequest, Term, Tier};
use sublet_core::rows::{Phase, Rows};
use sublet_core::settings::{Caps, Policy};
use sublet_core::units::{Bytes, Span, Time};
use sublet_core::{State, decide};

const WAITERS: usize = 1_000_000;
/// The queue length at which the cost of a request is first measured.
const SHORT_QUEUE: usize = 10_000;
const SAMPLES: usize = 10_000;
const TENANTS: usize = 10_000;

/// A full GPU, a million waiters of 10,000 tenants.
pub fn run(_: &BenchRig) -> Result<BenchOutcome> {
    let mut world = QueueWorld::new();
    let few = world.fill_queue(SHORT_QUEUE);
    let many = world.fill_queue(WAITERS);
    let heads = world.time_heads();
    let growth = few.1 / few.0;
    let growth_many = many.1 / few.1;
    // log(n) grows by this much from one length to the other; the rest of the allowance is for the caches.
    let logs = (WAITERS as f64).ln() / (SHORT_QUEUE as f64).ln();
    let picks = world.serve_and_compare()?;
    Ok(BenchOutcome {
        figures: vec![
            Figure {
                what: "the head of 1,000,000 waiting: p99 to find it",
                target: FigureTarget::AtMost(10.0),
                measured: heads.p99_us,
                unit: "µs",
                note: format!("p50 {} µs", digits(heads.p50_us)),
            },
            Figure {
                what: "a pick of 1,000,000 waiting, 10,000 tenants, and its grant: p99",
                target: FigureTarget::AtMost(20.0),
                measured: picks.p99_us,
                unit: "µs",
                note: format!("p50 {} µs; every one as the rule by brute force says", digits(picks.p50_us)),
            },
            Figure {
                what: "cost of a request at 1,000,000 waiting, compared with 10,000",
                target: FigureTarget::AtMost(3.0),
                measured: growth_many,
                unit: "×",
                note: format!(
                    "{} and {} µs; log n grows {} ×, and the state outgrows the caches; 0 to 10,000: {} ×",
                    digits(many.1),
                    digits(few.1),
                    digits(logs),
                    digits(growth)
                ),
            },
        ],
        raw: serde_json::json!({ "ask_us_first_and_last_at_10k": few, "at_1m": many, "head": heads, "pick": picks }),
    })
}

struct QueueWorld {
    state: State,
    now: Time,
    asked: usize,
}

fn request_of(number: usize) -> LeaseRequest {
    LeaseRequest {
        tier: [Tier::Interactive, Tier::Batch, Tier::Batch, Tier::Spot][number % 4],
        priority: (number % 21) as i8 - 10,
        ..LeaseRequest::plain(Bytes::gib(20), Term::Renewed(Span::secs(300)))
    }
}

impl QueueWorld {
    fn new() -> QueueWorld {
        let caps = Caps { places: None, ..Caps::default() };
        let policy = Policy { queue_max: usize::MAX, caps, ..Policy::default() };
        let mut world = QueueWorld { state: State::new(Rows::default(), policy), now: Time::ZERO, asked: 0 };
        decide(&mut world.state, world.now, Event::Gpu(GpuEvent::Listed(vec![GpuFacts::plain(0, Bytes::gib(24))])));
        world.read_gpu();
        world
    }

    fn read_gpu(&mut self) {
        self.now = self.now + Span(2);
        let reading = Reading::Used(GpuUsage { free: Bytes::gib(24), processes: Vec::new(), coarse: false });
        let observation = GpuReading { begun: self.now, reading };
        decide(
            &mut self.state,
            self.now,
            Event::Gpu(GpuEvent::ReadingTaken { gpu: "GPU-0".to_owned(), reading: observation }),
        );
    }

    /// Makes requests until `until` wait; returns the median cost of the first and of the last ones, in µs.
    fn fill_queue(&mut self, until: usize) -> (f64, f64) {
        let mut costs = Vec::with_capacity(until - self.asked);
        while self.asked < until {
            // Spread over a day, so that head starts reorder them.
            self.now = self.now + Span(86_400);
            let tenant = format!("uid:{}", self.asked * 7919 % TENANTS);
            let by = Caller::user(tenant);
            let event = Event::Lease(LeaseEvent::Requested {
                by,
                request: request_of(self.asked),
                wait: Some(Span::secs(86_400 * 300)),
                root: None,
            });
            let begun = Instant::now();
            decide(&mut self.state, self.now, event);
            costs.push(begun.elapsed().as_secs_f64() * 1e6);
            self.asked += 1;
        }
        let some = SAMPLES.min(costs.len() / 4).max(1);
        (median(costs[..some].iter().copied()), median(costs[costs.len() - some..].iter().copied()))
    }

    /// How long it takes to find the head.
    fn time_heads(&mut self) -> crate::samples::Quantiles {
        let mut found = Samples::with_capacity(SAMPLES);
        for _ in 0..SAMPLES {
            let begun = Instant::now();
            let head = std::hint::black_box(&self.state).queue().first();
            found.push(begun.elapsed());
            std::hint::black_box(head);
        }
        found.quantiles()
    }

    /// Serves some waiters, compares each with the rule by brute force, and returns how long each pick took.
    fn serve_and_compare(&mut self) -> Result<crate::samples::Quantiles> {
        const COMPARED: usize = 2_000;
        let mut lines: BTreeMap<TenantId, Vec<(i64, LeaseId, Time)>> = BTreeMap::new();
        for lease in self.state.rows().leases.values().filter(|lease| matches!(lease.phase, Phase::Waiting { .. })) {
            let rank = lease.requested.0 as i64 - self.state.policy().head_start.of(&lease.request);
            lines.entry(lease.tenant).or_default().push((rank, lease.id, lease.requested));
        }
        for line in lines.values_mut() {
            line.sort_unstable_by(|left, right| right.cmp(left));
        }
        let operator = Caller { operator: true, ..Caller::user("uid:0") };
        let mut picks = Samples::with_capacity(COMPARED);
        for _ in 0..COMPARED {
            let held = self.state.room(GpuId(0)).leases().keys().next().copied();
            if let Some(lease) = held {
                self.now = self.now + Span(2);
                decide(
                    &mut self.state,
                    self.now,
                    Event::Lease(LeaseEvent::ReleaseRequested { by: operator.clone(), lease, fence: None }),
                );
            }
            let (tenant, expected) = self.head_by_brute_force(&lines)?;
            // The GPU is read while nothing may be granted, so that only the pick is timed.
            decide(&mut self.state, self.now, Event::Daemon(DaemonEvent::DiskFilled));
            self.read_gpu();
            let begun = Instant::now();
            decide(&mut self.state, self.now, Event::Daemon(DaemonEvent::DiskFreed));
            picks.push(begun.elapsed());
            let held = self.state.room(GpuId(0)).leases().keys().next().copied();
            ensure!(held == Some(expected), "served {held:?}, the rule says {expected}");
            lines.get_mut(&tenant).map(Vec::pop);
        }
        Ok(picks.quantiles())
    }

    /// Of the first waiters of all tenants, the one that comes first.
    fn head_by_brute_force(
        &self,
        lines: &BTreeMap<TenantId, Vec<(i64, LeaseId, Time)>>,
    ) -> Result<(TenantId, LeaseId)> {
        let debt_max = self.state.policy().debt_max.0 as i64;
        let key = |tenant: TenantId, (rank, lease, asked): (i64, LeaseId, Time)| {
            let row = &self.state.rows().tenants[tenant];
            let first = asked.max(row.first_since);
            let debt = (row.debt_clock.0 as i64 - first.0 as i64).clamp(0, debt_max);
            (rank + first.since(asked).0 as i64 + debt, lease)
        };
        let firsts = lines.iter().filter_map(|(tenant, line)| line.last().map(|first| (key(*tenant, *first), *tenant)));
        let ((_, lease), tenant) = firsts.min().context("the queue is empty")?;
        Ok((tenant, lease))
    }
}
