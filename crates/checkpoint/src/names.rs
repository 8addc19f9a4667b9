//! Names, numbers and keys of checkpoints, and how a name becomes part of a path.
//!
//! A name may be any text of at most 128 bytes. [`escape`] turns it into characters that every
//! register and every file system takes, so that no name leaves the directory it belongs to:
//! letters, digits, `-`, `:` and inner dots stay, every other byte becomes `_` and two hexadecimal
//! digits. Different names stay different.
//!
//! Absent on purpose: any meaning of a name. A job's name is the user's choice.

use crate::error::ReplicatedError;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The longest name after escaping. A chain's name holds two of them and still fits in 200 characters.
const ESCAPED_MAX: usize = 96;

/// Defines a name: a newtype of `String` with `new`, `as_str` and `Display`.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(String);

        impl $name {
            /// The name; it is checked where it is used.
            pub fn new(name: impl Into<String>) -> $name {
                $name(name.into())
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// The resource that checkpoints or effects belong to: a directory of checkpoints, a store of effects.
    LogicalResourceName
}
name! {
    /// One checkpoint inside a resource, with a chain of versions.
    CheckpointName
}
name! {
    /// How the saved bytes are to be understood. A checkpoint of another schema is refused.
    SchemaId
}
name! {
    /// One copy's place. The configuration maps it to a directory.
    ReplicaId
}

/// The number of one version of a checkpoint: 1, 2, 3, …; 0 stands for "nothing saved yet".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version(pub u64);

impl Version {
    /// The version after this one.
    pub fn next(self) -> Version {
        Version(self.0 + 1)
    }

    /// The name of the version's directory: six digits or more.
    pub fn directory(self) -> String {
        format!("{:06}", self.0)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number that only grows and that only the register issues. A writer with an older one is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FenceEpoch(pub u64);

impl fmt::Display for FenceEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How often a register was rebuilt from the replicas, plus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ResourceGeneration(pub u64);

/// A hash of whatever must be equal for a checkpoint to be usable: hyperparameters, code, data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyHash(pub [u8; 32]);

/// What an effect was asked to do, as a hash. The same key with another fingerprint is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EffectFingerprint(pub [u8; 32]);

impl EffectFingerprint {
    /// The hash of everything that the effect depends on.
    pub fn of(bytes: &[u8]) -> EffectFingerprint {
        EffectFingerprint(*blake3::hash(bytes).as_bytes())
    }
}

impl fmt::Debug for EffectFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0[..6]))
    }
}

impl Serialize for EffectFingerprint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for EffectFingerprint {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<EffectFingerprint, D::Error> {
        let text = String::deserialize(deserializer)?;
        let hash = blake3::Hash::from_hex(text.as_bytes()).map_err(serde::de::Error::custom)?;
        Ok(EffectFingerprint(*hash.as_bytes()))
    }
}

/// The name of something that must be committed once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EffectKey {
    /// What the key belongs to, such as one job. Each scope has its own chain in the register.
    pub scope: String,
    /// Which effect of the scope.
    pub name: EffectName,
}

/// One effect inside its scope.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectName {
    /// A step of a sequence. Records of steps far below the newest one are dropped; the steps stay completed.
    Step(u64),
    /// A name of the user's choice. Its record is kept until it is forgotten.
    Named(String),
}

impl EffectKey {
    /// The key of an effect with a name of its own.
    pub fn new(scope: impl Into<String>, name: impl Into<String>) -> EffectKey {
        EffectKey { scope: scope.into(), name: EffectName::Named(name.into()) }
    }

    /// The key of one step of a job.
    pub fn step(job: impl Into<String>, step: u64) -> EffectKey {
        EffectKey { scope: job.into(), name: EffectName::Step(step) }
    }
}

impl fmt::Display for EffectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EffectName::Step(step) => write!(f, "step {step}"),
            EffectName::Named(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for EffectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.name, self.scope)
    }
}

/// The name of a chain in the register: `[A-Za-z0-9._:/-]`, at most 200 characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainName(String);

impl ChainName {
    /// The chain of one checkpoint's versions.
    pub fn of_checkpoint(resource: &LogicalResourceName, name: &CheckpointName) -> Result<ChainName, ReplicatedError> {
        ChainName::of("c", resource.as_str(), name.as_str())
    }

