//! Programs with Sublet's library in them, and processes that the driver parks: they speak to the daemon, leave their cards when they are
//! told to and come back, and not all of them do as they say.
//!
//! ```text
//!  daemon: the phase on the disk ──mind──► an order ──► the program does it, some time later
//!          core ◄──hear── what it says ◄────────────────┘
//! ```
//! An order follows from where the disk says that a holder is, and from nothing else: whoever is
//! where it should not be is told so, again and again. What a program does it does by itself, also
//! while no daemon lives; whoever comes after is told how it stands.

use crate::checker::{Violation, must};
use crate::daemon::{SimCall, SimDaemon};
use crate::driver::DriverFaults;
use crate::rng::Rng;
use crate::shape::S;
use crate::sim::Sim;
use crate::timers::Timer;
use crate::world::World;
use std::collections::BTreeMap;
use sublet_core::event::Event;
use sublet_core::facts::{DaemonEvent, Hint, LeaseEvent};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::movers::MoverReport;
use sublet_core::policy::move_progress::must_stay_off_gpus;
use sublet_core::rows::{Hold, Lease, ParkState, Phase};
use sublet_core::settings::Parking;
use sublet_core::units::{Bytes, Span, Time};

/// What a context takes where nobody measured it.
const CONTEXT: Bytes = Bytes::mib(300);

/// What the programs of a world are like.
#[derive(Clone, Copy, Debug)]
pub struct ProgramHabits {
    /// Thousandths of them that have the library; none: nobody is ever parked here.
    pub library: u64,
    /// Thousandths of those that do as they say.
    pub honest: u64,
    /// Nothing else goes wrong here, and whoever waits can be told when it is served.
    pub orderly: bool,
    /// Host memory, without what programs other than parked ones take of it.
    pub ram: Bytes,
    /// Room is made for whoever waits.
    pub preempts: bool,
    /// Thousandths of asks whose wrapper has a hook.
    pub hooks: u64,
    /// Thousandths of processes that the driver can park; none: it parks nobody.
    pub driver: u64,
    /// Thousandths of programs with the library of which it can take the contexts; none: it takes nobody's.
    pub deep: u64,
}

impl ProgramHabits {
    /// Those of a seed.
    pub fn draw(luck: &mut Rng) -> ProgramHabits {
        let none = luck.chance(250);
        ProgramHabits {
            library: if none { 0 } else { luck.pick(&[400, 900, 1000, 1000]) },
            honest: luck.pick(&[300, 700, 1000]),
            orderly: !none && luck.chance(200),
            ram: Bytes::gib(luck.pick(&[16, 64, 256])),
            preempts: false,
            hooks: 0,
            driver: 0,
            deep: 0,
        }
    }

    /// Everybody has the library and does as it says, and there is memory for all.
    pub fn gentle() -> ProgramHabits {
        let (library, honest, ram) = (1000, 1000, Bytes::gib(2_000));
        ProgramHabits { library, honest, orderly: true, ram, preempts: true, hooks: 0, driver: 0, deep: 0 }
    }

    /// The same in a world in which room is made for whoever waits; in most it is.
    pub fn pressed(self, whim: &mut Rng) -> ProgramHabits {
        let preempts = self.library > 0 && whim.chance(800);
        let plain = !preempts || self.orderly;
        let hooks = whim.pick(&[0, 0, 300, 800]);
        let driver = whim.pick(&[0, 0, 500, 1000]);
        let (hooks, driver) = if plain { (0, 0) } else { (hooks, driver) };
        ProgramHabits { preempts, hooks, driver, ..self }
    }

    /// Where bytes go in this house.
    pub fn parking(&self, luck: &mut Rng, whim: &mut Rng) -> Parking {
        if self.library == 0 {
            return Parking { preempt: false, ..Parking::default() };
        }
        let parking = Parking {
            space: Bytes::gib(luck.pick(&[0, 6, 20, 60, 200, 200])),
            keep_available: Bytes::gib(luck.pick(&[0, 2, 8])),
            term: Span::secs(luck.pick(&[20, 120, 1_000, 43_200])),
            move_timeout: Span::secs(luck.pick(&[4, 10, 30])),
            retry_after: Span::secs(luck.pick(&[2, 10, 60])),
            preempt: false,
            ..Parking::default()
        };
        if !self.preempts {
            return parking;
        }
        Parking {
            preempt: true,
            slice_min: Span::secs(whim.pick(&[1, 5, 10, 30])),
            slice_per_move: whim.pick(&[1, 3, 9]),
            idle_after: Span::secs(whim.pick(&[3, 10, 30])),
            pause_after_park: Span::secs(whim.pick(&[0, 2, 10])),
            grace: Span::secs(whim.pick(&[2, 10, 30])),
            ..parking
        }
    }
}

