//! Lets callers in over TCP: a request needs the secret of a good token, and may not come too often.
//!
//! Only a request's method, its path and one header are read here. The secret is hashed and forgotten; it is never
//! stored, logged or compared as text. A request that is not let in reaches no handler, and a request without a peer is
//! refused by every handler that needs one.

use super::rate::{CallRates, Rate, TooSoon};
use crate::peer::Peer;
use crate::tokens::TokenTable;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Method, Request};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;
use sublet_core::token::TokenHash;
use sublet_wire::{Code, Problem, TOKEN_DIGITS, TOKEN_PREFIX};

/// The health check: answered even where there is no seat.
const HEALTH: [&str; 2] = ["/healthz", "/readyz"];
/// The API's description: any caller may read it, like health.
const DESCRIPTION: &str = "/openapi.json";
/// Wrong secrets of one address. No user mistypes faster, and 256 bits cannot be guessed.
const FAILURES: Rate = Rate { per_s: 10.0, burst: 20.0 };

/// The gate.
#[derive(Debug)]
pub struct Gate {
    tokens: TokenTable,
    /// The rates of addresses with wrong secrets.
    failures: CallRates<IpAddr>,
    /// The rates of addresses that read what any caller may.
    visitors: CallRates<IpAddr>,
    tenants: CallRates<String>,
    /// The rates of tenants that renew, release and bind: however much is read, a lease can be kept.
    keepers: CallRates<String>,
}

impl Gate {
    /// Lets in callers with one of these tokens, at this rate for each tenant.
    pub fn new(tokens: TokenTable, rate: Rate) -> Gate {
        Gate {
            tokens,
            failures: CallRates::new(FAILURES),
            visitors: CallRates::new(rate),
            tenants: CallRates::new(rate),
            keepers: CallRates::new(rate),
        }
    }

    /// Changes the rate.
    pub fn set_rate(&self, rate: Rate) {
        self.visitors.set(rate);
        self.tenants.set(rate);
        self.keepers.set(rate);
    }

    /// The sender of a request; `None` for what any caller may read.
    pub fn admit<B>(
        &self,
        request: &Request<B>,
        from: IpAddr,
        wall_us: u64,
        now: Instant,
    ) -> Result<Option<Arc<Peer>>, Problem> {
        let from = address_key(from);
        let looks = is_read(request);
        if is_public(request) {
            self.visitors.take(&from, now).map_err(too_many)?;
            return Ok(None);
        }
        // A caller with a good token is not held up by one that guesses from the same address.
        let peer = self.identify(request.headers(), wall_us).or_else(|problem| {
            self.failures.take(&from, now).map_err(too_many_failures)?;
            Err(problem)
        })?;
        let crate::peer::Proof::Token(known) = &peer.proof else { return Err(no_token()) };
        let refused = known.token.read_only && !looks;
        // A request that is refused anyway must not use up the budget that keeps leases alive.
        let rates = if keeps_lease_alive(request) && !refused { &self.keepers } else { &self.tenants };
        rates.take(&peer.caller.tenant, now).map_err(too_many)?;
        known.note_use(wall_us);
        if refused {
            return Err(Problem::new(Code::ReadOnly, "this token may read and change nothing")
                .hint("use a token that was made without `--read-only`"));
        }
        Ok(Some(peer))
    }

    fn identify(&self, headers: &HeaderMap, wall_us: u64) -> Result<Arc<Peer>, Problem> {
        let mut sent = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (sent.next(), sent.next()) else { return Err(no_token()) };
        let secret = secret_of(value.as_bytes()).ok_or_else(no_token)?;
        let hash = TokenHash(*blake3::hash(secret).as_bytes());
        let known = self.tokens.find(&hash).ok_or_else(|| {
            Problem::new(Code::Unauthenticated, "there is no such token, or it was revoked").hint("ask for a new token")
        })?;
        if !known.is_good(wall_us) {
            return Err(token_ended(&known.token.id.to_string()));
        }
        Ok(Peer::of_token(known))
    }
}

/// True if a request changes nothing.
pub fn is_read<B>(request: &Request<B>) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD)
}

/// True if a request may wait for a lease to change.
pub fn is_long_poll<B>(request: &Request<B>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    *request.method() == Method::GET && query.split('&').any(|part| part.starts_with("wait="))
}

/// True if any caller may read the answer to a request.
pub fn is_public<B>(request: &Request<B>) -> bool {
    is_health(request) || (is_read(request) && request.uri().path() == DESCRIPTION)
}

/// True if a request is a health check.
pub fn is_health<B>(request: &Request<B>) -> bool {
    is_read(request) && HEALTH.contains(&request.uri().path())
}

