//! Names of places in an object store, and how it is reached.
//!
//! Absent on purpose: the store itself. A program that was built without it can still say what a name means.

use serde::Deserialize;
use std::fmt;

/// What a place in an object store begins with.
pub const SCHEME: &str = "s3://";

/// A prefix in a bucket: `s3://BUCKET/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Place {
    /// The bucket.
    pub bucket: String,
    /// The components of the prefix.
    pub prefix: Vec<String>,
}

/// How the object store is reached: the table `[s3]` of a configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(not(feature = "object-store"), expect(dead_code, reason = "only the object store reads them"))]
pub struct S3Settings {
    /// The server's address; without it, that of Amazon for the region.
    pub endpoint: Option<String>,
    /// The region; without it, that of the environment.
    pub region: Option<String>,
    /// Permits an address that begins with `http://`.
    #[serde(default)]
    pub allow_http: bool,
}

impl S3Place {
    /// The place that a configuration names; `None` if it is a path of the file system. The error says what is
    /// wrong with it.
    pub fn parse(text: &str) -> Result<Option<S3Place>, String> {
        let Some(rest) = text.strip_prefix(SCHEME) else { return Ok(None) };
        let mut components = rest.trim_end_matches('/').split('/').map(str::to_owned);
        let bucket = components.next().unwrap_or_default();
        let prefix: Vec<String> = components.collect();
        let is_plain = |component: &String| !matches!(component.as_str(), "" | "." | "..");
        if is_plain(&bucket) && prefix.iter().all(is_plain) {
            return Ok(Some(S3Place { bucket, prefix }));
        }
        Err(format!("`{text}` is no place in an object store: write `s3://BUCKET/PREFIX`"))
    }
}

impl fmt::Display for S3Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.bucket)?;
        self.prefix.iter().try_for_each(|component| write!(f, "/{component}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_a_bucket_and_a_prefix() {
        let place = S3Place::parse("s3://models/team/a/").expect("a place").expect("an object store");
        assert_eq!((place.bucket.as_str(), place.prefix.len()), ("models", 2));
        assert_eq!(place.to_string(), "s3://models/team/a");
        assert_eq!(S3Place::parse("/mnt/disk").expect("a path"), None);
        for wrong in ["s3://", "s3:///a", "s3://a//b", "s3://a/../b"] {
            assert!(S3Place::parse(wrong).is_err(), "{wrong}");
        }
    }
}
