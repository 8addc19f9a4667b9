//! `sublet attach`, `sublet detach`: a standing request for a service that already exists.
//!
//! There are two ways. A rule in the daemon gives a process that is found on a GPU a lease afterwards; the service is
//! not changed. A drop-in makes systemd start the service through `sublet run`: the service requests a lease before it
//! uses the GPU, waits in the queue, and has Sublet's library. The library alone would do nothing in an adopted
//! service: a program reports its lease when it starts, and there is none at that time.

pub mod dropin;
mod unit;

use super::enforce::{rule_words, show_about};
use super::wrap;
use crate::args::Globals;
use crate::client::Client;
use crate::failure::{Failure, tell_hint};
use crate::hold::ask::{TierArg, parse_size};
use crate::output;
use crate::own_file::OwnFile;
use crate::place;
use crate::table::plain;
use clap::Args;
use dropin::Wish;
use serde::Serialize;
use std::path::{Path, PathBuf};
use sublet_wire::{Rule, RuleAsk, Strangers, Treat, exit};
use unit::{Manager, Unit};

/// Give a service a lease whenever it is on a GPU (operators)
///
/// The service may run already, and is not changed or restarted
#[derive(Args, Clone, Debug)]
#[command(after_long_help = ATTACH_HELP)]
pub struct AttachArgs {
    /// unit:NAME, container:ID, exe:PATH (or its name) or uid:N
    #[arg(value_name = "PROGRAM")]
    who: String,
    /// So much of each GPU, where there is room for it [default: what it has]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    vram: Option<u64>,
    /// How urgent its work is
    #[arg(long, value_enum, default_value_t = TierArg::Batch)]
    tier: TierArg,
    /// Only show which processes it would be about
    #[arg(long)]
    dry_run: bool,
    /// Instead of a rule: show the systemd drop-in with which the unit asks by itself, before it starts
    #[arg(long, requires = "vram", conflicts_with = "dry_run")]
    drop_in: bool,
    /// Write the drop-in that is shown
    #[arg(long, requires = "drop_in")]
    write: bool,
    /// A unit of your own manager (`systemctl --user`)
    #[arg(long, requires = "drop_in")]
    user: bool,
    /// Where the file system begins, for tests
    #[arg(long, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
}

const ATTACH_HELP: &str = "\
With a rule the service is not restarted, wrapped or changed: a second after it
is seen on a GPU it has a lease, which ends with its last process, and it has
the next one when it comes again. What it takes, it has taken; `sublet door`
holds requests back while it is parked.

With --drop-in a unit is started through `sublet run`: it asks before it takes
its first byte, waits for its turn, keeps to what it leased, and is parked by
Sublet's library. The file is shown, and written only with --write; systemd is
told nothing: `systemctl daemon-reload` and a restart are yours to do.

Examples:
  sublet attach unit:ollama.service --vram 8G --tier interactive
  sublet attach unit:ollama.service --vram 8G --drop-in     shows the file
  sublet attach unit:jupyter.service --vram 4G --drop-in --user --write";

/// Undo `attach`: its rule (operators), its drop-in, or both
#[derive(Args, Clone, Debug)]
pub struct DetachArgs {
    /// The rule's id, such as R1, or what it is about, such as unit:ollama.service
    #[arg(value_name = "RULE|PROGRAM")]
    what: String,
    /// A unit of your own manager (`systemctl --user`)
    #[arg(long)]
    user: bool,
    /// Only show what would be taken back
    #[arg(long)]
    dry_run: bool,
    /// Where the file system begins, for tests
    #[arg(long, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
}

/// A drop-in, as `--json` prints it.
#[derive(Serialize)]
struct Shown<'a> {
    unit: &'a str,
    file: &'a Path,
    text: &'a str,
    written: bool,
    /// What is left to do.
    then: Vec<String>,
}

/// What was removed, as `--json` prints it.
#[derive(Serialize)]
struct Detached {
    rule: Option<Rule>,
    drop_in: Option<PathBuf>,
    done: bool,
}

/// Makes a standing request for a service.
pub fn attach(globals: &Globals, args: &AttachArgs) -> Result<u8, Failure> {
    if args.drop_in {
        return drop_in(globals, args);
    }
    let client = Client::open(globals)?;
    if args.dry_run {
        return show_about(globals, &client, &args.who);
    }
    let ask = RuleAsk { who: args.who.clone(), treat: Treat::Attach, vram_bytes: args.vram, tier: args.tier.into() };
    let rule = client.set_rule(&ask)?;
    match globals.json {
        true => output::json(&rule)?,
        false => output::print(&format!("{}\n", rule_words(&rule)))?,
    }
    tell_hint(&format!("`sublet detach {}` undoes it", rule.id));
    if let Some(unit) = args.who.strip_prefix("unit:") {
        // Only on its own host can the daemon's units be checked.
        if client.socket().is_some() && !unit::is_known(unit, args.root.as_deref())? {
            eprintln!("there is no unit `{}` on this host: the rule is kept, and matches nothing yet", plain(unit));
            tell_hint("`systemctl list-units --type=service` lists what runs");
        }
        tell_hint("it uses VRAM before it has a lease; with `--drop-in` it requests one first");
    }
    Ok(exit::OK)
}

