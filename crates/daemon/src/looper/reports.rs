//! What the host reports becomes events.

use super::Loop;
use super::output::{HostCommand, Output};
use std::collections::BTreeSet;
use sublet_core::facts::{DaemonEvent, GpuEvent, Hint, LeaseEvent, UnleasedEvent};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::movers::MoverReport;
use sublet_core::reading::{GpuReading, Reading, Unreadable};
use sublet_core::units::Span;
use sublet_host::{ActivityCounts, HostReport};

/// Leases of which it is known what their programs did.
const COUNTED_MAX: usize = 4096;

impl Loop {
    pub(super) fn report(&mut self, report: HostReport) {
        match report {
            HostReport::Gpus(mut gpus) => {
                self.immediate.push(Output::GpuTrouble(None));
                self.unmanaged.apply(&mut gpus);
                self.take(GpuEvent::Listed(gpus));
                self.send_self_test();
            }
            HostReport::ListFailed(failure) => {
                self.immediate.push(Output::GpuTrouble(Some(failure.to_string())));
                self.set_all_unreadable(&failure.what);
            }
            HostReport::Observed { uuid, observation } => {
                self.take(GpuEvent::ReadingTaken { gpu: uuid.clone(), reading: observation });
                for lease in self.engine.state().moving().collect::<Vec<_>>() {
                    self.send_changed_target(lease);
                }
                self.read_gpus_for_moves();
                self.send_inspections();
                self.send_audits(&uuid);
            }
            HostReport::Audited { audit, tree } => self.take(UnleasedEvent::Audited { audit, tree }),
            HostReport::ProcessEnded { process } => self.take(UnleasedEvent::Exited { process }),
            HostReport::SignalsSent { stranger, signal, of, outcome } => {
                self.signals_under_way.retain(|sent| (sent.stranger, sent.signal, sent.of) != (stranger, signal, of));
                self.take(UnleasedEvent::SignalSent { id: stranger, signal, decided_at: of, outcome });
            }
            HostReport::SelfTested { can } => self.take(UnleasedEvent::SelfTested { result: can }),
            HostReport::ShimReported { lease, process, said, program } => {
                self.mover_reported(lease, process, Method::Shim, said, program);
            }
            HostReport::DriverReported { lease, process, said, program } => {
                self.mover_reported(lease, process, Method::Driver, said, program);
            }
            HostReport::HostMemory { available } => {
                self.take(DaemonEvent::HostMemoryRead { available });
                self.send_preparations();
            }
            HostReport::Members { lease, processes, restricted } => {
                self.take(LeaseEvent::MembersRead { lease, processes, restricted });
                self.send_changed_target(lease);
            }
            HostReport::Counted { lease, counts } => self.note_counts(lease, counts),
            HostReport::Worked { lease } => self.take(LeaseEvent::UseSeen { lease }),
            HostReport::TerminalInput { lease } => self.take(LeaseEvent::Hinted { lease, hint: Hint::Terminal }),
            HostReport::BlockedCall { lease } => self.take(LeaseEvent::Hinted { lease, hint: Hint::BlockedCall }),
            HostReport::Idle { lease, idle } => {
                let idle = Span(u64::try_from(idle.as_micros()).unwrap_or(u64::MAX));
                self.take(LeaseEvent::IdleSeen { lease, idle });
            }
            HostReport::HolderEnded { lease, roots } => self.holder_ended(lease, &roots),
        }
    }

    fn mover_reported(
        &mut self,
        lease: LeaseId,
        process: ProcKey,
        rung: Method,
        said: MoverReport,
        program: Option<String>,
    ) {
        // What a lease runs is known when its first mover reports.
        let is_unknown = self.engine.state().readings(lease).is_some_and(|readings| readings.program.is_empty());
        if let Some(program) = program.filter(|_| is_unknown) {
            self.take(LeaseEvent::ProgramRead { lease, program });
        }
        self.take(LeaseEvent::MoverReported { lease, method: rung, process, report: said });
        self.send_changed_target(lease);
        self.read_gpus_for_moves();
    }

    /// Counts decide nothing and are only shown, for a while after the lease has ended, too.
    fn note_counts(&mut self, lease: LeaseId, counts: ActivityCounts) {
        self.counts.insert(lease, counts);
        while self.counts.len() > COUNTED_MAX {
            self.counts.pop_first();
        }
    }

    /// A park or a resume that needs only to be seen is read for at once.
    fn read_gpus_for_moves(&mut self) {
        if self.engine.state().awaits_reading() {
            self.engine.hold(Output::Host(HostCommand::ReadGpus));
        }
    }

    /// The host judged the roots that it knew: one that was bound meanwhile may live.
    fn holder_ended(&mut self, lease: LeaseId, judged: &BTreeSet<ProcKey>) {
        let has_other = |row: &sublet_core::rows::Lease| row.roots.iter().any(|root| !judged.contains(root));
        if self.engine.state().lease(lease).is_some_and(has_other) {
            return self.send_watch(lease);
        }
        self.take(LeaseEvent::HolderExited { lease });
    }

    fn set_all_unreadable(&mut self, what: &str) {
        let uuids: Vec<String> = self.engine.state().rows().gpus.iter().map(|gpu| gpu.facts.uuid.clone()).collect();
        for card in uuids {
            let reading = Reading::Unreadable(Unreadable::Failed(what.to_owned()));
            let observation = GpuReading { begun: self.moment.now, reading };
            self.take(GpuEvent::ReadingTaken { gpu: card, reading: observation });
        }
    }
}
