//! Unleased processes as clients see them: processes on a GPU that belong to no lease there, and what is done
//! about them.

use crate::Tier;
use serde::{Deserialize, Serialize};

/// What is done about unleased processes on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// They are recorded.
    Observe,
    /// Processes of known users get a lease of their size.
    Adopt,
    /// Their users are warned.
    Warn,
    /// A process that is still there after the warning is parked if possible, and ended otherwise.
    Enforce,
}

/// What was done about an unleased process so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum UnleasedStep {
    /// It was recorded.
    Found,
    /// Its user was warned.
    Warned,
    /// It got a lease and is being parked.
    Parking,
    /// It could not be parked: `why` says the reason.
    ParkFailed,
    /// It was sent a signal.
    Signalled,
    /// It survived SIGKILL.
    Survived,
}

/// What happens to an unleased process next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum NextStep {
    /// Nothing.
    Nothing,
    /// Nothing, although other processes are warned or ended there: `why` says the reason.
    Exempt,
    /// It gets a lease.
    Adopted,
    /// Its user is warned, and nothing else.
    Warned,
    /// The driver parks it if possible; otherwise it gets SIGTERM.
    Parked,
    /// It gets a signal.
    Signal,
}

/// An unleased process: one on a GPU that belongs to no lease for that GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UnleasedProcess {
    /// `X3`.
    pub id: String,
    /// Its process id.
    pub pid: u32,
    /// The user id that it runs as.
    pub uid: u32,
    /// That user's name.
    pub user: String,
    /// The kernel's name for it.
    pub name: String,
    /// The path of its executable; null if that cannot be read.
    pub exe: Option<String>,
    /// Its command line, without arguments that look secret.
    pub command: Vec<String>,
    /// The systemd unit that it belongs to.
    pub unit: Option<String>,
    /// The container that it is in.
    pub container: Option<String>,
    /// The indices of the GPUs that it is on.
    pub gpu_indices: Vec<u32>,
    /// Its bytes on all of those GPUs; null if they cannot be read now.
    pub vram_bytes: Option<u64>,
    /// Seconds since it was recorded.
    pub age_s: f64,
    /// What was done so far.
    pub step: UnleasedStep,
    /// What happens next.
    pub next: NextStep,
    /// The signal that it gets next; null if it gets none.
    pub next_signal: Option<String>,
    /// Seconds until the next step; null if there is none.
    pub next_in_s: Option<f64>,
    /// The lease that it got in order to be parked; null if it has none.
    #[serde(default)]
    pub lease: Option<String>,
    /// The lease that it belongs to, which is not for these GPUs. A caller sees only its own lease here; an operator
    /// sees any.
    #[serde(default)]
    pub belongs_to: Option<String>,
    /// Why nothing happens to it, or why it could not be parked.
    pub why: Option<String>,
    /// The id of a process like it that was gone shortly before: something starts it again.
    #[serde(default)]
    pub replaces: Option<String>,
    /// Which of these facts could not be read.
    pub unreadable: Vec<String>,
}

/// The mode of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct GpuMode {
    /// The GPU's index.
    pub index: u32,
    /// The GPU's UUID.
    pub uuid: String,
    /// What is done about unleased processes there.
    pub mode: Mode,
}

/// What a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RuleAction {
    /// The process is left alone.
    Allow,
    /// The process may be ended although it is in a container.
    Deny,
    /// The process gets a lease on every GPU where it is found (`sublet adopt`).
    Adopt,
}

/// An operator's rule about certain unleased processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Rule {
    /// `R2`.
    pub id: String,
    /// `exe:PATH`, `unit:NAME`, `container:ID` or `uid:N`.
    pub matches: String,
    /// What is done about them.
    pub action: RuleAction,
    /// The size of a standing request per GPU; null: the size that the process has.
    pub vram_bytes: Option<u64>,
    /// The tier of a standing request.
    pub tier: Option<Tier>,
}

/// `GET /v1/unleased`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UnleasedProcesses {
    /// The unleased processes that the caller may see, oldest first.
    pub processes: Vec<UnleasedProcess>,
    /// The mode of each GPU.
    pub modes: Vec<GpuMode>,
    /// The rules of operators.
    pub rules: Vec<Rule>,
    /// Why no process can be ended on this host; null: that is possible, or was not tried yet.
    pub cannot_enforce: Option<String>,
    /// True once it was tested whether processes can be ended on this host.
    pub enforce_tested: bool,
}

/// `POST /v1/gpus/{uuid}/mode`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ModeRequest {
    /// What shall be done about unleased processes there.
    pub mode: Mode,
}

/// `POST /v1/rules`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RuleRequest {
    /// `exe:PATH` (or its name alone), `unit:NAME`, `container:ID` (12 characters at least) or `uid:N`.
    #[cfg_attr(
        feature = "openapi",
        schema(
            min_length = 5,
            max_length = 266,
            pattern = r"^((exe|unit|container):[^\u0000-\u001f\u007f-\u009f]+|uid:\+?[0-9]+)$"
        )
    )]
    pub matches: String,
    /// What is done about them.
    pub action: RuleAction,
    /// The size of a standing request per GPU, if there is room; otherwise the size that the process has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1_048_576, maximum = 1_125_899_906_842_624_u64))]
    pub vram_bytes: Option<u64>,
    /// The tier of a standing request.
    #[serde(default)]
    pub tier: Tier,
}

/// `POST /v1/adopt`: a lease for an unleased process, of the size that it has on its GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AdoptRequest {
    /// The process: one of the caller's own user, or any process for an operator.
    #[cfg_attr(feature = "openapi", schema(minimum = 2))]
    pub pid: u32,
    /// Bytes per GPU, if the lease shall be larger than what the process has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1_048_576, maximum = 1_125_899_906_842_624_u64))]
    pub vram_bytes: Option<u64>,
    /// The tier of the lease.
    #[serde(default)]
    pub tier: Tier,
}
