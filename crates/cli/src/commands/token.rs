//! `sublet token`: tokens, by which other hosts may use the daemon.
//!
//! The secret is made here, printed once, and never sent: the daemon gets only its hash.

use crate::args::{Globals, TokenName};
use crate::client::Client;
use crate::failure::{Failure, tell_hint};
use crate::hold::ask::{parse_size, parse_span};
use crate::output;
use crate::table::{Table, TextFormat, Tone};
use crate::text;
use clap::{Args, Subcommand};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::Serialize;
use sublet_wire::{TOKEN_PREFIX, Token, TokenRequest, Tokens, exit, size, span};

/// Make, list and revoke tokens for use over TCP
#[derive(Args, Clone, Debug)]
pub struct TokenArgs {
    #[command(subcommand)]
    what: TokenAction,
}

/// What to do with tokens.
#[derive(Subcommand, Clone, Debug)]
enum TokenAction {
    Create(CreateArgs),
    List(ListArgs),
    Revoke(RevokeArgs),
}

/// Make a token and print it, once
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct CreateArgs {
    /// The tenant: uid:1000 for a local user, or a name such as user:ana (operators) [default: you]
    #[arg(long = "for", value_name = "TENANT")]
    tenant: Option<String>,
    /// The name of the token in lists
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// It may read and change nothing
    #[arg(long)]
    read_only: bool,
    /// The most VRAM that its leases may have together, such as 20G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    vram: Option<u64>,
    /// The most leases it may have at a time, waiting ones counted
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    leases: Option<u32>,
    /// It is of no use after this time, such as 30d
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    expires: Option<u64>,
}

const AFTER_HELP: &str = "\
The token is printed once and stored nowhere: not by this command, and not by
the daemon, which knows its hash only. Any program that has it can use it.

Examples:
  sublet token create --name laptop --expires 30d > ~/.sublet-token
  SUBLET_TOKEN_FILE=~/.sublet-token sublet --url https://gpu1:7474";

/// List tokens
#[derive(Args, Clone, Debug)]
pub struct ListArgs {}

/// Revoke tokens: they are of no use from then on; their leases go on
#[derive(Args, Clone, Debug)]
pub struct RevokeArgs {
    /// Their ids, such as K3
    #[arg(required = true, value_name = "TOKEN")]
    tokens: Vec<TokenName>,
}

/// A new token, as `--json` prints it.
#[derive(Serialize)]
struct NewTokenJson<'a> {
    secret: &'a str,
    #[serde(flatten)]
    token: &'a Token,
}

/// Runs `sublet token`.
pub fn run(globals: &Globals, args: &TokenArgs) -> Result<u8, Failure> {
    match &args.what {
        TokenAction::Create(args) => create(globals, args),
        TokenAction::List(_) => list(globals),
        TokenAction::Revoke(args) => revoke(globals, args),
    }
}

fn create(globals: &Globals, args: &CreateArgs) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let secret = new_secret()?;
    let token = client.make_token(&TokenRequest {
        hash: blake3::hash(secret.as_bytes()).to_hex().to_string(),
        tenant: args.tenant.clone(),
        name: args.name.clone(),
        read_only: args.read_only,
        vram_bytes: args.vram,
        leases: args.leases,
        expires_in_s: args.expires,
    })?;
    if globals.json {
        output::json(&NewTokenJson { secret: &secret, token: &token })?;
        return Ok(exit::OK);
    }
    output::print(&format!("{secret}\n"))?;
    eprintln!("{} of {}: {}", token.id, token.user, scope(&token));
    tell_hint(&format!("it is not shown again; `sublet token revoke {}` ends it", token.id));
    Ok(exit::OK)
}

fn list(globals: &Globals) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let tokens: Tokens = client.get("/v1/tokens")?;
    if globals.json {
        output::json(&tokens)?;
    } else if tokens.tokens.is_empty() {
        eprintln!("no tokens");
    } else {
        output::print(&render(&tokens, text::now_unix_s(), TextFormat::of_stdout()))?;
    }
    Ok(exit::OK)
}

