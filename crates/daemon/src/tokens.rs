//! Durable tokens by the hash of their secret, for the listener that lets callers in.
//!
//! The loop adds a token when the disk has it, and removes it when the disk has its end; no request waits for the loop
//! to learn its sender. When a token was last used is kept here and nowhere else.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use sublet_core::ids::TokenId;
use sublet_core::token::{Token, TokenHash};

/// All tokens that are good, or were until they expired.
#[derive(Clone, Debug, Default)]
pub struct TokenTable(Arc<RwLock<HashMap<TokenHash, Arc<KnownToken>>>>);

/// A token, and its last use.
#[derive(Debug)]
pub struct KnownToken {
    /// The token.
    pub token: Token,
    used_wall_us: AtomicU64,
    revoked: AtomicBool,
}

impl KnownToken {
    /// True if it may be used now.
    pub fn is_good(&self, wall_us: u64) -> bool {
        !self.revoked.load(Ordering::Acquire) && !self.token.is_expired(wall_us)
    }

    /// Notes a use.
    pub fn note_use(&self, wall_us: u64) {
        self.used_wall_us.fetch_max(wall_us, Ordering::Relaxed);
    }
}

impl TokenTable {
    /// Replaces all tokens by what the disk has.
    pub fn replace_all(&self, tokens: &BTreeMap<TokenId, Token>) {
        // With a poisoned lock no caller is let in.
        let Ok(mut known) = self.0.write() else { return };
        known.retain(|_, known| {
            let stays = tokens.get(&known.token.id) == Some(&known.token);
            known.revoked.fetch_or(!stays, Ordering::AcqRel);
            stays
        });
        for token in tokens.values() {
            known.entry(token.hash).or_insert_with(|| new(token.clone()));
        }
    }

    /// Adds a token.
    pub fn add(&self, token: Token) {
        if let Ok(mut known) = self.0.write() {
            known.insert(token.hash, new(token));
        }
    }

    /// Removes a token.
    pub fn revoke(&self, id: TokenId) {
        if let Ok(mut known) = self.0.write() {
            known.retain(|_, known| {
                let stays = known.token.id != id;
                known.revoked.fetch_or(!stays, Ordering::AcqRel);
                stays
            });
        }
    }

    /// The token whose secret has this hash.
    pub fn find(&self, hash: &TokenHash) -> Option<Arc<KnownToken>> {
        self.0.read().ok()?.get(hash).cloned()
    }

    /// When tokens were last used, in µs since 1970; unused ones are left out.
    pub fn last_uses(&self) -> HashMap<TokenId, u64> {
        let Ok(known) = self.0.read() else { return HashMap::new() };
        let used = |known: &Arc<KnownToken>| (known.token.id, known.used_wall_us.load(Ordering::Relaxed));
        known.values().map(used).filter(|(_, at)| *at > 0).collect()
    }
}

fn new(token: Token) -> Arc<KnownToken> {
    Arc::new(KnownToken { token, used_wall_us: AtomicU64::new(0), revoked: AtomicBool::new(false) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_core::token::TokenCaps;

    fn token(id: u32, expires_wall_us: Option<u64>) -> Token {
        Token {
            id: TokenId(id),
            tenant: "user:ana".to_owned(),
            name: None,
            hash: TokenHash([id as u8; 32]),
            read_only: false,
            caps: TokenCaps::default(),
            made_wall_us: 0,
            expires_wall_us,
        }
    }

    #[test]
    fn a_held_token_shows_that_it_was_revoked_or_expired() {
        let tokens = TokenTable::default();
        tokens.add(token(1, None));
        tokens.add(token(2, Some(10)));
        let (one, two) = (tokens.find(&TokenHash([1; 32])).unwrap(), tokens.find(&TokenHash([2; 32])).unwrap());
        assert!(one.is_good(99) && two.is_good(9) && !two.is_good(10));
        tokens.revoke(TokenId(1));
        assert!(!one.is_good(0));
        assert!(tokens.find(&TokenHash([1; 32])).is_none());
    }

    #[test]
    fn a_rebuilt_state_keeps_durable_tokens_and_their_last_use() {
        let tokens = TokenTable::default();
        let on_disk = BTreeMap::from([(TokenId(1), token(1, None))]);
        tokens.replace_all(&on_disk);
        tokens.add(token(2, None));
        tokens.find(&TokenHash([1; 32])).unwrap().note_use(7);
        let lost = tokens.find(&TokenHash([2; 32])).unwrap();
        tokens.replace_all(&on_disk);
        assert!(!lost.is_good(0) && tokens.find(&TokenHash([2; 32])).is_none());
        assert_eq!(tokens.last_uses(), HashMap::from([(TokenId(1), 7)]));
    }
}
