//! What a client sends.

use serde::{Deserialize, Serialize};

/// A request for a lease: `POST /v1/leases`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// VRAM per GPU in bytes, or `"whole"` for all of a GPU.
    pub vram_bytes: Vram,
    /// How many GPUs, all granted together. Default 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 64, default = 1))]
    pub gpus: u32,
    /// Seconds until the lease must be renewed. Default: the service's own (300). At most `hold_cap` of the service's
    /// configuration (30 minutes unless it says otherwise), or the service's own default if that is longer; never more
    /// than a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 86_400))]
    pub ttl_s: Option<u64>,
    /// A fixed term in seconds instead: the lease is never renewed and ends when the term is over.
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
    /// Which other leases may be on the GPU at the same time. Default: any that fit.
    #[serde(default)]
    pub exclusivity: Exclusivity,
    /// What may be done to the lease when other requests need its GPUs. Default: `park`, but `end` at tier spot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt: Option<Preempt>,
    /// Its wrapper runs a hook when its GPUs are needed, and reports the result by `POST /v1/leases/{id}/hook`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub has_hook: bool,
    /// The driver may park its programs although a restore could fail, which ends them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub may_lose: bool,
    /// Which signal its programs get before the lease ends, and how long before: when it is to end for others, and
    /// when its fixed term (`time_s`) is over. Only processes that catch the signal get it; if none does, the first
    /// process of the lease gets SIGTERM instead, unless it ignores the signal. Processes that run as another user than
    /// the lease's (`sudo`, `su`) get none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<Notice>,
    /// The smallest acceptable size, in bytes per GPU: if a lease of at least this size can start at once, it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1_048_576))]
    pub accept_smaller_bytes: Option<u64>,
    /// Only on this GPU (its index, or its UUID or the beginning of that), or on GPUs with this text in their model.
    /// Up to 64 of these, separated by commas (`1,GPU-5f3a`), mean any of them. Each has at most 128 characters.
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
    /// A name for people. At most 64 characters, without control characters, invisible (zero-width) characters and
    /// bidirectional formatting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(
            max_length = 64,
            pattern = r"^[^\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]*$"
        )
    )]
    pub name: Option<String>,
    /// How long to stay in the queue, in seconds. 0: the lease is granted now or refused; a refusal leaves no lease and
    /// no line in the audit trail. Default: a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 604_800))]
    pub wait_s: Option<u64>,
    /// A process of the caller to bind at once, also while the request waits. The request, or the lease, ends when the
    /// last process that is bound to it has exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<ProcessRef>,
}

fn one() -> u32 {
    1
}
fn is_one(n: &u32) -> bool {
    *n == 1
}
pub(crate) fn is_false(value: &bool) -> bool {
    !*value
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
    /// How many seconds before the end the signal is sent.
    #[cfg_attr(feature = "openapi", schema(maximum = 600))]
    pub before_s: u64,
}

impl Notice {
    /// The signals that can be requested. The others end a program without a handler for them, or cannot be caught.
    pub const SIGNALS: [&str; 9] = ["HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "CONT", "URG", "WINCH"];
}

/// How much of each GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vram {
    /// This many bytes.
    Bytes(u64),
    /// All of a GPU that has no other lease on it.
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
            .description(Some("Bytes, or \"whole\" for all of a GPU."))
            .into()
    }
}
#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Vram {}

/// A process on the daemon's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessRef {
    /// The one with this pid, as the daemon counts pids.
    Pid(u32),
    /// The one that made the connection. The kernel knows it, also from inside a container, whose pids are others.
    Caller,
}

impl From<u32> for ProcessRef {
    fn from(pid: u32) -> ProcessRef {
        ProcessRef::Pid(pid)
    }
}

impl Serialize for ProcessRef {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            ProcessRef::Pid(pid) => serializer.serialize_u32(*pid),
            ProcessRef::Caller => serializer.serialize_str("caller"),
        }
    }
}

