//! One notice, as a command and a webhook get it.

use serde::Serialize;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeKind {
    /// An unleased process was warned.
    Warned,
    /// An unleased process got a signal that ends it.
    Signalled,
    /// A program has been parked for longer than a moment.
    Parked,
    /// A program that was told that it is parked is back on its GPUs.
    Back,
    /// The lease of such a program ended meanwhile.
    Ended,
}

/// One notice. Its JSON form is documented in docs/reference/configuration.md.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UserNotice {
    /// What happened.
    #[serde(rename = "event")]
    pub kind: NoticeKind,
    /// The line for people, without `sublet: ` before it.
    pub text: String,
    /// When, in Unix seconds.
    pub at_unix_s: f64,
    /// The user concerned, by name.
    pub user: String,
    /// The same, by number; null if the lease belongs to no user of this host.
    pub uid: Option<u32>,
    /// The lease, `L5`.
    pub lease: Option<String>,
    /// The unleased process, `X3`.
    pub unleased: Option<String>,
    /// Processes of the program, at most 64.
    pub pids: Vec<u32>,
    /// The program's name.
    pub program: Option<String>,
    /// The GPUs by index.
    pub gpus: Vec<u32>,
    /// The signal, for `signalled`.
    pub signal: Option<String>,
    /// Seconds until what follows is expected: the park or the signal after a warning, SIGKILL after SIGTERM, the
    /// return of a parked program; null if it is not known.
    pub expected_s: Option<f64>,
}
