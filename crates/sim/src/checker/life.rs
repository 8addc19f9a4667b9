//! Checks one action after the other: whether it may happen now; then the books take it.
//!
//! Actions about unleased processes are in [`super::enforce`].

use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage};
use super::calls::{EventCause, ExpectedAnswer, LeaseCallKind};
use super::ends::PendingEnd;
use super::park::{BackoffBook, HOOK, MoverBook, UNHEARD};
use super::{Verdict, must};
use sublet_core::action::Action;
use sublet_core::facts::{DaemonAction, GpuAction, LeaseAction, TenantAction};
use sublet_core::ids::LeaseId;
use sublet_core::method::Method;
use sublet_core::request::{LeaseRequest, Vram};
use sublet_core::rows::{EndReason, GpuService};
use sublet_core::units::{Bytes, Span, Time};

impl CheckerBooks {
    /// Checks an action and takes it.
    pub fn act(&mut self, now: Time, cause: &EventCause, action: &Action) -> Verdict {
        if let EventCause::Listed(uuids) = cause
            && !matches!(
                action,
                Action::Gpu(GpuAction::SetFacts { .. }) | Action::Daemon(DaemonAction::GrantGrace { .. })
            )
        {
            self.set_listed(uuids);
        }
        match action {
            Action::Daemon(action) => self.act_on_daemon(now, cause, action),
            Action::Gpu(action) => self.act_on_gpu(now, cause, action),
            Action::Tenant(action) => self.act_on_tenant(now, cause, action),
            Action::Lease(action) => self.act_on_lease(now, cause, action),
            Action::Token(action) => must(0, false, || format!("{action:?} in a world without tokens")),
            Action::Unleased(action) => self.act_on_unleased(now, cause, action),
        }
    }

    fn act_on_daemon(&mut self, now: Time, cause: &EventCause, action: &DaemonAction) -> Verdict {
        match action {
            DaemonAction::Start { boot, fence_floor: epoch_floor, lease_floor, .. } => {
                must(17, matches!(cause, EventCause::Started(..)) && *boot == self.boot, || format!("{action:?}"))?;
                self.next_fence = self.next_fence.max(epoch_floor.0);
                self.next_lease = self.next_lease.max(*lease_floor);
                Ok(())
            }
            DaemonAction::GrantGrace { from, until } => {
                let right = *from == now && *until == now + self.policy.grace;
                must(8, self.was_absent && right, || format!("{action:?} without an absence, or of a wrong length"))
            }
            DaemonAction::BeginDay { .. } => must(0, false, || format!("{action:?}: the simulation has no days")),
            DaemonAction::AcceptLoss { loss } => self.accept_loss(cause, *loss),
        }
    }

    fn act_on_gpu(&mut self, now: Time, cause: &EventCause, action: &GpuAction) -> Verdict {
        match action {
            GpuAction::SetFacts { gpu: card, facts } => {
                must(0, matches!(cause, EventCause::Listed(_)), || format!("{action:?}"))?;
                self.set_gpu_facts(usize::from(card.0), facts);
                Ok(())
            }
            GpuAction::SetService { gpu: card, service } => {
                let fits = match cause {
                    _ if self.is_out_for_survivor(now, cause, usize::from(card.0), service) => true,
                    _ if *service != GpuService::In && self.has_survivor(usize::from(card.0)) => true,
                    EventCause::Service(_) => true,
                    EventCause::Observed(seen, lost) => *lost && *seen == Some(usize::from(card.0)),
                    _ => false,
                };
                must(0, fits, || format!("{action:?} after {cause:?}"))?;
                self.set_service(usize::from(card.0), service);
                Ok(())
            }
            GpuAction::SetAside { gpu: card, aside } => self.take_aside(cause, usize::from(card.0), aside),
            GpuAction::EndAside { .. } => self.end_aside(now, cause, action),
            GpuAction::SetMode { gpu, mode } => self.set_mode(cause, usize::from(gpu.0), *mode),
        }
    }

    fn act_on_tenant(&mut self, now: Time, cause: &EventCause, action: &TenantAction) -> Verdict {
        match action {
            TenantAction::Add { tenant, name } => {
                let asked = matches!(cause, EventCause::Asked { tenant: by, .. } if by == name);
                let fits = asked || self.is_enrolled_by_adoption(now, cause, name);
                must(0, fits && tenant.0 as usize == self.tenants.len(), || format!("{action:?}"))?;
                self.add_tenant(name);
                self.unleased.new_users.push(name.clone());
                Ok(())
            }
            TenantAction::SetGroups { .. } => must(0, false, || format!("{action:?}: the simulation has no groups")),
        }
    }

