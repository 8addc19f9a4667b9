//! The loop: what is due next happens, in a world that one seed made.

use crate::checker::{Checker, Violation};
use crate::daemon::{CommitFate, SimDaemon, actors, tenant_name};
use crate::disk::SimDisk;
use crate::hooks::SimWrapper;
use crate::jobs::{JobStage, SimJob};
use crate::mutants::{Planted, Sabotage};
use crate::readings;
use crate::rng::Rng;
use crate::run::RunOptions;
use crate::shape::{S, WorldShape};
use crate::story::Story;
use crate::timers::{Timer, Timers};
use crate::unleased::UnleasedShape;
use crate::world::{GpuFault, World};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use sublet_core::event::Caller;
use sublet_core::facts::{DaemonEvent, GpuEvent, LeaseEvent, UnleasedEvent};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::mutant::Mutant;
use sublet_core::reading::{GpuReading, Reading};
use sublet_core::units::{Span, Time};

/// Once the world is calm it is counted who still waits after so many turns.
const TURNS_A_COUNT: usize = 16;
/// Waiters that are served one by one when the world calms down; the others give up.
const CALM_WAITERS: usize = 120;

/// Tells the luck of parking from that of everything else.
const LUCK: u64 = 0x7061_721D;
/// And that of a journal that lost lines.
const RNG_LOSSES: u64 = 0x6C6F_7373;
/// And that of making room.
const WHIM: u64 = 0x726F_6F6D;
/// And that of wrappers.
const DOOM: u64 = 0x646F_6F6D;
/// And that of strangers.
const ODDS: u64 = 0x6F64_6473;
/// And that of those who are parked in place of being ended.
const MOOD: u64 = 0x6D6F_6F64;
/// And that of who takes more than its lease.
const GREED: u64 = 0x6772_6565;

/// And that of who goes where its lease is not.
const ASTRAY: u64 = 0x7374_7261;

/// And that of who binds what another lease has.
const GRABS: u64 = 0x6772_6162;

/// And that of whose contexts leave cards, too.
const DEPTH: u64 = 0x6465_7074;

/// The random stream of hints that parked leases are used.
const RNG_HINTS: u64 = 0x6869_6E74;

/// The random stream of GPUs that step aside. With this number the first 600 worlds still meet the rarest planted bugs.
const RNG_ASIDE: u64 = 0x6173_8e0a;

/// Everything there is, for one seed.
#[derive(Debug)]
pub struct Sim<'a> {
    pub(crate) rng: Rng,
    /// Of what has to do with parking.
    pub(crate) luck: Rng,
    /// So many starts in a thousand find that lines are missing.
    pub(crate) losses: u64,
    pub(crate) rng_losses: Rng,
    /// Of what has to do with making room.
    pub(crate) whim: Rng,
    /// Of which wrappers die alone.
    pub(crate) doom: Rng,
    /// Of what has to do with strangers.
    pub(crate) odds: Rng,
    /// Of those among them who are parked in place of being ended.
    pub(crate) mood: Rng,
    /// Of who goes where its lease is not, and how often somebody does, in thousandths.
    pub(crate) astray: (Rng, u64),
    /// Of who binds processes that other leases have, and how often somebody does, in thousandths.
    pub(crate) grabs: (Rng, u64),
    /// Hints that parked leases are used, and how often one comes with a call by hand, in thousandths.
    pub(crate) rng_hints: (Rng, u64),
    /// GPUs that step aside, and how many seconds there are at most from one request to the next; zero: none.
    pub(crate) rng_aside: (Rng, u64),
    /// Of who takes more than its lease.
    pub(crate) greed: Rng,
    /// Of whose contexts leave cards, too.
    pub(crate) depth: Rng,
    pub(crate) shape: WorldShape,
    pub(crate) story: &'a Story,
    /// True time, in µs.
    pub(crate) t: u64,
    /// True time less the daemon's time.
    pub(crate) lag: u64,
    pub(crate) wall_us: u64,
    pub(crate) timers: Timers,
    pub(crate) world: World,
    pub(crate) jobs: Vec<SimJob>,
    pub(crate) by_lease: BTreeMap<LeaseId, u32>,
    pub(crate) disk: SimDisk,
    pub(crate) daemon: Option<SimDaemon>,
    /// Which daemon lives; timers of earlier ones are void.
    pub(crate) life: u32,
    pub(crate) boot: u32,
    pub(crate) booted: u32,
    pub(crate) commits: u64,
    pub(crate) checker: Checker,
    pub(crate) callers: Vec<Caller>,
    pub(crate) actors: Vec<Arc<str>>,
    pub(crate) calm: bool,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) sabotage: Option<Sabotage>,
    pub(crate) kill_at: Option<(u64, CommitFate)>,
    /// How long the daemon ran before the world calmed down.
    pub(crate) elapsed: Span,
    /// Processes that a restore lost.
    pub(crate) lost: u64,
    /// How often the driver took what was left of a parked holder, and how many processes of such it brought back.
    pub(crate) deep: (u64, u64),
    /// Wrappers with a hook, by lease.
    pub(crate) wrappers: BTreeMap<LeaseId, SimWrapper>,
    /// Leases whose processes got SIGTERM.
    pub(crate) termed: BTreeSet<LeaseId>,
    /// When strangers last got SIGTERM.
    pub(crate) struck: BTreeMap<ProcKey, u64>,
    looks: Vec<Option<PendingReading>>,
}

