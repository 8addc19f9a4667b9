//! What is told to the person concerned once an action is durable: see `crate::notices`.

use super::Loop;
use super::output::Output;
use crate::messages;
use crate::notices::{Audience, NoticeKind, NoticeMessage, ParkReason, ParkedLease, UserNotice, text};
use crate::signals;
use crate::user_directory::{tenant_of, uid_of};
use crate::view::{View, Visibility};
use std::sync::Arc;
use sublet_core::action::Action;
use sublet_core::event::Caller;
use sublet_core::facts::{LeaseAction, UnleasedAction};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::rows::{EndReason, Lease};
use sublet_core::state::State;
use sublet_core::units::Time;
use sublet_core::unleased::{SignalOutcome, UnleasedId, UnleasedProcess, UnleasedStep};

/// Processes of a program that a notice names.
const PROCESSES_MAX: usize = 64;
/// SIGTERM: SIGKILL follows it.
const TERM: u8 = 15;

impl Loop {
    /// What an action means to the person concerned.
    pub(super) fn send_notices(&mut self, actor: &Arc<str>, action: &Action) {
        match action {
            Action::Unleased(UnleasedAction::Warn { id, at, .. }) => self.tell_warned(*id, *at),
            Action::Unleased(UnleasedAction::Signal { id, .. }) => {
                if let Some(row) = self.engine.state().rows().unleased.get(id) {
                    self.hold_notice(NoticeMessage::Locate(*id, row.audit.process));
                }
            }
            Action::Unleased(UnleasedAction::RecordSignal { id, signal, outcome, late: false, .. }) => {
                self.tell_signalled(*id, *signal, outcome);
            }
            Action::Unleased(UnleasedAction::Close { id, .. }) => self.hold_notice(NoticeMessage::Forget(*id)),
            Action::Lease(LeaseAction::Park { lease, room_for, .. }) => self.note_park(*lease, *room_for, actor),
            Action::Lease(LeaseAction::FinishResume { lease, .. }) => self.tell_back(*lease),
            Action::Lease(LeaseAction::End { lease, reason, .. }) => self.tell_ended(*lease, *reason),
            _ => {}
        }
    }

    fn hold_notice(&mut self, message: NoticeMessage) {
        self.engine.hold(Output::Notice(message));
    }

    fn tell_warned(&mut self, id: UnleasedId, now: Time) {
        let Some(row) = self.engine.state().rows().unleased.get(&id) else { return };
        let (text, expected_s) = text::warning(self.engine.state(), row, now);
        let notice = UserNotice { text, expected_s, ..self.about_unleased(NoticeKind::Warned, row) };
        let to = Audience::Unleased(id, row.audit.process);
        self.hold_notice(NoticeMessage::Tell(Box::new(notice), to));
    }

    fn tell_signalled(&mut self, id: UnleasedId, signal: u8, outcome: &[SignalOutcome]) {
        let state = self.engine.state();
        let Some(row) = state.rows().unleased.get(&id) else { return };
        let own = row.audit.process;
        if !outcome.iter().any(|struck| struck.process == own && struck.refused.is_none()) {
            return;
        }
        let notice = self.about_unleased(NoticeKind::Signalled, row);
        let grace = state.policy().enforcement.after_sigterm.as_secs_f64();
        let (expected_s, name) = ((signal == TERM).then_some(grace), signals::name(signal));
        let subject = text::process(text::name(&row.audit), own.pid);
        let text = text::signalled(&subject, &text::gpus(&notice.gpus), &name, expected_s);
        let notice = UserNotice { text, expected_s, signal: Some(name), ..notice };
        self.hold_notice(NoticeMessage::Tell(Box::new(notice), Audience::Unleased(id, own)));
    }

    fn about_unleased(&self, kind: NoticeKind, row: &UnleasedProcess) -> UserNotice {
        let audit = &row.audit;
        UserNotice {
            kind,
            text: String::new(),
            at_unix_s: self.moment.wall_us as f64 / 1e6,
            user: self.names.of(&tenant_of(audit.uid)),
            uid: Some(audit.uid),
            lease: None,
            unleased: Some(row.id.to_string()),
            pids: vec![audit.process.pid],
            program: Some(text::name(audit).to_owned()),
            gpus: text::indices(self.engine.state(), &row.gpus),
            signal: None,
            expected_s: None,
        }
    }

    fn note_park(&mut self, lease: LeaseId, room_for: Option<LeaseId>, actor: &Arc<str>) {
        let view = self.view();
        let Some(row) = view.state.lease(lease) else { return };
        let reason = ParkReason {
            why: self.park_reason(row, room_for, actor),
            unleased_pid: unleased_pid(view.state, lease),
            about: about_lease(&view, NoticeKind::Parked, row),
        };
        self.park_reasons.insert(lease, reason);
        self.hold_notice(NoticeMessage::Leaves(lease));
    }

