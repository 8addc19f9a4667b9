//! Contexts that the driver takes off cards, too, of programs whose bytes the library took before.
//!
//! ```text
//!  Deepen, on the disk ──► each library: call the driver for nothing ──► it says that it does not
//!                              the driver: take what is left of all of them ◄──┘
//!  Resume, on the disk ──► the driver: prove the room, bring that back ──► each library copies
//! ```
//! While the driver has a process, what it calls there hangs. Some libraries say that they are quiet and are not:
//! nobody hears what their programs want meanwhile. And a driver whose worker is lost may say no, and find later that
//! it has what it was to take.

use crate::checker::{Violation, must};
use crate::programs::{ODD, ProgramHabits, ReportKey, ShimBehaviour, ShimOrder, SimProgram};
use crate::rng::Rng;
use crate::shape::WorldShape;
use crate::sim::Sim;
use std::collections::BTreeMap;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::movers::MoverReport;
use sublet_core::policy::move_progress::{all_keep_still, driver_may_have};
use sublet_core::policy::restore_room::may_restore;
use sublet_core::rows::{Lease, ParkState, Phase};
use sublet_core::units::{Bytes, Span};

/// What a program has to do with contexts.
#[derive(Debug, Default)]
pub struct DriverFaults {
    /// The library's word: it calls the driver for nothing, or for all it needs; `None`: it does not know of that.
    pub(crate) said: Option<bool>,
    /// What it really does.
    hush: bool,
    /// The driver has what the library left, taken for this lease.
    taken: Option<LeaseId>,
    /// It was told to bring that back, by the daemon of this life.
    pub(crate) told: Option<u32>,
    /// It has it, and does not know that.
    unsaid: bool,
}

impl DriverFaults {
    /// It is on its cards again, or nobody's any more.
    pub(crate) fn is_back(&mut self) {
        *self = DriverFaults { said: self.said.map(|_| false), ..DriverFaults::default() };
    }

    /// Whether the driver would bring back what it has: what it took for a lease that is parked it keeps until it is
    /// told, whatever else becomes of that lease.
    pub(crate) fn is_told(&self, life: u32, lease: LeaseId) -> bool {
        self.taken != Some(lease) || self.told == Some(life)
    }
}

/// After how long contexts leave, too, if they do.
pub fn deep_after(habits: ProgramHabits, depth: &mut Rng) -> Option<Span> {
    let after = Span::secs(depth.pick(&[1, 1, 3, 10, 30]));
    (habits.deep > 0 && depth.chance(900)).then_some(after)
}

impl WorldShape {
    /// In some worlds contexts leave, too.
    pub(crate) fn deepen(&mut self, depth: &mut Rng) {
        if self.habits.library > 0 && depth.chance(600) {
            self.habits.deep = depth.pick(&[600, 1000, 1000]);
            self.policy.parking.context_after = deep_after(self.habits, depth);
            if depth.chance(500) {
                self.quieten(depth);
            }
        }
    }

    /// Few are on each card, and nearly all of them keep to their leases: whoever is parked there may leave altogether.
    fn quieten(&mut self, depth: &mut Rng) {
        (self.habits.library, self.habits.hooks) = (1000, 0);
        self.habits.preempts &= depth.chance(600);
        self.policy.parking.preempt &= self.habits.preempts;
        self.policy.parking.context_after = Some(Span::secs(depth.pick(&[1, 1, 2, 5])));
        self.jobs = self.jobs.min(depth.within(1, 2 * self.gpus.len() as u64) as usize + 1);
        self.unleased.is_monitored &= depth.chance(200);
        self.faults.unleased_s = if depth.chance(700) { 0 } else { self.faults.unleased_s.max(60) };
        self.faults.failed_readings = self.faults.failed_readings.min(10);
        self.policy.parking.space = self.policy.parking.space.max(Bytes::gib(60));
    }
}

