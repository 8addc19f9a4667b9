//! Clients that wait for a lease to change.

use super::Loop;
use super::input::{LeaseWatch, WatchGoal};
use super::output::{Output, ReplyId};
use crate::view;
use sublet_core::action::Action;
use sublet_core::decide::find;
use sublet_core::facts::LeaseAction;
use sublet_core::ids::LeaseId;
use sublet_core::rows::{EndedLease, Phase};
use sublet_wire::Lease;

impl Loop {
    pub(super) fn watch(&mut self, watch: LeaseWatch) {
        let found = find(self.engine.state(), &watch.by, watch.lease).ok();
        let is_reached = found.is_none_or(|lease| match (&lease.phase, watch.until) {
            (Phase::Ending(..), _) => true,
            (_, WatchGoal::Changed { .. }) => watch.until.is_changed(&self.view().lease(&watch.by, lease)),
            (Phase::Waiting { .. }, _) | (_, WatchGoal::Ended) => false,
            (_, WatchGoal::Granted) => true,
        });
        if is_reached {
            let shown = found.map(|lease| self.view().lease(&watch.by, lease));
            return self.show(watch.to, shown);
        }
        self.watches.entry(watch.lease).or_default().push(watch);
    }

    pub(super) fn end_watch(&mut self, lease: LeaseId, to: ReplyId) {
        let Some(watches) = self.watches.get_mut(&lease) else { return };
        watches.retain(|watch| watch.to != to);
        if watches.is_empty() {
            self.watches.remove(&lease);
        }
    }

    fn show(&mut self, to: ReplyId, lease: Option<Lease>) {
        self.engine.hold(Output::Lease { to, lease: lease.map(Box::new) });
    }

    pub(super) fn wake_watchers(&mut self, actions: &[Action], past: &[EndedLease]) {
        if self.watches.is_empty() {
            return;
        }
        for action in actions {
            if let Some(lease) = action.lease() {
                self.wake_watchers_of(lease, action, past);
            }
        }
    }

    fn wake_watchers_of(&mut self, id: LeaseId, action: &Action, past: &[EndedLease]) {
        let ends = matches!(action, Action::Lease(LeaseAction::End { .. }));
        let starts = ends || matches!(action, Action::Lease(LeaseAction::Grant { .. }));
        let concerns = |watch: &LeaseWatch| starts || matches!(watch.until, WatchGoal::Changed { .. });
        let Some(watches) = self.watches.remove(&id) else { return };
        if !watches.iter().any(concerns) {
            self.watches.insert(id, watches);
            return;
        }
        let (mut reached, mut waiting) = (Vec::new(), Vec::new());
        let view = self.view();
        for watch in watches {
            // Each caller sees what it may.
            let shown = match (view.state.lease(id), past.iter().find(|ended| ended.id == id)) {
                (Some(lease), _) => Some(view.lease(&watch.by, lease)),
                (None, Some(ended)) => Some(view::past(ended, &view)),
                (None, None) => None,
            };
            let is_reached = match watch.until {
                WatchGoal::Granted => starts,
                WatchGoal::Ended => ends,
                WatchGoal::Changed { .. } => ends || shown.as_ref().is_none_or(|shown| watch.until.is_changed(shown)),
            };
            if is_reached { reached.push((watch.to, shown)) } else { waiting.push(watch) }
        }
        if !waiting.is_empty() {
            self.watches.insert(id, waiting);
        }
        for (to, shown) in reached {
            self.show(to, shown);
        }
    }
}
