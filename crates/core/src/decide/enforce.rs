//! Takes the steps that are due for processes on GPUs that belong to no lease there ([`crate::policy::enforcement`]).
//!
//! Each reading of a GPU compares what is there with the record, and each unleased process takes its next step when that is
//! due. Nothing is done that was not on the disk before. No process is signalled that this daemon has not audited after the
//! step was due.

use super::Decider;
use crate::model::audit::Audit;
use crate::model::event::{Caller, EventAnswer, Refusal};
use crate::model::facts::{GpuAction, LeaseAction, TenantAction, UnleasedAction, UnleasedEvent};
use crate::model::ids::{GpuId, LeaseId, ProcKey, TenantId};
use crate::model::mutant::Mutant;
use crate::model::reading::Reading;
use crate::model::request::{LeaseRequest, Term, Tier};
use crate::model::rows::GpuService;
use crate::model::signals::KILL;
use crate::model::units::{Bytes, Span, Time};
use crate::model::unleased::{
    Exemption, GpuPresence, Mode, NextStep, Rule, RuleAction, RuleId, RuleSubject, STRANGERS_MAX, SignalOutcome,
    UnleasedEnd, UnleasedId, UnleasedProcess, UnleasedStep,
};
use crate::policy::board::Fit;
use crate::policy::enforcement::is_fresh;
use crate::policy::enforcement::{
    adopt_rule, differs_in_names_only, is_warned_all_the_same, may_be_signalled, next_step, residence, resident,
};
use crate::policy::quota;
use crate::state::unleased_readings::{AuditState, FormerProcess};

/// Whoever is still there so long after SIGKILL has survived it.
const SURVIVED_AFTER: Span = Span::secs(10);

/// What a process says of itself is put on its record once in so long, unless something is due to be done to it.
const NOTED_FOR: Span = Span::secs(60);

/// Rules that there may be.
const RULES_MAX: usize = 1_024;

/// A size that is measured is rounded up to this.
const ROUND: u64 = 1 << 20;

