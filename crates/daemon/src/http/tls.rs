//! The certificate of the TCP listener, and how it is read.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig, version};

/// Why a certificate cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file has not what it should have.
    #[error("no {what} can be read from `{}`", path.display())]
    Unreadable {
        /// A certificate, or a private key.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// The two do not go together, or are not fit for it.
    #[error("the certificate in `{}` and its key cannot be used", cert.display())]
    Unfit {
        /// The certificate's file.
        cert: PathBuf,
        /// Why.
        source: rustls::Error,
    },
}

/// Reads a certificate (and those that vouch for it) and its private key, both PEM.
pub fn read(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let unreadable = |what, path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::Unreadable { what, path, source }
    };
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(cert).and_then(Iterator::collect).map_err(unreadable("certificate", cert))?;
    if chain.is_empty() {
        return Err(unreadable("certificate", cert)(pem::Error::NoItemsFound));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(unreadable("private key", key))?;
    let unfit = |source| TlsError::Unfit { cert: cert.to_owned(), source };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .map_err(unfit)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(unfit)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
