//! The HTTP client under an object store: hyper, with rustls over ring and the system's certificates.
//!
//! Absent on purpose: redirects, proxies and HTTP/2. A store is one server that is named in the configuration.

use async_trait::async_trait;
use http_body_util::BodyExt;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use rustls::crypto::ring;
use std::io;
use std::time::Duration;

/// How long a connection may take to open.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// How long an unused connection is kept.
const IDLE_LIMIT: Duration = Duration::from_secs(20);

type HyperClient = Client<HttpsConnector<TcpConnector>, HttpRequestBody>;

/// Makes clients of which each request is answered, or fails, within a limit.
#[derive(Clone, Debug)]
pub struct HyperConnector {
    client: HyperClient,
    limit: Duration,
}

impl HyperConnector {
    /// A connector for `https` and `http`. With [`Certificates::None`] each `https` server is refused.
    pub fn new(certificates: Certificates, limit: Duration) -> io::Result<HyperConnector> {
        let mut tcp = TcpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT_LIMIT));
        tcp.set_nodelay(true);
        let provider = ring::default_provider();
        let tls = match certificates {
            Certificates::System => HttpsConnectorBuilder::new().with_provider_and_native_roots(provider)?,
            Certificates::None => {
                let config = rustls::ClientConfig::builder_with_provider(provider.into());
                let config = config.with_safe_default_protocol_versions().map_err(io::Error::other)?;
                let roots = rustls::RootCertStore::empty();
                HttpsConnectorBuilder::new().with_tls_config(config.with_root_certificates(roots).with_no_client_auth())
            }
        };
        let connector = tls.https_or_http().enable_http1().wrap_connector(tcp);
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_LIMIT);
        Ok(HyperConnector { client: client.build(connector), limit })
    }
}

/// Which certificates vouch for servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certificates {
    /// The system's, or those in the file that `SSL_CERT_FILE` names.
    System,
    /// None: the store is reached over `http`.
    None,
}

impl HttpConnector for HyperConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for HyperConnector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let late = || {
            let text = format!("no answer came within {} s", self.limit.as_secs_f32());
            HttpError::new(HttpErrorKind::Timeout, io::Error::new(io::ErrorKind::TimedOut, text))
        };
        let answer = tokio::time::timeout(self.limit, self.client.request(request)).await.map_err(|_| late())?;
        let response = answer.map_err(|error| {
            let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Interrupted };
            HttpError::new(kind, error)
        })?;
        let broken = |error| HttpError::new(HttpErrorKind::Interrupted, error);
        Ok(response.map(|body| HttpResponseBody::new(body.map_err(broken))))
    }
}