/// What a program does when it is told to leave its cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShimBehaviour {
    /// What it says.
    Honest,
    /// The same, but it takes longer than it may.
    Slow,
    /// Nothing, and says that it did it.
    Liar,
    /// Half of what it says.
    Half,
    /// It says no, now and then.
    Refuses,
    /// It does nothing for a long time.
    Mute,
    /// It dies, now and then.
    Dies,
    /// It cannot now, and can later.
    Fickle,
}

/// All but what an honest one does.
pub(crate) const ODD: [ShimBehaviour; 7] = [
    ShimBehaviour::Slow,
    ShimBehaviour::Liar,
    ShimBehaviour::Half,
    ShimBehaviour::Refuses,
    ShimBehaviour::Mute,
    ShimBehaviour::Dies,
    ShimBehaviour::Fickle,
];

/// What a program was told to do, and has not done yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShimOrder {
    /// Leave its cards.
    Park,
    /// Come back.
    Resume,
    /// To the library: call the driver for nothing, or again.
    Hush(bool),
    /// To the driver: take what the library left of all of a lease's processes.
    Take,
    /// To the driver: bring that back.
    Bring,
}

/// A process, by who speaks for it: the library in it, or the driver.
pub type ReportKey = (ProcKey, Method);

/// A program with the library in it, or a process as the driver has it.
#[derive(Debug)]
pub struct SimProgram {
    pub(crate) temper: ShimBehaviour,
    /// Its bytes are in host memory: so many of each card.
    pub(crate) away: Option<Vec<(usize, Bytes)>>,
    /// So many of them, by its own word.
    pub(crate) claims: Bytes,
    /// It is connected to the daemon of this life …
    life: Option<u32>,
    /// … which takes it for a program of this lease's.
    pub(crate) lease: Option<LeaseId>,
    pub(crate) doing: Option<ShimOrder>,
    /// Tells an old order from a new one.
    pub(crate) turn: u32,
    pub(crate) cannot: bool,
    /// It submitted work and waits for its bytes.
    pub(crate) at_gate: bool,
    /// What was said of it, and by the driver of its siblings before that, and is not heard yet.
    pub(crate) outbox: Vec<(LeaseId, ProcKey, MoverReport)>,
    /// When the room for a restore was last proven.
    pub(crate) proven_us: u64,
    /// It was lost by one, and will never be back.
    pub(crate) lost: bool,
    /// Whose park it was by which it last left.
    pub(crate) left_by: Option<LeaseId>,
    /// The driver said no to this wish, and waits for another: the lease, and since when it was wished.
    given_up: Option<(LeaseId, Time)>,
    /// What has to do with contexts.
    pub(crate) depth: DriverFaults,
}

impl SimProgram {
    pub(crate) fn new(temper: ShimBehaviour) -> SimProgram {
        SimProgram {
            temper,
            away: None,
            claims: Bytes::ZERO,
            life: None,
            lease: None,
            doing: None,
            turn: 0,
            cannot: false,
            at_gate: false,
            outbox: Vec::new(),
            proven_us: 0,
            lost: false,
            left_by: None,
            given_up: None,
            depth: DriverFaults::default(),
        }
    }

    /// Its work does not get through.
    pub(crate) fn is_gated(&self) -> bool {
        self.away.is_some() || self.doing.is_some()
    }

    fn here(&self) -> MoverReport {
        MoverReport::Present { parked: self.away.as_ref().map(|_| self.claims) }
    }

    /// Whoever it is said for, and by whose daemon, if anybody hears it.
    pub fn heard_as(&self, life: u32) -> Option<LeaseId> {
        self.lease.filter(|_| self.life == Some(life))
    }
}

impl World {
    /// Host memory that is available.
    pub fn available(&self) -> Bytes {
        let parked = self.programs.values().filter_map(|program| program.away.as_ref());
        let parked: Bytes = parked.flatten().map(|(_, bytes)| *bytes).sum();
        self.host_memory.less(parked)
    }

    /// A program's bytes leave its cards, as many hundredths of them as it likes, but for its contexts.
    /// Says how many they were, and how many they should have been.
    pub(crate) fn leave_cards(&mut self, (process, rung): ReportKey, percent: u64) -> (Vec<(usize, Bytes)>, Bytes) {
        let (mut gone, mut all) = (Vec::new(), Bytes::ZERO);
        for card in 0..self.gpus.len() {
            // The driver takes contexts too.
            let context =
                if rung == Method::Driver { None } else { Some(self.gpus[card].facts.context.unwrap_or(CONTEXT)) };
            let has = self.gpus[card].bytes_of(process).less(context.unwrap_or_default());
            let bytes = if percent == 100 { has } else { Bytes(has.0 / 100 * percent) };
            self.free_some(card, process, bytes);
            if rung == Method::Driver && percent == 100 {
                self.free_all(card, process);
            }
            all = all + has;
            if bytes > Bytes::ZERO {
                gone.push((card, bytes));
            }
        }
        (gone, all)
    }