    fn act_on_lease(&mut self, now: Time, cause: &EventCause, action: &LeaseAction) -> Verdict {
        match action {
            LeaseAction::GiveNotice { lease, room_for, .. } if lease == room_for => {
                self.take_term_notice(now, cause, *lease, action)
            }
            LeaseAction::GiveNotice { lease, room_for, .. } => {
                self.note_first_waiter(Some(*room_for));
                self.take_notice(now, cause, *lease, action)
            }
            LeaseAction::CancelNotice { lease } => self.take_spare(now, cause, *lease),
            LeaseAction::FlagOveruse { lease, at, seen_bytes: seen } => {
                self.take_overuse(now, cause, *lease, *at, *seen)
            }
            LeaseAction::ClearOveruse { lease } => self.take_within_lease(cause, *lease),
            LeaseAction::Enlarge { lease, at, vram, debt_clock: mark } => {
                self.take_growth(now, cause, *lease, *at, (*vram, *mark))
            }
            LeaseAction::Signal { lease, .. } => self.take_signal(now, cause, *lease, action),
            LeaseAction::Park { lease, room_for, .. } => {
                self.note_first_waiter(*room_for);
                self.forget_overuse(*lease);
                self.park(now, cause, *lease, action)
            }
            LeaseAction::Unpark { lease, at, why } => self.unpark(now, cause, *lease, *at, why),
            LeaseAction::FinishPark { lease, at, debt_clock: mark } => self.parked(now, *lease, *at, *mark),
            LeaseAction::QueueParked { lease, .. } => self.queue_parked(now, cause, *lease, action),
            LeaseAction::Resume { lease, at, .. } => {
                must(14, *at == now, || format!("{lease} is resumed at {at}, and it is {now}"))?;
                self.resume(now, *lease, action)
            }
            LeaseAction::ParkAgain { lease, at } => self.retreat(now, cause, *lease, *at),
            LeaseAction::RemoveContexts { lease, at, processes, booked } => {
                self.move_contexts(now, cause, *lease, *at, processes, *booked)
            }
            LeaseAction::KeepContexts { lease, at, .. } => self.keep_contexts(now, cause, *lease, *at),
            LeaseAction::RecordDeath { lease, at, .. } => {
                let heard = matches!(cause, EventCause::Reported(of, LeaseCallKind::DiedParking) if of == lease);
                let is_over = self.leases.get(lease).is_some_and(|book| matches!(book.stage, LeaseStage::Ending(..)));
                must(15, heard && is_over && *at == now, || format!("{action:?} after {cause:?}"))
            }
            LeaseAction::FinishResume { lease, at } => self.resumed(now, cause, *lease, *at),
            LeaseAction::Queue { lease, tenant, request: ask, at, give_up, root, token } => {
                let adopts = self.is_adoption(now, cause, *lease, ask, *root);
                let asked = matches!(cause, EventCause::Asked { .. }) || adopts;
                let fits = asked && *at == now && *give_up >= now && token.is_none();
                let is_stranger = root.is_some_and(|root| self.unleased.id_of(root).is_some());
                must(20, asked || !is_stranger, || format!("{action:?}, and it is not to be adopted"))?;
                must(0, fits && lease.0 >= self.next_lease, || format!("{action:?}"))?;
                self.next_lease = lease.0 + 1;
                let (tenant, bound, at) = (tenant.0 as usize, root.is_some(), LeaseStage::Waiting(*give_up));
                let (id, asked, vram_wanted, rests) = (*lease, now, ask.clone(), BackoffBook::default());
                let (worked, worked_at, counted, pending_end) = (false, Time::ZERO, false, None);
                let book = LeaseBook {
                    id,
                    tenant,
                    request: vram_wanted,
                    requested_at: asked,
                    bound,
                    worked,
                    worked_at,
                    backoff: rests,
                    hints: (Time::ZERO, 0),
                    roots: Vec::new(),
                    members_known: counted,
                    pending_end,
                    stage: at,
                };
                self.insert(*lease, book);
                if let Some(root) = root {
                    self.add_member(*lease, *root);
                }
                must(9, adopts || self.satisfiable(tenant, ask), || {
                    format!("{lease} waits for what can never be granted: {ask:?}")
                })
            }
            LeaseAction::Grant {
                lease,
                gpus: cards,
                vram,
                fence: epoch,
                at,
                until,
                debt_clock: mark,
                not_beyond: before,
                first_since: turn,
                expected: _,
            } => {
                must(0, *at == now, || format!("{lease} is granted at {at}, and it is {now}"))?;
                let cards: Vec<usize> = cards.iter().map(|card| usize::from(card.0)).collect();
                let held = HeldBook {
                    gpus: cards,
                    vram: *vram,
                    fence: *epoch,
                    granted: now,
                    renewed: now,
                    until: *until,
                    idle: false,
                    prepaid: Span::ZERO,
                    not_beyond: *before,
                    slice_began: now,
                    stopped: None,
                    spent: (0, 0),
                    booked: Bytes::ZERO,
                    was_moved: false,
                    notice: None,
                    overuse: None,
                    resized_at: now,
                    uncharged: 0,
                };
                self.take_grant(now, cause, *lease, held, (*mark, *turn))
            }
            LeaseAction::Renew { lease, at, until, idle, debt_clock: mark, not_beyond: before } => {
                self.check_renewal(now, cause, *lease, *at, *until, *idle)?;
                let due = self.leases.get(lease).and_then(|book| {
                    let held = book.held()?;
                    Some(self.debt_clock_after(now, book.tenant, held.vram, held.gpus.len(), until.since(held.until)))
                });
                let paid = self.check_charge(now, *lease, *mark, due.unwrap_or_default())?;
                self.set_until(*lease, now, *until, *idle, paid, *before);
                Ok(())
            }
            LeaseAction::Bind { lease, process } => {
                let fits = matches!(cause, EventCause::LeaseCall(LeaseCallKind::Bind, of, ExpectedAnswer::Yes(_)) if of == lease);
                must(7, fits, || format!("{action:?} after {cause:?}"))?;
                self.add_member(*lease, *process);
                Ok(())
            }
            LeaseAction::End { lease, reason, at, debt_clock: mark, first_since: turn, .. } => {
                must(14, *at == now, || format!("{lease} ends at {at}, and it is {now}"))?;
                self.check_end(now, cause, *lease, *reason)?;
                self.check_refund(now, *lease, *mark)?;
                self.check_first_since(now, *lease, *turn)?;
                self.take_end(now, *lease, *reason);
                Ok(())
            }
            LeaseAction::Retire { lease, .. } => {
                self.take_retire(*lease, matches!(cause, EventCause::Started(true, _)))
            }
        }
    }

