//! Carries out what the loop wants done.

use crate::inbox::Clients;
use crate::looper::{HostCommand, Output, TokenChange};
use crate::notices::Notices;
use crate::signals;
use crate::tokens::TokenTable;
use std::sync::{Arc, RwLock};
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_host::Host;
use sublet_host::process_signals::{self, SignalDelivery};

/// Whatever outputs reach: clients, the host, tokens, notices. The loop's thread and the writer's have one each.
#[derive(Clone)]
pub struct Effects {
    /// Clients that wait.
    pub clients: Clients,
    /// The host.
    pub host: Arc<Host>,
    /// The tokens that let callers in.
    pub tokens: TokenTable,
    /// The thread that tells users.
    pub notices: Notices,
    /// Why the driver lists no GPUs, if it does not.
    pub gpu_trouble: Arc<RwLock<Option<String>>>,
}

impl Effects {
    /// Carries out an output. [`Output::Read`] and [`Output::Writer`] are the loop thread's own.
    pub fn carry_out(&self, output: Output) {
        match output {
            Output::Reply { to, reply, .. } => self.clients.answer(to, Ok(*reply)),
            Output::LookUp { to, lookup } => self.clients.answer(to, Err(lookup)),
            Output::Lease { to, lease } => self.clients.show(to, lease.map(|lease| *lease)),
            Output::ReadDone { to } => self.clients.finish(to),
            Output::Lost { to } => self.clients.lose(to),
            Output::Host(command) => carry_out_on_host(&self.host, command),
            Output::Token(TokenChange::Issued(token)) => self.tokens.add(token),
            Output::Token(TokenChange::Revoked(token)) => self.tokens.revoke(token),
            Output::Token(TokenChange::All(tokens)) => self.tokens.replace_all(&tokens),
            Output::Notice(message) => self.notices.send(message),
            Output::GpuTrouble(trouble) => self.set_gpu_trouble(trouble),
            Output::Read { .. } | Output::Writer(_) => debug_assert!(false, "the loop thread carries these out itself"),
        }
    }

    fn set_gpu_trouble(&self, trouble: Option<String>) {
        if let Some(text) = &trouble {
            tracing::error!("{text}");
        }
        if let Ok(mut place) = self.gpu_trouble.write() {
            *place = trouble;
        }
    }
}

fn carry_out_on_host(host: &Host, command: HostCommand) {
    match command {
        HostCommand::Watch { lease, uid, roots, grant } => host.watch_holder(lease, uid, roots, grant),
        HostCommand::SetGrant { lease, grant } => host.set_grant(lease, grant),
        HostCommand::EndWatch { lease } => host.forget_holder(lease),
        HostCommand::SetShimTarget(target) => host.set_shim_target(target),
        HostCommand::ForgetShimTarget { lease } => host.forget_shim_target(lease),
        HostCommand::SetDriverTarget(target) => host.set_driver_target(target),
        HostCommand::ForgetDriverTarget { lease } => host.forget_driver_target(lease),
        HostCommand::ReadGpus => host.request_reading(),
        HostCommand::Inspect { lease, uid, processes, bytes } => {
            host.inspect_for_driver((lease, uid), processes, bytes);
        }
        HostCommand::Signal { uid, processes, signal } => signal_processes(uid, &processes, signal),
        HostCommand::AnnounceEnd { lease, uid, processes, signal } => announce_end(lease, uid, &processes, signal),
        HostCommand::SignalUnleased { unleased, signal, of, processes, wanted, spared } => {
            host.send_signals((unleased, signal, of), processes, spared, |pending| wanted.contains(&pending.process));
        }
        HostCommand::WithdrawSignals(withdrawn) => host.withdraw_signals(|pending| !withdrawn.contains(pending)),
        HostCommand::SelfTest { uuid } => host.self_test(uuid),
        HostCommand::Audit { process } => host.request_audit(process),
        HostCommand::AuditOffLease { processes } => host.audit_off_lease(processes),
        HostCommand::StartReporting => host.start_reporting(),
        HostCommand::SetBooked { bytes } => host.set_booked_bytes(bytes),
        HostCommand::PrepareToPark { lease } => host.prepare_to_park(lease),
    }
}

fn signal_processes(uid: u32, processes: &[ProcKey], signal: u8) {
    for process in processes {
        match process_signals::send_signal(*process, uid, signal) {
            Ok(()) => tracing::info!(pid = process.pid, signal = signals::name(signal), "signalled"),
            Err(error) if error.is_gone() => {}
            Err(error) => tracing::warn!(pid = process.pid, "left out: {error}"),
        }
    }
}

/// Sends the signal that announces the end of a lease, and logs which process got which.
fn announce_end(lease: LeaseId, uid: u32, processes: &[ProcKey], signal: u8) {
    let deliveries = process_signals::announce_end(processes, uid, signal);
    if deliveries.is_empty() {
        let signal = signals::name(signal);
        tracing::info!(%lease, signal, "no process was signalled: its processes ignore the signal, or are gone");
    }
    for SignalDelivery { process, signal: sent, outcome } in deliveries {
        let (pid, name) = (process.pid, signals::name(sent));
        match outcome {
            Ok(()) if sent == signal => tracing::info!(%lease, pid, signal = name, "signalled: the lease ends soon"),
            Ok(()) => {
                let asked = signals::name(signal);
                tracing::info!(%lease, pid, signal = name, "signalled: the lease ends soon, and no process catches {asked}");
            }
            Err(error) if error.is_gone() => {}
            Err(error) => tracing::warn!(%lease, pid, signal = name, "left out: {error}"),
        }
    }
}