    /// Whether there is room for these.
    pub(crate) fn fit(&self, bytes: &[(usize, Bytes)]) -> bool {
        bytes.iter().all(|(card, bytes)| self.gpus[*card].free() >= *bytes)
    }

    /// Bytes of a card that were taken off it, of programs of a tree that have the library.
    pub(crate) fn away(&self, tree: u32, card: usize) -> Bytes {
        let live = self.trees.get(&tree).into_iter().flat_map(|tree| &tree.live);
        let counted = live.filter(|process| self.programs.contains_key(&(**process, Method::Shim)));
        let both = counted.flat_map(|process| [(*process, Method::Shim), (*process, Method::Driver)]);
        let away = both.filter_map(|spoken| self.programs.get(&spoken)?.away.as_ref());
        away.flatten().filter(|(of, _)| *of == card).map(|(_, bytes)| *bytes).sum()
    }

    fn is_on_card(&self, process: ProcKey) -> bool {
        self.gpus.iter().any(|card| card.residents.iter().any(|resident| resident.process == process))
    }

    /// They come back, all of them or none.
    pub(crate) fn come_back(&mut self, process: ProcKey, bytes: &[(usize, Bytes)]) -> bool {
        let fit = self.fit(bytes);
        if fit {
            bytes.iter().for_each(|(card, bytes)| self.allocate(*card, process, *bytes, false));
        }
        fit
    }
}

