//! What the host reports of GPUs: which exist, and readings of them.

use super::Decider;
use crate::model::event::EventAnswer;
use crate::model::facts::{GpuAction, GpuEvent, LeaseAction};
use crate::model::ids::{GpuId, LeaseId};
use crate::model::reading::{GpuFacts, GpuReading, Reading, Unreadable};
use crate::model::rows::{EndReason, GpuService, Lease, Phase};
use crate::model::units::Time;
use std::collections::BTreeSet;

impl Decider<'_> {
    pub(super) fn on_gpu(&mut self, event: GpuEvent) -> EventAnswer {
        match event {
            GpuEvent::Listed(gpus) => self.list_gpus(gpus),
            GpuEvent::ReadingTaken { gpu, reading } => self.take_reading(&gpu, reading),
            GpuEvent::DrainRequested { by, gpu } => return self.drain(&by, &gpu),
            GpuEvent::ClearRequested { by, gpu } => return self.clear(&by, &gpu),
            GpuEvent::AsideRequested { by, gpu, request } => return self.aside_asked(&by, &gpu, request),
            GpuEvent::AsideEndRequested { by, gpu, key } => return self.aside_end_asked(&by, &gpu, key.as_deref()),
            GpuEvent::ModeRequested { by, gpu, mode } => return self.mode_asked(&by, &gpu, mode),
        }
        EventAnswer::Done
    }

    /// These cards are there, and no others. Leases on a card that is not listed
    /// go on: a driver that forgets a card for a while has not lost it.
    pub(super) fn list_gpus(&mut self, facts: Vec<GpuFacts>) {
        let mut listed = BTreeSet::new();
        for facts in facts {
            let known = self.state.gpu(&facts.uuid);
            let card = known.unwrap_or(GpuId(self.state.rows().gpus.len() as u16));
            let mut facts = facts;
            if let Some(known) = known {
                // A context measured once stays measured.
                let old = &self.state.rows().gpus[known].facts;
                facts.context = facts.context.or(old.context);
            }
            if known.is_none_or(|known| self.state.rows().gpus[known].facts != facts) {
                self.emit(GpuAction::SetFacts { gpu: card, facts });
            }
            listed.insert(card);
        }
        self.state.set_listed(listed);
        self.serve();
    }

    pub(super) fn take_reading(&mut self, uuid: &str, observation: GpuReading) {
        let Some(card) = self.state.gpu(uuid) else { return };
        let begun = observation.begun;
        if begun < self.state.room(card).reading().begun {
            return;
        }
        let lost = observation.reading == Reading::Unreadable(Unreadable::Lost);
        let lost_before = self.state.room(card).reading().reading == Reading::Unreadable(Unreadable::Lost);
        let answered = matches!(observation.reading, Reading::Used(_));
        self.state.set_reading(card, observation);
        // Said twice in a row, or it may have been a hiccup.
        if lost && lost_before {
            self.lose_gpu(card);
        }
        if answered {
            self.retire_ended(card, begun);
            self.check_moves(card, begun);
            self.check_overuse(card);
            self.remove_old_contexts(card);
            self.reconcile();
            self.serve();
        }
    }

    /// Ended leases whose cards were all seen after their end count no more.
    pub(super) fn retire_ended(&mut self, card: GpuId, begun: Time) {
        let over = |lease: &LeaseId| match self.state.lease(*lease).map(|row| &row.phase) {
            // Who is ended for others has its processes until they are gone.
            Some(Phase::Ending(_, finish)) if finish.reason.ends_processes() && self.has_signal_targets(*lease) => {
                false
            }
            Some(Phase::Ending(_, finish)) => finish.at < begun,
            _ => false,
        };
        let over: Vec<LeaseId> = self.state.ending_leases_on(card).filter(over).collect();
        for lease in over {
            if self.state.note_read_after_end(lease, card) {
                let ran = self.ended_for_others(lease).then(|| (self.program_of(lease), self.now));
                self.emit(LeaseAction::Retire { lease, ran });
            }
        }
    }

    /// Whether a lease was ended for others, by signals that its processes got.
    fn ended_for_others(&self, lease: LeaseId) -> bool {
        let phase = self.state.lease(lease).map(|row| &row.phase);
        matches!(phase, Some(Phase::Ending(_, finish)) if finish.reason.ends_processes() && finish.signal.is_some())
    }

    fn program_of(&self, lease: LeaseId) -> String {
        self.state.readings(lease).map(|live| live.program.clone()).unwrap_or_default()
    }

    fn lose_gpu(&mut self, card: GpuId) {
        self.set_gpu_service(card, GpuService::Out { why: "the driver lost it".to_owned() });
        let held = |lease: &LeaseId| self.state.lease(*lease).is_some_and(Lease::is_held);
        let held: Vec<LeaseId> = self.state.room(card).leases().keys().copied().filter(held).collect();
        for lease in held {
            self.end(lease, EndReason::DeviceLost);
        }
    }
}
