//! What a client sends.

use serde::{Deserialize, Serialize};

/// A wish for a lease: `POST /v1/leases`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// VRAM per card in bytes, or `"whole"` for all of a card.
    pub vram_bytes: Vram,
    /// How many cards, all granted together. Default 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 64, default = 1))]
    pub gpus: u32,
    /// Seconds until the lease must be renewed. Default: the service's own (300). At most as long as others must wait
    /// for it (`hold_cap` in the service's configuration, 30 minutes unless it says otherwise), or the service's own if
    /// that is longer; a day where both are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 86_400))]
    pub ttl_s: Option<u64>,
    /// A fixed term in seconds instead: never renewed, ends when it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 604_800))]
    pub time_s: Option<u64>,
    /// Which request goes first when not all fit. Default batch.
    #[serde(default)]
    pub tier: Tier,
    /// Within a tier: -10 (last) to 10 (first). Default 0.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = -10, maximum = 10, default = 0))]
    pub priority: i32,
    /// Whom the card may be shared with meanwhile. Default: anybody.
    #[serde(default)]
    pub exclusivity: Exclusivity,
    /// What may be done to the lease when other requests need its GPU. Default: `park`, but `end` at tier spot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt: Option<Preempt>,
    /// Its wrapper runs a hook when its cards are needed, and says by `POST /v1/leases/{id}/hook` what came of it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub yields: bool,
    /// The driver's own way of parking may be used although a restore could fail, which ends its programs.
    #[serde(default, skip_serializing_if = "is_false")]
    pub may_lose: bool,
    /// Which signal its programs get before the lease ends, and how long before: when it is to end for others, and
    /// when its fixed term (`time_s`) is over. Only processes that catch the signal get it; if none does, the first
    /// process of the lease gets SIGTERM instead, unless it ignores the signal. Processes that run as another user than
    /// the lease's (`sudo`, `su`) get none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<Notice>,
    /// Less will do, down to so many bytes of each card, if that can start at once: then it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1_048_576))]
    pub at_least_bytes: Option<u64>,
    /// Only on this card (index, or UUID or its beginning), or on cards with this text in their model; up to 64 of
    /// these with commas between them (`1,GPU-5f3a`): on any of them. Each has at most 128 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(
            min_length = 1,
            max_length = 8255,
            pattern = r"^[^,\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]+(,[^,\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]+)*$"
        )
    )]
    pub on: Option<String>,
    /// What people call it. At most 64 characters; none that controls something, is invisible (zero width) or turns
    /// the others around (bidirectional formatting).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(
            max_length = 64,
            pattern = r"^[^\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]*$"
        )
    )]
    pub name: Option<String>,
    /// How long to stay in the queue, in seconds; 0: granted now, or refused without a trace (no lease, no
    /// line in the audit trail). Default: a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 604_800))]
    pub wait_s: Option<u64>,
    /// A process of the caller's to bind at once, also while waiting: if it
    /// exits, the ask or the lease ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub pid: Option<u32>,
}

fn one() -> u32 {
    1
}
fn is_one(n: &u32) -> bool {
    *n == 1
}
pub(crate) fn is_false(said: &bool) -> bool {
    !*said
}

/// A signal that a holder's programs get some time before its lease ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Notice {
    /// The signal's name without `SIG`, or its number: HUP, INT, QUIT, USR1, USR2, TERM, CONT, URG or WINCH.
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 16, pattern = "^[A-Za-z0-9+]+$", example = "USR1")
    )]
    pub signal: String,
    /// So many seconds before the end.
    #[cfg_attr(feature = "openapi", schema(maximum = 600))]
    pub before_s: u64,
}

impl Notice {
    /// Signals that can be asked for. Others end a program that does not know them, or cannot be caught.
    pub const SIGNALS: [&str; 9] = ["HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "CONT", "URG", "WINCH"];
}

/// How much of each card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vram {
    /// So many bytes.
    Bytes(u64),
    /// All of a card that nobody else has a lease on.
    Whole,
}

impl Serialize for Vram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Vram::Bytes(n) => serializer.serialize_u64(*n),
            Vram::Whole => serializer.serialize_str("whole"),
        }
    }
}

