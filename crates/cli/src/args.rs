//! The command line as a whole: global flags, the commands, and errors in it.

use crate::commands::{
    accept, adopt, aside, audit, checkpoint, completions, config, doctor, enforce, explain, gpus, journal, lease, man,
    park, proxy, ps, release, renew, replay, run, serve, setup, soft, stop, tls, token, usage, wrap,
};
use crate::elsewhere;
use crate::failure::Failure;
use crate::groups::command_in_groups;
use crate::table::plain;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use sublet_wire::{TOKEN_PREFIX, exit};

/// Commands and flags of DESIGN that this release does not have.
const LATER: [&str; 2] = ["top", "session"];

/// Share a few GPUs by short leases
#[derive(Parser, Clone, Debug)]
#[command(name = "sublet", version, max_term_width = 100, help_template = TEMPLATE, after_long_help = AFTER_HELP)]
pub struct Cli {
    #[command(flatten)]
    pub globals: Globals,
    /// What to do; the status if nothing is said.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// clap lists all commands in one piece; [`command_in_groups`] puts them before the options in groups.
const TEMPLATE: &str = "{about}\n\n{before-help}{usage-heading} {usage}\n\n{options}{after-help}";

const AFTER_HELP: &str = "\
Without a command: the status. Data goes to stdout, talk to stderr. Sizes are
binary: 10G, 10GB and 10GiB are the same.

Exit codes: 0 done; 1 failed; 64 usage; 69 no daemon; 75 no room, or the lease
was lost before it was of use; 77 not allowed; 78 the configuration is wrong;
124 the wait was over; with `run`, the command's own (see `sublet run --help`).";

/// Keeps them from standing between a command's own flags.
const EVERYWHERE: &str = "For every command";

/// Flags that every command takes.
#[derive(Args, Clone, Debug, Default)]
pub struct Globals {
    /// The daemon's socket [default: SUBLET_SOCKET, /run/sublet/sublet.sock, or the one in XDG_RUNTIME_DIR]
    #[arg(long, global = true, value_name = "PATH", help_heading = EVERYWHERE, hide_short_help = true)]
    socket: Option<PathBuf>,
    /// A daemon elsewhere, such as https://gpu1:7474; the token is SUBLET_TOKEN or in SUBLET_TOKEN_FILE
    /// [default: SUBLET_URL]
    #[arg(long, global = true, value_name = "URL", conflicts_with = "socket", help_heading = EVERYWHERE, hide_short_help = true)]
    url: Option<String>,
    /// Print JSON, with a version, for programs
    #[arg(long, global = true, help_heading = EVERYWHERE, hide_short_help = true)]
    pub json: bool,
}

impl Globals {
    /// The socket, if one was given.
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// The address of a daemon elsewhere, if one is meant: what is typed goes before the environment.
    pub fn url(&self) -> Result<Option<String>, Failure> {
        match (&self.url, &self.socket) {
            (Some(url), _) => Ok(Some(url.clone())),
            (None, Some(_)) => Ok(None),
            (None, None) => url_of_environment(|name| std::env::var(name).ok().filter(|value| !value.is_empty())),
        }
    }

    /// Whether such an address was typed.
    pub fn has_url(&self) -> bool {
        self.url.is_some()
    }

    /// Refuses what is done on the host itself.
    pub fn must_be_local(&self, what: &str, hint: &str) -> Result<(), Failure> {
        match self.url()? {
            Some(url) => Err(Failure::usage(format!("{what}, not through {}", plain(&url))).hint(hint)),
            None => Ok(()),
        }
    }

