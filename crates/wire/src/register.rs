//! Registers of checkpoints as clients see them.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// `GET /v1/registers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CheckpointRegisters {
    /// The caller's registers, by name.
    pub registers: Vec<CheckpointRegister>,
    /// The most bytes that one may have.
    pub bytes_max: u64,
    /// The most registers that a user may have.
    pub registers_max: u32,
}

/// A register of checkpoints that the daemon keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CheckpointRegister {
    /// Its name.
    pub name: String,
    /// The bytes that its file has on the daemon's disk.
    pub bytes: u64,
}

/// `GET /v1/registers/{register}/chains`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RegisterChains {
    /// Chains with entries, by name.
    pub chains: Vec<RegisterChain>,
    /// More chains follow.
    pub more: bool,
}

/// A chain of entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RegisterChain {
    /// Its name.
    pub name: String,
    /// The number of its newest entry; 0 if it has none.
    pub last: u64,
}

/// `GET /v1/registers/{register}/chains/{chain}/entries`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RegisterEntries {
    /// The entries, in order. Those that were forgotten are left out.
    pub entries: Vec<RegisterEntry>,
    /// More entries follow.
    pub more: bool,
}

/// One entry of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RegisterEntry {
    /// Its number.
    pub number: u64,
    /// Its bytes, in Base64 (RFC 4648, with padding).
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub bytes: EntryBytes,
}

/// Bytes that are Base64 in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryBytes(pub Vec<u8>);

impl Serialize for EntryBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for EntryBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<EntryBytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64_STANDARD.decode(text).map(EntryBytes).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_survive_json() {
        let entry = RegisterEntry { number: 7, bytes: EntryBytes((0..=255).collect()) };
        let text = serde_json::to_string(&entry).unwrap();
        assert!(text.starts_with("{\"number\":7,\"bytes\":\"AAECAwQ"), "{text}");
        assert_eq!(serde_json::from_str::<RegisterEntry>(&text).unwrap(), entry);
        assert!(serde_json::from_str::<RegisterEntry>(r#"{"number":7,"bytes":"A"}"#).is_err());
    }
}