impl Decider<'_> {
    pub(super) fn on_unleased(&mut self, event: UnleasedEvent) -> EventAnswer {
        match event {
            UnleasedEvent::Audited { audit, tree } => self.audited(*audit, tree),
            UnleasedEvent::Exited { process } => self.unleased_exited(process),
            UnleasedEvent::SignalSent { id, signal, decided_at, outcome } => {
                self.note_signal_outcome(id, signal, decided_at, outcome);
            }
            UnleasedEvent::SelfTested { result } => {
                let seen = self.state.unleased_readings_mut();
                seen.self_test = Some(result);
                seen.self_tests += 1;
                self.reconcile();
            }
            UnleasedEvent::AdoptRequested { by, process, vram, tier } => {
                return self.adopt_asked(&by, process, vram, tier);
            }
            UnleasedEvent::RuleRequested { by, subject, action } => return self.rule_asked(&by, subject, action),
            UnleasedEvent::RuleRemovalRequested { by, rule } => return self.rule_dropped(&by, rule),
        }
        EventAnswer::Done
    }

    /// A process on a card was audited: it belongs to no lease, as far as its parents, control group, unit
    /// and marks tell, or to one that does not have that card.
    pub(super) fn audited(&mut self, audit: Audit, tree: Vec<ProcKey>) {
        let process = audit.process;
        let known = self.state.unleased_readings().by_process.get(&process).copied();
        let known = known.and_then(|id| self.state.rows().unleased.get(&id));
        let is_unmoved = known.is_some_and(|known| matches!(known.step, UnleasedStep::NotParked { .. }));
        let holder = self.state.holder(&process);
        let of = holder.filter(|_| known.is_none_or(|known| self.state.lease_of(known).is_some()));
        // It is the lease's by which it is moved, or was to be.
        if holder != of && !(is_unmoved && self.state.planted(Mutant::StrikeMoving)) {
            return;
        }
        // Where it was, it still may be, if that card cannot be read.
        let may_be = |card: &GpuId| match &self.state.room(*card).reading().reading {
            Reading::Used(_) => resident(self.state, *card, process)
                .is_some_and(|resident| of.is_none() || self.state.is_off_lease(resident, *card)),
            Reading::Unreadable(_) => {
                let is_home = of.is_some() && self.state.has_lease_there(&process, *card);
                !is_home && known.is_some_and(|known| known.gpus.contains(card))
            }
        };
        let cards: Vec<GpuId> = self.state.gpus().filter(may_be).collect();
        // Who is only where its lease is, is no stranger.
        if of.is_some() && cards.is_empty() {
            return;
        }
        let (mut is_news, mut noted) = (false, None);
        let id = match known {
            Some(stranger) => {
                let id = stranger.id;
                // What it used meanwhile is none.
                is_news = Audit { ran: None, ..audit.clone() } != Audit { ran: None, ..stranger.audit.clone() };
                let before = self.state.unleased_readings().audits.get(&id).and_then(|seen| seen.noted);
                let is_due = matches!(next_step(self.state, stranger, None, self.now),
                    NextStep::Signal(_, due) | NextStep::Park(due) if due <= self.now);
                // A process may write other words about itself all the time; the record is not theirs to fill.
                let waits = differs_in_names_only(&stranger.audit, &audit)
                    && !is_due
                    && before.is_some_and(|before| self.now.since(before) < NOTED_FOR);
                noted = before;
                if (is_news && !waits) || stranger.gpus != cards {
                    noted = Some(self.now);
                    self.emit(UnleasedAction::SetAudit { id, audit: Box::new(audit), gpus: cards });
                }
                id
            }
            None if cards.is_empty() || self.state.rows().unleased.len() >= STRANGERS_MAX => return,
            None => {
                let id = UnleasedId(self.state.rows().meta.next_unleased);
                let hops = self.state.planted(Mutant::HopAnew);
                let former = self.state.unleased_readings_mut().take_former(&audit, self.now).filter(|_| !hops);
                let (again, until) =
                    (former.as_ref().map(|former| former.id), former.as_ref().and_then(|former| former.until));
                // Who left its cards for a moment has come as far as it had.
                let same = former.filter(|former| former.is_process(&audit));
                let step = same.as_ref().and_then(|former| former.told).unwrap_or(UnleasedStep::Found);
                let (since, stays) = (self.now, same.and_then(|former| former.stays));
                let stranger = UnleasedProcess {
                    id,
                    audit,
                    since,
                    gpus: cards,
                    step,
                    successor_of: again,
                    must_leave_by: until,
                    why_not_parked: stays,
                    lease: of,
                };
                self.emit(UnleasedAction::Add { process: Box::new(stranger) });
                id
            }
        };
        let before = self.state.unleased_readings_mut().audits.remove(&id);
        let struck = before.as_ref().is_some_and(|seen| seen.signal_sent);
        // Of what it is now, nothing was refused yet.
        let refused = before.and_then(|seen| seen.refused).filter(|_| !is_news);
        self.state
            .unleased_readings_mut()
            .audits
            .insert(id, AuditState { audited_at: self.now, tree, signal_sent: struck, refused, noted });
        self.reconcile();
    }

    /// A stranger exited.
    pub(super) fn unleased_exited(&mut self, process: ProcKey) {
        if let Some(id) = self.state.unleased_readings().by_process.get(&process).copied() {
            self.close(id, UnleasedEnd::Exited);
        }
    }

    /// A stranger is gone. Who was signalled is remembered, should it be started anew.
    pub(super) fn close(&mut self, id: UnleasedId, how: UnleasedEnd) {
        if let Some(former) = self.state.rows().unleased.get(&id).and_then(|row| FormerProcess::of(row, self.now)) {
            self.state.unleased_readings_mut().remember(former);
        }
        self.emit(UnleasedAction::Close { id, at: self.now, how });
    }

    /// Compares the record with what is on the cards, and takes the steps that are due.
    pub(super) fn reconcile(&mut self) {
        if self.state.rows().unleased.is_empty() || self.state.is_stopped() {
            return;
        }
        let all: Vec<UnleasedId> = self.state.rows().unleased.keys().copied().collect();
        all.into_iter().for_each(|id| self.advance_unleased(id));
    }

    pub(super) fn advance_unleased(&mut self, id: UnleasedId) {
        let Some(stranger) = self.state.rows().unleased.get(&id) else { return };
        let step = stranger.step;
        if let UnleasedStep::Parking { lease, since } = step {
            return self.advance_parking(id, lease, since);
        }
        // The lease by which it could not be moved counts until its cards were seen again.
        if matches!(step, UnleasedStep::NotParked { .. }) && self.state.lease_is_ending(stranger) {
            return;
        }
        // Who is on a card that cannot be read is not touched, and not forgotten either.
        let Some((on, _)) = residence(self.state, stranger, self.now) else { return };
        if on.is_empty() {
            let process = stranger.audit.process;
            let is_home = stranger.gpus.iter().any(|card| self.state.has_lease_there(&process, *card));
            return match self.state.lease_of(stranger).filter(|_| is_home) {
                Some(lease) => self.emit(UnleasedAction::Close { id, at: self.now, how: UnleasedEnd::Matched(lease) }),
                None => self.close(id, UnleasedEnd::OffGpus),
            };
        }
        // Whoever survived has, whatever is said of it meanwhile.
        if matches!(step, UnleasedStep::Signalled { signal: KILL, since, sent: true } if since + SURVIVED_AFTER <= self.now)
        {
            return self.survived(id, on);
        }
        let fate = next_step(self.state, stranger, None, self.now);
        let is_enforced = on.iter().any(|(card, _)| self.state.mode(*card) == Mode::Enforce);
        // What was begun in another mode, or before a rule was there, is not gone on with.
        let is_over = !is_enforced || matches!(fate, NextStep::Exempt(Exemption::Allowed(_)));
        let is_begun =
            matches!(step, UnleasedStep::NotParked { .. } | UnleasedStep::Signalled { .. } | UnleasedStep::Survived);
        match fate {
            // Whoever its quotas do not let stays a stranger, on the record.
            NextStep::Adopt(at) if at <= self.now && self.adopt_by_itself(id, &on) => {}
            _ if is_begun && is_over => self.emit(UnleasedAction::Spare { id, at: self.now, until: None }),
            NextStep::Warn if step == UnleasedStep::Found => self.warn(id),
            NextStep::Exempt(why) if step == UnleasedStep::Found && is_enforced && is_warned_all_the_same(&why) => {
                self.warn(id)
            }
            NextStep::Park(_) if step == UnleasedStep::Found => self.warn(id),
            NextStep::Park(due) if self.may_act(id, due) => self.park_unleased(id, &on),
            NextStep::Signal(signal, due) => self.escalate(id, step, signal, due),
            NextStep::Nothing
            | NextStep::Exempt(_)
            | NextStep::Adopt(_)
            | NextStep::Warn
            | NextStep::Park(_)
            | NextStep::Parking(_)
            | NextStep::Survived => {}
        }
    }

    fn adopt_by_itself(&mut self, id: UnleasedId, on: &[GpuPresence]) -> bool {
        let Some(stranger) = self.state.rows().unleased.get(&id).cloned() else { return false };
        let by = Caller::user(stranger.audit.tenant_name());
        let (wish, tier) = adopt_rule(self.state, &stranger.audit).unwrap_or((None, Tier::Batch));
        let whole = self.adopt(&by, &stranger, on, wish, tier).is_ok();
        whole || (wish.is_some() && self.adopt(&by, &stranger, on, None, tier).is_ok())
    }

    fn warn(&mut self, stranger: UnleasedId) {
        let most = self.now + self.state.policy().enforcement.after_warning;
        let left = self.state.rows().unleased.get(&stranger).and_then(|row| row.must_leave_by);
        let left = left.filter(|_| !self.state.planted(Mutant::WarnForEver));
        let until = left.map_or(most, |left| left.max(self.now).min(most));
        self.emit(UnleasedAction::Warn { id: stranger, at: self.now, until });
    }

    /// Whether something is due, and it was looked into since.
    fn may_act(&self, id: UnleasedId, due: Time) -> bool {
        let seen = self.state.unleased_readings().audits.get(&id);
        let is_fresh = seen.is_some_and(|seen| is_fresh(seen.audited_at, due, self.now));
        due <= self.now && (is_fresh || self.state.planted(Mutant::StrikeUnaudited))
    }

    fn escalate(&mut self, id: UnleasedId, step: UnleasedStep, signal: u8, due: Time) {
        let seen = self.state.unleased_readings().audits.get(&id);
        let is_fresh = |due: Time| seen.is_some_and(|seen| is_fresh(seen.audited_at, due, self.now));
        let is_struck = seen.is_some_and(|seen| seen.signal_sent);
        match step {
            UnleasedStep::Found => self.warn(id),
            // What an earlier daemon decided may never have gone out.
            UnleasedStep::Signalled { signal, since, sent } if !sent || self.state.planted(Mutant::StrikeTwice) => {
                if !is_struck && is_fresh(since) {
                    self.signal_unleased(id, signal, since);
                }
            }
            UnleasedStep::Signalled { signal: KILL, .. } => {}
            _ => {
                if self.may_act(id, due) {
                    self.signal_unleased(id, signal, self.now);
                }
            }
        }
    }

    fn signal_unleased(&mut self, id: UnleasedId, signal: u8, at: Time) {
        let Some(stranger) = self.state.rows().unleased.get(&id) else { return };
        let own = stranger.audit.process;
        let tree = self.state.unleased_readings().audits.get(&id).map(|seen| seen.tree.as_slice()).unwrap_or_default();
        let others = tree.iter().copied().filter(|process| *process != own && may_be_signalled(self.state, *process));
        let processes: Vec<ProcKey> = std::iter::once(own).chain(others).collect();
        let signal = if self.state.planted(Mutant::StrikeHard) { KILL } else { signal };
        self.emit(UnleasedAction::Signal { id, signal, at, processes });
        if let Some(seen) = self.state.unleased_readings_mut().audits.get_mut(&id) {
            seen.signal_sent = true;
        }
    }

    /// What became of a signal.
    pub(super) fn note_signal_outcome(&mut self, id: UnleasedId, signal: u8, of: Time, outcome: Vec<SignalOutcome>) {
        let Some(stranger) = self.state.rows().unleased.get(&id) else { return };
        let own = outcome.iter().find(|struck| struck.process == stranger.audit.process);
        let refused = own.and_then(|own| own.refused.clone());
        let changed = own.is_some_and(|own| own.changed);
        let step = stranger.step;
        let late = step != UnleasedStep::Signalled { signal, since: of, sent: false };
        self.emit(UnleasedAction::RecordSignal { id, signal, at: self.now, outcome, late });
        let seen = self.state.unleased_readings_mut().audits.get_mut(&id);
        if late {
            // Somebody thought better of it since, and perhaps worse again: then that one is under way.
            if let Some(seen) = seen.filter(|_| !matches!(step, UnleasedStep::Signalled { .. })) {
                seen.signal_sent = false;
            }
            return;
        }
        if let Some(seen) = seen {
            (seen.refused, seen.signal_sent) = (refused, false);
        }
        // Whoever becomes another program in time, or is elsewhere, gains nothing by it but another look: what it is
        // now is on the record first, and then it gets what it was to get.
        if changed {
            self.state.unleased_readings_mut().audits.remove(&id);
            if self.state.planted(Mutant::HopAnew) {
                self.emit(UnleasedAction::Spare { id, at: self.now, until: Some(self.now) });
            }
        }
    }

    /// It is still there: what it has may stay there for ever.
    fn survived(&mut self, stranger: UnleasedId, on: Vec<GpuPresence>) {
        self.emit(UnleasedAction::RecordSurvival { id: stranger, at: self.now });
        let why = format!("{stranger} survived SIGKILL and still has memory there");
        if self.state.planted(Mutant::ServeSurvivor) {
            return;
        }
        on.into_iter().for_each(|(card, _)| self.set_gpu_service(card, GpuService::Out { why: why.clone() }));
    }

    // ---- adoption ----------------------------------------------------------------

    pub(super) fn adopt_asked(
        &mut self,
        by: &Caller,
        process: ProcKey,
        vram: Option<Bytes>,
        tier: Tier,
    ) -> EventAnswer {
        let id = self.state.unleased_readings().by_process.get(&process).copied();
        let found = id.and_then(|id| self.state.rows().unleased.get(&id).cloned());
        let theirs = |stranger: &UnleasedProcess| by.operator || stranger.audit.tenant_name() == by.tenant;
        let Some(stranger) = found.filter(theirs) else {
            return EventAnswer::Refused(Refusal::NoSuchStranger);
        };
        let Some((on, _)) = residence(self.state, &stranger, self.now) else {
            return EventAnswer::Refused(Refusal::NotAdoptable("its GPU cannot be read now".to_owned()));
        };
        if let Some(answer) = self.adopt_while_parking(&stranger) {
            return answer;
        }
        match self.adopt(by, &stranger, &on, vram, tier) {
            Ok(lease) => EventAnswer::Lease(lease),
            Err(refusal) => EventAnswer::Refused(refusal),
        }
    }

    /// A stranger gets a lease, and is none any more.
    fn adopt(
        &mut self,
        by: &Caller,
        stranger: &UnleasedProcess,
        on: &[GpuPresence],
        wish: Option<Bytes>,
        tier: Tier,
    ) -> Result<LeaseId, Refusal> {
        let lease = self.give_lease(by, stranger, on, wish, tier)?;
        self.emit(UnleasedAction::Close { id: stranger.id, at: self.now, how: UnleasedEnd::Adopted(lease) });
        Ok(lease)
    }

    /// A lease for what a stranger has already: no room is needed for it, only for what it wants beyond.
    pub(super) fn give_lease(
        &mut self,
        by: &Caller,
        stranger: &UnleasedProcess,
        on: &[GpuPresence],
        wish: Option<Bytes>,
        tier: Tier,
    ) -> Result<LeaseId, Refusal> {
        if let Some(lease) = self.state.lease_of(stranger) {
            return Err(Refusal::NotAdoptable(self.why_it_has_a_lease(by, lease, on)));
        }
        let (fit, ask) = self.adoption(stranger, on, wish, tier)?;
        let tenant = self.tenant_for(by, &stranger.audit);
        if let Some(held) = quota::block_of_request(self.state, tenant, &ask) {
            return Err(Refusal::OverQuota(held));
        }
        let excluded = fit.gpus.iter().any(|card| self.state.excludes(*card, tenant, ask.exclusivity));
        if excluded {
            return Err(Refusal::NotAdoptable("another lease has its GPU alone".to_owned()));
        }
        if let Some(stopped) = self.state.stopped() {
            return Err(stopped);
        }
        let lease = LeaseId(self.state.rows().meta.next_lease);
        let root = Some(stranger.audit.process);
        let give_up = self.now + self.state.policy().wait;
        self.emit(LeaseAction::Queue { lease, tenant, request: ask, at: self.now, give_up, root, token: by.token });
        self.grant(lease, &fit);
        Ok(lease)
    }

    /// Why a process of a lease gets no other, and what to do.
    fn why_it_has_a_lease(&self, by: &Caller, lease: LeaseId, on: &[GpuPresence]) -> String {
        let name = self.find(by, lease).map_or_else(|_| "another lease".to_owned(), |row| row.id.to_string());
        match on {
            [] => format!("it is a process of {name}, which has its GPUs"),
            _ => format!(
                "it is a process of {name}, which is for other GPUs: end {name}, or ask for all of its GPUs in one lease"
            ),
        }
    }

    fn adoption(
        &self,
        stranger: &UnleasedProcess,
        on: &[GpuPresence],
        wish: Option<Bytes>,
        tier: Tier,
    ) -> Result<(Fit, LeaseRequest), Refusal> {
        let cannot = |why: &str| Refusal::NotAdoptable(why.to_owned());
        let sizes: Option<Vec<Bytes>> = on.iter().map(|(_, bytes)| *bytes).collect();
        let sizes = sizes.filter(|sizes| !sizes.is_empty());
        let sizes = sizes.ok_or_else(|| cannot("the driver does not tell how much it has"))?;
        let sizes: Vec<Bytes> = sizes.iter().map(|size| Bytes(size.0.div_ceil(ROUND).max(1) * ROUND)).collect();
        let measured = sizes.iter().copied().max().unwrap_or_default();
        let vram = wish.unwrap_or(measured).max(measured);
        let cards: Vec<GpuId> = on.iter().map(|(card, _)| *card).collect();
        if cards.iter().any(|card| self.state.is_aside(*card)) {
            return Err(cannot("its GPU steps aside (`sublet aside --end`)"));
        }
        // A lease is as large on each of its cards: where the process has less, there must be room for it.
        for (card, size) in cards.iter().zip(&sizes) {
            let room = *size + self.state.promisable(*card, self.now);
            if vram > room && !self.state.planted(Mutant::AdoptBlind) {
                let gpu = Some(self.state.rows().gpus[*card].facts.index);
                return Err(Refusal::NoRoom { largest: room, gpu });
            }
        }
        if stranger.audit.process.pid <= 1 {
            return Err(cannot("it is a process of the system"));
        }
        let plain = LeaseRequest::plain(vram, Term::Renewed(self.state.policy().ttl));
        let ask = LeaseRequest { gpus: cards.len() as u16, tier, is_measured: wish.is_none(), ..plain };
        Ok((Fit { gpus: cards, vram, before: None }, ask))
    }

    /// The lease is the process's owner's, whoever asks for it.
    fn tenant_for(&mut self, by: &Caller, audit: &Audit) -> TenantId {
        let name = audit.tenant_name();
        if by.tenant == name && !by.groups.is_empty() {
            return self.enrol(by);
        }
        self.state.tenant(&name).unwrap_or_else(|| {
            let tenant = TenantId(self.state.rows().tenants.len() as u32);
            self.emit(TenantAction::Add { tenant, name });
            tenant
        })
    }

    // ---- operators -----------------------------------------------------------------

    pub(super) fn mode_asked(&mut self, by: &Caller, uuid: &str, mode: Mode) -> EventAnswer {
        if !by.operator {
            return EventAnswer::Refused(Refusal::NotOperator);
        }
        let Some(card) = self.state.gpu(uuid) else { return EventAnswer::Refused(Refusal::NoSuchCard) };
        // Who is not who the driver says must get neither a signal nor a lease.
        if matches!(mode, Mode::Enforce | Mode::Adopt) {
            match &self.state.unleased_readings().self_test {
                Some(Ok(())) => {}
                Some(Err(why)) => return EventAnswer::Refused(Refusal::CannotEnforce(why.clone())),
                None => return EventAnswer::Refused(Refusal::CannotEnforce("it was not tried yet".to_owned())),
            }
        }
        if self.state.rows().gpus[card].mode != mode {
            self.emit(GpuAction::SetMode { gpu: card, mode });
            self.reconcile();
        }
        EventAnswer::Done
    }

    pub(super) fn rule_asked(&mut self, by: &Caller, who: RuleSubject, treat: RuleAction) -> EventAnswer {
        if !by.operator {
            return EventAnswer::Refused(Refusal::NotOperator);
        }
        if !who.is_valid() {
            return EventAnswer::Refused(Refusal::BadRule);
        }
        let same = self.state.rows().rules.values().find(|rule| rule.subject == who);
        let id = match same {
            Some(rule) if rule.action == treat => return EventAnswer::Rule(Box::new(rule.clone())),
            Some(rule) => rule.id,
            None if self.state.rows().rules.len() >= RULES_MAX => return EventAnswer::Refused(Refusal::TooManyRules),
            None => RuleId(self.state.rows().meta.next_rule),
        };
        let rule = Rule { id, subject: who, action: treat };
        self.emit(UnleasedAction::SetRule { rule: rule.clone() });
        self.reconcile();
        EventAnswer::Rule(Box::new(rule))
    }

    pub(super) fn rule_dropped(&mut self, by: &Caller, rule: RuleId) -> EventAnswer {
        if !by.operator {
            return EventAnswer::Refused(Refusal::NotOperator);
        }
        let Some(was) = self.state.rows().rules.get(&rule).cloned() else {
            return EventAnswer::Refused(Refusal::NoSuchRule);
        };
        self.emit(UnleasedAction::RemoveRule { rule });
        self.reconcile();
        EventAnswer::Rule(Box::new(was))
    }
}
