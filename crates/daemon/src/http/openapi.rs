//! The API's description, generated from the handlers.

use super::{events, gpus, leases, records, registers, tokens, unleased};
use axum::response::IntoResponse;
use std::sync::OnceLock;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Sublet",
        description = "Share a few GPUs by short leases. On the host's Unix socket the kernel names the caller and no token is taken; over TCP, where it is switched on, every call but /healthz, /readyz and /openapi.json carries a token.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    servers((url = "http://localhost", description = "over the Unix socket")),
    paths(
        leases::ask, leases::list, leases::show, leases::release, leases::renew, leases::accept, leases::bind,
        leases::park, leases::resume, leases::hook,
        leases::explain, leases::queue, gpus::list, gpus::drain, gpus::clear, gpus::put_aside,
        gpus::end_aside,
        unleased::list, unleased::mode, unleased::adopt, unleased::set_rule, unleased::drop_rule, tokens::make, tokens::list,
        tokens::revoke, records::usage, records::audit, records::accept_loss, events::stream,
        registers::list, registers::chains, registers::last, registers::entries, registers::create, registers::forget,
        super::health, super::ready,
    ),
    modifiers(&Bearer),
    security((), ("token" = [])),
    components(schemas(sublet_wire::Problem, sublet_wire::Code, sublet_wire::Remedy)),
    tags(
        (name = "leases", description = "request, wait, renew, park, resume, release"),
        (name = "gpus", description = "the GPUs and what is on them"),
        (name = "unleased", description = "processes that use a GPU without a lease, and what is done about them"),
        (name = "tokens", description = "what callers over TCP may do"),
        (name = "records", description = "usage, the audit trail, events"),
        (name = "registers", description = "registers of checkpoints that the daemon keeps for programs"),
        (name = "service", description = "the service itself"),
    ),
)]
struct Api;

/// Describes how a token is sent.
struct Bearer;

impl Modify for Bearer {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .bearer_format("sbl_…")
            .description(Some("Over TCP only; on the Unix socket it is refused."));
        let components = openapi.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(scheme.build()));
    }
}

/// The OpenAPI document, as it is checked in.
pub fn document() -> String {
    let mut text = Api::openapi().to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// `GET /openapi.json`.
pub async fn show() -> impl IntoResponse {
    static TEXT: OnceLock<String> = OnceLock::new();
    ([("content-type", "application/json")], TEXT.get_or_init(document).as_str())
}
