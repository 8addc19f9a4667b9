//! Wrappers with a hook: they hear where their lease is, run what makes their programs leave their cards
//! or come back, and say how it went. Some lie, some do half of it, some are silent, and some die of it.
//! A wrapper may also die alone, at any time, and its programs stay.

use crate::checker::Violation;
use crate::daemon::SimCall;
use crate::shape::S;
use crate::sim::Sim;
use crate::timers::Timer;
use sublet_core::event::Event;
use sublet_core::facts::LeaseEvent;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::movers::MoverReport;
use sublet_core::rows::Phase;
use sublet_core::units::Bytes;

/// What a hook does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HookBehaviour {
    /// What it says.
    Honest,
    /// Nothing, and says that it did it.
    Liar,
    /// Half of it.
    Half,
    /// It takes longer than anybody waits.
    Silent,
    /// It fails, now and then.
    Fails,
    /// Its holder dies of it, now and then.
    Dies,
}

/// A wrapper with a hook.
#[derive(Debug)]
pub struct SimWrapper {
    temper: HookBehaviour,
    /// Its programs' bytes are away: so many of each card.
    away: Option<Vec<(ProcKey, usize, Bytes)>>,
    /// Its hook runs: off the cards, or back.
    runs: Option<bool>,
    /// Tells an old run from a new one.
    turn: u32,
    /// The daemon of this life was told how it stands.
    told: Option<u32>,
}

