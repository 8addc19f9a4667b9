//! One action after the other: whether it may happen now, and then the books have it.
//!
//! Actions about unleased processes are in [`super::enforce`].

use super::books::{CheckerBooks, HeldBook, LeaseBook, LeaseStage};
use super::calls::{CallWord, EventCause, ExpectedAnswer};
use super::ends::PendingEnd;
use super::park::{BackoffBook, HOOK, MoverBook, SILENT};
use super::{Verdict, must};
use sublet_core::action::Action;
use sublet_core::facts::{DaemonAction, GpuAction, LeaseAction, TenantAction};
use sublet_core::ids::LeaseId;
use sublet_core::method::Method;
use sublet_core::request::{LeaseRequest, Vram};
use sublet_core::rows::{EndReason, GpuService};
use sublet_core::units::{Bytes, Span, Time};

impl CheckerBooks {
    /// Checks an action and takes it in.
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
                self.next_epoch = self.next_epoch.max(epoch_floor.0);
                self.next_lease = self.next_lease.max(*lease_floor);
                Ok(())
            }
            DaemonAction::GrantGrace { from, until } => {
                let right = *from == now && *until == now + self.policy.grace;
                must(8, self.absent && right, || format!("{action:?} for no absence, or of a wrong length"))
            }
            DaemonAction::BeginDay { .. } => must(0, false, || format!("{action:?}: the simulation has no days")),
            DaemonAction::AcceptLoss { loss } => self.accept_loss(cause, *loss),
        }
    }

    fn act_on_gpu(&mut self, now: Time, cause: &EventCause, action: &GpuAction) -> Verdict {
        match action {
            GpuAction::SetFacts { gpu: card, facts } => {
                must(0, matches!(cause, EventCause::Listed(_)), || format!("{action:?}"))?;
                self.put_card(usize::from(card.0), facts);
                Ok(())
            }
            GpuAction::SetService { gpu: card, service } => {
                let fits = match cause {
                    _ if self.is_survived(now, cause, usize::from(card.0), service) => true,
                    _ if *service != GpuService::In && self.is_haunted_by_stranger(usize::from(card.0)) => true,
                    EventCause::Service(_) => true,
                    EventCause::Observed(seen, lost) => *lost && *seen == Some(usize::from(card.0)),
                    _ => false,
                };
                must(0, fits, || format!("{action:?} after {cause:?}"))?;
                self.serve(usize::from(card.0), service);
                Ok(())
            }
            GpuAction::SetAside { gpu: card, aside } => self.set_aside(cause, usize::from(card.0), aside),
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
                self.enrol(name);
                self.watch.enrolled.push(name.clone());
                Ok(())
            }
            TenantAction::SetGroups { .. } => must(0, false, || format!("{action:?}: the simulation has no groups")),
        }
    }

    fn act_on_lease(&mut self, now: Time, cause: &EventCause, action: &LeaseAction) -> Verdict {
        match action {
            LeaseAction::GiveNotice { lease, room_for, .. } if lease == room_for => {
                self.term_notice(now, cause, *lease, action)
            }
            LeaseAction::GiveNotice { lease, room_for, .. } => {
                self.makes_room_for(Some(*room_for));
                self.notice(now, cause, *lease, action)
            }
            LeaseAction::CancelNotice { lease } => self.spare(now, cause, *lease),
            LeaseAction::FlagOveruse { lease, at, seen_bytes: seen } => self.over(now, cause, *lease, *at, *seen),
            LeaseAction::ClearOveruse { lease } => self.within(cause, *lease),
            LeaseAction::Enlarge { lease, at, vram, debt_clock: mark } => {
                self.grow(now, cause, *lease, *at, (*vram, *mark))
            }
            LeaseAction::Signal { lease, .. } => self.signal(now, cause, *lease, action),
            LeaseAction::Park { lease, room_for, .. } => {
                self.makes_room_for(*room_for);
                self.forget_excess(*lease);
                self.park(now, cause, *lease, action)
            }
            LeaseAction::Unpark { lease, at, why } => self.unpark(now, cause, *lease, *at, why),
            LeaseAction::FinishPark { lease, at, debt_clock: mark } => self.parked(now, *lease, *at, *mark),
            LeaseAction::QueueParked { lease, .. } => self.want(now, cause, *lease, action),
            LeaseAction::Resume { lease, at, .. } => {
                must(14, *at == now, || format!("{lease} has its cards again at {at}, and it is {now}"))?;
                self.resume(now, *lease, action)
            }
            LeaseAction::ParkAgain { lease, at } => self.retreat(now, cause, *lease, *at),
            LeaseAction::RemoveContexts { lease, at, processes, booked } => {
                self.deepen(now, cause, *lease, *at, processes, *booked)
            }
            LeaseAction::KeepContexts { lease, at, .. } => self.shallow(now, cause, *lease, *at),
            LeaseAction::RecordDeath { lease, at, .. } => {
                let heard = matches!(cause, EventCause::Said(of, CallWord::Die) if of == lease);
                let is_over = self.leases.get(lease).is_some_and(|book| matches!(book.at, LeaseStage::Ending(..)));
                must(15, heard && is_over && *at == now, || format!("{action:?} after {cause:?}"))
            }
            LeaseAction::FinishResume { lease, at } => self.resumed(now, cause, *lease, *at),
            LeaseAction::Queue { lease, tenant, request: ask, at, give_up, root, token } => {
                let adopts = self.is_adoption(now, cause, *lease, ask, *root);
                let asked = matches!(cause, EventCause::Asked { .. }) || adopts;
                let fits = asked && *at == now && *give_up >= now && token.is_none();
                let is_stranger = root.is_some_and(|root| self.watch.of(root).is_some());
                must(20, asked || !is_stranger, || format!("{action:?}, and it is not to be adopted"))?;
                must(0, fits && lease.0 >= self.next_lease, || format!("{action:?}"))?;
                self.next_lease = lease.0 + 1;
                let (tenant, bound, at) = (tenant.0 as usize, root.is_some(), LeaseStage::Waiting(*give_up));
                let (id, asked, wish, rests) = (*lease, now, ask.clone(), BackoffBook::default());
                let (worked, worked_at, counted, doom) = (false, Time::ZERO, false, None);
                let book = LeaseBook {
                    id,
                    tenant,
                    ask: wish,
                    asked,
                    bound,
                    worked,
                    worked_at,
                    rests,
                    hints: (Time::ZERO, 0),
                    roots: Vec::new(),
                    counted,
                    doom,
                    at,
                };
                self.insert(*lease, book);
                if let Some(root) = root {
                    self.add_member(*lease, *root);
                }
                must(9, adopts || self.satisfiable(tenant, ask), || {
                    format!("{lease} waits for what can never be: {ask:?}")
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
                    cards,
                    vram: *vram,
                    epoch: *epoch,
                    granted: now,
                    renewed: now,
                    until: *until,
                    idle: false,
                    paid: Span::ZERO,
                    before: *before,
                    began: now,
                    stopped: None,
                    spent: (0, 0),
                    booked: Bytes::ZERO,
                    moved: false,
                    notice: None,
                    over: None,
                    sized: now,
                    less: 0,
                };
                self.grant(now, cause, *lease, held, (*mark, *turn))
            }
            LeaseAction::Renew { lease, at, until, idle, debt_clock: mark, not_beyond: before } => {
                self.check_renewal(now, cause, *lease, *at, *until, *idle)?;
                let due = self.leases.get(lease).and_then(|book| {
                    let held = book.held()?;
                    Some(self.charged(now, book.tenant, held.vram, held.cards.len(), until.since(held.until)))
                });
                let paid = self.charge(now, *lease, *mark, due.unwrap_or_default())?;
                self.set_until(*lease, now, *until, *idle, paid, *before);
                Ok(())
            }
            LeaseAction::Bind { lease, process } => {
                let fits = matches!(cause, EventCause::Call(CallWord::Bind, of, ExpectedAnswer::Yes(_)) if of == lease);
                must(7, fits, || format!("{action:?} after {cause:?}"))?;
                self.add_member(*lease, *process);
                Ok(())
            }
            LeaseAction::End { lease, reason, at, debt_clock: mark, first_since: turn, .. } => {
                must(14, *at == now, || format!("{lease} ends at {at}, and it is {now}"))?;
                self.check_end(now, cause, *lease, *reason)?;
                self.give_back(now, *lease, *mark)?;
                self.take_turn(now, *lease, *turn)?;
                self.end(now, *lease, *reason);
                Ok(())
            }
            LeaseAction::Retire { lease, .. } => self.retire(*lease, matches!(cause, EventCause::Started(true, _))),
        }
    }

    /// These cards are listed, and no others.
    pub fn set_listed(&mut self, uuids: &[String]) {
        for card in &mut self.cards {
            card.listed = uuids.contains(&card.facts.uuid);
        }
    }

    fn grant(
        &mut self,
        now: Time,
        cause: &EventCause,
        lease: LeaseId,
        mut held: HeldBook,
        (mark, turn): (Option<Time>, Option<Time>),
    ) -> Verdict {
        must(11, !self.is_stopped(), || format!("{lease} is granted while nothing may be granted"))?;
        let Some(book) = self.leases.get(&lease).filter(|book| matches!(book.at, LeaseStage::Waiting(_))) else {
            return must(1, false, || format!("{lease} is granted and did not wait"));
        };
        must(7, held.epoch.0 >= self.next_epoch, || {
            format!("{lease} is granted with epoch {}, and {} was next", held.epoch, self.next_epoch)
        })?;
        let term = now + book.ask.term.span();
        must(8, held.until == term, || format!("{lease} is granted until {}, not {term}", held.until))?;
        let taken;
        let book = match cause {
            // It takes just that, and what it waited for counts no more.
            EventCause::Accepted(of, vram, gpus, None)
                if *of == lease && held.vram == *vram && held.cards.len() == usize::from(*gpus) =>
            {
                let less = *gpus <= book.ask.gpus && !matches!(book.ask.vram, Vram::Bytes(asked) if *vram > asked);
                must(1, less, || format!("{lease} gets more than it asked for: {vram} of {gpus} cards"))?;
                let ask = LeaseRequest { vram: Vram::Bytes(*vram), gpus: *gpus, at_least: None, ..book.ask.clone() };
                taken = LeaseBook { ask, ..book.clone() };
                &taken
            }
            _ => book,
        };
        if self.watch.adopting.is_some_and(|(of, _)| of == lease) {
            self.check_adoption(now, lease, book, &held)?;
        } else {
            self.check_room(now, lease, book, &held.cards, held.vram)?;
            self.check_order(now, lease, &held, book)?;
        }
        let due = self.charged(now, book.tenant, held.vram, held.cards.len(), held.until.since(now));
        held.paid = self.charge(now, lease, mark, due)?;
        self.take_turn(now, lease, turn)?;
        self.next_epoch = held.epoch.0 + 1;
        if let Some(book) = self.remove(lease) {
            if book.ask.has_hook {
                let voice = MoverBook { word: now, ..SILENT };
                self.voices.entry((lease, Method::Hook)).or_default().insert(HOOK, voice);
            }
            self.insert(lease, LeaseBook { at: LeaseStage::Held(held), ..book });
        }
        Ok(())
    }

    fn end(&mut self, now: Time, lease: LeaseId, reason: EndReason) {
        let Some(mut book) = self.remove(lease) else { return };
        if matches!(reason, EndReason::Preempted | EndReason::OverUse) {
            book.doom = Some(PendingEnd { signal: None, from: now, sent: false });
        }
        if let LeaseStage::Away(_, trip) = &mut book.at {
            book.ask = trip.first.take().unwrap_or(book.ask);
        }
        match book.at {
            LeaseStage::Waiting(_) => self.forget(lease),
            LeaseStage::Held(held) | LeaseStage::Away(held, _) => {
                let held = HeldBook { notice: None, over: None, ..held };
                let unseen = held.cards.iter().fold(0, |mask, card| mask | 1 << card);
                self.insert(lease, LeaseBook { at: LeaseStage::Ending(held, now, unseen), ..book });
            }
            LeaseStage::Ending(..) => self.insert(lease, book),
        }
    }

    fn retire(&mut self, lease: LeaseId, rebooted: bool) -> Verdict {
        match self.leases.get(&lease).map(|book| &book.at) {
            // No byte outlives a boot.
            Some(LeaseStage::Ending(_, _, unseen)) if *unseen == 0 || rebooted => {
                self.remove(lease);
                self.forget(lease);
                Ok(())
            }
            Some(LeaseStage::Ending(_, ended, unseen)) => {
                must(4, false, || format!("{lease}, over since {ended}, is retired; not seen since: cards {unseen:b}"))
            }
            other => must(4, false, || format!("{lease} is retired: {other:?}")),
        }
    }

    fn check_end(&self, now: Time, cause: &EventCause, lease: LeaseId, reason: EndReason) -> Verdict {
        let Some(book) = self.leases.get(&lease) else {
            return must(14, false, || format!("{lease} ends and is not there"));
        };
        must(14, !matches!(book.at, LeaseStage::Ending(..)), || format!("{lease} ends twice"))?;
        let started = matches!(cause, EventCause::Started(..));
        must(17, !started || reason == EndReason::HostRebooted, || format!("a start ends {lease}: {reason:?}"))?;
        let is_release =
            matches!(cause, EventCause::Call(CallWord::Release, of, ExpectedAnswer::Yes(_)) if *of == lease);
        let is_exit = matches!(cause, EventCause::Gone(of) if *of == lease);
        let is_last = self.voices(lease, Method::Shim).is_empty();
        let died = is_last && matches!(&book.at, LeaseStage::Away(_, trip) if trip.died.is_some());
        let fits = match reason {
            EndReason::Released => is_release && !died,
            EndReason::HolderExited => is_exit && !died,
            EndReason::DiedParking => (is_release || is_exit) && died,
            EndReason::Revoked => {
                matches!(cause, EventCause::Call(CallWord::Revoke, of, ExpectedAnswer::Yes(_)) if *of == lease)
            }
            EndReason::HostRebooted => {
                matches!(cause, EventCause::Started(true, _))
                    && matches!(book.at, LeaseStage::Held(_) | LeaseStage::Away(..))
            }
            EndReason::DeviceLost => match cause {
                EventCause::Observed(Some(card), true) => book.held().is_some_and(|held| held.cards.contains(card)),
                _ => false,
            },
            EndReason::RestoreFailed => matches!(cause, EventCause::Said(of, CallWord::Lose) if *of == lease),
            EndReason::NotMoved => self.watch.unmoving.contains(&lease),
            EndReason::Budget => false,
            EndReason::Preempted => return self.check_preemption(now, cause, lease, book),
            EndReason::OverUse => return self.check_over_end(now, cause, lease, book),
            EndReason::ParkExpired => return self.check_park_over(now, cause, lease, book),
            EndReason::Expired | EndReason::HoldCap | EndReason::TermOver | EndReason::WaitOver => {
                return self.check_expiry(now, cause, lease, book, reason);
            }
        };
        must(17, fits, || format!("{lease} ends ({reason:?}) after {cause:?}"))
    }
}