/// True if a request keeps a lease alive, or releases it.
pub(super) fn keeps_lease_alive<B>(request: &Request<B>) -> bool {
    let Some(rest) = request.uri().path().strip_prefix("/v1/leases/") else { return false };
    match (request.method(), rest.split_once('/')) {
        (&Method::DELETE, None) => true,
        (&Method::POST, Some((_, what))) => matches!(what, "renew" | "bind"),
        _ => false,
    }
}

/// The answer to a caller after the end of its token.
pub fn token_ended(token: &str) -> Problem {
    Problem::new(Code::TokenExpired, format!("token {token} has expired or was revoked")).hint("ask for a new token")
}

fn no_token() -> Problem {
    Problem::new(Code::Unauthenticated, "over TCP every call needs a token")
        .hint("send `Authorization: Bearer sbl_…`; `sublet token create` makes a token. One in the address is not read")
}

fn too_many(too_soon: TooSoon) -> Problem {
    Problem::new(Code::TooManyRequests, "more calls than you may make").retry_after(too_soon.after_s)
}

fn too_many_failures(too_soon: TooSoon) -> Problem {
    Problem::new(Code::TooManyRequests, "too many calls from your address had no good token")
        .retry_after(too_soon.after_s)
}

/// The secret in a header's value, if it could be one.
fn secret_of(value: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let (scheme, secret) = value.split_at_checked(SCHEME.len())?;
    let digits = secret.strip_prefix(TOKEN_PREFIX.as_bytes())?;
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let right = scheme.eq_ignore_ascii_case(SCHEME) && digits.len() == TOKEN_DIGITS && digits.iter().all(is_digit);
    right.then_some(secret)
}

