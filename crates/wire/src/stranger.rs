//! Strangers as clients see them: processes on cards that belong to no lease there, and what is done about them.

use crate::Tier;
use serde::{Deserialize, Serialize};

/// What is done about strangers on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// They are put on the record.
    Observe,
    /// Those of known users get a lease of their size.
    Adopt,
    /// Their owners are warned.
    Warn,
    /// Who does not heed the warning is parked where it can be, and ended otherwise.
    Enforce,
}

/// How far a stranger has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// It is on the record.
    Found,
    /// Its owner was warned.
    Warned,
    /// It has a lease, and is being parked by it.
    Moving,
    /// It could not be parked: `why` says the reason.
    Unmoved,
    /// It was sent a signal.
    Told,
    /// It survived SIGKILL.
    Stuck,
}

/// What happens to a stranger next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Next {
    /// Nothing.
    Nothing,
    /// Nothing, though others are warned or ended there: `why` says the reason.
    LeftAlone,
    /// It gets a lease.
    Adopted,
    /// Its owner is warned, and no more.
    Warned,
    /// It is parked by the driver if it can be, and gets SIGTERM otherwise.
    Parked,
    /// It gets a signal.
    Signal,
}

/// A process on a card that belongs to no lease which has that card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Stranger {
    /// `X3`.
    pub id: String,
    /// Its process.
    pub pid: u32,
    /// Whose it is.
    pub uid: u32,
    /// That user's name.
    pub user: String,
    /// What the kernel calls it.
    pub name: String,
    /// What it runs; null if that cannot be read.
    pub exe: Option<String>,
    /// How it was called, without what looks secret.
    pub command: Vec<String>,
    /// The systemd unit it belongs to.
    pub unit: Option<String>,
    /// The container it is in.
    pub container: Option<String>,
    /// The indices of the cards it is on.
    pub card_indices: Vec<u32>,
    /// Its bytes there, all cards counted; null if they cannot be read now.
    pub vram_bytes: Option<u64>,
    /// For how long it has been on the record.
    pub for_s: f64,
    /// How far it has come.
    pub step: Step,
    /// What happens next.
    pub next: Next,
    /// Which signal it gets, if it does.
    pub signal: Option<String>,
    /// In how long that happens, if it does.
    pub in_s: Option<f64>,
    /// The lease by which it is being parked.
    #[serde(default)]
    pub lease: Option<String>,
    /// The lease that it is a process of all the same, which is not for these cards: the caller's own, or anybody's
    /// for an operator.
    #[serde(default)]
    pub of: Option<String>,
    /// Why nothing happens to it, or why it could not be parked.
    pub why: Option<String>,
    /// The one like it that was ended not long ago: it is started anew.
    #[serde(default)]
    pub again: Option<String>,
    /// What could not be read of it.
    pub unread: Vec<String>,
}

/// What is done on one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CardMode {
    /// The card's index.
    pub index: u32,
    /// The card.
    pub uuid: String,
    /// What is done about strangers there.
    pub mode: Mode,
}

/// What a rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Treat {
    /// Left alone.
    Allow,
    /// May be ended though it is in a container.
    Deny,
    /// Has a standing ask: gets a lease wherever it is seen.
    Attach,
}

/// An operator's word about certain strangers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Rule {
    /// `R2`.
    pub id: String,
    /// `exe:PATH`, `unit:NAME`, `container:ID` or `uid:N`.
    pub who: String,
    /// What about them.
    pub treat: Treat,
    /// With a standing ask: for so much of each card; null: for what they have.
    pub vram_bytes: Option<u64>,
    /// With a standing ask: how urgent their work is.
    pub tier: Option<Tier>,
}

/// `GET /v1/strangers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Strangers {
    /// Those that the caller may see, oldest first.
    pub strangers: Vec<Stranger>,
    /// What is done where.
    pub modes: Vec<CardMode>,
    /// What operators said about some.
    pub rules: Vec<Rule>,
    /// Why nobody can be ended here; null: that was not tried yet, or they can.
    pub cannot_enforce: Option<String>,
    /// It was tried whether strangers can be ended here.
    pub tested: bool,
}

/// `POST /v1/cards/{uuid}/mode`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ModeAsk {
    /// What shall be done about strangers there.
    pub mode: Mode,
}

/// `POST /v1/rules`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RuleAsk {
    /// `exe:PATH` (or its name alone), `unit:NAME`, `container:ID` (12 characters at least) or `uid:N`.
    #[cfg_attr(
        feature = "openapi",
        schema(
            min_length = 5,
            max_length = 266,
            pattern = r"^((exe|unit|container):[^\u0000-\u001f\u007f-\u009f]+|uid:\+?[0-9]+)$"
        )
    )]
    pub who: String,
    /// What about them.
    pub treat: Treat,
    /// With a standing ask: for so much of each card, where there is room; for what they have otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1_048_576, maximum = 1_125_899_906_842_624_u64))]
    pub vram_bytes: Option<u64>,
    /// With a standing ask: how urgent their work is.
    #[serde(default)]
    pub tier: Tier,
}

/// `POST /v1/adopt`: a lease for a process that has none, for what it has on its cards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Adopt {
    /// The process: the caller's own, or anybody's for an operator.
    #[cfg_attr(feature = "openapi", schema(minimum = 2))]
    pub pid: u32,
    /// So much of each of its cards, if it shall have more than it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1_048_576, maximum = 1_125_899_906_842_624_u64))]
    pub vram_bytes: Option<u64>,
    /// How urgent its work is.
    #[serde(default)]
    pub tier: Tier,
}