/// Revokes each token; the first failure decides the exit code.
fn revoke(globals: &Globals, args: &RevokeArgs) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let mut code = exit::OK;
    for token in &args.tokens {
        match client.revoke_token(&token.to_string()) {
            Ok(token) if globals.json => output::json_line(&token)?,
            Ok(_) => output::print(&format!("{token} revoked\n"))?,
            Err(failure) => {
                let failure = failure.about(token);
                failure.tell(globals.json);
                code = if code == exit::OK { failure.exit() } else { code };
            }
        }
    }
    Ok(code)
}

fn render(tokens: &Tokens, now_unix_s: f64, format: TextFormat) -> String {
    let mut table = Table::new(&["TOKEN", "~NAME", "~USER", "MAY", "EXPIRES", "LAST USED"]).drops(&["LAST USED"]);
    for token in &tokens.tokens {
        table.row([
            token.id.clone(),
            text::or_none(token.name.as_deref()),
            token.user.clone(),
            scope(token),
            expires(token, now_unix_s),
            token
                .last_used_unix_s
                .map_or_else(|| text::NONE.into(), |at| format!("{} ago", span::show(now_unix_s - at))),
        ]);
        if token.expired {
            table.set_tone("EXPIRES", Tone::Notable);
        }
    }
    table.show("", format)
}

fn scope(token: &Token) -> String {
    if token.read_only {
        return "read".into();
    }
    let vram = token.vram_bytes.map(|bytes| format!("up to {}", size::show(bytes)));
    let leases = token.leases.map(|n| format!("up to {}", text::count(n.into(), "lease")));
    let caps: Vec<String> = leases.into_iter().chain(vram).collect();
    if caps.is_empty() { "request".into() } else { format!("request, {}", caps.join(", ")) }
}

fn expires(token: &Token, now_unix_s: f64) -> String {
    match token.expires_unix_s {
        None => "never".into(),
        Some(_) if token.expired => "expired".into(),
        Some(at) => format!("in {}", span::show(at - now_unix_s)),
    }
}

fn new_secret() -> Result<String, Failure> {
    let mut bytes = [0; 32];
    let failed = |error| Failure::new(exit::FAILURE, format!("the system gives no random numbers: {error}"));
    let filled = getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|error| failed(error.to_string()))?;
    if filled != bytes.len() {
        return Err(failed("too few".to_owned()));
    }
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{TOKEN_PREFIX}{digits}"))
}

fn some_time(text: &str) -> Result<u64, String> {
    match parse_span(text)? {
        0 => Err(format!("time `{text}` is no time at all\nhint: write how long it may be used, such as 30d")),
        seconds => Ok(seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use sublet_wire::TOKEN_DIGITS;

    fn token() -> Token {
        Token {
            id: "K1".into(),
            tenant: "uid:1000".into(),
            user: "ana".into(),
            name: Some("laptop".into()),
            read_only: false,
            vram_bytes: Some(20 << 30),
            leases: Some(1),
            made_unix_s: 0.0,
            expires_unix_s: Some(1000.0),
            expired: false,
            last_used_unix_s: Some(40.0),
        }
    }

    #[test]
    fn tokens_are_listed_with_what_they_may() {
        let look = Token { id: "K2".into(), name: None, read_only: true, expired: true, ..token() };
        let ask = Token { vram_bytes: None, leases: None, expires_unix_s: None, last_used_unix_s: None, ..token() };
        expect![[r#"
            TOKEN  NAME    USER  MAY                                   EXPIRES    LAST USED
            K1     laptop  ana   request, up to 1 lease, up to 20 GiB  in 15 min  60 s ago
            K2     -       ana   read                                  expired    60 s ago
            K1     laptop  ana   request                               never      -
        "#]]
        .assert_eq(&render(&Tokens { tokens: vec![token(), look, ask] }, 100.0, TextFormat::default()));
    }

    #[test]
    fn secrets_differ_and_are_as_long_as_they_should_be() {
        let (one, two) = (new_secret().unwrap(), new_secret().unwrap());
        assert_eq!(one.len(), TOKEN_PREFIX.len() + TOKEN_DIGITS);
        assert_ne!(one, two);
    }
}
