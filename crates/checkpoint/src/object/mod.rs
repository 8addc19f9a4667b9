//! An object store, called from ordinary threads.
//!
//! ```text
//! register/object.rs ─┐                                  ┌─ s3.rs: S3 and what speaks like it
//!                     ├─► ObjectBucket ─► object_store ──┤
//! files/object.rs ────┘   deadline, runtime              └─ in memory, for tests
//! ```
//!
//! Every call has a deadline. A call that exceeds it is given up; what it was to change may change later.
//!
//! Absent on purpose: what objects mean, and retries of conditional creates. The register does those itself.

mod http;
mod runtime;
mod s3;

pub(crate) use runtime::PendingCall;
pub use s3::S3Purpose;

use object_store::ObjectStore;
use runtime::BackgroundRuntime;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How long a call may take, with its retries. It is shorter than the time that a stuck replica is waited for.
const CALL_LIMIT: Duration = Duration::from_secs(150);

/// A bucket of an object store. Clones share its threads.
#[derive(Clone, Debug)]
pub struct ObjectBucket {
    store: Arc<dyn ObjectStore>,
    url: String,
    limit: Duration,
    runtime: Arc<BackgroundRuntime>,
}

impl ObjectBucket {
    /// A bucket under the name that messages and paths have for it, such as `s3://bucket`.
    pub fn new(store: Arc<dyn ObjectStore>, url: impl Into<String>) -> io::Result<ObjectBucket> {
        let runtime = Arc::new(BackgroundRuntime::start()?);
        Ok(ObjectBucket { store, url: url.into(), limit: CALL_LIMIT, runtime })
    }

    /// The same bucket with another limit on each call.
    pub fn with_call_limit(self, limit: Duration) -> ObjectBucket {
        ObjectBucket { limit, ..self }
    }

    /// The name of the bucket.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// How long a call may take.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Starts a call; it goes on while the caller does something else.
    pub(crate) fn start<T, F>(&self, call: impl FnOnce(Arc<dyn ObjectStore>) -> F) -> PendingCall<T>
    where
        T: Send + 'static,
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        let work = call(Arc::clone(&self.store));
        self.runtime.start_call(self.limit, async { work.await.map_err(ObjectError::from) })
    }

    /// Calls the store and waits for the answer.
    pub(crate) fn call<T, F>(&self, call: impl FnOnce(Arc<dyn ObjectStore>) -> F) -> Result<T, ObjectError>
    where
        T: Send + 'static,
        F: Future<Output = object_store::Result<T>> + Send + 'static,
    {
        self.start(call).wait()
    }
}

/// Why a call failed, as far as callers need to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ObjectError {
    /// There is no such object.
    NotFound,
    /// The object exists, or is being made by another call: the server answers both in the same way.
    Exists,
    /// The store cannot do what was asked.
    Unsupported(String),
    /// The server refused the call: it took no effect.
    Refused(String),
    /// There was no answer for so long. The call may still take effect.
    Late(Duration),
    /// It failed otherwise. The call may have taken effect.
    Failed(String),
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectError::NotFound => f.write_str("there is no such object"),
            ObjectError::Exists => f.write_str("the object exists already"),
            ObjectError::Unsupported(what) => write!(f, "the store does not support it: {what}"),
            ObjectError::Late(limit) => write!(f, "it did not answer within {} s", limit.as_secs_f32()),
            ObjectError::Refused(reason) | ObjectError::Failed(reason) => f.write_str(reason),
        }
    }
}

impl From<ObjectError> for io::Error {
    fn from(error: ObjectError) -> io::Error {
        let kind = match error {
            ObjectError::NotFound => io::ErrorKind::NotFound,
            ObjectError::Exists => io::ErrorKind::AlreadyExists,
            ObjectError::Unsupported(_) => io::ErrorKind::Unsupported,
            ObjectError::Refused(_) => io::ErrorKind::PermissionDenied,
            ObjectError::Late(_) => io::ErrorKind::TimedOut,
            ObjectError::Failed(_) => io::ErrorKind::Other,
        };
        io::Error::new(kind, error.to_string())
    }
}

impl From<object_store::Error> for ObjectError {
    fn from(error: object_store::Error) -> ObjectError {
        match &error {
            object_store::Error::NotFound { .. } => ObjectError::NotFound,
            object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. } => ObjectError::Exists,
            object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
                ObjectError::Unsupported(innermost(&error))
            }
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
                ObjectError::Refused(format!("access is denied: {}", server_message(&innermost(&error))))
            }
            _ => ObjectError::Failed(reason_of(&error)),
        }
    }
}

/// The address at which instances of a cloud ask for credentials.
const INSTANCE_METADATA: &str = "169.254.169.254";

fn reason_of(error: &object_store::Error) -> String {
    if error.to_string().contains(INSTANCE_METADATA) {
        return "no credentials were found: AWS_ACCESS_KEY_ID is not set, and this machine has no instance role".into();
    }
    server_message(&innermost(error))
}

/// What the cause of an error says, without all that is said of it on the way.
fn innermost(error: &object_store::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// The code and the message in the server's answer, if it has them; otherwise the beginning of the text.
fn server_message(text: &str) -> String {
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once('<').map(|(content, _)| content)
    };
    match (element("Code"), element("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code.to_owned(),
        _ => text.chars().take(300).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_the_server_is_reduced_to_its_code_and_message() {
        let answer = "403 Forbidden: <Error><Code>AccessDenied</Code><Message>no</Message></Error>";
        assert_eq!(server_message(answer), "AccessDenied: no");
        assert_eq!(server_message("connection refused"), "connection refused");
    }

    #[test]
    fn a_call_that_hangs_ends_at_its_limit() {
        let store = Arc::new(object_store::memory::InMemory::new());
        let bucket = ObjectBucket::new(store, "memory://x").expect("threads");
        let limit = Duration::from_millis(50);
        let hung: Result<(), _> = bucket.with_call_limit(limit).call(|_| std::future::pending());
        assert_eq!(hung, Err(ObjectError::Late(limit)));
    }

    #[test]
    fn calls_work_inside_an_asynchronous_program() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let store = Arc::new(object_store::memory::InMemory::new());
            let bucket = ObjectBucket::new(store, "memory://x").expect("threads");
            assert_eq!(bucket.call(|_| async { Ok(7) }), Ok(7));
            // Its threads end here too.
            drop(bucket);
        });
    }
}
