//! The API's description, generated from the handlers.

use super::{cards, events, leases, records};
use axum::response::IntoResponse;
use std::sync::OnceLock;
use utoipa::OpenApi;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Sublet",
        description = "Share a few GPUs by short leases. Served on a Unix socket; the kernel says who calls.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    servers((url = "http://localhost", description = "over the Unix socket")),
    paths(
        leases::ask, leases::list, leases::show, leases::release, leases::renew, leases::accept, leases::bind, leases::explain,
        leases::queue, cards::list, cards::drain, cards::clear, records::usage, records::audit, events::stream,
        super::health, super::ready,
    ),
    components(schemas(sublet_wire::Problem, sublet_wire::Code, sublet_wire::Remedy)),
    tags(
        (name = "leases", description = "ask, wait, hold, give back"),
        (name = "cards", description = "what there is"),
        (name = "records", description = "what was used, what was decided"),
        (name = "service", description = "the service itself"),
    ),
)]
struct Api;

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