/// A look under way.
#[derive(Debug)]
struct PendingReading {
    card: u16,
    begun: Time,
    /// What was seen, if it was seen at once.
    reading: Option<Reading>,
}

impl<'a> Sim<'a> {
    /// The world of a seed, with a bug planted or not, and a commit to die in or not.
    pub fn new(seed: u64, story: &'a Story, options: RunOptions) -> Sim<'a> {
        let RunOptions { planted, kill_at, still, blind, crowd, .. } = options;
        let mut rng = Rng::new(seed);
        let mut luck = Rng::new(seed ^ LUCK);
        let mut whim = Rng::new(seed ^ WHIM);
        let mut odds = Rng::new(seed ^ ODDS);
        let mut mood = Rng::new(seed ^ MOOD);
        let vigil = UnleasedShape::draw(&mut odds, &mut mood, blind || still || crowd);
        let mut greed = Rng::new(seed ^ GREED);
        let mut astray = Rng::new(seed ^ ASTRAY);
        let often = astray.pick(&[0, 0, 40, 200]);
        let mut grabs = Rng::new(seed ^ GRABS);
        let grasping = grabs.pick(&[0, 0, 30, 200]);
        let mut rng_losses = Rng::new(seed ^ RNG_LOSSES);
        let losses = rng_losses.pick(&[0, 0, 0, 300]);
        let mut rng_hints = Rng::new(seed ^ RNG_HINTS);
        let hints = rng_hints.pick(&[0, 0, 200, 900]);
        let mut rng_aside = Rng::new(seed ^ RNG_ASIDE);
        let asides = if crowd || still { 0 } else { rng_aside.pick(&[0, 0, 0, 20, 60]) };
        let mut shape = if crowd {
            WorldShape::crowd(vigil)
        } else {
            WorldShape::draw(&mut rng, &mut luck, &mut whim, vigil, still)
        };
        shape.policy.overuse_grace = Span::secs(greed.pick(&[1, 5, 15, 60]));
        let mut depth = Rng::new(seed ^ DEPTH);
        if !still && !crowd {
            shape.deepen(&mut depth);
        }
        let world = World::new(&shape, &mut rng);
        let caller = |n| {
            let tenant = tenant_name(n, shape.tenants);
            Caller { operator: n == shape.tenants, ..Caller::user(tenant) }
        };
        Sim {
            t: 1_000 * S,
            lag: 1_000 * S - rng.below(100 * S),
            wall_us: rng.below(4_000_000_000_000_000),
            timers: Timers::default(),
            jobs: (0..shape.jobs).map(|_| SimJob::new(rng.below(shape.tenants as u64) as usize)).collect(),
            by_lease: BTreeMap::new(),
            disk: SimDisk::default(),
            daemon: None,
            life: 0,
            boot: 0,
            booted: 0,
            commits: 0,
            checker: Checker::new(shape.policy.clone()),
            callers: (0..=shape.tenants).map(caller).collect(),
            actors: actors(shape.tenants),
            calm: false,
            mutant: planted.and_then(Planted::mutant),
            sabotage: planted.and_then(Planted::sabotage),
            kill_at,
            elapsed: Span::ZERO,
            lost: 0,
            deep: (0, 0),
            wrappers: BTreeMap::new(),
            termed: BTreeSet::new(),
            struck: BTreeMap::new(),
            looks: Vec::new(),
            world,
            story,
            rng,
            luck,
            losses,
            rng_losses,
            whim,
            doom: Rng::new(seed ^ DOOM),
            odds,
            mood,
            greed,
            depth,
            astray: (astray, often),
            grabs: (grabs, grasping),
            rng_hints: (rng_hints, hints),
            rng_aside: (rng_aside, asides),
            shape,
        }
    }

    /// The daemon's time.
    pub fn now(&self) -> Time {
        Time(self.t - self.lag)
    }

    /// So many events, then calm.
    pub fn run(&mut self, steps: u64) -> Result<(), Violation> {
        self.restart()?;
        for job in 0..self.jobs.len() as u32 {
            let delay = self.rng.below(20 * S);
            self.alarm(job, delay);
        }
        self.timers.set(self.t + S, Timer::Mischief);
        self.timers.set(self.t + S, Timer::Operator);
        if self.parks() {
            self.timers.set(self.t + 5 * S, Timer::Hand);
        }
        self.again_fault();
        self.again_stranger();
        self.again_lodger();
        self.again_aside();
        self.timers.set(self.t + 3 * S, Timer::Warden);
        let begun = self.now();
        while self.story.step.get() < steps {
            self.turn()?;
        }
        self.elapsed = self.now().since(begun);
        self.calm_down()
    }

    fn turn(&mut self) -> Result<(), Violation> {
        let Some((at, timer)) = self.timers.pop() else { return Ok(()) };
        self.wall_us += at.saturating_sub(self.t);
        self.t = self.t.max(at);
        if let Some(until) = self.daemon.as_ref().and_then(|daemon| daemon.stalled_until)
            && waits_for_loop(timer)
        {
            self.timers.set(until, timer);
            return Ok(());
        }
        match timer {
            Timer::Tick(life) if life == self.life => self.tick(),
            Timer::Look(life, card) if life == self.life => self.look(card),
            Timer::Seen(life, look) => self.seen(life, look),
            Timer::Synced(life) if life == self.life => self.synced(),
            Timer::Says(life, lease) if life == self.life => self.says(LeaseId(lease)),
            Timer::Relist(life) if life == self.life => self.relist(),
            Timer::Sent(life, lease, signal) if life == self.life => {
                self.report(LeaseEvent::SignalSent { lease: LeaseId(lease), signal })
            }
            Timer::StallOver(life) if life == self.life => self.stall_over(),
            Timer::Restart if self.daemon.is_none() => self.restart(),
            Timer::Wake(job, turn) => self.wake(job, turn),
            Timer::Exit(tree) => {
                let leases = self.world.exit(tree);
                self.noticed(&leases);
                Ok(())
            }
            Timer::Stranger => self.stranger(),
            Timer::Fault => self.fault(),
            Timer::Heal(card) => self.heal(card),
            Timer::Mischief => self.mischief(),
            Timer::Operator => self.operate(),
            Timer::Aside => self.aside(),
            Timer::DiskFreed => self.disk_freed(),
            Timer::AcceptLoss => self.accept_loss(),
            Timer::Connect(life, process, rung) if life == self.life => self.connect((process, rung)),
            Timer::Hear(life, process, rung) if life == self.life => self.hear((process, rung)),
            Timer::Mind(life, process, rung) if life == self.life => self.mind((process, rung)),
            Timer::Left(life, lease, process, rung, died) if life == self.life => {
                self.left(LeaseId(lease), (process, rung), died)
            }
            Timer::Done(process, rung, turn) => self.done((process, rung), turn),
            Timer::Heed(life, lease) if life == self.life => self.heed(LeaseId(lease)),
            Timer::Hooked(lease, turn) => self.hook_done(LeaseId(lease), turn),
            Timer::Orphan(lease) => self.orphan(LeaseId(lease)),
            Timer::Ram(life) if life == self.life => self.read_ram(),
            Timer::Hand => self.hand(),
            Timer::Die(process) => self.perish(process),
            Timer::Lodger => self.lodger(),
            Timer::Audit(life, process) if life == self.life => self.audit(process),
            Timer::Gone(life, process) if life == self.life => self.report(UnleasedEvent::Exited { process }),
            Timer::SelfTest(life) if life == self.life => self.self_test(),
            Timer::Blow(life, blow) if life == self.life => self.blow(blow),
            Timer::Landed(life, blow) if life == self.life => self.landed(blow),
            Timer::Warden => self.warden(),
            _ => Ok(()),
        }
    }

    fn tick(&mut self) -> Result<(), Violation> {
        self.timers.set(self.t + self.shape.tick_us, Timer::Tick(self.life));
        self.report(DaemonEvent::Ticked)?;
        self.look_again();
        Ok(())
    }

    // ---- eyes --------------------------------------------------------------

    fn look(&mut self, card: u16) -> Result<(), Violation> {
        let period = self.shape.policy.period.0;
        self.timers.set(self.t + period, Timer::Look(self.life, card));
        let failing = if self.calm { 0 } else { self.shape.faults.looks };
        let slow = !self.calm && self.rng.chance(self.shape.faults.slow);
        let delay = if slow { self.rng.within(period, 4 * period) } else { self.rng.below(period / 20) };
        let at_once = self.rng.chance(500);
        let reading = at_once.then(|| readings::look(&self.world.cards[card as usize], &mut self.rng, failing));
        let look = PendingReading { card, begun: self.now(), reading };
        let place = self.looks.iter().position(Option::is_none).unwrap_or(self.looks.len());
        match self.looks.get_mut(place) {
            Some(free) => *free = Some(look),
            None => self.looks.push(Some(look)),
        }
        self.timers.set(self.t + delay, Timer::Seen(self.life, place as u32));
        Ok(())
    }

    fn seen(&mut self, life: u32, place: u32) -> Result<(), Violation> {
        let Some(PendingReading { card, begun, reading }) = self.looks[place as usize].take() else { return Ok(()) };
        if life != self.life {
            return Ok(());
        }
        let failing = if self.calm { 0 } else { self.shape.faults.looks };
        let gpu = &self.world.cards[card as usize];
        let reading = reading.unwrap_or_else(|| readings::look(gpu, &mut self.rng, failing));
        let uuid = self.world.cards[card as usize].facts.uuid.clone();
        let there = match &reading {
            Reading::Used(used) => used.processes.iter().map(|resident| resident.process).collect(),
            Reading::Unreadable(_) => Vec::new(),
        };
        self.report(GpuEvent::ReadingTaken { gpu: uuid, reading: GpuReading { begun, reading } })?;
        self.look_into(card, &there);
        Ok(())
    }

    pub(crate) fn relist(&mut self) -> Result<(), Violation> {
        self.timers.set(self.t + 20 * S, Timer::Relist(self.life));
        if !self.disk.full {
            // A full disk is looked at again and again.
            self.disk_freed()?;
        }
        if self.calm {
            // A look from before the calm may have taken a card out of service.
            (0..self.world.cards.len()).try_for_each(|card| self.clear(card))?;
            self.orphans().into_iter().try_for_each(|lease| self.revoke(lease))?;
            self.thin_out()?;
        }
        self.report(GpuEvent::Listed(readings::list(&self.world)))
    }

    // ---- calm --------------------------------------------------------------

    /// No faults, no strangers, everybody gives back: then everybody is served.
    fn calm_down(&mut self) -> Result<(), Violation> {
        self.story.say(|| format!("{} the world calms down", self.now()));
        self.calm = true;
        self.disk.full = false;
        self.calm_programs();
        self.calm_hooks();
        for card in 0..self.world.cards.len() {
            self.world.cards[card].ail = GpuFault::Well;
            self.world.cards[card].facts.unusable = None;
        }
        let known: Vec<u32> = self.jobs.iter().filter_map(|job| job.tree).collect();
        let loose: Vec<u32> = self.world.trees.keys().copied().filter(|tree| !known.contains(tree)).collect();
        for tree in loose {
            let leases = self.world.exit(tree);
            self.noticed(&leases);
        }
        self.world.vacate_all();
        self.wait_for_daemon()?;
        self.open_all()?;
        self.thin_out()?;
        let longest = 3 * self.shape.ttl_max_s * S + self.shape.policy.grace.0 + 10 * self.shape.policy.period.0;
        let mut waiting = self.checker.hopeful();
        let mut last = self.t;
        while waiting > 0 {
            // To count them takes longer than a turn.
            for _ in 0..TURNS_A_COUNT {
                self.turn()?;
            }
            let left = self.checker.hopeful();
            if left != waiting {
                (waiting, last) = (left, self.t);
            } else if self.t > last + longest + 60 * S {
                return Err(self.checker.starved(self.now()));
            }
        }
        self.check_contexts()?;
        let now = self.now();
        match &self.daemon {
            Some(daemon) => self.checker.cross_check(now, daemon.engine.state(), &self.disk),
            None => Ok(()),
        }
    }

    fn wait_for_daemon(&mut self) -> Result<(), Violation> {
        while self.daemon.as_ref().is_none_or(|daemon| daemon.stalled_until.is_some()) {
            self.turn()?;
        }
        Ok(())
    }

    fn open_all(&mut self) -> Result<(), Violation> {
        self.report(DaemonEvent::DiskFreed)?;
        self.accept_loss()?;
        self.report(GpuEvent::Listed(readings::list(&self.world)))?;
        self.end_asides()?;
        for card in 0..self.world.cards.len() {
            self.clear(card)?;
        }
        for job in 0..self.jobs.len() as u32 {
            if self.jobs[job as usize].stage != JobStage::Idle {
                let delay = self.rng.below(2 * S);
                self.alarm(job, delay);
            }
        }
        Ok(())
    }

    /// Holders whose owners never heard of it.
    fn orphans(&self) -> Vec<LeaseId> {
        let job = |lease: &LeaseId| self.by_lease.get(lease).map(|job| &self.jobs[*job as usize]);
        let orphan = |lease: &&LeaseId| job(lease).is_none_or(|job| job.lease != Some(**lease));
        let held = self.disk.rows.leases.iter().filter(|(_, row)| row.is_held());
        held.map(|(lease, _)| lease).filter(orphan).copied().collect()
    }

    fn thin_out(&mut self) -> Result<(), Violation> {
        let waiters = self.checker.waiters();
        for lease in waiters.into_iter().skip(CALM_WAITERS) {
            self.revoke(lease)?;
        }
        Ok(())
    }
}

/// Whether it has to wait while the daemon's loop stands still.
fn waits_for_loop(timer: Timer) -> bool {
    let loops =
        matches!(timer, Timer::Tick(_) | Timer::Seen(..) | Timer::Synced(_) | Timer::Says(..) | Timer::Relist(_));
    let words = matches!(
        timer,
        Timer::Connect(..) | Timer::Hear(..) | Timer::Mind(..) | Timer::Left(..) | Timer::Ram(_) | Timer::Heed(..)
    );
    let strangers = matches!(timer, Timer::Audit(..) | Timer::Gone(..) | Timer::SelfTest(_) | Timer::Landed(..));
    loops || words || strangers
}