impl Sim<'_> {
    /// A process begins; the driver may be able to take its context.
    pub(crate) fn install_depth(&mut self, process: ProcKey) {
        let (library, driver) = ((process, Method::Shim), (process, Method::Driver));
        if self.shape.habits.deep == 0 || !self.world.programs.contains_key(&library) {
            return;
        }
        let knows = self.rng_contexts.chance(900);
        if let Some(program) = self.world.programs.get_mut(&library) {
            program.depth.said = knows.then_some(false);
        }
        if !self.world.programs.contains_key(&driver) && self.rng_contexts.chance(self.shape.habits.deep) {
            let honest = self.calm || self.rng_contexts.chance(self.shape.habits.honest);
            let temper = if honest { ShimBehaviour::Honest } else { self.rng_contexts.pick(&ODD) };
            self.world.programs.insert(driver, SimProgram::new(temper));
        }
    }

    /// Whether the driver has a process now, or is about to.
    pub(crate) fn hangs(&self, (process, rung): ReportKey) -> bool {
        if self.shape.habits.deep == 0 || rung != Method::Shim {
            return false;
        }
        let Some(driver) = self.world.programs.get(&(process, Method::Driver)) else { return false };
        let at_it = |program: &SimProgram| matches!(program.doing, Some(ShimOrder::Take | ShimOrder::Bring));
        let together = |(other, program): (&ReportKey, &SimProgram)| {
            other.1 == Method::Driver && program.lease == driver.lease && at_it(program)
        };
        driver.depth.taken.is_some() || (driver.lease.is_some() && self.world.programs.iter().any(together))
    }

    /// Whether anybody hears that a process needs its cards: what waits in the driver nobody does.
    pub(crate) fn is_heard(&self, process: ProcKey) -> bool {
        let of = |rung: Method| self.world.programs.get(&(process, rung)).map(|program| &program.depth);
        let taken = of(Method::Driver).is_some_and(|depth| depth.taken.is_some());
        !taken || of(Method::Shim).is_some_and(|depth| depth.hush)
    }

    /// Whether the driver has not been asked about a lease's processes by this daemon: it is when nothing of them
    /// calls it any more, or when they come back.
    pub(crate) fn is_unasked(&self, lease: LeaseId) -> bool {
        let row = self.disk.rows.leases.get(&lease).filter(|row| row.park_state().is_some_and(|away| away.with_driver));
        let (Some(row), Some(daemon)) = (row, &self.daemon) else { return false };
        matches!(row.phase, Phase::Parked(..)) && !all_keep_still(daemon.engine.state(), row)
    }

    /// Something was said of a holder that library and driver move one after the other.
    pub(crate) fn mind_deep(&mut self, lease: LeaseId) {
        let row = self.daemon.as_ref().and_then(|daemon| daemon.engine.state().lease(lease));
        if row.and_then(Lease::park_state).is_some_and(|away| away.with_driver) {
            self.mind_all(lease);
        }
    }

    /// What a program of such a holder is to do, or the driver with all of its processes.
    pub(crate) fn deep_order(&self, process: ReportKey, row: &Lease) -> Option<ShimOrder> {
        let (away, state) = (row.park_state()?, self.daemon.as_ref()?.engine.state());
        let program = self.world.programs.get(&process)?;
        let comes = matches!(row.phase, Phase::Resuming(..));
        if process.1 == Method::Driver {
            let mine = |process: &&ProcKey| self.driven(row.id, **process).is_some();
            if away.processes.iter().find(mine) != Some(&process.0) {
                return None;
            }
            let mut own = away.processes.iter().filter_map(|process| self.driven(row.id, *process));
            return match comes {
                true => own.any(|program| program.away.is_some()).then_some(ShimOrder::Bring),
                false if !all_keep_still(state, row) => None,
                false => own.any(|program| program.away.is_none()).then_some(ShimOrder::Take),
            };
        }
        let held_back = driver_may_have(state, row);
        let deep = held_back || matches!(row.phase, Phase::Parked(..));
        match (comes && !held_back, program.away.is_some(), program.depth.said) {
            (true, true, _) => Some(ShimOrder::Resume),
            (false, true, Some(said)) if said != deep => Some(ShimOrder::Hush(deep)),
            (false, false, _) => Some(ShimOrder::Park),
            _ => None,
        }
    }

    /// For whom somebody speaks of a process: the driver for whom it moves it, as the disk has it, whoever has it by now.
    pub(crate) fn spoken_for(&self, (process, rung): ReportKey) -> Option<LeaseId> {
        let moves = |row: &&Lease| {
            rung == Method::Driver && row.park_state().is_some_and(|away| away.is_moved_by_driver(&process))
        };
        let moved_for = self.disk.rows.leases.values().find(moves).map(|row| row.id);
        moved_for.or_else(|| self.daemon.as_ref()?.engine.state().owner(&process))
    }

    /// Whether the driver has a process for a lease that is over: nobody could give it room again.
    pub(crate) fn is_left_behind(&self, process: ReportKey) -> bool {
        let taken_for = |program: &SimProgram| program.depth.taken.or(program.left_by);
        let lease = self.world.programs.get(&process).filter(|program| program.away.is_some()).and_then(taken_for);
        let is_held = |lease: LeaseId| self.disk.rows.leases.get(&lease).is_some_and(Lease::is_held);
        process.1 == Method::Driver && lease.is_some_and(|lease| !is_held(lease))
    }

    /// Whether the driver is told where a process of a lease's shall be, and so asked where it is.
    pub(crate) fn is_driven(&self, lease: LeaseId, process: ProcKey) -> bool {
        let away = self.disk.rows.leases.get(&lease).and_then(Lease::park_state);
        away.is_some_and(|away| away.is_moved_by_driver(&process))
    }

    /// A process of a lease's, as the driver has it.
    fn driven(&self, lease: LeaseId, process: ProcKey) -> Option<&SimProgram> {
        let program = self.world.programs.get(&(process, Method::Driver))?;
        (program.heard_as(self.life) == Some(lease) && !program.lost).then_some(program)
    }

    /// An order leaves the daemon: whether it may now.
    pub(crate) fn check_order(&self, process: ReportKey, lease: LeaseId, order: ShimOrder) -> Result<(), Violation> {
        // What the driver said just now, and is not on the disk yet, changes no order.
        let row = self.disk.rows.leases.get(&lease);
        let away = row.and_then(Lease::park_state);
        let (is_deep, anew) = (away.is_some_and(|away| away.with_driver), away.is_some_and(|away| away.was_resumed));
        match order {
            ShimOrder::Take => self.checker.check_taken(lease),
            ShimOrder::Resume if process.1 == Method::Shim && is_deep => self.checker.check_restored_first(lease),
            ShimOrder::Resume | ShimOrder::Bring if process.1 == Method::Driver => {
                self.checker.check_kept_free(lease, anew)
            }
            _ => Ok(()),
        }
    }

    /// Whether the driver is not told yet to bring back what it has of a holder.
    pub(crate) fn is_held_back(&self, lease: LeaseId) -> bool {
        let row = self.disk.rows.leases.get(&lease).filter(|row| matches!(row.phase, Phase::Resuming(..)));
        let (Some(row), Some(daemon)) = (row, &self.daemon) else { return false };
        !may_restore(daemon.engine.state(), row)
    }

    /// The library in a program keeps it from calling the driver, or not any more.
    pub(crate) fn hush(&mut self, process: ReportKey, hush: bool, temper: ShimBehaviour, odd: bool) {
        self.mind_after(process, 3_000_000);
        if hush && odd && matches!(temper, ShimBehaviour::Refuses | ShimBehaviour::Fickle) {
            // It is told again.
            return;
        }
        if let Some(program) = self.world.programs.get_mut(&process) {
            (program.depth.said, program.depth.hush) = (Some(hush), hush && temper != ShimBehaviour::Liar);
        }
        self.say(process, MoverReport::KeepsStill(hush));
    }

    /// The driver takes what the library left of a holder's processes, all of them or none.
    pub(crate) fn take_contexts(&mut self, leader: ReportKey, temper: ShimBehaviour, odd: bool) {
        let Some(lease) = self.world.programs.get(&leader).and_then(|program| program.lease) else { return };
        let row = self.disk.rows.leases.get(&lease);
        let Some(away) = row.and_then(Lease::park_state).filter(|away| away.with_driver).cloned() else { return };
        let (processes, comes) =
            (away.processes.clone(), row.is_some_and(|row| matches!(row.phase, Phase::Resuming(..))));
        self.mind_after(leader, 3_000_000);
        if comes && self.rng_contexts.chance(500) {
            // It was told otherwise in time.
            return;
        }
        let loud =
            |process: &ProcKey| self.world.programs.get(&(*process, Method::Shim)).is_some_and(|it| !it.depth.hush);
        let loud = processes.iter().any(loud);
        if temper == ShimBehaviour::Fickle && odd {
            if let Some(program) = self.world.programs.get_mut(&leader) {
                program.cannot = true;
            }
            self.say(leader, MoverReport::Cannot(Some("it uses managed memory".to_owned())));
            return self.refuse(leader, "it uses managed memory");
        }
        if (temper == ShimBehaviour::Refuses && odd) || (loud && self.rng_contexts.chance(500)) {
            return self.refuse(leader, "a call of its did not end");
        }
        let percent = match temper {
            ShimBehaviour::Liar => 0,
            ShimBehaviour::Half => 50,
            _ => 100,
        };
        let lost = !self.calm && !self.shape.habits.orderly && self.rng_contexts.chance(60);
        let here = |process: &ProcKey| self.driven(lease, *process).is_some_and(|program| program.away.is_none());
        let processes: Vec<ProcKey> = processes.into_iter().filter(here).collect();
        self.context_moves.0 += u64::from(!processes.is_empty());
        for process in processes.into_iter().map(|process| (process, Method::Driver)) {
            let (gone, all) = self.world.leave_cards(process, percent);
            if let Some(program) = self.world.programs.get_mut(&process) {
                (program.away, program.claims) = (Some(gone), all);
                (program.depth.taken, program.depth.unsaid) = (Some(lease), lost);
            }
            if !lost {
                self.say(process, MoverReport::Parked(all));
            }
        }
        if lost {
            self.say_unknown(&away.processes);
            self.refuse(leader, "the worker was lost");
        }
    }

    /// The driver's worker was lost: it is not known what it did with these.
    fn say_unknown(&mut self, processes: &[ProcKey]) {
        for process in processes {
            self.say((*process, Method::Driver), MoverReport::Unknown);
        }
    }

    /// The driver finds out what it has.
    pub(crate) fn confess(&mut self) {
        let unsaid = self.world.programs.iter().filter(|(_, program)| program.depth.unsaid);
        for process in unsaid.map(|(process, _)| *process).collect::<Vec<_>>() {
            if self.calm || self.rng_contexts.chance(300) {
                let Some(program) = self.world.programs.get_mut(&process) else { continue };
                program.depth.unsaid = false;
                let parked = program.away.as_ref().map(|_| program.claims);
                self.say(process, MoverReport::Present { parked });
            }
        }
    }

    /// Whether there is room for all of a holder, what the library has to copy and what the driver restores before.
    pub(crate) fn prove_all(&mut self, leader: ReportKey, lease: LeaseId) -> bool {
        let away = self.disk.rows.leases.get(&lease).and_then(Lease::park_state);
        let processes = away.map(|away| away.processes.clone()).unwrap_or_default();
        let both = processes.iter().flat_map(|process| [(*process, Method::Shim), (*process, Method::Driver)]);
        let away = both.filter_map(|spoken| self.world.programs.get(&spoken)?.away.as_ref());
        let mut needs: BTreeMap<usize, Bytes> = BTreeMap::new();
        for (card, bytes) in away.flatten() {
            let need = needs.entry(*card).or_default();
            *need = *need + *bytes;
        }
        if !self.world.fit(&needs.into_iter().collect::<Vec<_>>()) {
            self.refuse(leader, "there is no room for it");
            return false;
        }
        for process in processes {
            if let Some(program) = self.world.programs.get_mut(&(process, Method::Driver)) {
                program.proven_us = self.t;
            }
        }
        true
    }

    /// The driver brings back what it has of a holder's processes.
    pub(crate) fn bring_contexts(&mut self, leader: ReportKey) -> Result<(), Violation> {
        self.mind_after(leader, 3_000_000);
        let Some(lease) = self.world.programs.get(&leader).and_then(|program| program.lease) else { return Ok(()) };
        let away = self.disk.rows.leases.get(&lease).and_then(Lease::park_state).filter(|away| away.with_driver);
        let processes = away.map(|away| away.processes.clone()).unwrap_or_default();
        let gone = |process: &ProcKey| self.driven(lease, *process).is_some_and(|program| program.away.is_some());
        let processes: Vec<ProcKey> = processes.into_iter().filter(gone).collect();
        for process in processes {
            self.restore((process, Method::Driver))?;
            self.context_moves.1 +=
                u64::from(self.driven(lease, process).is_some_and(|program| program.away.is_none()));
        }
        Ok(())
    }

    /// Once the world is calm the driver has nothing that nobody would ever ask it for.
    pub(crate) fn check_contexts(&self) -> Result<(), Violation> {
        let Some(daemon) = &self.daemon else { return Ok(()) };
        for (process, program) in &self.world.programs {
            let Some(lease) = program.heard_as(self.life) else { continue };
            let row = daemon.engine.state().lease(lease).filter(|row| row.is_held());
            let knows = row.is_none_or(|row| row.park_state().is_some_and(ParkState::needs_driver));
            let silent = program.depth.unsaid || !program.outbox.is_empty() || program.lost;
            let kept = process.1 == Method::Driver && program.away.is_some();
            must(9, knows || silent || !kept, || {
                format!("the driver has the context of {process:?}, and nobody asks for it: {row:?}")
            })?;
        }
        Ok(())
    }
}
