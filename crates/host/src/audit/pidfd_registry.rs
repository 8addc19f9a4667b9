//! Audited unleased processes, each with the descriptor that was opened for its audit.
//!
//! ```text
//!   opened ─► audited ─► kept ──signal──► has it ended? ─► audited again ─► the same? ─► wanted still? ─► sent
//!                                                                                  through the kept descriptor
//! ```
//! The kernel never gives a descriptor to another process. So a pid that was reused in between, even within the clock
//! tick that start times are measured in, harms no other process: the signal goes to the audited process or is not
//! sent. What remains possible is that the process itself starts another program between the second audit and the
//! signal, within some microseconds.
//!
//! Absent on purpose: when a signal is due, its number and its recipient; process groups; waiting for an end.

use super::device_files::GpuDeviceFiles;
use super::process_memory::ProcessMemory;
use super::{audit_of_image, living_stat};
use crate::process::{self, ProcessError};
use crate::wake::timespec;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Signal, getrlimit, pidfd_open, pidfd_send_signal};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use sublet_core::audit::Audit;
use sublet_core::ids::ProcKey;
use thiserror::Error;

/// More unleased processes than any host has on its GPUs; each costs a descriptor.
const REGISTERED_MAX: usize = 1024;

/// Why a process gets no signal.
#[derive(Debug, Error)]
pub enum SignalRefusal {
    /// There is no such signal.
    #[error("there is no signal {0}")]
    NoSuchSignal(u8),
    /// It was never audited, or let go since.
    #[error("process {0} was not audited")]
    NotAudited(ProcKey),
    /// Its end would end the host, or the container.
    #[error("it is the first process")]
    First,
    /// It is this service itself.
    #[error("it is this service")]
    Ourselves,
    /// It is an ancestor of this service.
    #[error("this service was started by it")]
    Ancestor,
    /// It is a kernel thread, which has no program and ignores signals.
    #[error("it is a part of the kernel")]
    Kernel,
    /// It ended.
    #[error("process {0} has ended")]
    Gone(ProcKey),
    /// It lives, but is no longer what was audited. It must be audited again before it gets a signal.
    #[error("it is not what was audited: {0}")]
    Changed(&'static str),
    /// It descends from a process on a GPU, and runs as another user than that.
    #[error("it runs as uid {0}, another user than the process on the GPU that it descends from")]
    OtherUser(u32),
    /// The caller withdrew the signal.
    #[error("it is not wanted any more")]
    Unwanted,
    /// A second audit failed, so it is unknown whether it is still what was audited.
    #[error("it cannot be audited again")]
    Unreadable(#[source] ProcessError),
    /// The kernel refused to send it.
    #[error("the signal could not be sent")]
    NotSent(#[source] io::Error),
}

impl SignalRefusal {
    /// True if the process has ended: nothing is left to do.
    pub const fn is_gone(&self) -> bool {
        matches!(self, SignalRefusal::Gone(_))
    }

    /// True if it must be audited again before it gets a signal: it may be another process by now, this cannot be
    /// known, or the signal was withdrawn and a later one needs a fresh audit.
    pub const fn needs_new_audit(&self) -> bool {
        matches!(
            self,
            SignalRefusal::Changed(_)
                | SignalRefusal::NotAudited(_)
                | SignalRefusal::Unreadable(_)
                | SignalRefusal::Unwanted
        )
    }
}

struct RegisteredProcess {
    descriptor: OwnedFd,
    audit: Audit,
    image: [u64; 3],
    /// Its memory before the audit, if that may be opened.
    memory: Option<ProcessMemory>,
}

/// Audited processes. Dropping it closes their descriptors; the processes are not affected.
pub struct PidfdRegistry {
    devices: GpuDeviceFiles,
    registered: BTreeMap<ProcKey, RegisteredProcess>,
    registered_max: usize,
}

impl PidfdRegistry {
    /// Starts empty.
    pub fn new(devices: GpuDeviceFiles) -> PidfdRegistry {
        // An eighth of the descriptors this process may open: clients and listeners need the rest.
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 8;
        let registered_max = usize::try_from(limit).unwrap_or(REGISTERED_MAX).min(REGISTERED_MAX);
        PidfdRegistry { devices, registered: BTreeMap::new(), registered_max }
    }

    /// Audits a process and keeps it. For a process that is kept already, returns its first audit.
    pub fn register(&mut self, process: ProcKey) -> Result<&Audit, ProcessError> {
        if self.registered.get(&process).is_some_and(|registered| has_ended(&registered.descriptor)) {
            self.registered.remove(&process);
        }
        if !self.registered.contains_key(&process) {
            if self.registered.len() >= self.registered_max {
                let source = io::Error::other(format!("{} audited processes are kept already", self.registered_max));
                return Err(ProcessError::Unreadable { pid: process.pid, source });
            }
            let registered = open_and_audit(process, &self.devices)?;
            self.registered.insert(process, registered);
        }
        self.audit_of(process).ok_or(ProcessError::Gone { pid: process.pid })
    }

    /// Audits and keeps a process that matters only because of another one. At most half of the places are for such
    /// processes, so that one with many children does not crowd out the others.
    pub fn register_relative(&mut self, process: ProcKey) -> Result<&Audit, ProcessError> {
        if !self.registered.contains_key(&process) && self.registered.len() >= self.registered_max / 2 {
            let source = io::Error::other("as many others are kept already as may be");
            return Err(ProcessError::Unreadable { pid: process.pid, source });
        }
        self.register(process)
    }

    /// The audit of a kept process; `None` if it is not kept.
    pub fn audit_of(&self, process: ProcKey) -> Option<&Audit> {
        self.registered.get(&process).map(|registered| &registered.audit)
    }

    /// Drops a process. After an exec, a process is dropped and taken again.
    pub fn forget(&mut self, process: ProcKey) {
        self.registered.remove(&process);
    }

    /// Sends a signal to a kept process, if it is still what was audited.
    pub fn signal(&self, process: ProcKey, number: u8) -> Result<(), SignalRefusal> {
        self.signal_if(process, number, |_, send| send())
    }

    /// Like [`PidfdRegistry::signal`], but `send_or_refuse` decides at the last moment: it gets the new audit, and either sends
    /// the signal by the function it is given or does not.
    pub fn signal_if(
        &self,
        process: ProcKey,
        number: u8,
        send_or_refuse: impl FnOnce(&Audit, &mut dyn FnMut() -> Result<(), SignalRefusal>) -> Result<(), SignalRefusal>,
    ) -> Result<(), SignalRefusal> {
        let signal = Signal::from_named_raw(number.into()).ok_or(SignalRefusal::NoSuchSignal(number))?;
        refuse_untouchable(process)?;
        let registered = self.registered.get(&process).ok_or(SignalRefusal::NotAudited(process))?;
        // Asked of the descriptor: the pid may belong to another process by now, and look the same.
        if has_ended(&registered.descriptor) {
            return Err(SignalRefusal::Gone(process));
        }
        let unreadable = |error: ProcessError| match error {
            error if error.is_gone() => SignalRefusal::Gone(process),
            error => SignalRefusal::Unreadable(error),
        };
        if living_stat(process).map_err(unreadable)?.is_kernel {
            return Err(SignalRefusal::Kernel);
        }
        let (now, image) = audit_of_image(process, &self.devices).map_err(unreadable)?;
        if !registered.audit.is_of_known_program() || !now.is_of_known_program() {
            let source = io::Error::new(io::ErrorKind::PermissionDenied, "its executable cannot be read");
            return Err(SignalRefusal::Unreadable(ProcessError::Unreadable { pid: process.pid, source }));
        }
        // A process can misreport which file it runs. One that still has its former memory runs its former program.
        let (exe, exe_file) = match registered.memory.as_ref().is_some_and(ProcessMemory::is_in_use) {
            true => (registered.audit.exe.clone(), registered.audit.exe_file),
            false => (now.exe.clone(), now.exe_file),
        };
        registered.audit.is_same(&Audit { exe, exe_file, ..now.clone() }).map_err(SignalRefusal::Changed)?;
        // A program may overwrite its recorded memory addresses. A process that still has a GPU open is no other for
        // that: `exec` closes its GPUs.
        if registered.image != image && now.devices.is_empty() && !now.crowded {
            return Err(SignalRefusal::Changed("it started its program anew since"));
        }
        send_or_refuse(&now, &mut || {
            pidfd_send_signal(&registered.descriptor, signal).map_err(|error| match error {
                Errno::SRCH => SignalRefusal::Gone(process),
                error => SignalRefusal::NotSent(error.into()),
            })
        })
    }
}

fn open_and_audit(process: ProcKey, devices: &GpuDeviceFiles) -> Result<RegisteredProcess, ProcessError> {
    let gone = || ProcessError::Gone { pid: process.pid };
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
    let opened = pidfd_open(pid, PidfdFlags::empty());
    let memory = ProcessMemory::of(process.pid);
    // The audit comes after the open: a process that has this start time now also had the pid when the descriptor was
    // opened.
    let (audit, image) = audit_of_image(process, devices)?;
    let descriptor = opened.map_err(|error| ProcessError::of(process.pid, error.into()))?;
    // If a pid is reused within one tick, both processes have the same start time; the descriptor is of the first.
    if has_ended(&descriptor) { Err(gone()) } else { Ok(RegisteredProcess { descriptor, audit, image, memory }) }
}

/// The descriptor of a process becomes readable when the last of its threads has ended.
fn has_ended(descriptor: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
    poll(&mut polled, Some(&timespec(Duration::ZERO))).is_ok_and(|ended| ended > 0)
}

fn refuse_untouchable(process: ProcKey) -> Result<(), SignalRefusal> {
    let own = std::process::id();
    match process.pid {
        0 | 1 => Err(SignalRefusal::First),
        pid if pid == own => Err(SignalRefusal::Ourselves),
        pid if process::ancestry(own).iter().any(|parent| parent.pid == pid) => Err(SignalRefusal::Ancestor),
        _ => Ok(()),
    }
}