/// The key of an address: of IPv6 a user has 2⁶⁴ addresses, so the first half counts.
pub fn address_key(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use sublet_core::ids::TokenId;
    use sublet_core::token::{Token, TokenCaps};

    const HERE: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
    const FAST: Rate = Rate { per_s: 1e6, burst: 1e6 };

    fn secret(digit: char) -> String {
        format!("{TOKEN_PREFIX}{}", digit.to_string().repeat(TOKEN_DIGITS))
    }

    fn token(id: u32, digit: char, read_only: bool) -> Token {
        Token {
            id: TokenId(id),
            tenant: "user:ana".to_owned(),
            name: None,
            hash: TokenHash(*blake3::hash(secret(digit).as_bytes()).as_bytes()),
            read_only,
            caps: TokenCaps::default(),
            made_wall_us: 0,
            expires_wall_us: Some(100),
        }
    }

    fn gate(rate: Rate) -> Gate {
        let tokens = TokenTable::default();
        tokens.add(token(1, 'a', false));
        tokens.add(token(2, 'b', true));
        Gate::new(tokens, rate)
    }

    fn call(gate: &Gate, method: &str, path: &str, values: &[String], wall_us: u64, now: Instant) -> String {
        let mut request = Request::builder().method(method).uri(path);
        for value in values {
            request = request.header("authorization", value);
        }
        match gate.admit(&request.body(()).unwrap(), HERE, wall_us, now) {
            Ok(None) => "any caller".to_owned(),
            Ok(Some(peer)) => {
                assert!(!peer.caller.operator && peer.uid().is_none());
                format!("{} {}", peer.caller.tenant, peer.caller.token.unwrap())
            }
            Err(problem) => problem.code.as_str().to_owned(),
        }
    }

    #[test]
    fn only_one_whole_secret_in_the_header_is_let_in() {
        let (gate, now) = (gate(FAST), Instant::now());
        let check = |method: &str, path: &str, values: &[String], expected: &str| {
            let later = now + Duration::from_secs(1000);
            assert_eq!(call(&gate, method, path, values, 5, later), expected, "{method} {path} {values:?}");
        };
        let bearer = |text: String| vec![format!("Bearer {text}")];
        check("POST", "/v1/leases", &bearer(secret('a')), "user:ana K1");
        check("GET", "/v1/leases", &[format!("bEARER {}", secret('b'))], "user:ana K2");
        check("POST", "/v1/leases", &bearer(secret('b')), "read_only");
        check("DELETE", "/v1/leases/L1", &bearer(secret('b')), "read_only");
        check("GET", "/healthz", &[], "any caller");
        check("POST", "/healthz", &[], "unauthenticated");
        check("GET", "/healthz/", &[], "unauthenticated");
        check("GET", "/v1/leases", &[], "unauthenticated");
        check("GET", "/v1/leases", &bearer(secret('c')), "unauthenticated");
        check("GET", &format!("/v1/leases?token={}", secret('a')), &[], "unauthenticated");
        for wrong in [
            secret('a') + "a",
            secret('a').to_uppercase(),
            secret('a')[1..].to_owned(),
            format!(" {}", secret('a')),
            format!("{} ", secret('a')),
            "\u{e9}".repeat(34),
            String::new(),
        ] {
            check("GET", "/v1/leases", &bearer(wrong), "unauthenticated");
        }
        check("GET", "/v1/leases", &[format!("Basic {}", secret('a'))], "unauthenticated");
        check("GET", "/v1/leases", &[secret('a')], "unauthenticated");
        check(
            "GET",
            "/v1/leases",
            &[format!("Bearer {}", secret('a')), format!("Bearer {}", secret('a'))],
            "unauthenticated",
        );
    }

    #[test]
    fn an_expired_or_revoked_token_is_refused_from_that_moment() {
        let (gate, now) = (gate(FAST), Instant::now());
        let good = vec![format!("Bearer {}", secret('a'))];
        assert_eq!(call(&gate, "GET", "/v1/gpus", &good, 99, now), "user:ana K1");
        assert_eq!(call(&gate, "GET", "/v1/gpus", &good, 100, now), "token_expired");
        gate.tokens.revoke(TokenId(1));
        assert_eq!(call(&gate, "GET", "/v1/gpus", &good, 5, now), "unauthenticated");
    }

    #[test]
    fn wrong_secrets_and_too_many_calls_are_refused_for_a_while() {
        let (gate, now) = (gate(Rate { per_s: 1.0, burst: 2.0 }), Instant::now());
        let good = vec![format!("Bearer {}", secret('a'))];
        let other = vec![format!("Bearer {}", secret('b'))];
        assert_eq!(call(&gate, "GET", "/v1/gpus", &good, 5, now), "user:ana K1");
        assert_eq!(call(&gate, "GET", "/v1/gpus", &other, 5, now), "user:ana K2");
        assert_eq!(call(&gate, "GET", "/v1/gpus", &good, 5, now), "too_many_requests", "of one tenant, whatever token");
        assert_eq!(call(&gate, "GET", "/v1/gpus", &good, 5, now + Duration::from_secs(1)), "user:ana K1");
        let wrong = vec![format!("Bearer {}", secret('c'))];
        for _ in 0..20 {
            assert_eq!(call(&gate, "GET", "/v1/gpus", &wrong, 5, now), "unauthenticated");
        }
        assert_eq!(call(&gate, "GET", "/v1/gpus", &wrong, 5, now), "too_many_requests");
        assert_eq!(call(&gate, "GET", "/v1/gpus", &wrong, 5, now + Duration::from_secs(1)), "unauthenticated");
    }

    #[test]
    fn a_good_token_is_let_in_from_an_address_with_wrong_ones() {
        let (gate, now) = (gate(FAST), Instant::now());
        let good = vec![format!("Bearer {}", secret('a'))];
        let wrong = vec![format!("Bearer {}", secret('c'))];
        for _ in 0..20 {
            assert_eq!(call(&gate, "POST", "/v1/leases/L1/renew", &wrong, 5, now), "unauthenticated");
        }
        assert_eq!(call(&gate, "POST", "/v1/leases/L1/renew", &wrong, 5, now), "too_many_requests");
        assert_eq!(call(&gate, "POST", "/v1/leases/L1/renew", &good, 5, now), "user:ana K1");
        assert_eq!(call(&gate, "POST", "/v1/leases/L1/renew", &[], 5, now), "too_many_requests");
    }

    #[test]
    fn reads_do_not_use_up_the_budget_of_renewals() {
        let (gate, now) = (gate(Rate { per_s: 1.0, burst: 4.0 }), Instant::now());
        let good = vec![format!("Bearer {}", secret('a'))];
        let reader = vec![format!("Bearer {}", secret('b'))];
        for _ in 0..4 {
            assert_eq!(call(&gate, "GET", "/v1/leases", &reader, 5, now), "user:ana K2");
        }
        // Nor do refused requests count, nor a path that only resembles one.
        for (method, path) in [("POST", "/v1/leases/L1/renew"), ("DELETE", "/v1/leases/L1")] {
            assert_eq!(call(&gate, method, path, &reader, 5, now), "too_many_requests");
        }
        for path in ["/v1/leases", "/v1/leases/L1/accept", "/v1/leases/L1/renew/x", "/v1/leasesL1/renew"] {
            assert_eq!(call(&gate, "POST", path, &good, 5, now), "too_many_requests", "{path}");
        }
        let keeping = [
            ("POST", "/v1/leases/L1/renew"),
            ("POST", "/v1/leases/L1/bind"),
            ("DELETE", "/v1/leases/L1"),
            ("POST", "/v1/leases/L2/renew"),
        ];
        for (method, path) in keeping {
            assert_eq!(call(&gate, method, path, &good, 5, now), "user:ana K1", "{method} {path}");
        }
        assert_eq!(call(&gate, "POST", "/v1/leases/L1/renew", &good, 5, now), "too_many_requests");
    }
}
