//! Exit codes of the command line, and of nothing else.

use crate::Code;

/// Everything went well.
pub const OK: u8 = 0;
/// Something failed that has no code of its own.
pub const FAILURE: u8 = 1;
/// The command line is invalid (EX_USAGE).
pub const USAGE: u8 = 64;
/// The daemon's journal was removed or moved while it ran (EX_NOINPUT).
pub const JOURNAL_MOVED: u8 = 66;
/// No daemon answers (EX_UNAVAILABLE).
pub const NO_DAEMON: u8 = 69;
/// A thread of the daemon panicked (EX_SOFTWARE).
pub const PANICKED: u8 = 70;
/// The disk did not store what the daemon wrote (EX_IOERR).
pub const DISK_FAILED: u8 = 74;
/// The lease was lost, or there is no room (EX_TEMPFAIL).
pub const LEASE_LOST: u8 = 75;
/// Not allowed (EX_NOPERM).
pub const DENIED: u8 = 77;
/// The daemon's configuration is wrong (EX_CONFIG).
pub const CONFIG: u8 = 78;
/// The wait was over before the lease was granted.
pub const WAIT_OVER: u8 = 124;
/// The command was found but could not be run.
pub const CANNOT_EXEC: u8 = 126;
/// The command was not found.
pub const NOT_FOUND: u8 = 127;
/// A command ended by signal n exits with this plus n.
pub const SIGNAL_BASE: u8 = 128;

/// The exit code that a refusal leads to.
pub const fn of(code: Code) -> u8 {
    match code {
        Code::BadRequest | Code::BadValue | Code::NeverFits | Code::BelowContext | Code::KeyReused => USAGE,
        Code::Denied
        | Code::NotYourProcess
        | Code::OverCap
        | Code::Unauthenticated
        | Code::TokenExpired
        | Code::ReadOnly
        | Code::TokenCap
        | Code::PidNotLocal => DENIED,
        Code::NoRoom
        | Code::QueueFull
        | Code::LeaseEnded
        | Code::LeaseNotActive
        | Code::Fenced
        | Code::DiskFull
        | Code::JournalLoss
        | Code::TooManyRequests
        | Code::TooBusy => LEASE_LOST,
        Code::Stopping | Code::JournalFailed => NO_DAEMON,
        _ => FAILURE,
    }
}