impl Sim<'_> {
    /// A lease was granted: it may have a hook.
    pub(crate) fn wrap(&mut self, lease: LeaseId) {
        if self.disk.rows.leases.get(&lease).is_some_and(|row| row.request.has_hook) {
            let odd = [
                HookBehaviour::Liar,
                HookBehaviour::Half,
                HookBehaviour::Silent,
                HookBehaviour::Fails,
                HookBehaviour::Dies,
            ];
            let honest = self.calm || self.rng_preemption.chance(self.shape.habits.honest);
            let temper = if honest { HookBehaviour::Honest } else { self.rng_preemption.pick(&odd) };
            self.wrappers.insert(lease, SimWrapper { temper, away: None, runs: None, turn: 0, told: None });
            if !self.calm && self.rng_wrappers.chance(150) {
                let delay = self.rng_wrappers.within(S, 120 * S);
                self.timers.set(self.t + delay, Timer::WrapperExits(lease.0));
            }
        }
    }

    /// The wrapper of a lease dies, while its hook runs or at any other time. Its programs stay.
    pub(crate) fn orphan(&mut self, lease: LeaseId) -> Result<(), Violation> {
        let root = self.disk.rows.leases.get(&lease).and_then(|row| row.roots.first().copied());
        let Some(root) = root.filter(|_| !self.calm) else { return Ok(()) };
        let leases = self.world.exit_root(root);
        if !leases.is_empty() {
            self.story.add(|| format!("{} the wrapper of {lease} dies alone", self.now()));
        }
        let rows = &self.disk.rows.leases;
        let its = |lease: &LeaseId| rows.get(lease).is_some_and(|row| row.roots.first() == Some(&root));
        self.wrappers.retain(|lease, _| !its(lease));
        self.schedule_member_reports(&leases);
        Ok(())
    }

    /// Whether the programs of a lease do nothing because of its hook.
    pub(crate) fn is_asleep(&self, lease: LeaseId) -> bool {
        self.wrappers.get(&lease).is_some_and(|wrapper| wrapper.away.is_some() || wrapper.runs.is_some())
    }

    /// A wrapper hears where its lease is, in a moment.
    pub(crate) fn heed_soon(&mut self, lease: LeaseId) {
        if self.wrappers.contains_key(&lease) {
            let delay = self.rng_preemption.within(0, S / 5);
            self.timers.set(self.t + delay, Timer::WrapperPoll(self.life, lease.0));
        }
    }

    /// A wrapper does what follows from where its lease is.
    pub(crate) fn heed(&mut self, lease: LeaseId) -> Result<(), Violation> {
        let life = self.life;
        let Some(wrapper) = self.wrappers.get_mut(&lease).filter(|wrapper| wrapper.runs.is_none()) else {
            return Ok(());
        };
        let is_told = wrapper.told == Some(life);
        let by_hook = |rung: Method| rung == Method::Hook;
        let out = match self.disk.rows.leases.get(&lease).map(|row| &row.phase) {
            Some(Phase::Parking(_, away)) if by_hook(away.method) => match &wrapper.away {
                Some(_) if is_told => return Ok(()),
                Some(gone) => {
                    let said = MoverReport::Parked(gone.iter().map(|(_, _, bytes)| *bytes).sum());
                    return self.tell_hook(lease, said);
                }
                None => true,
            },
            Some(Phase::Active(_) | Phase::Resuming(..)) if wrapper.away.is_some() => false,
            Some(Phase::Resuming(_, away)) if by_hook(away.method) && !is_told => {
                return self.tell_hook(lease, MoverReport::Resumed);
            }
            Some(Phase::Ending(..)) | None => {
                self.wrappers.remove(&lease);
                return Ok(());
            }
            _ => return Ok(()),
        };
        wrapper.runs = Some(out);
        wrapper.turn += 1;
        let turn = wrapper.turn;
        let longest = if wrapper.temper == HookBehaviour::Silent && out {
            300 * S
        } else {
            self.rng_preemption.pick(&[S / 5, S, 5 * S])
        };
        let delay = self.rng_preemption.within(longest / 10, longest);
        self.timers.set(self.t + delay, Timer::HookDone(lease.0, turn));
        Ok(())
    }

    /// A hook is done.
    pub(crate) fn hook_done(&mut self, lease: LeaseId, turn: u32) -> Result<(), Violation> {
        let Some(wrapper) = self.wrappers.get_mut(&lease).filter(|wrapper| wrapper.turn == turn) else { return Ok(()) };
        let Some(out) = wrapper.runs.take() else { return Ok(()) };
        let (temper, odd) = (wrapper.temper, self.rng_preemption.chance(400));
        self.heed_later(lease);
        match temper {
            HookBehaviour::Dies if odd => {
                let tree = self.job_of_lease.get(&lease).and_then(|job| self.jobs[*job as usize].tree);
                let leases = tree.map(|tree| self.world.exit(tree)).unwrap_or_default();
                self.schedule_member_reports(&leases);
                Ok(())
            }
            HookBehaviour::Fails if odd => {
                self.tell_hook(lease, MoverReport::Refused("the hook exited with status 1".to_owned()))
            }
            _ if out => self.fall_asleep(lease, temper),
            _ => self.wake_up(lease),
        }
    }

    fn heed_later(&mut self, lease: LeaseId) {
        let delay = self.rng_preemption.within(S, 4 * S);
        self.timers.set(self.t + delay, Timer::WrapperPoll(self.life, lease.0));
    }

    fn fall_asleep(&mut self, lease: LeaseId, temper: HookBehaviour) -> Result<(), Violation> {
        let percent = match temper {
            HookBehaviour::Liar => 0,
            HookBehaviour::Half => 50,
            _ => 100,
        };
        let mut gone = Vec::new();
        for process in self.programs_of(lease) {
            let (bytes, _) = self.world.leave_cards((process, Method::Hook), percent);
            gone.extend(bytes.into_iter().map(|(card, bytes)| (process, card, bytes)));
        }
        let sum = gone.iter().map(|(_, _, bytes)| *bytes).sum();
        if let Some(wrapper) = self.wrappers.get_mut(&lease) {
            wrapper.away = Some(gone);
        }
        self.tell_hook(lease, MoverReport::Parked(sum))
    }

    fn wake_up(&mut self, lease: LeaseId) -> Result<(), Violation> {
        let Some(gone) = self.wrappers.get_mut(&lease).and_then(|wrapper| wrapper.away.take()) else { return Ok(()) };
        let live = self.programs_of(lease);
        let (mut back, mut left) = (Vec::new(), Vec::new());
        for (process, card, bytes) in gone {
            let is_there = !live.contains(&process) || self.world.come_back(process, &[(card, bytes)]);
            if is_there { back.push(card) } else { left.push((process, card, bytes)) }
        }
        if left.is_empty() {
            return self.tell_hook(lease, MoverReport::Resumed);
        }
        if let Some(wrapper) = self.wrappers.get_mut(&lease) {
            wrapper.away = Some(left);
        }
        self.tell_hook(lease, MoverReport::Refused("out of memory".to_owned()))
    }

    /// Its programs are needed, and asleep.
    pub(crate) fn want_back(&mut self, lease: LeaseId) -> Result<(), Violation> {
        self.tell_hook(lease, MoverReport::Used)
    }

    fn programs_of(&self, lease: LeaseId) -> Vec<ProcKey> {
        let tree = self.job_of_lease.get(&lease).and_then(|job| self.jobs[*job as usize].tree);
        tree.and_then(|tree| self.world.trees.get(&tree)).map(|tree| tree.live.clone()).unwrap_or_default()
    }

    /// A wrapper says how it stands, now and then under an old epoch or another's name.
    fn tell_hook(&mut self, lease: LeaseId, said: MoverReport) -> Result<(), Violation> {
        let Some(row) = self.disk.rows.leases.get(&lease) else { return Ok(()) };
        let (Some(epoch), tenant) = (row.hold().map(|hold| hold.fence), row.tenant) else { return Ok(()) };
        let name = &self.disk.rows.tenants[tenant].name;
        let Some(by) = self.callers.iter().position(|caller| caller.tenant == *name) else { return Ok(()) };
        let odd = !self.calm && self.rng_preemption.chance(30);
        let by = if odd { self.rng_preemption.below(self.callers.len() as u64) as usize } else { by };
        let caller = self.callers[by].clone();
        if let (Some(_), false, Some(wrapper)) = (&self.daemon, odd, self.wrappers.get_mut(&lease)) {
            wrapper.told = Some(self.life);
        }
        self.call(SimCall {
            by,
            event: Event::Lease(LeaseEvent::HookReported { by: caller, lease, fence: epoch, report: said }),
            job: None,
        })
    }

    /// From now on hooks do as they say.
    pub(crate) fn calm_hooks(&mut self) {
        self.wrappers.values_mut().for_each(|wrapper| wrapper.temper = HookBehaviour::Honest);
    }
}
