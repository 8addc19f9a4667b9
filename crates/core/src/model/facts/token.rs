//! Facts of tokens.

use super::{Misfit, Touched, TouchedRow, check};
use crate::model::caller::Caller;
use crate::model::ids::TokenId;
use crate::model::rows::Rows;
use crate::model::token::{Token, TokenRequest};
use serde::{Deserialize, Serialize};

/// What is decided about a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenAction {
    /// A token is valid from now on.
    #[serde(rename = "issue_token")]
    Issue {
        /// The token, without its secret, which the daemon never has.
        token: Token,
    },
    /// A token is not valid any more.
    #[serde(rename = "revoke_token")]
    Revoke {
        /// The token.
        token: TokenId,
        /// Its tenant.
        tenant: String,
        /// When, µs since 1970.
        at_wall_us: u64,
    },
}

/// What users want of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenEvent {
    /// A user requests a token.
    IssueRequested {
        /// The caller.
        by: Caller,
        /// The request.
        request: Box<TokenRequest>,
        /// When, µs since 1970.
        wall_us: u64,
    },
    /// A token shall be revoked.
    RevokeRequested {
        /// The caller.
        by: Caller,
        /// The token.
        token: TokenId,
        /// When, µs since 1970.
        wall_us: u64,
    },
}

impl TokenAction {
    pub(crate) fn apply(&self, rows: &mut Rows) -> Result<(), Misfit> {
        match self {
            TokenAction::Issue { token } => {
                check(token.id.0 < u32::MAX, "names an impossible token")?;
                check(!rows.tokens.contains_key(&token.id), "makes a token that is there")?;
                rows.meta.next_token = rows.meta.next_token.max(token.id.0 + 1);
                rows.tokens.insert(token.id, token.clone());
            }
            TokenAction::Revoke { token, .. } => {
                check(rows.tokens.remove(token).is_some(), "revokes an unknown token")?;
            }
        }
        Ok(())
    }

    pub(crate) fn touched(&self) -> Touched {
        match self {
            TokenAction::Issue { token } => Touched::row_and_meta(TouchedRow::Token(token.id)),
            TokenAction::Revoke { token, .. } => Touched::row(TouchedRow::Token(*token)),
        }
    }

    pub(crate) fn line_owner(&self) -> String {
        match self {
            TokenAction::Issue { token } => token.tenant.clone(),
            TokenAction::Revoke { tenant, .. } => tenant.clone(),
        }
    }
}