fn drop_in(globals: &Globals, args: &AttachArgs) -> Result<u8, Failure> {
    globals.must_be_local("a unit is changed on its host", "leave `--url` out and unset SUBLET_URL")?;
    let vram = args.vram.ok_or_else(|| Failure::usage("say how much it needs, with `--vram`"))?;
    let manager = Manager::of(args.user, args.root.as_deref())?;
    let name = unit_name(&args.who)?.ok_or_else(|| {
        Failure::usage(format!("`{}` is no unit, and only units have drop-ins", plain(&args.who)))
            .hint("write unit:NAME.service; start anything else with `sublet run`")
    })?;
    let unit = Unit::read(&manager, &name)?;
    let sublet = wrap::sublet()?;
    // Without a socket here, the unit looks for the daemon in the usual places, as any client does.
    let socket = globals.socket().map(Path::to_owned).or_else(|| place::variable("SUBLET_SOCKET"));
    let socket = socket.map(|socket| place::absolute(&socket));
    let text = dropin::text(&unit, &Wish { sublet: &sublet, socket: socket.as_deref(), vram, tier: args.tier })?;
    let file = dropin::at(&manager, &name);
    file.must_be_ours()?;
    if args.write {
        file.put(&text)?;
    }
    let systemctl = if args.user { "systemctl --user" } else { "systemctl" };
    let then = vec![format!("{systemctl} daemon-reload"), format!("{systemctl} restart {name}")];
    if globals.json {
        let shown = Shown { unit: &name, file: file.path(), text: &text, written: args.write, then };
        output::json(&shown)?;
        return Ok(exit::OK);
    }
    if !args.write {
        eprintln!("would write {}:", file.path().display());
    }
    output::print(&text)?;
    if args.write {
        eprintln!("wrote {}", file.path().display());
        tell_hint(&format!("it counts after `{}` and `{}`", then[0], then[1]));
        let user = if args.user { " --user" } else { "" };
        tell_hint(&format!("`sublet detach unit:{name}{user}` undoes it"));
    } else {
        tell_hint("`--write` writes it");
    }
    Ok(exit::OK)
}

/// The full name of the unit that a text is about; `None` if it is about something else.
fn unit_name(who: &str) -> Result<Option<String>, Failure> {
    let Some(name) = who.strip_prefix("unit:") else { return Ok(None) };
    unit::name(name).map(Some)
}

/// Removes a rule, and the drop-in of its unit.
pub fn detach(globals: &Globals, args: &DetachArgs) -> Result<u8, Failure> {
    let is_rule = !args.what.contains(':');
    let rule = match (is_rule, args.user) {
        (true, true) => {
            return Err(Failure::usage("a rule belongs to no user's own unit").hint("write unit:NAME with `--user`"));
        }
        (true, false) if args.dry_run => Some(rule_named(&Client::open(globals)?, &args.what)?),
        (true, false) => Some(Client::open(globals)?.drop_rule(&args.what)?),
        // Rules are about the system's units, and a file can be removed without a daemon.
        (false, true) => None,
        (false, false) => rule_about(globals, &args.what),
    };
    let who = rule.as_ref().map_or(args.what.as_str(), |rule| rule.who.as_str());
    let file = match file_of(args, who) {
        // A rule may name a unit of a user's own service manager. Such a unit has no drop-in of Sublet's.
        Err(_) if rule.is_some() => None,
        found => found?.filter(OwnFile::is_there),
    };
    if rule.is_none() && file.is_none() {
        return Err(Failure::new(exit::FAILURE, format!("nothing is attached to `{}`", plain(who)))
            .hint("`sublet enforce status` lists the rules; drop-ins of your own units need `--user`"));
    }
    if let Some(rule) = rule.as_ref().filter(|_| !is_rule && !args.dry_run) {
        Client::open(globals)?.drop_rule(&rule.id)?;
    }
    if let Some(rule) = rule.as_ref().filter(|_| !globals.json) {
        let words = if args.dry_run { rule_words(rule) } else { format!("{} holds no more", rule.id) };
        output::print(&format!("{words}\n"))?;
    }
    // A file that Sublet did not write stays, even if the rule was removed.
    if let Some(file) = &file {
        if args.dry_run { file.must_be_ours() } else { file.remove_with_directory() }?;
    }
    let drop_in = file.map(|file| file.path().to_owned());
    if globals.json {
        output::json(&Detached { rule, drop_in, done: !args.dry_run })?;
    } else if let Some(path) = drop_in {
        let what = if args.dry_run { "would remove" } else { "removed" };
        output::print(&format!("{what} {}\n", path.display()))?;
        let systemctl = if args.user { "systemctl --user" } else { "systemctl" };
        tell_hint(&format!("it counts after `{systemctl} daemon-reload` and a restart of the unit"));
    }
    Ok(exit::OK)
}

/// The drop-in that `detach` is about; `None` if it is not about a unit.
fn file_of(args: &DetachArgs, who: &str) -> Result<Option<OwnFile>, Failure> {
    let Some(name) = unit_name(who)? else { return Ok(None) };
    let manager = Manager::of(args.user, args.root.as_deref())?;
    Ok(Some(dropin::at(&manager, &name)))
}

fn rule_named(client: &Client, id: &str) -> Result<Rule, Failure> {
    let found: Strangers = client.get("/v1/strangers")?;
    let rule = found.rules.into_iter().find(|rule| rule.id.eq_ignore_ascii_case(id));
    rule.ok_or_else(|| {
        Failure::usage(format!("there is no rule `{}`", plain(id))).hint("`sublet enforce status` lists them")
    })
}

/// The standing request of a service, if a daemon answers and the caller may see it.
fn rule_about(globals: &Globals, who: &str) -> Option<Rule> {
    let found: Strangers = Client::open(globals).ok()?.get("/v1/strangers").ok()?;
    let full = |who: &str| unit_name(who).ok().flatten().map_or_else(|| who.to_owned(), |name| format!("unit:{name}"));
    found.rules.into_iter().find(|rule| rule.treat == Treat::Attach && full(&rule.who) == full(who))
}
