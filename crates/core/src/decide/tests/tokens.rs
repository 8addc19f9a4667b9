//! Stories of tokens: who may make one, and what may be had through it.

use super::*;
use crate::model::facts::{TokenAction, TokenEvent};
use crate::model::token::{TOKENS_MAX, TOKENS_OF_TENANT, Token};
use expect_test::expect;

#[test]
fn a_user_makes_its_own_tokens_and_an_operator_anybodys() {
    check(
        "0s token u:ann secret=1
         1s token u:ann secret=2 for=u:bob
         2s token root secret=3 for=u:bob
         3s token root secret=4 for=bob
         4s token u:ann@K1 secret=5
         5s revoke K2 u:ann
         6s revoke K2 u:bob@K1
         7s revoke K1 u:ann@K1
         8s revoke K2 root
         9s revoke K2 root
         10s token u:ann secret=1",
        expect![[r#"
            0s issue K1 to u:ann
            1s refuse: only an operator may do this
            2s issue K2 to u:bob
            3s refuse: `tenant` must be `uid:1000` for a local user, or a kind and a name such as `user:ana`, at most 64 characters
            4s refuse: a token cannot make tokens
            5s refuse: no such token
            6s refuse: no such token
            7s revoke K1
            8s revoke K2
            9s refuse: no such token
            10s issue K3 to u:ann
        "#]],
    );
}

#[test]
fn the_same_wish_sent_twice_makes_one_token() {
    check(
        "0s token u:ann secret=1 leases=2 until=100s
         1s token u:ann secret=1 leases=2 until=101s
         2s token u:ann secret=1 leases=3
         3s token u:bob secret=1 leases=2 until=100s
         4s token u:ann secret=2 until=4s
         4s token u:ann secret=2 leases=0",
        expect![[r#"
            0s issue K1 to u:ann
            2s refuse: another token has this `hash`: make a new secret
            3s refuse: another token has this `hash`: make a new secret
            4s refuse: the token would be expired before it is made
            4s refuse: a cap of nothing would make a token that can only look: use `read_only`
        "#]],
    );
}

#[test]
fn the_caps_of_a_token_count_what_waits_and_what_is_held() {
    check(
        "0s cards 24G 80G
         0s card 0 0G
         0s card 1 0G
         1s token u:ann secret=1 leases=2
         1s token u:ann secret=2 vram=40G
         2s ask u:ann@K1 60G
         2s ask u:ann@K1 60G
         2s ask u:ann@K1 1G
         2s ask u:ann 1G
         3s release L2 u:ann
         3s ask u:ann@K1 2G
         4s ask u:ann@K2 41G
         4s ask u:ann@K2 whole
         4s ask u:ann@K2 10G gpus=2
         4s ask u:ann@K2 10G gpus=3
         5s ask u:ann@K2 21G
         5s ask u:ann@K2 20G",
        expect![[r#"
            1s issue K1 to u:ann
            1s issue K2 to u:ann
            2s queue L1
            2s grant L1 60 GiB on 1 epoch 1 until 62s
            2s queue L2
            2s refuse: this token has 2 leases, the most that it may have
            2s queue L3
            2s grant L3 1 GiB on 1 epoch 2 until 62s
            3s end L2 (Released)
            3s queue L4
            3s grant L4 2 GiB on 1 epoch 3 until 63s
            4s refuse: this token may lease 40 GiB and has 0 B: the request is larger than the rest
            4s refuse: this token may lease 40 GiB and has 0 B: the request is larger than the rest
            4s queue L5
            4s grant L5 10 GiB on 0+1 epoch 4 until 64s
            4s refuse: this can never be granted (suitable GPUs: 2, largest lease there: 79.8 GiB)
            5s refuse: this token may lease 40 GiB and has 20 GiB: the request is larger than the rest
            5s queue L6
        "#]],
    );
}

#[test]
fn a_token_that_was_revoked_or_only_looks_asks_for_nothing() {
    check(
        "0s cards 24G
         0s card 0 0G
         1s token u:ann secret=1
         1s token u:ann secret=2 read-only
         2s ask u:ann@K1 1G
         3s revoke K1 u:ann
         4s ask u:ann@K1 1G
         4s ask u:ann@K2 1G
         4s ask u:bob@K2 1G
         5s release L1 u:ann",
        expect![[r#"
            1s issue K1 to u:ann
            1s issue K2 to u:ann
            2s queue L1
            2s grant L1 1 GiB on 0 epoch 1 until 62s
            3s revoke K1
            4s refuse: the token was revoked
            4s refuse: the token was revoked
            4s refuse: the token was revoked
            5s end L1 (Released)
        "#]],
    );
}

fn tokens(count: usize, of_one: usize, expired: usize) -> State {
    let mut rows = Rows::default();
    for n in 0..count {
        let tenant = if n < of_one { "u:ann".to_owned() } else { format!("u:{n}") };
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&(n as u64 + 1).to_le_bytes());
        let token = Token {
            id: crate::model::ids::TokenId(n as u32 + 1),
            tenant,
            name: None,
            hash: TokenHash(hash),
            read_only: false,
            caps: TokenCaps::default(),
            made_wall_us: 0,
            expires_wall_us: (n < expired).then_some(1),
        };
        rows.apply(&Action::Token(TokenAction::Issue { token })).unwrap();
    }
    State::new(rows, Policy::default())
}

fn one_more(mut state: State, who: &str) -> String {
    let ask = Box::new(TokenRequest { hash: TokenHash([255; 32]), ..token(&[]) });
    let by = Caller::user(who);
    let outcome =
        decide(&mut state, Time(5), Event::Token(TokenEvent::IssueRequested { by, request: ask, wall_us: 5 }));
    match outcome.answer {
        EventAnswer::Refused(refusal) => refusal.to_string(),
        _ => format!("{} actions, {} tokens", outcome.actions.len(), state.rows().tokens.len()),
    }
}

#[test]
fn there_is_a_bound_on_tokens_and_the_expired_ones_make_room() {
    let (all, own) = (TOKENS_MAX, TOKENS_OF_TENANT);
    assert_eq!(
        one_more(tokens(own, own, 0), "u:ann"),
        "there are 100 tokens of this tenant, the most that are allowed"
    );
    assert_eq!(one_more(tokens(own, own, 0), "u:bob"), "2 actions, 101 tokens");
    assert_eq!(one_more(tokens(own, own, 30), "u:ann"), "32 actions, 71 tokens");
    assert_eq!(one_more(tokens(all, own, 0), "u:bob"), "there are 10000 tokens, the most that are allowed");
    assert_eq!(one_more(tokens(all, own, 30), "u:bob"), "32 actions, 9971 tokens");
}
