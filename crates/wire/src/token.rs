//! Tokens as clients see them: what callers over TCP may do.

use serde::{Deserialize, Serialize};

/// What every token begins with; 64 hexadecimal digits in lower case follow.
pub const TOKEN_PREFIX: &str = "sbl_";
/// How many digits follow.
pub const TOKEN_DIGITS: usize = 64;

/// A request for a token: `POST /v1/tokens`. The caller makes the secret and keeps it; the service gets its hash and
/// never the secret itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// The BLAKE3 hash of the whole token (`sbl_` and 64 random hexadecimal digits), in hexadecimal.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9a-f]{64}$"))]
    pub hash: String,
    /// The tenant that it is for: `uid:1000`, or a kind and a name such as `user:ana` (operators). Default: the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 3, max_length = 64, pattern = r"^[^:\s]+:\S+$"))]
    pub tenant: Option<String>,
    /// A name for people. At most 64 characters, without control characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "openapi",
        schema(
            min_length = 1,
            max_length = 64,
            pattern = r"^[^\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]+$"
        )
    )]
    pub name: Option<String>,
    /// It may read, and change nothing.
    #[serde(default)]
    pub read_only: bool,
    /// The most bytes that its leases may have together, on all GPUs, waiting leases included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_125_899_906_842_624_u64))]
    pub vram_bytes: Option<u64>,
    /// The most leases that it may have, waiting ones included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub leases: Option<u32>,
    /// Seconds from now until it expires. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 31_622_400))]
    pub expires_in_s: Option<u64>,
}

/// A token that was not revoked, without its secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Token {
    /// `K3`.
    pub id: String,
    /// The tenant of the leases that it can use (`uid:1000`, `user:ana`).
    pub tenant: String,
    /// The name of that user, for people.
    pub user: String,
    /// What its owner calls it.
    pub name: Option<String>,
    /// It may read, and change nothing.
    pub read_only: bool,
    /// The most bytes that its leases may have together; null: no cap of its own.
    pub vram_bytes: Option<u64>,
    /// The most leases that it may have; null: no cap of its own.
    pub leases: Option<u32>,
    /// When it was made, in Unix seconds.
    pub made_unix_s: f64,
    /// When it expires, in Unix seconds; null: never.
    pub expires_unix_s: Option<f64>,
    /// It has expired.
    pub expired: bool,
    /// When it was last used, in Unix seconds; null if not since the service started.
    pub last_used_unix_s: Option<f64>,
}

/// `GET /v1/tokens`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tokens {
    /// The tokens that the caller may see, oldest first.
    pub tokens: Vec<Token>,
}