impl<'de> Deserialize<'de> for Vram {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Vram;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a whole number of bytes, or \"whole\"")
            }
            fn visit_u64<E: serde::de::Error>(self, n: u64) -> Result<Vram, E> {
                Ok(Vram::Bytes(n))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vram, E> {
                match text {
                    "whole" => Ok(Vram::Whole),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Vram {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, SchemaType, Type};
        OneOfBuilder::new()
            .item(
                ObjectBuilder::new()
                    .schema_type(SchemaType::Type(Type::Integer))
                    .minimum(Some(1 << 20))
                    .maximum(Some(1u64 << 50)),
            )
            .item(ObjectBuilder::new().schema_type(SchemaType::Type(Type::String)).enum_values(Some(["whole"])))
            .description(Some("Bytes, or \"whole\" for all of a card."))
            .into()
    }
}
#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Vram {}

/// Who goes first: interactive before batch before spot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// A user is looking at it.
    Interactive,
    /// The ordinary case.
    #[default]
    Batch,
    /// May be ended for any other request.
    Spot,
}

/// Whom a card may be shared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Exclusivity {
    /// Anybody whose bytes fit beside it.
    #[default]
    Shared,
    /// Nobody else's work on the card meanwhile; one's own leases may join.
    SessionExclusive,
    /// No other lease on the card at all.
    DeviceExclusive,
}

/// What others who need the cards may do to a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Preempt {
    /// Park it and resume it later; never end it.
    Park,
    /// Also end it: notice, SIGTERM, SIGKILL. It begins again from what it saved.
    End,
    /// Nothing, as long as it is used. Takes a quota.
    Never,
}

/// `POST /v1/leases/{id}/accept`: take a smaller lease now, and give up the place in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Accept {
    /// So much of each card, as offered or less.
    #[cfg_attr(feature = "openapi", schema(minimum = 1_048_576))]
    pub vram_bytes: u64,
    /// On so many cards. Default: as many as were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 64))]
    pub gpus: Option<u32>,
}

/// `POST /v1/leases/{id}/renew`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Renew {
    /// The epoch the lease was granted with; an old one is refused.
    #[cfg_attr(feature = "openapi", schema(maximum = 9_223_372_036_854_775_807_u64))]
    pub epoch: u64,
}

/// `POST /v1/leases/{id}/bind`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Bind {
    /// The epoch the lease was granted with; an old one is refused.
    #[cfg_attr(feature = "openapi", schema(maximum = 9_223_372_036_854_775_807_u64))]
    pub epoch: u64,
    /// A live process of the caller's own user. Its descendants belong to it.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub pid: u32,
}

/// `POST /v1/leases/{id}/hook`: what came of a hook that the holder's wrapper ran. A word moves no bytes:
/// the cards are looked at all the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Hooked {
    /// The epoch the lease was granted with; an old one is refused.
    #[cfg_attr(feature = "openapi", schema(maximum = 9_223_372_036_854_775_807_u64))]
    pub epoch: u64,
    /// What came of it.
    pub done: Done,
    /// Why it failed, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 256))]
    pub why: Option<String>,
}

/// What a holder's wrapper says of its hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Done {
    /// Its programs gave the cards back.
    Yielded,
    /// Its programs have what they had.
    Resumed,
    /// The hook failed, or took too long.
    Failed,
    /// It yielded, and wants its cards again.
    Wants,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ask_of_an_older_client_is_read_and_sent_as_it_was() {
        let old = r#"{"vram_bytes":1048576,"tier":"batch","priority":0,"exclusivity":"shared","preempt":"park"}"#;
        let ask: Ask = serde_json::from_str(old).unwrap();
        assert_eq!((ask.yields, ask.may_lose, &ask.notice, ask.preempt), (false, false, &None, Some(Preempt::Park)));
        assert_eq!(serde_json::to_string(&ask).unwrap(), old);
    }

    #[test]
    fn what_a_hook_came_to_is_one_of_four_words() {
        let hooked: Hooked = serde_json::from_str(r#"{"epoch":7,"done":"yielded"}"#).unwrap();
        assert_eq!(hooked, Hooked { epoch: 7, done: Done::Yielded, why: None });
        for wrong in [r#"{"epoch":7,"done":"slept"}"#, r#"{"done":"wants"}"#, r#"{"epoch":7,"done":"wants","x":1}"#] {
            assert!(serde_json::from_str::<Hooked>(wrong).is_err(), "{wrong}");
        }
    }
}