impl<'de> Deserialize<'de> for ProcessRef {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = ProcessRef;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a process id, or \"caller\"")
            }
            fn visit_u64<E: serde::de::Error>(self, n: u64) -> Result<ProcessRef, E> {
                let pid = u32::try_from(n).map_err(|_| E::invalid_value(serde::de::Unexpected::Unsigned(n), &self));
                pid.map(ProcessRef::Pid)
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ProcessRef, E> {
                match text {
                    "caller" => Ok(ProcessRef::Caller),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for ProcessRef {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, SchemaType, Type};
        OneOfBuilder::new()
            .item(
                ObjectBuilder::new()
                    .schema_type(SchemaType::Type(Type::Integer))
                    .minimum(Some(1))
                    .maximum(Some(u32::MAX)),
            )
            .item(ObjectBuilder::new().schema_type(SchemaType::Type(Type::String)).enum_values(Some(["caller"])))
            .description(Some("A process id, or \"caller\" for the process that made the connection."))
            .into()
    }
}
#[cfg(feature = "openapi")]
impl utoipa::ToSchema for ProcessRef {}

/// The class that decides which request goes first: interactive before batch before spot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Tier {
    /// A user is looking at it.
    Interactive,
    /// The ordinary case.
    #[default]
    Batch,
    /// The least urgent; leases may be ended for other requests unless `preempt` says otherwise.
    Spot,
}

/// Which other leases may be on a GPU at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Exclusivity {
    /// Any lease that fits beside it.
    #[default]
    Shared,
    /// No lease of another tenant; leases of the same tenant may join.
    SessionExclusive,
    /// No other lease at all.
    DeviceExclusive,
}

/// What may be done to a lease when other requests need its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Preempt {
    /// Park it and resume it later; never end it.
    Park,
    /// It may also be ended: notice, SIGTERM, SIGKILL. Its program begins again from what it saved.
    End,
    /// Nothing, as long as it is used. The tenant needs a quota for such leases.
    Never,
}

/// `POST /v1/leases/{id}/accept`: take a smaller lease now and give up the place in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AcceptRequest {
    /// Bytes per GPU: as offered, or less.
    #[cfg_attr(feature = "openapi", schema(minimum = 1_048_576))]
    pub vram_bytes: u64,
    /// How many GPUs. Default: as many as were requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 64))]
    pub gpus: Option<u32>,
}

/// `POST /v1/leases/{id}/renew`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// The fence with which the lease was granted (its `fence`); an older one is refused.
    #[cfg_attr(feature = "openapi", schema(maximum = 9_223_372_036_854_775_807_u64))]
    pub fence: u64,
}

/// `POST /v1/leases/{id}/bind`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BindRequest {
    /// The fence with which the lease was granted (its `fence`); an older one is refused.
    #[cfg_attr(feature = "openapi", schema(maximum = 9_223_372_036_854_775_807_u64))]
    pub fence: u64,
    /// A live process of the caller's own user. Its descendants belong to the lease too.
    pub pid: ProcessRef,
}

/// `POST /v1/leases/{id}/hook`: the result of a hook that the holder's wrapper ran. A report alone frees nothing: the
/// GPUs are read before the memory counts as free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HookReport {
    /// The fence with which the lease was granted (its `fence`); an older one is refused.
    #[cfg_attr(feature = "openapi", schema(maximum = 9_223_372_036_854_775_807_u64))]
    pub fence: u64,
    /// The result.
    pub result: HookResult,
    /// Why it failed, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 256))]
    pub why: Option<String>,
}

/// The result of a hook, as the holder's wrapper reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum HookResult {
    /// The programs freed the GPUs.
    Parked,
    /// The programs have their memory again.
    Resumed,
    /// The hook failed, or took too long.
    Failed,
    /// The programs are parked and need their GPUs again.
    WantsResume,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_optional_fields_is_read_and_written_without_them() {
        let text = r#"{"vram_bytes":1048576,"tier":"batch","priority":0,"exclusivity":"shared","preempt":"park"}"#;
        let request: LeaseRequest = serde_json::from_str(text).unwrap();
        assert_eq!(
            (request.has_hook, request.may_lose, &request.notice, request.preempt),
            (false, false, &None, Some(Preempt::Park))
        );
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
    }

    #[test]
    fn the_result_of_a_hook_is_one_of_four() {
        let report: HookReport = serde_json::from_str(r#"{"fence":7,"result":"parked"}"#).unwrap();
        assert_eq!(report, HookReport { fence: 7, result: HookResult::Parked, why: None });
        for wrong in [
            r#"{"fence":7,"result":"slept"}"#,
            r#"{"result":"wants-resume"}"#,
            r#"{"fence":7,"result":"wants-resume","x":1}"#,
        ] {
            assert!(serde_json::from_str::<HookReport>(wrong).is_err(), "{wrong}");
        }
    }
}
