//! Tokens, and certificates that vouch for a service of our own.

use crate::http::TestClient;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sublet_wire::{TOKEN_DIGITS, TOKEN_PREFIX, Token};

/// A secret that no other call returns. It is unique, not random: tests need no more.
pub fn new_secret() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = (u64::from(std::process::id()) << 32) | NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{TOKEN_PREFIX}{number:0TOKEN_DIGITS$x}")
}

/// A body of `POST /v1/tokens` for this secret, with these fields.
pub fn token_body(secret: &str, more: Value) -> Value {
    let mut wish = json!({ "hash": blake3::hash(secret.as_bytes()).to_hex().to_string() });
    if let (Some(fields), Some(more)) = (wish.as_object_mut(), more.as_object()) {
        fields.extend(more.clone());
    }
    wish
}

impl TestClient {
    /// Makes a token with these fields; its secret and what the service says of it.
    pub fn make_token(&self, more: Value) -> (String, Token) {
        let secret = new_secret();
        let answer = self.post("/v1/tokens", &token_body(&secret, more));
        assert_eq!(answer.status, 201, "{}", answer.text());
        (secret, answer.read())
    }
}

/// A certificate for `localhost` in a directory, and its key.
pub struct Certificate {
    /// The certificate's file.
    pub cert: PathBuf,
    /// The key's file.
    pub key: PathBuf,
}

impl Certificate {
    /// Makes one, in place of one that was there.
    pub fn create(dir: &Path) -> Certificate {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate can be made");
        let files = Certificate { cert: dir.join("cert.pem"), key: dir.join("key.pem") };
        fs::write(&files.cert, made.cert.pem()).expect("a file can be written");
        fs::write(&files.key, made.signing_key.serialize_pem()).expect("a file can be written");
        files
    }
    /// Trusts this certificate and no other.
    pub fn trust(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        let cert = CertificateDer::from_pem_file(&self.cert).expect("a certificate can be read");
        roots.add(cert).expect("a certificate can be trusted");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("there are versions of TLS");
        Arc::new(config.with_root_certificates(roots).with_no_client_auth())
    }
    /// The part of a configuration that uses it.
    pub fn config(&self) -> String {
        format!("tls_cert = {:?}\ntls_key = {:?}\n", self.cert, self.key)
    }
}
