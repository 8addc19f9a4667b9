//! Which daemon this program uses.
//!
//! ```text
//!   a `LocalHost` of this process, while there is one
//!   else SUBLET_URL (another host), SUBLET_SOCKET, or the usual sockets
//! ```

use crate::builder::GpuBuilder;
use crate::client::{DaemonClient, sockets};
use crate::error::FabricError;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use sublet_wire::Gpus;

/// The socket of this process's own daemon; see [`crate::testing`].
static PRIVATE: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Makes a daemon the one that [`Fabric::connect`] finds; `None` undoes that.
pub(crate) fn set_private(socket: Option<PathBuf>) {
    *PRIVATE.lock().unwrap_or_else(PoisonError::into_inner) = socket;
}

/// The GPUs that one daemon leases.
#[derive(Clone, Debug)]
pub struct Fabric {
    client: DaemonClient,
}

impl Fabric {
    /// The daemon that is meant: this process's own, the one that the environment names, or the host's.
    pub fn connect() -> Result<Fabric, FabricError> {
        let private = PRIVATE.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(socket) = private {
            return Ok(Fabric::at(&socket));
        }
        match url()? {
            Some(url) => Fabric::remote(&url),
            None => Ok(Fabric { client: DaemonClient::open(None)? }),
        }
    }

    /// The daemon at a Unix socket. Nothing is tested: the first call fails if no daemon listens there.
    pub fn at(socket: &Path) -> Fabric {
        Fabric { client: DaemonClient::at(socket) }
    }

    /// The daemon at an address such as `https://gpu1:7474`, with the token from the environment.
    #[cfg(feature = "remote")]
    pub(crate) fn remote(url: &str) -> Result<Fabric, FabricError> {
        Ok(Fabric { client: DaemonClient::remote(url)? })
    }

    #[cfg(not(feature = "remote"))]
    pub(crate) fn remote(url: &str) -> Result<Fabric, FabricError> {
        Err(FabricError::InvalidArgument(format!(
            "SUBLET_URL names {url}, and this program was built without the feature `remote`"
        )))
    }

    /// A request for a lease of this daemon's GPUs.
    pub fn alloc_gpu(&self) -> GpuBuilder {
        GpuBuilder::new().on(self.clone())
    }

    /// The GPUs, with what is free on each.
    pub fn gpus(&self) -> Result<Gpus, FabricError> {
        self.client.get("/v1/gpus").map_err(|error| FabricError::of_call(&self.client, None, error))
    }

    /// The client of the API.
    pub fn client(&self) -> &DaemonClient {
        &self.client
    }
}

/// The address in the environment. On a lease its own daemon is meant, whatever a startup file sets.
fn url() -> Result<Option<String>, FabricError> {
    let url = sockets::variable("SUBLET_URL").map(|url| url.to_string_lossy().into_owned());
    match (url, sockets::variable(sockets::SOCKET_VARIABLE)) {
        (Some(_), Some(_)) if sockets::variable("SUBLET_LEASE").is_some() => Ok(None),
        (Some(_), Some(_)) => Err(FabricError::InvalidArgument(
            "SUBLET_URL and SUBLET_SOCKET are both set, and each names a daemon: unset one of them".to_owned(),
        )),
        (url, _) => Ok(url),
    }
}
