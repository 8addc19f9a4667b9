//! Tokens: how a caller that is not a local user proves which tenant it is.
//!
//! A token's secret never reaches this program's disk. The client that asks for a token makes the secret and sends its
//! hash. A later call carries the secret, which is hashed and compared. Expiry is by the wall clock, because people
//! write it down in days; the gate that admits a call checks it, and passes the time in here.
//!
//! Absent: the secret, and any way to make a token an operator's.

use crate::model::ids::TokenId;
use crate::model::units::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt::{self, Write as _};
use std::str::FromStr;

/// Tokens in all: a start reads them all, and a listing shows them all.
pub const TOKENS_MAX: usize = 10_000;

/// Tokens of one tenant, so that no tenant uses up the others'.
pub const TOKENS_OF_TENANT: usize = 100;

/// Characters of a subject and of a label.
pub const NAME_MAX: usize = 64;

/// What is kept of a token's secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenHash(pub [u8; 32]);

/// A token that was not revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    /// Its name.
    pub id: TokenId,
    /// The tenant whose leases it is for: `uid:1000`, or a name that an operator chose, such as `user:ana`.
    pub tenant: String,
    /// What its owner calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Of its secret.
    pub hash: TokenHash,
    /// It may read and change nothing.
    pub read_only: bool,
    /// What may be had through it.
    pub caps: TokenCaps,
    /// When it was made, µs since 1970.
    pub made_wall_us: u64,
    /// From then on it is of no use, µs since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_wall_us: Option<u64>,
}

/// What may be had through one token, waiting and held together; `None` is no cap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenCaps {
    /// Bytes of all its leases, summed over GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vram: Option<Bytes>,
    /// Leases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leases: Option<u32>,
}

/// A request for a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRequest {
    /// The tenant that it is for; `None`: the caller itself.
    pub tenant: Option<String>,
    /// What to call it.
    pub name: Option<String>,
    /// Of the secret that the caller made.
    pub hash: TokenHash,
    /// It may read and change nothing.
    pub read_only: bool,
    /// What may be had through it.
    pub caps: TokenCaps,
    /// From then on it is of no use, µs since 1970.
    pub expires_wall_us: Option<u64>,
}

/// What is wrong with a request for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// The subject.
    Tenant,
    /// The label.
    Name,
    /// A cap of nothing.
    Caps,
    /// It would be expired before it is made.
    Expiry,
    /// Another token has this hash.
    Hash,
}

impl Token {
    /// Whether it is of no use any more.
    pub fn is_expired(&self, wall_us: u64) -> bool {
        self.expires_wall_us.is_some_and(|expires| wall_us >= expires)
    }

    /// Whether the token is what this request asks for, with the same secret: then the request was sent twice.
    pub(crate) fn is_for(&self, tenant: &str, request: &TokenRequest) -> bool {
        self.tenant == tenant
            && self.name == request.name
            && self.hash == request.hash
            && self.read_only == request.read_only
            && self.caps == request.caps
            && self.expires_wall_us.is_some() == request.expires_wall_us.is_some()
    }
}

impl TokenRequest {
    /// What of it makes no sense by itself.
    pub fn check(&self, wall_us: u64) -> Result<(), TokenError> {
        let named = |name: &String| is_plain(name) && !name.trim().is_empty();
        if !self.tenant.as_deref().is_none_or(is_subject) {
            return Err(TokenError::Tenant);
        }
        if !self.name.as_ref().is_none_or(named) {
            return Err(TokenError::Name);
        }
        if self.caps.vram == Some(Bytes::ZERO) || self.caps.leases == Some(0) {
            return Err(TokenError::Caps);
        }
        if self.expires_wall_us.is_some_and(|expires| expires <= wall_us) {
            return Err(TokenError::Expiry);
        }
        Ok(())
    }
}

fn is_plain(text: &str) -> bool {
    crate::model::request::is_plain(text, NAME_MAX)
}

/// A kind and a name, so that a token for the local user `ana` cannot be made for another tenant of
/// that name. A local user is written in one way only.
pub fn is_subject(text: &str) -> bool {
    let Some((kind, name)) = text.split_once(':') else { return false };
    let well_formed = is_plain(text) && !text.chars().any(char::is_whitespace) && !kind.is_empty() && !name.is_empty();
    let canonical = || name.parse::<u32>().is_ok_and(|uid| uid.to_string() == name);
    well_formed && (kind != "uid" || canonical())
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenError::Tenant => write!(
                f,
                "`tenant` must be `uid:1000` for a local user, or a kind and a name such as `user:ana`, \
                 at most {NAME_MAX} characters"
            ),
            TokenError::Name => write!(f, "`name` must be 1 to {NAME_MAX} characters, without control characters"),
            TokenError::Caps => f.write_str("a cap of nothing would make a token that can only look: use `read_only`"),
            TokenError::Expiry => f.write_str("the token would be expired before it is made"),
            TokenError::Hash => f.write_str("another token has this `hash`: make a new secret"),
        }
    }
}

/// The text is not 64 hexadecimal digits in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAHash;

impl FromStr for TokenHash {
    type Err = NotAHash;
    fn from_str(text: &str) -> Result<TokenHash, NotAHash> {
        let digits = text.as_bytes();
        let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
        if digits.len() != 64 || !digits.iter().all(is_digit) {
            return Err(NotAHash);
        }
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| NotAHash)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| NotAHash)?;
        }
        Ok(TokenHash(hash))
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut start = String::new();
        self.0[..4].iter().try_for_each(|byte| write!(start, "{byte:02x}"))?;
        write!(f, "{start}…")
    }
}

impl Serialize for TokenHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TokenHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TokenHash, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|NotAHash| serde::de::Error::custom("a hash is 64 hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_in_one_spelling_only() {
        let hash = TokenHash([0xab; 32]);
        assert_eq!(hash.to_string().parse(), Ok(hash));
        for text in ["", "ab", &"AB".repeat(32), &"+b".repeat(32), &"é".repeat(32), &"ab".repeat(33)] {
            assert_eq!(text.parse::<TokenHash>(), Err(NotAHash), "{text}");
        }
        assert!(!format!("{hash:?}").contains(&hash.to_string()));
    }

    #[test]
    fn a_subject_has_a_kind_and_one_spelling() {
        for text in ["uid:0", "uid:1000", "user:ana", "team:größe", "a:b:c"] {
            assert!(is_subject(text), "{text}");
        }
        let long = format!("user:{}", "x".repeat(NAME_MAX));
        for text in ["", "ana", "sublet", ":", "user:", ":ana", "uid:ana", "uid:007", "uid:+7", "u:a\n", "u:a b", &long]
        {
            assert!(!is_subject(text), "{text}");
        }
    }
}
