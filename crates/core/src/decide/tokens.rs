//! Issues and revokes tokens, and keeps requests through a token within its caps.

use super::Decider;
use crate::model::event::{Caller, EventAnswer, Refusal};
use crate::model::facts::{TokenAction, TokenEvent};
use crate::model::ids::TokenId;
use crate::model::request::LeaseRequest;
use crate::model::token::{TOKENS_MAX, TOKENS_OF_TENANT, Token, TokenError, TokenRequest};
use crate::model::units::Bytes;
use crate::policy::access::may_know;
use crate::policy::tokens::{most_of, most_wish};

impl Decider<'_> {
    pub(super) fn on_token(&mut self, event: TokenEvent) -> EventAnswer {
        match event {
            TokenEvent::IssueRequested { by, request, wall_us } => self.issue(&by, *request, wall_us),
            TokenEvent::RevokeRequested { by, token, wall_us } => self.revoke(&by, token, wall_us),
        }
    }

    pub(super) fn issue(&mut self, by: &Caller, ask: TokenRequest, wall_us: u64) -> EventAnswer {
        match self.issuable(by, &ask, wall_us) {
            Ok(Some(same)) => return EventAnswer::Token(Box::new(same)),
            Ok(None) => {}
            Err(refusal) => return EventAnswer::Refused(refusal),
        }
        let tenant = ask.tenant.unwrap_or_else(|| by.tenant.clone());
        self.forget_expired(&tenant, wall_us);
        if let Err(refusal) = self.has_room(&tenant) {
            return EventAnswer::Refused(refusal);
        }
        // Whoever can make something twice must be known, so that its keys can be.
        self.enrol(by);
        let token = Token {
            id: TokenId(self.state.rows().meta.next_token),
            tenant,
            name: ask.name,
            hash: ask.hash,
            read_only: ask.read_only,
            caps: ask.caps,
            made_wall_us: wall_us,
            expires_wall_us: ask.expires_wall_us,
        };
        self.emit(TokenAction::Issue { token: token.clone() });
        EventAnswer::Token(Box::new(token))
    }

    /// Whether the caller may have it; the token itself if it was asked for before.
    fn issuable(&self, by: &Caller, ask: &TokenRequest, wall_us: u64) -> Result<Option<Token>, Refusal> {
        ask.check(wall_us).map_err(Refusal::BadToken)?;
        // A token that makes tokens would make one without its own caps.
        if by.token.is_some() {
            return Err(Refusal::ThroughToken);
        }
        let tenant = ask.tenant.as_ref().unwrap_or(&by.tenant);
        if *tenant != by.tenant && !by.operator {
            return Err(Refusal::NotOperator);
        }
        match self.state.rows().tokens.values().find(|token| token.hash == ask.hash) {
            Some(token) if token.is_for(tenant, ask) => Ok(Some(token.clone())),
            Some(_) => Err(Refusal::BadToken(TokenError::Hash)),
            None => self.state.stopped().map_or(Ok(None), Err),
        }
    }

    fn has_room(&self, tenant: &str) -> Result<(), Refusal> {
        let tokens = &self.state.rows().tokens;
        if tokens.values().filter(|token| token.tenant == tenant).count() >= TOKENS_OF_TENANT {
            return Err(Refusal::TooManyTokens { own: true });
        }
        if tokens.len() >= TOKENS_MAX {
            return Err(Refusal::TooManyTokens { own: false });
        }
        Ok(())
    }

    /// Expired tokens are listed until their places are needed.
    fn forget_expired(&mut self, tenant: &str, wall_us: u64) {
        let full = self.state.rows().tokens.len() >= TOKENS_MAX;
        if self.has_room(tenant).is_ok() {
            return;
        }
        let over = |token: &&Token| token.is_expired(wall_us) && (full || token.tenant == tenant);
        let over: Vec<Token> = self.state.rows().tokens.values().filter(over).cloned().collect();
        for token in over {
            self.emit(TokenAction::Revoke { token: token.id, tenant: token.tenant, at_wall_us: wall_us });
        }
    }

    pub(super) fn revoke(&mut self, by: &Caller, id: TokenId, wall_us: u64) -> EventAnswer {
        let Some(token) = self.state.rows().tokens.get(&id).filter(|token| may_know(by, token)).cloned() else {
            return EventAnswer::Refused(Refusal::NoSuchToken);
        };
        self.emit(TokenAction::Revoke { token: id, tenant: token.tenant.clone(), at_wall_us: wall_us });
        EventAnswer::Token(Box::new(token))
    }

    /// Whether an ask keeps within the caps of the token it came through.
    pub(super) fn within_token(&self, by: &Caller, ask: &LeaseRequest) -> Result<(), Refusal> {
        let Some(id) = by.token else { return Ok(()) };
        // Revoked while the ask was on its way.
        let token = self.state.rows().tokens.get(&id).ok_or(Refusal::TokenGone)?;
        let caps = &token.caps;
        if token.read_only || token.tenant != by.tenant {
            return Err(Refusal::TokenGone);
        }
        if caps.leases.is_none() && caps.vram.is_none() {
            return Ok(());
        }
        let own = || self.state.leases_of_token(id);
        if let Some(cap) = caps.leases.filter(|cap| own().count() >= *cap as usize) {
            return Err(Refusal::TokenLeases { cap });
        }
        if let Some(cap) = caps.vram {
            let has = own().fold(Bytes::ZERO, |sum, lease| sum + most_of(self.state, lease));
            if has + most_wish(self.state, ask) > cap {
                return Err(Refusal::TokenVram { cap, has });
            }
        }
        Ok(())
    }
}
