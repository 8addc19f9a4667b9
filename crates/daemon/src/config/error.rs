//! Why a configuration cannot be used, and what to do about it.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use thiserror::Error;

/// The path of a key in the file: tables, then the key itself. An index names one of several tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPath(Vec<String>);

impl KeyPath {
    /// The tables and the key, from the outside in.
    pub fn parts(&self) -> &[String] {
        &self.0
    }

    /// The first tables of the path.
    pub(super) fn outermost(&self, count: usize) -> KeyPath {
        KeyPath(self.0.iter().take(count).cloned().collect())
    }

    /// The table itself, before the tables around it are known.
    pub(super) fn table() -> KeyPath {
        KeyPath(Vec::new())
    }

    fn prepend(&mut self, tables: &[&str]) {
        self.0.splice(0..0, tables.iter().map(|&table| table.to_owned()));
    }
}

impl From<&str> for KeyPath {
    /// `parking.ram`: for keys that are known here, which have no dots.
    fn from(text: &str) -> KeyPath {
        KeyPath(text.split('.').map(str::to_owned).collect())
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

/// Why the configuration cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration `{}`", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is no TOML, or has a key that does not exist.
    #[error("the configuration `{}` is wrong", path.display())]
    Wrong {
        /// Which.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A value makes no sense.
    #[error("`{key} = \"{value}\"` makes no sense: {why}")]
    Value {
        /// Which key.
        key: KeyPath,
        /// What it was set to.
        value: String,
        /// What would do.
        why: String,
    },
    /// There is no such user or group on this host.
    #[error("there is no {kind} `{name}` on this host")]
    NoSuch {
        /// `user` or `group`.
        kind: &'static str,
        /// The name.
        name: String,
        /// The key that names it.
        key: KeyPath,
    },
    /// A key that means nothing in its table.
    #[error("`{key}` is set, and means nothing in `[{table}]`")]
    Misplaced {
        /// The key.
        key: KeyPath,
        /// Where it was.
        table: &'static str,
    },
    /// Tokens would go over the network for all to read.
    #[error("without a certificate the service listens on this host only, and {listen} is reached from others")]
    PlainTcp {
        /// Where it should have listened.
        listen: SocketAddr,
    },
    /// Half of what TLS needs, or all of it and no address.
    #[error("`{given}` is given, and `{missing}` is not")]
    HalfTcp {
        /// What there is.
        given: &'static str,
        /// What is not.
        missing: &'static str,
    },
}

impl ConfigError {
    /// A senseless value.
    pub(super) fn value(key: &str, value: impl fmt::Display, why: impl Into<String>) -> ConfigError {
        ConfigError::Value { key: key.into(), value: value.to_string(), why: why.into() }
    }

    /// The same error, about a key inside these tables.
    pub(super) fn within(mut self, tables: &[&str]) -> ConfigError {
        if let ConfigError::Value { key, .. } | ConfigError::NoSuch { key, .. } | ConfigError::Misplaced { key, .. } =
            &mut self
        {
            key.prepend(tables);
        }
        self
    }

    /// The key that it is about, if it is about one.
    pub(super) fn key(&self) -> Option<KeyPath> {
        match self {
            ConfigError::Value { key, .. } | ConfigError::NoSuch { key, .. } | ConfigError::Misplaced { key, .. } => {
                Some(key.clone())
            }
            ConfigError::PlainTcp { .. } => Some("tcp.listen".into()),
            ConfigError::HalfTcp { given, .. } => Some(format!("tcp.{given}").as_str().into()),
            ConfigError::Unreadable { .. } | ConfigError::Wrong { .. } => None,
        }
    }

    /// The next step.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ConfigError::Wrong { .. } | ConfigError::Misplaced { .. } => {
                Some("docs/reference/configuration.md lists every key")
            }
            ConfigError::PlainTcp { .. } => Some(
                "give a certificate with `tls_cert` and `tls_key` (`--tls-cert`, `--tls-key`), or listen on 127.0.0.1",
            ),
            ConfigError::Unreadable { .. } => {
                Some("name a file with `--config` that is there, and that its user can read")
            }
            ConfigError::NoSuch { kind: "user", .. } => Some("`getent passwd` lists users; a uid is good too"),
            ConfigError::NoSuch { .. } => Some("`getent group` lists groups; `groupadd NAME` makes one"),
            ConfigError::HalfTcp { .. } => Some("give both, and the address to listen on, or none of the three"),
            _ => None,
        }
    }
}