impl Sim<'_> {
    /// Whether anybody can be parked in this world.
    pub(crate) fn parks(&self) -> bool {
        self.shape.habits.library > 0
    }

    /// A process of a job's begins; it may have the library in it.
    pub(crate) fn install(&mut self, process: ProcKey) {
        if self.parks() && self.rng_parking.chance(self.shape.habits.library) {
            self.install_on((process, Method::Shim));
        }
        if self.rng_preemption.chance(self.shape.habits.driver) {
            self.install_on((process, Method::Driver));
        }
        self.install_depth(process);
    }

    /// A process without a lease begins; the driver may be able to park it.
    pub(crate) fn install_lodger(&mut self, process: ProcKey) {
        if self.parks() && self.rng_unleased_parking.chance(self.shape.unleased.driver) {
            let honest = self.calm || self.rng_unleased_parking.chance(self.shape.habits.honest);
            let temper = if honest { ShimBehaviour::Honest } else { self.rng_unleased_parking.pick(&ODD) };
            self.world.programs.insert((process, Method::Driver), SimProgram::new(temper));
        }
    }

    fn install_on(&mut self, (process, rung): ReportKey) {
        let honest = self.calm || self.rng_parking.chance(self.shape.habits.honest);
        let temper = if honest { ShimBehaviour::Honest } else { self.rng_parking.pick(&ODD) };
        self.world.programs.insert((process, rung), SimProgram::new(temper));
    }

    /// Whether a process' work does not get through now.
    pub(crate) fn is_gated(&self, process: ProcKey) -> bool {
        let of = |rung: Method| self.world.programs.get(&(process, rung));
        // The driver lets a holder's processes go on when all of them are back.
        let lease = of(Method::Driver).and_then(|program| program.lease);
        let locked = |(other, program): (&ReportKey, &SimProgram)| {
            other.1 == Method::Driver && program.lease == lease && program.away.is_some()
        };
        let together = || lease.is_some() && self.world.programs.iter().any(locked);
        [Method::Shim, Method::Driver].into_iter().any(|rung| of(rung).is_some_and(SimProgram::is_gated)) || together()
    }

    // ---- words -------------------------------------------------------------

    /// The daemon knows whose these processes are: those with the library get through to it.
    pub(crate) fn greet(&mut self, lease: LeaseId, processes: &[ProcKey]) {
        let both = processes.iter().flat_map(|process| [(*process, Method::Shim), (*process, Method::Driver)]);
        for (process, rung) in both {
            let Some(program) = self.world.programs.get(&(process, rung)) else { continue };
            // Of a process that uses no card the driver has nothing to say.
            let is_there = rung == Method::Shim || program.away.is_some() || self.world.is_on_card(process);
            let is_there = is_there || self.is_driven(lease, process);
            if program.heard_as(self.life) != Some(lease) && is_there {
                let late = !self.shape.crowd && self.rng_parking.chance(50);
                let delay = if late { self.rng_parking.within(S, 40 * S) } else { self.rng_parking.within(0, 2 * S) };
                self.timers.set(self.t + delay, Timer::Connect(self.life, process, rung));
            }
        }
    }

    /// The driver is asked about processes that came to a card since.
    fn inspect(&mut self) {
        if self.shape.habits.driver == 0 && self.shape.unleased.driver == 0 && self.shape.habits.deep == 0 {
            return;
        }
        self.confess();
        let driven = self.world.programs.iter().filter(|((_, rung), _)| *rung == Method::Driver);
        let new = driven.filter_map(|((process, _), program)| {
            let lease = self.spoken_for((*process, Method::Driver))?;
            let is_there = program.away.is_some() || self.world.is_on_card(*process) || self.is_driven(lease, *process);
            (is_there && program.heard_as(self.life) != Some(lease)).then_some(*process)
        });
        for process in new.collect::<Vec<_>>() {
            self.timers.set(self.t, Timer::Connect(self.life, process, Method::Driver));
        }
    }

    /// A program says who it is and how it stands.
    pub(crate) fn connect(&mut self, process: ReportKey) -> Result<(), Violation> {
        let life = self.life;
        let (lease, is_left_behind) = (self.spoken_for(process), self.is_left_behind(process));
        let (Some(lease), Some(program)) = (lease, self.world.programs.get_mut(&process)) else { return Ok(()) };
        let before = program.heard_as(life);
        if before == Some(lease) || process.1 == Method::Driver && self.is_unasked(lease) {
            return Ok(());
        }
        let Some(program) = self.world.programs.get_mut(&process) else { return Ok(()) };
        // The driver's worker goes with its daemon. What it had not taken when the next one asks the driver where a
        // process is it never takes; nor what it was to take for a lease that is over.
        if process.1 == Method::Driver && matches!(program.doing, Some(ShimOrder::Park | ShimOrder::Take)) {
            (program.doing, program.turn) = (None, program.turn + 1);
        }
        if is_left_behind {
            program.away = None;
            program.depth.is_back();
        }
        program.given_up = None;
        program.outbox.clear();
        program.outbox.extend(before.map(|before| (before, process.0, MoverReport::Gone)));
        (program.life, program.lease) = (Some(life), Some(lease));
        program.outbox.push((lease, process.0, program.here()));
        program.outbox.extend(program.depth.said.map(|deep| (lease, process.0, MoverReport::KeepsStill(deep))));
        if program.cannot {
            let cannot = MoverReport::Cannot(Some("it uses managed memory".to_owned()));
            program.outbox.push((lease, process.0, cannot));
        }
        if program.at_gate {
            program.outbox.push((lease, process.0, MoverReport::Used));
        }
        self.hear(process)?;
        self.mind(process)
    }

    pub(crate) fn say(&mut self, process: ReportKey, said: MoverReport) {
        let life = self.life;
        let Some(program) = self.world.programs.get_mut(&process) else { return };
        if let Some(lease) = program.heard_as(life) {
            program.outbox.push((lease, process.0, said));
            let delay = self.rng_parking.within(0, S / 20);
            self.timers.set(self.t + delay, Timer::DeliverReport(life, process.0, process.1));
        }
    }

    /// The daemon hears what a program said.
    pub(crate) fn hear(&mut self, process: ReportKey) -> Result<(), Violation> {
        let Some(program) = self.world.programs.get_mut(&process) else { return Ok(()) };
        for (lease, of, said) in std::mem::take(&mut program.outbox) {
            self.report(LeaseEvent::MoverReported { lease, method: process.1, process: of, report: said })?;
            self.mind_deep(lease);
        }
        Ok(())
    }

    /// A program is not there any more.
    pub(crate) fn left(&mut self, lease: LeaseId, (process, rung): ReportKey, died: bool) -> Result<(), Violation> {
        let said = if died { MoverReport::Died("killed for lack of memory".to_owned()) } else { MoverReport::Gone };
        self.report(LeaseEvent::MoverReported { lease, method: rung, process, report: said })?;
        self.mind_deep(lease);
        Ok(())
    }

    /// Somebody's program submits work: if its bytes are away, it waits for them.
    pub(crate) fn submit(&mut self, process: ProcKey) {
        // A process that the driver has stopped says nothing, but for what the library hears of it.
        let is_heard = self.is_heard(process);
        let process = (process, Method::Shim);
        let Some(program) = self.world.programs.get_mut(&process) else { return };
        if program.is_gated() && !program.at_gate && is_heard {
            program.at_gate = true;
            self.say(process, MoverReport::Used);
        }
    }

    // ---- orders ------------------------------------------------------------

    /// Where a lease is has become durable: its programs are told.
    pub(crate) fn mind_all(&mut self, lease: LeaseId) {
        if !self.parks() {
            return;
        }
        let own = self.world.programs.iter().filter(|(_, program)| program.heard_as(self.life) == Some(lease));
        for process in own.map(|(process, _)| *process).collect::<Vec<_>>() {
            self.mind_after(process, S / 10);
        }
    }

    pub(crate) fn mind_after(&mut self, process: ReportKey, at_most_us: u64) {
        let delay = self.rng_parking.within(0, at_most_us);
        self.timers.set(self.t + delay, Timer::CheckProgram(self.life, process.0, process.1));
    }

    /// Whoever is where it should not be is told so.
    pub(crate) fn mind(&mut self, process: ReportKey) -> Result<(), Violation> {
        let (life, rung) = (self.life, process.1);
        let Some(program) = self.world.programs.get_mut(&process) else { return Ok(()) };
        let is_idle = program.doing.is_none() && !program.lost;
        let Some(lease) = program.heard_as(life).filter(|_| is_idle) else { return Ok(()) };
        let quiet = program.depth.said == Some(true);
        let order = match self.disk.rows.leases.get(&lease) {
            Some(row) if row.park_state().is_some_and(|away| away.with_driver) => match self.deep_order(process, row) {
                Some(order) => order,
                None => return Ok(()),
            },
            // Who began while the driver has its siblings, or takes them, waits with them.
            Some(row) if rung == Method::Shim && waits_with_siblings(&self.daemon, row, process.0) => {
                match program.away.is_none() {
                    true => ShimOrder::Park,
                    false => return Ok(()),
                }
            }
            Some(Lease { phase: Phase::Parking(_, away) | Phase::Parked(_, away), .. })
                if program.given_up == Some((lease, away.since)) =>
            {
                return Ok(());
            }
            Some(Lease { phase: Phase::Parking(_, away) | Phase::Parked(_, away), .. })
                if program.away.is_none()
                    && away.method == rung
                    && (rung == Method::Shim || away.processes.contains(&process.0)) =>
            {
                ShimOrder::Park
            }
            Some(Lease { phase: Phase::Parking(_, away) | Phase::Parked(_, away), .. })
                if program.away.is_none() && rung == Method::Shim && away.method == Method::Driver =>
            {
                return self.checker.check_shim_may_continue(lease, process.0);
            }
            Some(Lease { phase: Phase::Parked(..), .. }) if quiet => ShimOrder::Hush(false),
            // It is told otherwise, and says where it is.
            Some(Lease { phase: Phase::Resuming(..), .. })
                if rung == Method::Driver && program.away.is_none() && is_unknown(&self.daemon, lease, process.0) =>
            {
                let said = program.here();
                self.say(process, said);
                return Ok(());
            }
            // Of a holder that it does not move, by the disk, the driver is told nothing, whatever it has of it.
            Some(row @ Lease { phase: Phase::Active(_) | Phase::Resuming(..), .. })
                if rung == Method::Driver && !row.park_state().is_some_and(ParkState::needs_driver) =>
            {
                return Ok(());
            }
            Some(Lease { phase: Phase::Active(_) | Phase::Resuming(..), .. })
                if program.away.is_some() && program.depth.is_told(life, lease) =>
            {
                ShimOrder::Resume
            }
            Some(Lease { phase: Phase::Ending(..), .. }) | None => {
                // Nobody wants these bytes any more.
                program.away = None;
                program.depth.is_back();
                return Ok(());
            }
            _ => return Ok(()),
        };
        let restores = matches!(order, ShimOrder::Resume | ShimOrder::Bring);
        if restores && rung == Method::Driver && self.is_held_back(lease) {
            // It is told when a look shows that nobody could take its room.
            self.mind_after(process, 2 * S);
            return Ok(());
        }
        self.check_order(process, lease, order)?;
        if restores && rung == Method::Driver {
            // It speaks to one process at a time: others may be before this one.
            if !self.calm && !self.shape.habits.orderly && self.rng_parking.chance(100) {
                self.mind_after(process, 30 * S);
                return Ok(());
            }
            let proven = if order == ShimOrder::Bring { self.prove_all(process, lease) } else { self.prove(process) };
            if !proven {
                return Ok(());
            }
        }
        let Some(program) = self.world.programs.get_mut(&process) else { return Ok(()) };
        program.doing = Some(order);
        program.left_by = matches!(order, ShimOrder::Park).then_some(lease).or(program.left_by);
        program.depth.told = matches!(order, ShimOrder::Bring).then_some(life).or(program.depth.told);
        program.turn += 1;
        let turn = program.turn;
        let longest = match program.temper {
            ShimBehaviour::Slow if matches!(order, ShimOrder::Park | ShimOrder::Hush(true) | ShimOrder::Take) => 60 * S,
            ShimBehaviour::Mute => 200 * S,
            _ => self.rng_parking.pick(&[S / 10, S, 3 * S, 3 * S]),
        };
        let delay = self.rng_parking.within(longest / 10, longest);
        self.timers.set(self.t + delay, Timer::OrderDone(process.0, process.1, turn));
        if restores && !self.calm && !self.shape.habits.orderly && self.rng_parking.chance(80) {
            self.intrude(process);
        }
        Ok(())
    }

    /// A program has done what it was told, or what it will do of it.
    pub(crate) fn done(&mut self, process: ReportKey, turn: u32) -> Result<(), Violation> {
        let hangs = self.hangs(process);
        let Some(program) = self.world.programs.get_mut(&process) else { return Ok(()) };
        if hangs && program.turn == turn && matches!(program.doing, Some(ShimOrder::Park | ShimOrder::Resume)) {
            // It calls the driver, which does not answer while it has the process.
            self.timers.set(self.t + S / 2, Timer::OrderDone(process.0, process.1, turn));
            return Ok(());
        }
        let Some(order) = program.doing.take_if(|_| program.turn == turn) else { return Ok(()) };
        let (temper, odd) = (program.temper, self.rng_parking.chance(400));
        match order {
            _ if temper == ShimBehaviour::Dies && odd => {
                // It had not done yet what it was told.
                program.doing = Some(order);
                let leases = self.world.exit_process(process.0);
                self.schedule_member_reports(&leases);
                return Ok(());
            }
            ShimOrder::Park if temper == ShimBehaviour::Refuses && odd => {
                self.give_up(process);
                match process.0.pid % 4 {
                    1 => self.say(process, MoverReport::Outgrown("it has more by now".to_owned())),
                    _ => self.refuse(process, "a capture is open"),
                }
            }
            ShimOrder::Park if temper == ShimBehaviour::Fickle && odd => {
                program.cannot = true;
                self.give_up(process);
                self.say(process, MoverReport::Cannot(Some("it uses managed memory".to_owned())));
                self.refuse(process, "it uses managed memory");
            }
            ShimOrder::Park => self.park_program(process, temper),
            ShimOrder::Hush(hush) => self.hush(process, hush, temper, odd),
            ShimOrder::Take => self.take_contexts(process, temper, odd),
            ShimOrder::Bring => return self.bring_contexts(process),
            ShimOrder::Resume if process.1 == Method::Driver => return self.restore(process),
            ShimOrder::Resume => self.resume_program(process),
        }
        Ok(())
    }

    pub(crate) fn refuse(&mut self, process: ReportKey, why: &str) {
        self.say(process, MoverReport::Refused(why.to_owned()));
        self.mind_after(process, 3 * S);
    }

    /// The driver takes the processes of a holder together. When it says no to one of them it takes none of the others
    /// any more, until it is told anew; or its worker was lost with one, and it says that it does not know of that.
    fn give_up(&mut self, process: ReportKey) {
        let lease = self.world.programs.get(&process).and_then(|program| program.heard_as(self.life));
        let Some(lease) = lease.filter(|_| process.1 == Method::Driver) else { return };
        let wish = self.disk.rows.leases.get(&lease).and_then(Lease::park_state).map(|away| (lease, away.since));
        let mut taken = Vec::new();
        for (other, program) in &mut self.world.programs {
            if other.1 == Method::Driver && program.heard_as(self.life) == Some(lease) {
                program.given_up = wish;
                taken.extend((program.doing == Some(ShimOrder::Park)).then_some(*other));
            }
        }
        for other in taken {
            if !self.calm && !self.shape.habits.orderly && self.rng_parking.chance(300) {
                let Some(program) = self.world.programs.get_mut(&process) else { return };
                program.outbox.push((lease, other.0, MoverReport::Unknown));
                continue;
            }
            let Some(program) = self.world.programs.get_mut(&other) else { continue };
            (program.doing, program.turn) = (None, program.turn + 1);
            self.mind_after(other, S / 5);
        }
    }

    fn park_program(&mut self, process: ReportKey, temper: ShimBehaviour) {
        let percent = match temper {
            ShimBehaviour::Liar => 0,
            ShimBehaviour::Half => 50,
            _ => 100,
        };
        let (gone, all) = self.world.leave_cards(process, percent);
        if let Some(program) = self.world.programs.get_mut(&process) {
            (program.away, program.claims) = (Some(gone), all);
        }
        self.say(process, MoverReport::Parked(all));
        self.mind_after(process, S / 5);
    }

    fn resume_program(&mut self, process: ReportKey) {
        let Some(gone) = self.world.programs.get_mut(&process).and_then(|program| program.away.take()) else { return };
        let back = self.world.come_back(process.0, &gone);
        let Some(program) = self.world.programs.get_mut(&process) else { return };
        if back {
            program.at_gate = false;
            program.depth.is_back();
            self.say(process, MoverReport::Resumed);
            self.mind_after(process, S / 5);
        } else {
            program.away = Some(gone);
            self.refuse(process, "out of memory");
        }
    }

    // ---- the driver --------------------------------------------------------

    /// Whether there is room for a restore of all that a holder has away: placeholders are put there and taken
    /// away.
    fn prove(&mut self, process: ReportKey) -> bool {
        let lease = self.world.programs.get(&process).and_then(|program| program.lease);
        let together = |(other, program): &(&ReportKey, &SimProgram)| {
            **other == process || (lease.is_some() && program.lease == lease && other.1 == process.1)
        };
        let away = self.world.programs.iter().filter(together).filter_map(|(_, program)| program.away.clone());
        let mut needs: BTreeMap<usize, Bytes> = BTreeMap::new();
        for (card, bytes) in away.flatten() {
            let need = needs.entry(card).or_default();
            *need = *need + bytes;
        }
        let needs: Vec<(usize, Bytes)> = needs.into_iter().collect();
        if !self.world.fit(&needs) {
            self.refuse(process, "there is no room for it");
            return false;
        }
        if let Some(program) = self.world.programs.get_mut(&process) {
            program.proven_us = self.t;
        }
        true
    }

    /// The driver restores a process. One that lacks room is lost for ever.
    pub(crate) fn restore(&mut self, process: ReportKey) -> Result<(), Violation> {
        let Some(program) = self.world.programs.get(&process) else { return Ok(()) };
        let (gone, proven, lease) = (program.away.clone().unwrap_or_default(), program.proven_us, program.lease);
        if self.world.fit(&gone) {
            self.resume_program(process);
            return Ok(());
        }
        let ask = lease
            .and_then(|lease| self.disk.rows.leases.get(&lease))
            .map(|row| (row.first_request().may_lose_state, row));
        let vram = ask.and_then(|(_, row)| row.hold()).map(|hold| hold.vram);
        // Who came after the last look, or has more than its lease, nobody could have reckoned with.
        let since = proven.saturating_sub(3 * self.shape.policy.period.0);
        let intruded = gone.iter().any(|(card, _)| self.world.gpus[*card].uncapped_use_us >= since);
        let beyond = |(card, bytes): &(usize, Bytes)| {
            let own = self.world.gpus[*card].residents.iter().filter(|resident| self.owner(&resident.process) == lease);
            let own: Bytes = own.filter_map(|resident| resident.bytes).sum();
            vram.is_none_or(|vram| own + *bytes > vram)
        };
        let beyond = gone.iter().any(beyond);
        // Nor with a driver that does what it was told long ago, and was told otherwise since.
        let away = ask.and_then(|(_, row)| row.park_state());
        let outdated = away.is_none_or(|away| !away.needs_driver());
        let overbooked = gone.iter().any(|(card, _)| self.is_overbooked(*card));
        let excused = ask.is_none_or(|(may_lose, _)| may_lose) || intruded || beyond || outdated || overbooked;
        must(2, excused, || format!("the driver loses {process:?} of {lease:?}, which lacked room: {gone:?}"))?;
        self.lost_processes += 1;
        if self.rng_parking.chance(500) {
            let leases = self.world.exit_process(process.0);
            self.schedule_member_reports(&leases);
        } else if let Some(program) = self.world.programs.get_mut(&process) {
            program.lost = true;
            self.say(process, MoverReport::Lost("out of memory".to_owned()));
        }
        Ok(())
    }

    fn owner(&self, process: &ProcKey) -> Option<LeaseId> {
        self.daemon.as_ref().and_then(|daemon| daemon.engine.state().owner(process))
    }

    /// Whether those who have a card may take more of it than there is: a stranger that was there got a lease, and
    /// others take what they were promised before, whenever they like.
    fn is_overbooked(&self, card: usize) -> bool {
        let gpu = &self.world.gpus[card];
        let taken: Bytes = gpu.residents.iter().filter_map(|resident| resident.bytes).sum();
        let holds = self.disk.rows.leases.values().filter(|row| !matches!(row.phase, Phase::Parked(..)));
        let on = |hold: &&Hold| hold.gpus.iter().any(|of| usize::from(of.0) == card);
        let promised: Bytes = holds.filter_map(|row| row.hold()).filter(on).map(|hold| hold.vram).sum();
        promised > gpu.free() + taken
    }

    /// Where somebody's bytes shall come back, somebody else comes first.
    fn intrude(&mut self, process: ReportKey) {
        let gone = self.world.programs.get(&process).and_then(|program| program.away.as_ref());
        let Some((card, _)) = gone.and_then(|gone| gone.first()).copied() else { return };
        let tree = self.world.spawn();
        let stranger = self.world.trees[&tree].live[0];
        let bytes = self.world.gpus[card].free();
        self.world.allocate(card, stranger, bytes, false);
        self.world.gpus[card].uncapped_use_us = self.t;
        let stay = self.rng_parking.within(S, 20 * S);
        self.timers.set(self.t + stay, Timer::Exit(tree));
    }

    // ---- the house ---------------------------------------------------------

    /// The host's memory is looked at; and now and then it is not what it was, nor are programs and cards.
    pub(crate) fn read_ram(&mut self) -> Result<(), Violation> {
        let delay = self.rng_parking.within(S, 10 * S);
        self.timers.set(self.t + delay, Timer::ReadHostMemory(self.life));
        if !self.calm && !self.shape.crowd && self.rng_parking.chance(100) {
            self.world.host_memory = Bytes::mib(self.rng_parking.within(0, self.shape.habits.ram.0 >> 20));
        }
        if !self.calm && !self.shape.habits.orderly && self.rng_parking.chance(5) {
            let card = self.rng_parking.below(self.world.gpus.len() as u64) as usize;
            self.world.gpus[card].coarse ^= true;
        }
        self.recover()?;
        self.inspect();
        let known = self.calm || !self.rng_parking.chance(50);
        let available = known.then(|| self.world.available());
        self.report(DaemonEvent::HostMemoryRead { available })
    }

    /// Programs that could not be parked can be again.
    fn recover(&mut self) -> Result<(), Violation> {
        let unable = self.world.programs.iter().find(|(_, program)| program.cannot).map(|(process, _)| *process);
        if let Some(process) = unable.filter(|_| self.rng_parking.chance(300)) {
            if let Some(program) = self.world.programs.get_mut(&process) {
                program.cannot = false;
            }
            self.say(process, MoverReport::Cannot(None));
        }
        Ok(())
    }

    /// Somebody wants a holder parked, or resumed: its owner, an operator, or anybody.
    pub(crate) fn hand(&mut self) -> Result<(), Violation> {
        if self.calm || self.shape.crowd {
            return Ok(());
        }
        let delay = self.rng_parking.within(S / 5, 5 * S);
        self.timers.set(self.t + delay, Timer::ByHand);
        let lease = self.some_lease_or_none();
        let owner = self.disk.rows.leases.get(&lease).map(|row| row.tenant.0 as usize);
        let owner = owner.and_then(|tenant| self.disk.rows.tenants.get(tenant)).map(|tenant| tenant.name.clone());
        let owner = owner.and_then(|name| self.callers.iter().position(|caller| caller.tenant == name));
        let any = self.rng_parking.below(self.callers.len() as u64) as usize;
        let by = owner.filter(|_| self.rng_parking.chance(700)).unwrap_or(any);
        let caller = self.callers[by].clone();
        let event = match self.rng_parking.chance(500) {
            true => Event::Lease(LeaseEvent::ParkRequested { by: caller, lease }),
            false => Event::Lease(LeaseEvent::ResumeRequested { by: caller, lease }),
        };
        self.call(SimCall { by, event, job: None })?;
        self.hint()?;
        self.bind_foreign_process()
    }

    /// A hint, right or wrong, that a lease is used.
    fn hint(&mut self) -> Result<(), Violation> {
        let (rng, often) = &mut self.rng_hints;
        if !rng.chance(*often) || self.daemon.is_none() || self.disk.rows.leases.is_empty() {
            return Ok(());
        }
        let some = rng.below(self.disk.rows.leases.len() as u64) as usize;
        let Some(lease) = self.disk.rows.leases.keys().nth(some).copied() else { return Ok(()) };
        self.report(LeaseEvent::Hinted { lease, hint: Hint::Terminal })
    }

    /// A lease that exists, or now and then one that does not, any more or yet.
    fn some_lease_or_none(&mut self) -> LeaseId {
        let leases = &self.disk.rows.leases;
        let some = self.rng_parking.below(leases.len() as u64) as usize;
        let there = leases.keys().nth(some).copied().filter(|_| self.rng_parking.chance(850));
        there.unwrap_or_else(|| LeaseId(self.rng_parking.within(1, self.disk.rows.meta.next_lease + 1)))
    }

    /// From now on programs do as they say.
    pub(crate) fn calm_programs(&mut self) {
        self.world.programs.values_mut().for_each(|program| program.temper = ShimBehaviour::Honest);
    }
}

/// Whether the library in a program keeps it off its cards, because the driver takes its siblings, or has them.
fn waits_with_siblings(daemon: &Option<SimDaemon>, row: &Lease, process: ProcKey) -> bool {
    let Some(daemon) = daemon else { return false };
    let moved = row.park_state().is_some_and(|away| away.processes.contains(&process));
    !moved && must_stay_off_gpus(daemon.engine.state(), row)
}

/// Whether nobody knows where the driver has a process.
fn is_unknown(daemon: &Option<SimDaemon>, lease: LeaseId, process: ProcKey) -> bool {
    let live = daemon.as_ref().and_then(|daemon| daemon.engine.state().readings(lease));
    live.and_then(|live| live.driver.get(&process)).is_some_and(|voice| voice.is_unknown)
}
