//! Parts that the descriptions of many calls share.

use std::collections::BTreeMap;
use sublet_wire::{PROBLEM_JSON, Problem};
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Required, Response, ResponseBuilder};
use utoipa::{IntoParams, IntoResponses, ToSchema};

/// The refusals of calls that only read.
pub struct OnRead;

/// The refusals of calls that may change something.
pub struct OnCall;

/// The header that makes a call safe to repeat.
pub struct Repeat;

impl IntoResponses for OnRead {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        refusals(&[
            (400, "the request cannot be read"),
            (401, "over TCP: no valid token"),
            (403, "not allowed"),
            (404, "not found, or not yours"),
            (429, "over TCP: too many calls"),
            (503, "not now: the daemon stops, has no GPUs, or has no free connection for the caller"),
        ])
    }
}

impl IntoResponses for OnCall {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        refusals(&[
            (400, "the request cannot be read"),
            (401, "over TCP: no valid token"),
            (403, "not allowed, or above a cap"),
            (404, "not found, or not yours"),
            (408, "the body did not arrive in time"),
            (409, "the state does not allow it: an old fence, a waiting lease, no room, or a key in use"),
            (410, "the lease has ended"),
            (413, "the body is too large"),
            (422, "a value is invalid or can never be met, or the key was used for another request"),
            (429, "the queue is full, too many new keys, or over TCP: too many calls"),
            (503, "not now: the daemon stops, has no GPUs, or has no free connection for the caller"),
            (507, "the disk is full"),
        ])
    }
}

fn refusals(known: &[(u16, &str)]) -> BTreeMap<String, RefOr<Response>> {
    let problem = || ContentBuilder::new().schema(Some(Ref::from_schema_name(Problem::name()))).build();
    let response = |text: &str| ResponseBuilder::new().description(text).content(PROBLEM_JSON, problem()).build();
    known.iter().map(|(status, text)| (status.to_string(), RefOr::T(response(text)))).collect()
}

impl IntoParams for Repeat {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let schema = ObjectBuilder::new()
            .schema_type(SchemaType::Type(Type::String))
            .min_length(Some(1))
            .max_length(Some(128))
            .pattern(Some("^[!-~]([ -~]*[!-~])?$"));
        let parameter = ParameterBuilder::new()
            .name("Idempotency-Key")
            .parameter_in(ParameterIn::Header)
            .required(Required::False)
            .description(Some(
                "makes the call safe to send again: the same key with the same request gets the same answer. Answers \
                 are kept for a day, the latest 10,000 of each user and 100,000 of all, beyond which the user with most \
                 loses the oldest; after that the key is a new one. While a user's latest 10,000 are all younger than \
                 a minute, a new key is refused with 429. A refusal is not kept: the same key is decided anew. Sent more \
                 than once, the header is refused",
            ))
            .schema(Some(schema));
        vec![parameter.build()]
    }
}

/// An object without members, for clients that send a body with every POST.
#[derive(utoipa::ToSchema)]
#[schema(max_properties = 0)]
pub struct Nothing {}
