//! Facts of unleased processes, and of the rules about them.

use super::{Misfit, Touched, TouchedRow, check, check_gpus};
use crate::model::audit::Audit;
use crate::model::caller::Caller;
use crate::model::ids::{GpuId, LeaseId, ProcKey};
use crate::model::request::Tier;
use crate::model::rows::Rows;
use crate::model::units::{Bytes, Time};
use crate::model::unleased::{
    Rule, RuleAction, RuleId, RuleSubject, SignalOutcome, UnleasedEnd, UnleasedId, UnleasedProcess, UnleasedStep,
};
use serde::{Deserialize, Serialize};

/// What is decided about an unleased process, or a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnleasedAction {
    /// A process on a GPU belongs to no lease.
    #[serde(rename = "find")]
    Add {
        /// Its row.
        #[serde(rename = "stranger")]
        process: Box<UnleasedProcess>,
    },
    /// A new audit differs from the stored one: the process runs another program, or is on other GPUs.
    #[serde(rename = "reaudit")]
    SetAudit {
        /// The unleased process.
        #[serde(rename = "stranger")]
        id: UnleasedId,
        /// The new audit.
        audit: Box<Audit>,
        /// The GPUs it is on.
        #[serde(rename = "cards")]
        gpus: Vec<GpuId>,
    },
    /// Its user is told what happens unless the process gets a lease.
    Warn {
        /// The unleased process.
        #[serde(rename = "stranger")]
        id: UnleasedId,
        /// When this was decided.
        at: Time,
        /// When that happens.
        until: Time,
    },
    /// The process and its descendants get a signal.
    #[serde(rename = "strike")]
    Signal {
        /// The unleased process.
        #[serde(rename = "stranger")]
        id: UnleasedId,
        /// The number of the signal.
        signal: u8,
        /// When this was decided.
        at: Time,
        /// All that get it.
        processes: Vec<ProcKey>,
    },
    /// The signal was sent, or was refused.
    #[serde(rename = "struck")]
    RecordSignal {
        /// The unleased process.
        #[serde(rename = "stranger")]
        id: UnleasedId,
        /// The number of the signal.
        signal: u8,
        /// When this was decided.
        at: Time,
        /// What came of it, for each process.
        outcome: Vec<SignalOutcome>,
        /// Something else was decided since: nothing counts from it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        late: bool,
    },
    /// It has a lease, by which it is parked.
    #[serde(rename = "take")]
    Park {
        /// The unleased process.
        #[serde(rename = "stranger")]
        id: UnleasedId,
        /// Its lease.
        lease: LeaseId,
        /// When this was decided.
        at: Time,
    },
    /// It could not be parked, and stays on its GPUs.
    #[serde(rename = "not_moved")]
    RecordParkFailure {
        /// The unleased process.
        #[serde(rename = "stranger")]
        id: UnleasedId,
        /// When that was known.
        at: Time,
        /// The reason.
        why: String,
    },
    /// Nothing more is done to it for now.
    #[serde(rename = "relent")]
    Spare {
        /// The unleased process.
        #[serde(rename = "stranger")]
        id: UnleasedId,
        /// When this was decided.
        at: Time,
        /// It is only audited again, and counts as warned until then. Written by earlier versions only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Time>,
    },
    /// It survived SIGKILL.
    #[serde(rename = "survived")]
    RecordSurvival {
        /// The unleased process.
        #[serde(rename = "stranger")]
        id: UnleasedId,
        /// When this was decided.
        at: Time,
    },
    /// Its row is removed.
    Close {
        /// The unleased process.
        #[serde(rename = "stranger")]
        id: UnleasedId,
        /// When this was decided.
        at: Time,
        /// Why.
        how: UnleasedEnd,
    },
    /// An operator makes or changes a rule about unleased processes.
    SetRule {
        /// The rule.
        rule: Rule,
    },
    /// An operator removes a rule.
    #[serde(rename = "drop_rule")]
    RemoveRule {
        /// The rule.
        rule: RuleId,
    },
}

/// What happened to unleased processes, and what is wanted of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnleasedEvent {
    /// A process on a GPU that belongs to no lease was audited.
    Audited {
        /// The audit.
        audit: Box<Audit>,
        /// It, and its descendants in the same control group.
        tree: Vec<ProcKey>,
    },
    /// An audited process exited.
    Exited {
        /// The process.
        process: ProcKey,
    },
    /// A signal to an unleased process was sent, or was refused.
    SignalSent {
        /// The unleased process.
        id: UnleasedId,
        /// The number of the signal.
        signal: u8,
        /// When it was decided.
        decided_at: Time,
        /// What came of it, for each process.
        outcome: Vec<SignalOutcome>,
    },
    /// The daemon tested whether it can send signals to unleased processes here.
    SelfTested {
        /// Why not, if it cannot.
        result: Result<(), String>,
    },
    /// An unleased process shall have a lease for what it uses.
    AdoptRequested {
        /// The caller.
        by: Caller,
        /// The process.
        process: ProcKey,
        /// The bytes of each of its GPUs, if more than it has.
        vram: Option<Bytes>,
        /// Its tier.
        tier: Tier,
    },
    /// An operator makes a rule about unleased processes.
    RuleRequested {
        /// The caller.
        by: Caller,
        /// The processes that it is about.
        subject: RuleSubject,
        /// What is done about them.
        action: RuleAction,
    },
    /// An operator removes a rule.
    RuleRemovalRequested {
        /// The caller.
        by: Caller,
        /// The rule.
        rule: RuleId,
    },
}

