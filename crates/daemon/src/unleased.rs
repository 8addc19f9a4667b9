//! Unleased processes as clients see them: what is known of them, and what happens next.

use crate::signals;
use crate::user_directory::tenant_of;
use crate::view::{self, View};
use sublet_core::decide::find;
use sublet_core::event::Caller;
use sublet_core::policy::enforcement;
use sublet_core::unleased::{Mode, NextStep, Rule, RuleAction, RuleSubject, UnleasedProcess, UnleasedStep};
use sublet_wire as wire;

impl View<'_> {
    /// Those that a caller may see and that a rule would be about if one is given; with a mode, as they would be in it.
    pub fn unleased_processes(
        &self,
        by: &Caller,
        mode: Option<Mode>,
        who: Option<&RuleSubject>,
    ) -> wire::UnleasedProcesses {
        let rows = self.state.rows();
        let is_meant = |stranger: &&UnleasedProcess| who.is_none_or(|who| who.matches(&stranger.audit));
        let shown = rows.unleased.values().filter(|stranger| may_see(by, stranger)).filter(is_meant);
        let modes = rows.gpus.iter().filter(|_| by.token.is_none());
        let rules = rows.rules.values().filter(|_| by.operator);
        let can = self.state.self_test();
        wire::UnleasedProcesses {
            processes: shown.map(|stranger| self.shown_process(by, stranger, mode)).collect(),
            modes: modes
                .map(|gpu| wire::GpuMode {
                    index: gpu.facts.index,
                    uuid: gpu.facts.uuid.clone(),
                    mode: to_wire(gpu.mode),
                })
                .collect(),
            rules: rules.map(rule).collect(),
            cannot_enforce: can.and_then(|can| can.as_ref().err().cloned()),
            enforce_tested: can.is_some(),
        }
    }

    fn shown_process(&self, by: &Caller, stranger: &UnleasedProcess, mode: Option<Mode>) -> wire::UnleasedProcess {
        let audit = &stranger.audit;
        let residence = enforcement::residence(self.state, stranger, self.now);
        let bytes = residence.as_ref().and_then(|(on, _)| on.iter().map(|(_, bytes)| bytes.map(|b| b.0)).sum());
        let gpus = residence.map_or_else(|| stranger.gpus.clone(), |(on, _)| on.iter().map(|(gpu, _)| *gpu).collect());
        let index = |gpu: &sublet_core::ids::GpuId| self.state.rows().gpus[*gpu].facts.index;
        let of = self.state.lease_of(stranger).filter(|lease| find(self.state, by, *lease).is_ok());
        let mut shown = wire::UnleasedProcess {
            id: stranger.id.to_string(),
            pid: audit.process.pid,
            uid: audit.uid,
            user: self.names.of(&tenant_of(audit.uid)),
            name: audit.name.clone(),
            exe: audit.exe.clone(),
            command: audit.command.clone(),
            unit: audit.unit.clone(),
            container: audit.container.clone(),
            gpu_indices: gpus.iter().map(index).collect(),
            vram_bytes: bytes,
            age_s: self.now.since(stranger.since).as_secs_f64(),
            step: match stranger.step {
                UnleasedStep::Found => wire::UnleasedStep::Found,
                UnleasedStep::Warned { .. } => wire::UnleasedStep::Warned,
                UnleasedStep::Parking { .. } => wire::UnleasedStep::Parking,
                UnleasedStep::NotParked { .. } => wire::UnleasedStep::ParkFailed,
                UnleasedStep::Signalled { .. } => wire::UnleasedStep::Signalled,
                UnleasedStep::Survived => wire::UnleasedStep::Survived,
            },
            next: wire::NextStep::Nothing,
            next_signal: None,
            next_in_s: None,
            lease: None,
            belongs_to: of.map(|lease| lease.to_string()),
            why: stranger.why_not_parked.as_ref().map(|why| format!("it could not be parked: {why}")),
            replaces: stranger.successor_of.map(|former| former.to_string()),
            unreadable: audit.unread.clone(),
        };
        let left = |at: sublet_core::units::Time| Some(at.since(self.now).as_secs_f64());
        match enforcement::next_step(self.state, stranger, mode, self.now) {
            NextStep::Nothing => {}
            NextStep::Exempt(why) => (shown.next, shown.why) = (wire::NextStep::Exempt, Some(why.to_string())),
            NextStep::Adopt(at) => (shown.next, shown.next_in_s) = (wire::NextStep::Adopted, left(at)),
            NextStep::Warn => shown.next = wire::NextStep::Warned,
            NextStep::Park(at) => (shown.next, shown.next_in_s) = (wire::NextStep::Parked, left(at)),
            NextStep::Parking(lease) => (shown.next, shown.lease) = (wire::NextStep::Parked, Some(lease.to_string())),
            NextStep::Signal(signal, at) => {
                shown.next = wire::NextStep::Signal;
                (shown.next_signal, shown.next_in_s) = (Some(signals::name(signal)), left(at));
            }
            NextStep::Survived => shown.why = Some("it survived SIGKILL: only a restart of the host helps".to_owned()),
        }
        shown
    }
}

/// True if a caller may see an unleased process: an operator all, a local user its own.
pub(crate) fn may_see(by: &Caller, stranger: &UnleasedProcess) -> bool {
    by.operator || (by.token.is_none() && stranger.audit.tenant_name() == by.tenant)
}

/// A rule as clients see it.
pub fn rule(rule: &Rule) -> wire::Rule {
    let (treat, vram, tier) = match rule.action {
        RuleAction::Allow => (wire::RuleAction::Allow, None, None),
        RuleAction::Deny => (wire::RuleAction::Deny, None, None),
        RuleAction::Adopt { vram, tier } => (wire::RuleAction::Adopt, vram.map(|vram| vram.0), Some(view::tier(tier))),
    };
    wire::Rule { id: rule.id.to_string(), matches: rule.subject.to_string(), action: treat, vram_bytes: vram, tier }
}

/// A mode as clients spell it.
pub fn to_wire(mode: Mode) -> wire::Mode {
    match mode {
        Mode::Observe => wire::Mode::Observe,
        Mode::Adopt => wire::Mode::Adopt,
        Mode::Warn => wire::Mode::Warn,
        Mode::Enforce => wire::Mode::Enforce,
    }
}

/// A mode as core knows it.
pub fn from_wire(mode: wire::Mode) -> Mode {
    match mode {
        wire::Mode::Observe => Mode::Observe,
        wire::Mode::Adopt => Mode::Adopt,
        wire::Mode::Warn => Mode::Warn,
        wire::Mode::Enforce => Mode::Enforce,
    }
}