    /// Why a lease is parked, for its user.
    fn park_reason(&self, row: &Lease, room_for: Option<LeaseId>, actor: &Arc<str>) -> String {
        let (state, lease) = (self.engine.state(), row.id);
        let cards = row.hold().map(|hold| text::indices(state, &hold.gpus)).unwrap_or_default();
        let gpus = text::gpus(&cards);
        if let Some(other) = room_for.and_then(|other| state.lease(other)) {
            let tier = text::tier(other.request.tier);
            let is_own = other.tenant == row.tenant;
            return match (is_own, self.shows_others()) {
                (true, _) => format!("your {} ({tier}) needs {gpus}", other.id),
                (false, true) => {
                    let user = self.names.of(state.tenant_name(other.tenant));
                    format!("{user}'s {} ({tier}) needs {gpus}", other.id)
                }
                (false, false) => format!("another user's request ({tier}) needs {gpus}"),
            };
        }
        let reader = Caller::user(state.tenant_name(row.tenant));
        if let Some(aside) = self.view().with_visibility(self.visibility).gpus_aside(&reader, row) {
            return aside;
        }
        if unleased_pid(state, lease).is_some() {
            return format!("it used {gpus} without a lease");
        }
        match &**actor {
            actor if actor == &*self.own_name => format!("its time on {gpus} is over"),
            actor if actor == state.tenant_name(row.tenant) => format!("`sublet park {lease}` was called"),
            _ => "an operator parked it".to_owned(),
        }
    }

    fn shows_others(&self) -> bool {
        self.visibility == Visibility::All
    }

    fn tell_back(&mut self, lease: LeaseId) {
        let Some(ParkReason { about, .. }) = self.park_reasons.remove(&lease) else { return };
        let text = format!("{} is back on {}", subject(&about, lease), text::gpus(&about.gpus));
        self.tell_over(lease, UserNotice { kind: NoticeKind::Back, text, ..about });
    }

    /// The lease of a parked program ended. Nothing is told if the program has ended or its user gave the lease back.
    fn tell_ended(&mut self, lease: LeaseId, reason: EndReason) {
        let Some(ParkReason { about, .. }) = self.park_reasons.remove(&lease) else { return };
        if matches!(reason, EndReason::Released | EndReason::HolderExited | EndReason::HostRebooted) {
            return self.hold_notice(NoticeMessage::Gone(lease));
        }
        let text = messages::ended(&lease.to_string(), reason);
        self.tell_over(lease, UserNotice { kind: NoticeKind::Ended, text, ..about });
    }

    fn tell_over(&mut self, lease: LeaseId, notice: UserNotice) {
        let notice = UserNotice { at_unix_s: self.moment.wall_us as f64 / 1e6, ..notice };
        self.hold_notice(NoticeMessage::Over(lease, Box::new(notice)));
    }
}

/// How a lease is that left its GPUs some seconds ago; `None` if it is back or has ended.
pub fn look(view: &View<'_>, lease: LeaseId) -> Option<ParkedLease> {
    let row = view.state.lease(lease)?;
    let shown = view.lease(&Caller::user(view.state.tenant_name(row.tenant)), row);
    let parked = shown.parked.as_ref()?;
    let notice = about_lease(view, NoticeKind::Parked, row);
    let unleased_pid = view.park_reason(lease).and_then(|reason| reason.unleased_pid);
    let subject = match unleased_pid {
        Some(pid) => text::process(notice.program.as_deref().unwrap_or_default(), pid),
        None => subject(&notice, lease),
    };
    let why = if parked.why.is_empty() { String::new() } else { format!(": {}", parked.why) };
    let text = format!("{subject} is parked{why}; {}", text::remedies(&shown.id, unleased_pid));
    let expected_s = shown.waiting.as_ref().and_then(|waiting| waiting.planned_s);
    Some(ParkedLease {
        leaves: shown.state == sublet_wire::LeaseState::Parking,
        notice: UserNotice { text, expected_s, ..notice },
        to: Audience::Lease { processes: processes(view.state, row), wrapper: wrapper(row) },
    })
}

fn about_lease(view: &View<'_>, kind: NoticeKind, row: &Lease) -> UserNotice {
    let (state, tenant) = (view.state, view.state.tenant_name(row.tenant));
    let live = state.readings(row.id);
    let program = live.map(|live| live.program.clone()).filter(|program| !program.is_empty());
    UserNotice {
        kind,
        text: String::new(),
        at_unix_s: view.unix_s(view.now),
        user: view.names.of(tenant),
        uid: uid_of(tenant),
        lease: Some(row.id.to_string()),
        unleased: None,
        pids: processes(state, row).iter().map(|process| process.pid).collect(),
        program,
        gpus: row.hold().map(|hold| text::indices(state, &hold.gpus)).unwrap_or_default(),
        signal: None,
        expected_s: None,
    }
}

/// `L5 (python3, pid 4312)`.
fn subject(notice: &UserNotice, lease: LeaseId) -> String {
    match (&notice.program, notice.pids.as_slice()) {
        (Some(program), [pid, ..]) => format!("{lease} ({program}, pid {pid})"),
        (None, [pid, ..]) => format!("{lease} (pid {pid})"),
        (_, []) => lease.to_string(),
    }
}

/// The process that was unleased until it got this lease, by which it is parked.
fn unleased_pid(state: &State, lease: LeaseId) -> Option<u32> {
    let moves = |row: &&UnleasedProcess| matches!(row.step, UnleasedStep::Parking { lease: by, .. } if by == lease);
    state.rows().unleased.values().find(moves).map(|row| row.audit.process.pid)
}

/// The wrapper of a lease (`sublet run`): it asked for the lease, and its command was bound after it.
fn wrapper(row: &Lease) -> Option<ProcKey> {
    row.roots.first().copied().filter(|_| row.roots.len() > 1)
}

/// The processes of a lease but its wrapper, at most 64.
fn processes(state: &State, row: &Lease) -> Vec<ProcKey> {
    let members = state.readings(row.id).map(|live| live.members.as_slice()).unwrap_or_default();
    let wrapper = wrapper(row);
    members.iter().copied().filter(|process| Some(*process) != wrapper).take(PROCESSES_MAX).collect()
}