    /// These GPUs are listed, and no others.
    pub fn set_listed(&mut self, uuids: &[String]) {
        for gpu in &mut self.gpus {
            gpu.listed = uuids.contains(&gpu.facts.uuid);
        }
    }

    fn take_grant(
        &mut self,
        now: Time,
        cause: &EventCause,
        lease: LeaseId,
        mut held: HeldBook,
        (debt_clock, turn): (Option<Time>, Option<Time>),
    ) -> Verdict {
        must(11, !self.is_stopped(), || format!("{lease} is granted while nothing may be granted"))?;
        let Some(book) = self.leases.get(&lease).filter(|book| matches!(book.stage, LeaseStage::Waiting(_))) else {
            return must(1, false, || format!("{lease} is granted and did not wait"));
        };
        must(7, held.fence.0 >= self.next_fence, || {
            format!("{lease} is granted with fence {}, and {} was next", held.fence, self.next_fence)
        })?;
        let term = now + book.request.term.span();
        must(8, held.until == term, || format!("{lease} is granted until {}, not {term}", held.until))?;
        let taken;
        let book = match cause {
            // The lease takes just the accepted size, and its request counts no more.
            EventCause::Accepted(of, vram, gpus, None)
                if *of == lease && held.vram == *vram && held.gpus.len() == usize::from(*gpus) =>
            {
                let less =
                    *gpus <= book.request.gpus && !matches!(book.request.vram, Vram::Bytes(asked) if *vram > asked);
                must(1, less, || format!("{lease} gets more than it requested: {vram} of {gpus} GPUs"))?;
                let request =
                    LeaseRequest { vram: Vram::Bytes(*vram), gpus: *gpus, at_least: None, ..book.request.clone() };
                taken = LeaseBook { request, ..book.clone() };
                &taken
            }
            _ => book,
        };
        if self.unleased.adopting.is_some_and(|(of, _)| of == lease) {
            self.check_adoption(now, lease, book, &held)?;
        } else {
            self.check_room(now, lease, book, &held.gpus, held.vram)?;
            self.check_order(now, lease, &held, book)?;
        }
        let due = self.debt_clock_after(now, book.tenant, held.vram, held.gpus.len(), held.until.since(now));
        held.prepaid = self.check_charge(now, lease, debt_clock, due)?;
        self.check_first_since(now, lease, turn)?;
        self.next_fence = held.fence.0 + 1;
        if let Some(book) = self.remove(lease) {
            if book.request.has_hook {
                let mover = MoverBook { reported_at: now, ..UNHEARD };
                self.movers.entry((lease, Method::Hook)).or_default().insert(HOOK, mover);
            }
            self.insert(lease, LeaseBook { stage: LeaseStage::Held(held), ..book });
        }
        Ok(())
    }