    /// The chain of one scope's effects.
    pub fn of_effects(resource: &LogicalResourceName, scope: &str) -> Result<ChainName, ReplicatedError> {
        ChainName::of("e", resource.as_str(), scope)
    }

    /// The chain with one entry for each time that the register was rebuilt.
    pub fn of_generations() -> ChainName {
        ChainName("g/generations".to_owned())
    }

    fn of(kind: &str, resource: &str, name: &str) -> Result<ChainName, ReplicatedError> {
        Ok(ChainName(format!("{kind}/{}/{}", escape(resource)?, escape(name)?)))
    }

    /// The chain with this name, as a register lists it; `None` if no chain may be named so.
    pub fn parse(name: &str) -> Option<ChainName> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/-".contains(&byte);
        let fits = !name.is_empty() && name.len() <= 200 && name.bytes().all(allowed);
        fits.then(|| ChainName(name.to_owned()))
    }

    /// The resource and the name of a chain of checkpoints; `None` for a chain of effects.
    pub fn checkpoint(&self) -> Option<(LogicalResourceName, CheckpointName)> {
        let mut parts = self.0.split('/');
        let (kind, resource, name) = (parts.next()?, parts.next()?, parts.next()?);
        let found = (LogicalResourceName::new(unescape(resource)?), CheckpointName::new(unescape(name)?));
        (kind == "c" && parts.next().is_none()).then_some(found)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name as one component of a path. Different names give different components, and none is `.` or `..`.
pub fn escape(name: &str) -> Result<String, ReplicatedError> {
    let mut escaped = String::with_capacity(name.len());
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b':' => escaped.push(byte.into()),
            b'.' if at > 0 => escaped.push('.'),
            _ => escaped.push_str(&format!("_{byte:02x}")),
        }
    }
    if escaped.is_empty() || escaped.len() > ESCAPED_MAX {
        return Err(ReplicatedError::InvalidName { name: name.chars().take(80).collect(), longest: ESCAPED_MAX });
    }
    Ok(escaped)
}

/// The name that [`escape`] gave this component for; `None` if it gave it for no name.
pub fn unescape(component: &str) -> Option<String> {
    let bytes = component.as_bytes();
    let mut name = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if byte == b'_' {
            let digits = std::str::from_utf8(bytes.get(at + 1..at + 3)?).ok()?;
            name.push(u8::from_str_radix(digits, 16).ok()?);
            at += 3;
        } else {
            name.push(byte);
            at += 1;
        }
    }
    let name = String::from_utf8(name).ok()?;
    (escape(&name).ok()? == component).then_some(name)
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ordinary_names_stay_readable() {
        assert_eq!(escape("job:spot-resnet:latest").expect("a name"), "job:spot-resnet:latest");
        assert_eq!(escape("v1.2").expect("a name"), "v1.2");
        assert_eq!(escape("my job").expect("a name"), "my_20job");
    }

    #[test]
    fn names_with_path_tricks_become_one_harmless_component() {
        for name in ["..", ".", "/etc/passwd", "../../x", "a/b", ".sublet", "a\0b", "_", "latest/..", "é"] {
            let escaped = escape(name).expect("a name");
            assert!(!escaped.contains('/') && !escaped.starts_with('.') && !escaped.contains('\0'), "{escaped}");
            assert_eq!(unescape(&escaped).as_deref(), Some(name));
        }
        assert!(escape("").is_err());
        assert!(escape(&"x".repeat(ESCAPED_MAX + 1)).is_err());
    }

    #[test]
    fn chains_of_two_long_names_fit_a_register() {
        let longest = "x".repeat(ESCAPED_MAX);
        let chain = ChainName::of_checkpoint(&LogicalResourceName::new(&longest), &CheckpointName::new(&longest))
            .expect("it fits");
        assert_eq!(ChainName::parse(chain.as_str()), Some(chain.clone()));
        assert_eq!(chain.checkpoint(), Some((LogicalResourceName::new(&longest), CheckpointName::new(longest))));
    }

    proptest! {
        #[test]
        fn escaping_can_be_undone(name in "\\PC{1,20}") {
            if let Ok(escaped) = escape(&name) {
                prop_assert_eq!(unescape(&escaped), Some(name));
            }
        }
    }
}
