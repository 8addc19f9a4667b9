//! From a request to its handler.
//!
//! A busy day is asks and releases. The router's way to them (a table of patterns, a boxed service, parameters, an
//! answer looked over again) cost as much as what they do, so those two are recognised here, by nothing but method and
//! path; whatever is not quite one of them takes the router's way, which knows both as well.

use super::body::Name;
use super::{App, Refused, leases, router};
use crate::mail::Reply;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Request};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;

/// All routes, and a shorter way to two of them.
#[derive(Clone)]
pub struct Ways {
    app: App,
    router: TowerToHyperService<Router>,
}

impl Ways {
    /// To these handlers.
    pub(super) fn app(&self) -> &App {
        &self.app
    }

    /// To this app's handlers.
    pub fn new(app: App) -> Ways {
        Ways { router: TowerToHyperService::new(router(app.clone())), app }
    }

    /// Has a request answered that says who sent it.
    pub async fn answer(&self, request: Request<Incoming>) -> Result<Response, Infallible> {
        let app = State(self.app.clone());
        match Short::of(request.method(), request.uri().path()) {
            Some(Short::Ask) => Ok(plain(leases::ask(app, request.map(Body::new)).await).into_response()),
            Some(Short::Release(name)) => {
                Ok(plain(leases::release(app, name, request.map(Body::new)).await).into_response())
            }
            None => self.router.call(request).await,
        }
    }
}

/// A refusal is an answer too.
pub(super) fn plain(answer: Result<Reply, Refused>) -> Reply {
    answer.unwrap_or_else(|Refused(problem)| Reply::problem(&problem))
}

/// A request that needs no router.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Short {
    /// For a lease.
    Ask,
    /// Of this one.
    Release(Name),
}

impl Short {
    pub(super) fn of(method: &Method, path: &str) -> Option<Short> {
        let rest = path.strip_prefix("/v1/leases")?;
        match *method {
            Method::POST if rest.is_empty() => Some(Short::Ask),
            // What is more than a plain name, escaped or further down, is the router's to take apart.
            Method::DELETE => {
                let name = rest.strip_prefix('/')?;
                let is_plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
                is_plain.then(|| Short::Release(Name(name.to_owned())))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_and_releases_and_nothing_else_take_the_short_way() {
        assert_eq!(Short::of(&Method::POST, "/v1/leases"), Some(Short::Ask));
        assert_eq!(Short::of(&Method::DELETE, "/v1/leases/L7"), Some(Short::Release(Name("L7".to_owned()))));
        let others = [
            (Method::GET, "/v1/leases"),
            (Method::POST, "/v1/leases/"),
            (Method::POST, "/v1/leases/L7"),
            (Method::POST, "/v1/leasesL7"),
            (Method::DELETE, "/v1/leases"),
            (Method::DELETE, "/v1/leases/"),
            (Method::DELETE, "/v1/leases/L7/"),
            (Method::DELETE, "/v1/leases/L7/renew"),
            (Method::DELETE, "/v1/leases/L%37"),
            (Method::DELETE, "/v1/leasesL7"),
            (Method::HEAD, "/v1/leases/L7"),
        ];
        for (method, path) in others {
            assert_eq!(Short::of(&method, path), None, "{method} {path}");
        }
    }
}