    fn take_end(&mut self, now: Time, lease: LeaseId, reason: EndReason) {
        let Some(mut book) = self.remove(lease) else { return };
        if matches!(reason, EndReason::Preempted | EndReason::OverUse) {
            book.pending_end = Some(PendingEnd { signal: None, next_from: now, is_ours: false });
        }
        if let LeaseStage::Park(_, park) = &mut book.stage {
            book.request = park.first_request.take().unwrap_or(book.request);
        }
        match book.stage {
            LeaseStage::Waiting(_) => self.retire_books(lease),
            LeaseStage::Held(held) | LeaseStage::Park(held, _) => {
                let held = HeldBook { notice: None, overuse: None, ..held };
                let unseen = held.gpus.iter().fold(0, |mask, gpu| mask | 1 << gpu);
                self.insert(lease, LeaseBook { stage: LeaseStage::Ending(held, now, unseen), ..book });
            }
            LeaseStage::Ending(..) => self.insert(lease, book),
        }
    }

    fn take_retire(&mut self, lease: LeaseId, rebooted: bool) -> Verdict {
        match self.leases.get(&lease).map(|book| &book.stage) {
            // No byte survives a boot.
            Some(LeaseStage::Ending(_, _, unseen)) if *unseen == 0 || rebooted => {
                self.remove(lease);
                self.retire_books(lease);
                Ok(())
            }
            Some(LeaseStage::Ending(_, ended, unseen)) => {
                must(4, false, || format!("{lease}, over since {ended}, is retired; not read since: GPUs {unseen:b}"))
            }
            other => must(4, false, || format!("{lease} is retired: {other:?}")),
        }
    }

    fn check_end(&self, now: Time, cause: &EventCause, lease: LeaseId, reason: EndReason) -> Verdict {
        let Some(book) = self.leases.get(&lease) else {
            return must(14, false, || format!("{lease} ends and is not there"));
        };
        must(14, !matches!(book.stage, LeaseStage::Ending(..)), || format!("{lease} ends twice"))?;
        let started = matches!(cause, EventCause::Started(..));
        must(17, !started || reason == EndReason::HostRebooted, || format!("a start ends {lease}: {reason:?}"))?;
        let is_release =
            matches!(cause, EventCause::LeaseCall(LeaseCallKind::Release, of, ExpectedAnswer::Yes(_)) if *of == lease);
        let is_exit = matches!(cause, EventCause::HolderExited(of) if *of == lease);
        let is_last = self.movers_of(lease, Method::Shim).is_empty();
        let died = is_last && matches!(&book.stage, LeaseStage::Park(_, park) if park.died.is_some());
        let fits = match reason {
            EndReason::Released => is_release && !died,
            EndReason::HolderExited => is_exit && !died,
            EndReason::DiedParking => (is_release || is_exit) && died,
            EndReason::Revoked => {
                matches!(cause, EventCause::LeaseCall(LeaseCallKind::RevokeByOperator, of, ExpectedAnswer::Yes(_)) if *of == lease)
            }
            EndReason::HostRebooted => {
                matches!(cause, EventCause::Started(true, _))
                    && matches!(book.stage, LeaseStage::Held(_) | LeaseStage::Park(..))
            }
            EndReason::DeviceLost => match cause {
                EventCause::Observed(Some(gpu), true) => book.held().is_some_and(|held| held.gpus.contains(gpu)),
                _ => false,
            },
            EndReason::RestoreFailed => {
                matches!(cause, EventCause::Reported(of, LeaseCallKind::StateLost) if *of == lease)
            }
            EndReason::NotMoved => self.unleased.leases_to_end.contains(&lease),
            EndReason::Budget => false,
            EndReason::Preempted => return self.check_preemption(now, cause, lease, book),
            EndReason::OverUse => return self.check_overuse_end(now, cause, lease, book),
            EndReason::ParkExpired => return self.check_park_expired(now, cause, lease, book),
            EndReason::Expired | EndReason::HoldCap | EndReason::TermOver | EndReason::WaitOver => {
                return self.check_expiry(now, cause, lease, book, reason);
            }
        };
        must(17, fits, || format!("{lease} ends ({reason:?}) after {cause:?}"))
    }
}
