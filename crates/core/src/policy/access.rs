//! What a caller may know of.

use crate::model::event::Caller;
use crate::model::token::Token;

/// Whether a caller may know of a token: its own tenant's, and through a token only that one.
pub fn may_know(by: &Caller, token: &Token) -> bool {
    match by.token {
        Some(own) => own == token.id && by.tenant == token.tenant,
        None => by.operator || by.tenant == token.tenant,
    }
}