impl UnleasedAction {
    /// The unleased process it is about; `None` for a rule.
    pub fn id(&self) -> Option<UnleasedId> {
        match self {
            UnleasedAction::Add { process } => Some(process.id),
            UnleasedAction::SetAudit { id, .. }
            | UnleasedAction::Warn { id, .. }
            | UnleasedAction::Signal { id, .. }
            | UnleasedAction::RecordSignal { id, .. }
            | UnleasedAction::Park { id, .. }
            | UnleasedAction::RecordParkFailure { id, .. }
            | UnleasedAction::Spare { id, .. }
            | UnleasedAction::RecordSurvival { id, .. }
            | UnleasedAction::Close { id, .. } => Some(*id),
            UnleasedAction::SetRule { .. } | UnleasedAction::RemoveRule { .. } => None,
        }
    }

    pub(crate) fn apply(&self, rows: &mut Rows) -> Result<(), Misfit> {
        match self {
            UnleasedAction::SetRule { rule } => {
                check(rule.id.0 < u32::MAX, "names an impossible rule")?;
                rows.meta.next_rule = rows.meta.next_rule.max(rule.id.0 + 1);
                rows.rules.insert(rule.id, rule.clone());
                Ok(())
            }
            UnleasedAction::RemoveRule { rule } => check(rows.rules.remove(rule).is_some(), "drops an unknown rule"),
            UnleasedAction::Add { process } => {
                check(process.id.0 < u64::MAX, "names an impossible stranger")?;
                check_gpus(rows, &process.gpus)?;
                check(!rows.unleased.contains_key(&process.id), "finds a stranger that is there")?;
                rows.meta.next_unleased = rows.meta.next_unleased.max(process.id.0 + 1);
                rows.unleased.insert(process.id, (**process).clone());
                Ok(())
            }
            UnleasedAction::Close { id, .. } => check(rows.unleased.remove(id).is_some(), "names an unknown stranger"),
            other => other.apply_to_row(rows),
        }
    }

    fn apply_to_row(&self, rows: &mut Rows) -> Result<(), Misfit> {
        if let UnleasedAction::SetAudit { gpus, .. } = self {
            check_gpus(rows, gpus)?;
        }
        let row = self.id().and_then(|id| rows.unleased.get_mut(&id)).ok_or("names an unknown stranger")?;
        match self {
            UnleasedAction::SetAudit { audit, gpus, .. } => (row.audit, row.gpus) = ((**audit).clone(), gpus.clone()),
            UnleasedAction::Warn { at, until, .. } => row.step = UnleasedStep::Warned { since: *at, until: *until },
            UnleasedAction::Signal { signal, at, .. } => {
                row.step = UnleasedStep::Signalled { signal: *signal, since: *at, sent: false };
            }
            UnleasedAction::RecordSignal { signal, at, late: false, outcome, .. } => {
                // A process that did not get it is still to get it.
                let refused = |one: &SignalOutcome| one.process == row.audit.process && one.refused.is_some();
                let is_sent = !outcome.iter().any(refused);
                if let UnleasedStep::Signalled { signal: decided, since, sent } = &mut row.step
                    && decided == signal
                    && is_sent
                {
                    (*since, *sent) = (*at, true);
                }
            }
            UnleasedAction::Park { lease, at, .. } => row.step = UnleasedStep::Parking { lease: *lease, since: *at },
            UnleasedAction::RecordParkFailure { at, why, .. } => {
                (row.step, row.why_not_parked) = (UnleasedStep::NotParked { since: *at }, Some(why.clone()));
            }
            UnleasedAction::Spare { at, until, .. } => {
                let warned = |until: Time| UnleasedStep::Warned { since: *at, until };
                row.step = until.map_or(UnleasedStep::Found, warned);
            }
            UnleasedAction::RecordSurvival { .. } => row.step = UnleasedStep::Survived,
            UnleasedAction::RecordSignal { late: true, .. }
            | UnleasedAction::Add { .. }
            | UnleasedAction::Close { .. }
            | UnleasedAction::SetRule { .. }
            | UnleasedAction::RemoveRule { .. } => {}
        }
        Ok(())
    }

    pub(crate) fn touched(&self) -> Touched {
        match self {
            UnleasedAction::SetRule { rule } => Touched::row_and_meta(TouchedRow::Rule(rule.id)),
            UnleasedAction::RemoveRule { rule } => Touched::row(TouchedRow::Rule(*rule)),
            UnleasedAction::Add { process } => Touched::row_and_meta(TouchedRow::Unleased(process.id)),
            other => Touched::row(other.id().map_or(TouchedRow::None, TouchedRow::Unleased)),
        }
    }

    pub(crate) fn line_owner(&self, rows: &Rows) -> Option<String> {
        match self {
            UnleasedAction::Add { process } => Some(process.audit.tenant_name()),
            other => rows.unleased.get(&other.id()?).map(|row| row.audit.tenant_name()),
        }
    }

    pub(crate) fn is_cut_last(&self) -> bool {
        match self {
            UnleasedAction::Warn { .. }
            | UnleasedAction::Signal { .. }
            | UnleasedAction::RecordSignal { .. }
            | UnleasedAction::Park { .. }
            | UnleasedAction::RecordSurvival { .. }
            | UnleasedAction::SetRule { .. }
            | UnleasedAction::RemoveRule { .. } => true,
            UnleasedAction::Add { .. }
            | UnleasedAction::SetAudit { .. }
            | UnleasedAction::RecordParkFailure { .. }
            | UnleasedAction::Spare { .. }
            | UnleasedAction::Close { .. } => false,
        }
    }
}