    #[cfg(test)]
    pub fn at(socket: &Path) -> Globals {
        Globals { socket: Some(socket.to_owned()), url: None, json: false }
    }
}

/// Two daemons named at once are a mistake; but on a lease its own is meant, whatever a startup file sets.
fn url_of_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Option<String>, Failure> {
    match (variable("SUBLET_URL"), variable("SUBLET_SOCKET")) {
        (Some(_), Some(_)) if variable("SUBLET_LEASE").is_some() => Ok(None),
        (Some(url), Some(socket)) => {
            let (url, socket) = (plain(&url), plain(&socket));
            Err(Failure::usage(format!(
                "SUBLET_URL ({url}) and SUBLET_SOCKET ({socket}) are both set, and each names a daemon"
            ))
            .hint("unset one of them, or choose with `--url` or `--socket`"))
        }
        (url, _) => Ok(url),
    }
}

/// The commands.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    Run(run::RunArgs),
    Lease(lease::LeaseArgs),
    Wrap(wrap::WrapArgs),
    Ps(ps::PsArgs),
    /// Show what waits, in order of service, and why
    Queue,
    Explain(explain::ExplainArgs),
    Accept(accept::AcceptArgs),
    Renew(renew::RenewArgs),
    Park(park::ParkArgs),
    Resume(park::ResumeArgs),
    #[command(alias = "cards")]
    Gpus(gpus::GpusArgs),
    Aside(aside::AsideArgs),
    #[command(visible_aliases = ["cancel", "kill"])]
    Stop(stop::StopArgs),
    #[command(alias = "end")]
    Release(release::ReleaseArgs),
    Usage(usage::UsageArgs),
    Audit(audit::AuditArgs),
    Enforce(enforce::EnforceArgs),
    Adopt(adopt::AdoptArgs),
    Unadopt(adopt::UnadoptArgs),
    Proxy(proxy::ProxyArgs),
    Checkpoint(checkpoint::CheckpointArgs),
    Token(token::TokenArgs),
    Tls(tls::TlsArgs),
    Doctor(doctor::DoctorArgs),
    Serve(serve::ServeArgs),
    Setup(setup::SetupArgs),
    Config(config::ConfigArgs),
    Soft(soft::SoftArgs),
    Journal(journal::JournalArgs),
    Replay(replay::ReplayArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
    /// Print the API's description
    #[command(hide = true)]
    Openapi,
    /// Print this command line's reference
    #[command(hide = true)]
    Reference,
}

/// A lease as people type it: its id (`L7`, `l7` or `7`), or the name that its owner gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseName {
    /// `L7`.
    Id(u64),
    /// The text of `--name`.
    Name(String),
}

impl FromStr for LeaseName {
    type Err = String;
    fn from_str(text: &str) -> Result<LeaseName, String> {
        let digits = text.strip_prefix(['L', 'l']).unwrap_or(text);
        let number = digits.parse().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()));
        match number {
            Some(number) => Ok(LeaseName::Id(number)),
            None if text.trim().is_empty() => {
                Err("a lease is named by its id, such as L7, or by its `--name`\nhint: `sublet ps` lists yours".into())
            }
            None => Ok(LeaseName::Name(text.to_owned())),
        }
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeaseName::Id(number) => write!(f, "L{number}"),
            LeaseName::Name(name) => f.write_str(&plain(name)),
        }
    }
}

/// The id of an unleased process as people type it: `X3`, `x3` or `3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnleasedName(u64);

impl FromStr for UnleasedName {
    type Err = String;
    fn from_str(text: &str) -> Result<UnleasedName, String> {
        let digits = text.strip_prefix(['X', 'x']).unwrap_or(text);
        let number = digits.parse().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()));
        number.map(UnleasedName).ok_or_else(|| {
            format!("`{text}` is not a process without a lease\nhint: those are called X1, X2, …; `sublet enforce status` lists them")
        })
    }
}

impl fmt::Display for UnleasedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "X{}", self.0)
    }
}

/// A token's id as people type it: `K3`, `k3` or `3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenName(u32);

impl FromStr for TokenName {
    type Err = String;
    fn from_str(text: &str) -> Result<TokenName, String> {
        let digits = text.strip_prefix(['K', 'k']).unwrap_or(text);
        let number = digits.parse().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()));
        // Somebody who types the secret itself must not see it on the screen again.
        let shown = if text.starts_with(TOKEN_PREFIX) { "a secret" } else { text };
        number.map(TokenName).ok_or_else(|| {
            format!("`{shown}` is not a token's id\nhint: tokens are called K1, K2, …; `sublet token list` lists yours")
        })
    }
}

impl fmt::Display for TokenName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "K{}", self.0)
    }
}

/// Reads the command line. An error in it, or a wish for help, is told here and gives the exit code.
pub fn parse(args: Vec<OsString>) -> Result<Cli, u8> {
    if let Some(cli) = often(&args) {
        return Ok(cli);
    }
    let json = wants_json(&args);
    let parsed = command_in_groups().try_get_matches_from(args).and_then(|found| Cli::from_arg_matches(&found));
    parsed.map_err(|error| {
        if let Some(later) = not_yet(&error).or_else(|| meant(&error)) {
            later.tell(json);
            return later.exit();
        }
        if json && error.use_stderr() {
            let failure = usage(&error);
            failure.tell(true);
            return failure.exit();
        }
        // Whoever closed stderr does not want to know.
        let _ = error.print();
        if error.use_stderr() { exit::USAGE } else { exit::OK }
    })
}

/// Whether a line that could not be read asked for JSON: what comes after `--` is somebody else's.
fn wants_json(args: &[OsString]) -> bool {
    args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json")
}

