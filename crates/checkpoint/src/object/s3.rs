//! Buckets of S3, and of services that speak its protocol.
//!
//! Credentials come from the environment (`AWS_ACCESS_KEY_ID` and the like) or from the instance's role.
//!
//! Absent on purpose: credentials in a configuration file.

use super::http::{Certificates, HyperConnector};
use super::{CALL_LIMIT, ObjectBucket};
use crate::places::{S3Settings, SCHEME};
use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::{BackoffConfig, RetryConfig};
use std::sync::Arc;
use std::time::Duration;

/// What a bucket is used for. It decides how long a request is waited for, and whether it is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum S3Purpose {
    /// Small objects, created once. The register sends a request again by itself, and looks at what is there.
    Register,
    /// Content. Each request may be sent again: it writes the same bytes under the same name.
    Content,
}

impl S3Purpose {
    /// How long one request is waited for.
    fn request_limit(self) -> Duration {
        match self {
            S3Purpose::Register => Duration::from_secs(10),
            S3Purpose::Content => Duration::from_secs(60),
        }
    }

    /// How long a call is waited for, with its retries.
    fn call_limit(self) -> Duration {
        match self {
            S3Purpose::Register => Duration::from_secs(20),
            S3Purpose::Content => CALL_LIMIT,
        }
    }

    fn retries(self) -> RetryConfig {
        let max_retries = match self {
            S3Purpose::Register => 0,
            S3Purpose::Content => 8,
        };
        let backoff =
            BackoffConfig { init_backoff: Duration::from_millis(100), max_backoff: Duration::from_secs(5), base: 2.0 };
        RetryConfig { backoff, max_retries, retry_timeout: Duration::from_secs(60) }
    }
}

impl ObjectBucket {
    /// A bucket of S3 or of a service that speaks its protocol. Nothing is sent to the server yet. The error says what
    /// is wrong with the settings.
    ///
    /// Credentials come from the environment (`AWS_ACCESS_KEY_ID` and the like) or from the instance's role.
    pub fn s3(name: &str, settings: &S3Settings, purpose: S3Purpose) -> Result<ObjectBucket, String> {
        let endpoint = settings.endpoint.clone().or_else(endpoint_of_environment);
        let is_plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        if let Some(endpoint) = endpoint.as_ref().filter(|_| is_plain && !settings.allow_http) {
            return Err(format!(
                "`{endpoint}` is not encrypted: name an `https` address, or set `allow_http = true` under [s3]"
            ));
        }
        let certificates = if is_plain { Certificates::None } else { Certificates::System };
        let connector = HyperConnector::new(certificates, purpose.request_limit());
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(name)
            .with_conditional_put(S3ConditionalPut::ETagMatch)
            .with_retry(purpose.retries())
            .with_http_connector(connector.map_err(|error| error.to_string())?);
        if let Some(endpoint) = endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = &settings.region {
            builder = builder.with_region(region);
        }
        let store = builder.build().map_err(|error| error.to_string())?;
        let bucket =
            ObjectBucket::new(Arc::new(store), format!("{SCHEME}{name}")).map_err(|error| error.to_string())?;
        Ok(bucket.with_call_limit(purpose.call_limit()))
    }
}

/// The endpoint that the environment names.
fn endpoint_of_environment() -> Option<String> {
    let names = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}