/// An error in the command line, for a program: what is wrong, and what to write instead.
fn usage(error: &clap::Error) -> Failure {
    let text = error.to_string();
    let (mut what, mut hints) = (Vec::new(), Vec::new());
    for line in text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:")) {
        match line.strip_prefix("hint: ").or_else(|| line.strip_prefix("tip: ")) {
            Some(hint) => hints.push(hint),
            None if line.is_empty() || line.starts_with("For more information") => {}
            None => what.push(line.strip_prefix("error: ").unwrap_or(line)),
        }
    }
    let hint = if hints.is_empty() { "`sublet help` lists commands and flags".to_owned() } else { hints.join("; ") };
    Failure::usage(what.join(" ")).hint(hint)
}

/// The commands that programs call by the thousand, read without describing all others first: that takes
/// longer than the rest of the start. Whatever is not plainly right is left to the whole description.
fn often(args: &[OsString]) -> Option<Cli> {
    let (globals, command) = match args.get(1)?.to_str()? {
        "lease" => only(&args[1..]).map(|(globals, args)| (globals, Command::Lease(args)))?,
        "run" => only(&args[1..]).map(|(globals, args)| (globals, Command::Run(args)))?,
        _ => return None,
    };
    Some(Cli { globals, command: Some(command) })
}

fn only<A: Args>(args: &[OsString]) -> Option<(Globals, A)> {
    let command = A::augment_args(Globals::augment_args(clap::Command::new("sublet")));
    let mut found = command.try_get_matches_from(args).ok()?;
    Some((Globals::from_arg_matches_mut(&mut found).ok()?, A::from_arg_matches_mut(&mut found).ok()?))
}

/// A command or flag of another tool, for what has another name here.
fn meant(error: &clap::Error) -> Option<Failure> {
    let name = unknown(error)?;
    let hint = match error.kind() {
        ErrorKind::InvalidSubcommand => elsewhere::command(name)?.to_owned(),
        _ => format!("did you mean {}?", elsewhere::flag(name)?),
    };
    Some(Failure::usage(format!("there is no `{name}`")).hint(hint))
}

/// The word of a line that could not be read.
fn unknown(error: &clap::Error) -> Option<&str> {
    let kind = match error.kind() {
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        _ => return None,
    };
    let Some(ContextValue::String(what)) = error.get(kind) else { return None };
    Some(what.split(['=', ' ']).next().unwrap_or(what))
}

/// Something that a later release will have.
fn not_yet(error: &clap::Error) -> Option<Failure> {
    let name = unknown(error)?;
    let name = LATER.into_iter().find(|later| *later == name)?;
    Some(Failure::usage(format!("`{name}` is not in this release")).hint("`sublet help` lists what is"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use expect_test::expect;

    #[test]
    fn what_is_called_often_is_read_as_everything_is() {
        for line in [
            "sublet run -- true",
            "sublet run --vram 10G --gpus 2 --time 4h --tier spot -- python -u train.py --json -x",
            "sublet run --socket /s --json --vram 1G -- env",
            "sublet lease --vram 1G --json --detach",
            "sublet lease --vram 8G --socket /s",
        ] {
            let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            let quick = often(&args).map(|cli| format!("{cli:?}"));
            assert_eq!(quick, Some(format!("{:?}", Cli::try_parse_from(&args).unwrap())), "{line}");
        }
        for line in ["sublet", "sublet ps", "sublet --json lease", "sublet lease --no-such", "sublet run --help"] {
            let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            assert!(often(&args).is_none(), "{line}");
        }
    }

    fn error(line: &str) -> clap::Error {
        Cli::try_parse_from(line.split_whitespace()).unwrap_err()
    }

    #[test]
    fn the_definitions_make_sense() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_comes_later_is_said_to_come_later() {
        expect![[r#"
            `top` is not in this release
            hint: `sublet help` lists what is"#]]
        .assert_eq(&not_yet(&error("sublet top")).unwrap().to_string());
        assert!(not_yet(&error("sublet session list")).is_some());
        for line in ["sublet prak", "sublet run --vrma 3G -- true", "sublet run"] {
            assert!(not_yet(&error(line)).is_none(), "{line}");
        }
    }

    #[test]
    fn senseless_values_are_refused_with_what_to_write() {
        expect![[r#"
            error: invalid value '16' for '--vram <SIZE>': size `16` has no unit
            hint: write a number and K, M, G or T (powers of 1024), such as 16G or 1.5GiB

            For more information, try '--help'.
        "#]]
        .assert_eq(&error("sublet run --vram 16 -- true").to_string());
        expect![[r#"
            error: invalid value '' for '[LEASE]...': a lease is named by its id, such as L7, or by its `--name`
            hint: `sublet ps` lists yours

            For more information, try '--help'.
        "#]]
        .assert_eq(&Cli::try_parse_from(["sublet", "release", ""]).unwrap_err().to_string());
        expect![[r#"
            error: invalid value '0s' for '--time <TIME>': a fixed term is from 1s to 7d
            hint: without `--time` a lease lasts while it is used

            For more information, try '--help'.
        "#]]
        .assert_eq(&error("sublet run --time 0s -- true").to_string());
        expect![[r#"
            error: invalid value '11' for '--priority <N>': `11` is not a priority from -10 to 10
            hint: 10 goes first, -10 last

            For more information, try '--help'.
        "#]]
        .assert_eq(&error("sublet run --priority 11 -- true").to_string());
        for line in [
            "sublet run --vram 0G -- true",
            "sublet run --gpus 0 -- true",
            "sublet run --gpus 65 -- true",
            "sublet run --priority 11 -- true",
            "sublet run --time 4 -- true",
            "sublet run --time 0s -- true",
            "sublet run --time 8d -- true",
            "sublet run --ttl 25h -- true",
            "sublet run --priority x -- true",
            "sublet run --time 4h --ttl 5m -- true",
            "sublet run --wait 4h --no-wait -- true",
            "sublet run --tier fast -- true",
            "sublet run --signal KILL@60 -- true",
            "sublet run --on-resume true -- true",
            "sublet run --requeue=x -- true",
            "sublet stop",
            "sublet stop L7 --mine",
            "sublet stop L7 --name train",
            "sublet stop L7 --grace x",
            "sublet explain",
        ] {
            assert_eq!(error(line).exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn a_flag_that_others_call_so_is_named() {
        expect![[r#"
            there is no `--mem`
            hint: did you mean `--vram`, the VRAM on each GPU?"#]]
        .assert_eq(&meant(&error("sublet run --mem 8G -- true")).unwrap().to_string());
        assert!(meant(&error("sublet lease --memory=8G")).is_some());
        for line in ["sublet run -G 2 -- true", "sublet run --gres=gpu:2 -- true", "sublet run -t 10 -- true"] {
            assert!(meant(&error(line)).is_some(), "{line}");
        }
        expect![[r#"
            there is no `squeue`
            hint: `sublet queue` shows what waits, in order of service"#]]
        .assert_eq(&meant(&error("sublet squeue")).unwrap().to_string());
        assert!(meant(&error("sublet prak")).is_none());
        assert!(meant(&error("sublet run --vrma 3G -- true")).is_none());
        for line in ["sublet run --vram -5G -- true", "sublet lease --accept-smaller -5G"] {
            let said = error(line).to_string();
            assert!(said.contains("size `-5G` is negative, and sizes are positive\nhint: write a number"), "{said}");
        }
    }

    #[test]
    fn two_daemons_in_the_environment_are_refused_but_on_a_lease() {
        let found = |set: &[&str]| url_of_environment(|name| set.contains(&name).then(|| format!("the {name}")));
        assert_eq!(found(&["SUBLET_URL"]).unwrap().as_deref(), Some("the SUBLET_URL"));
        assert_eq!(found(&["SUBLET_SOCKET"]).unwrap(), None);
        assert_eq!(found(&["SUBLET_URL", "SUBLET_SOCKET", "SUBLET_LEASE"]).unwrap(), None);
        assert_eq!(found(&["SUBLET_URL", "SUBLET_SOCKET"]).unwrap_err().exit(), exit::USAGE);
    }

    #[test]
    fn programs_are_told_what_is_wrong_without_the_help_for_people() {
        let told = |line: &str| usage(&error(line)).to_string();
        expect![[r#"
            invalid value '16' for '--vram <SIZE>': size `16` has no unit
            hint: write a number and K, M, G or T (powers of 1024), such as 16G or 1.5GiB"#]]
        .assert_eq(&told("sublet run --vram 16 -- true"));
        expect![[r#"
            unrecognized subcommand 'prak'
            hint: a similar subcommand exists: 'park'"#]]
        .assert_eq(&told("sublet prak"));
        expect![[r#"
            the following required arguments were not provided: <COMMAND>...
            hint: `sublet help` lists commands and flags"#]]
        .assert_eq(&told("sublet run"));
        let args = |line: &str| line.split_whitespace().map(OsString::from).collect::<Vec<_>>();
        assert!(wants_json(&args("sublet ps --json --al")));
        assert!(!wants_json(&args("sublet run -- python --json")));
    }

    #[test]
    fn a_lease_is_typed_as_its_id_or_its_name() {
        for text in ["L7", "l7", "7"] {
            assert_eq!(text.parse(), Ok(LeaseName::Id(7)));
        }
        assert_eq!(LeaseName::Id(7).to_string(), "L7");
        for text in ["train", "L7b", "L+7", "-"] {
            assert_eq!(text.parse(), Ok(LeaseName::Name(text.to_owned())));
        }
    }

    #[test]
    fn a_command_needs_no_dashes_and_keeps_its_own() {
        for line in ["sublet run --vram 1G python -u --json x", "sublet run --vram 1G -- python -u --json x"] {
            let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
            assert!(!cli.globals.json, "{line}");
        }
    }
}
