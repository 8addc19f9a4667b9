//! `sublet adopt`, `sublet unadopt`: leases for processes and services that already run.
//!
//! A process gets a lease for the VRAM that it has. For a service there are two ways. A rule in the daemon gives its
//! processes that are found on a GPU a lease afterwards; the service is not changed. A drop-in makes systemd start the service through `sublet run`: the service requests a lease before it
//! uses the GPU, waits in the queue, and has Sublet's library. The library alone would do nothing in an adopted
//! service: a program reports its lease when it starts, and there is none at that time.

pub mod dropin;
mod unit;

use super::enforce::{rule_words, show_about, what};
use super::wrap;
use crate::args::Globals;
use crate::client::Client;
use crate::failure::{Failure, tell_hint};
use crate::hold::ask::{TierArg, parse_size};
use crate::output;
use crate::own_file::OwnFile;
use crate::place;
use crate::table::plain;
use crate::text;
use clap::Args;
use dropin::UnitRequest;
use serde::Serialize;
use std::path::{Path, PathBuf};
use sublet_wire::{AdoptRequest, Rule, RuleAction, RuleRequest, UnleasedProcesses, exit, size};
use unit::{Manager, Unit};

/// Give a process or a service that already runs a lease
///
/// A process gets one for the VRAM that it has. A service (operators) gets one whenever it is on a GPU; it is not
/// changed or restarted
#[derive(Args, Clone, Debug)]
#[command(after_long_help = ADOPT_HELP)]
pub struct AdoptArgs {
    /// A process id; or a service: unit:NAME, container:ID, exe:PATH (or its name) or uid:N
    #[arg(value_name = "PID|SERVICE")]
    program: String,
    /// This much of each of its GPUs, if there is room for it [default: what it has]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    vram: Option<u64>,
    /// How urgent its work is
    #[arg(long, value_enum, default_value_t = TierArg::Batch)]
    tier: TierArg,
    /// Only show which processes would get a lease
    #[arg(long)]
    dry_run: bool,
    /// Instead of a rule: show the systemd drop-in with which the unit requests a lease itself, before it starts
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

const ADOPT_HELP: &str = "\
A process: one of your own, or any process for operators. Its lease ends with
it.

A service: a rule of the daemon (operators). The service is not restarted,
wrapped or changed: a second after it is seen on a GPU it has a lease, which
ends with its last process; when it is started again, it gets the next one. It
uses VRAM before it has the lease. `sublet proxy` holds its requests while it
is parked. `sublet unadopt` removes the rule.

With --drop-in a unit is started through `sublet run`: it requests a lease
before it uses VRAM, waits in the queue, cannot exceed its lease, and is parked
by Sublet's library. The file is shown, and written only with --write. Then run
`systemctl daemon-reload` and restart the unit.

Examples:
  sublet adopt 20686                                       a process
  sublet adopt unit:ollama.service --vram 8G --tier interactive
  sublet adopt unit:ollama.service --vram 8G --drop-in     shows the file
  sublet adopt unit:jupyter.service --vram 4G --drop-in --user --write";

/// Undo the adoption of a service: its rule, its drop-in, or both
#[derive(Args, Clone, Debug)]
pub struct UnadoptArgs {
    /// The rule's id, such as R1, or the service, such as unit:ollama.service
    #[arg(value_name = "RULE|SERVICE")]
    what: String,
    /// A unit of your own manager (`systemctl --user`)
    #[arg(long)]
    user: bool,
    /// Only show what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Where the file system begins, for tests
    #[arg(long, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
}

/// A drop-in, as `--json` prints it.
#[derive(Serialize)]
struct DropInJson<'a> {
    unit: &'a str,
    file: &'a Path,
    text: &'a str,
    written: bool,
    /// What is left to do.
    then: Vec<String>,
}

/// What was removed, as `--json` prints it.
#[derive(Serialize)]
struct Unadopted {
    rule: Option<Rule>,
    drop_in: Option<PathBuf>,
    done: bool,
}

/// Gives a process a lease, or makes a rule for a service.
pub fn adopt(globals: &Globals, args: &AdoptArgs) -> Result<u8, Failure> {
    if args.drop_in {
        return drop_in(globals, args);
    }
    if let Some(pid) = process_id(&args.program)? {
        return adopt_process(globals, args, pid);
    }
    let client = Client::open(globals)?;
    if args.dry_run {
        return show_about(globals, &client, &args.program);
    }
    let request = RuleRequest {
        matches: args.program.clone(),
        action: RuleAction::Adopt,
        vram_bytes: args.vram,
        tier: args.tier.into(),
    };
    let rule = client.set_rule(&request)?;
    match globals.json {
        true => output::json(&rule)?,
        false => output::print(&format!("{}\n", rule_words(&rule)))?,
    }
    tell_hint(&format!("`sublet unadopt {}` undoes it", rule.id));
    if let Some(unit) = args.program.strip_prefix("unit:") {
        // Only on its own host can the daemon's units be checked.
        if client.socket().is_some() && !unit::is_known(unit, args.root.as_deref())? {
            eprintln!("there is no unit `{}` on this host: the rule is kept, and matches nothing yet", plain(unit));
            tell_hint("`systemctl list-units --type=service` lists what runs");
        }
        tell_hint("it uses VRAM before it has the lease; with `--drop-in` it requests one first");
    }
    Ok(exit::OK)
}

/// The process id that a text is; `None` if it names a service.
fn process_id(program: &str) -> Result<Option<u32>, Failure> {
    if !program.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(None);
    }
    match program.parse() {
        Ok(pid) if pid >= 2 => Ok(Some(pid)),
        _ => Err(Failure::usage(format!("`{}` is not the id of a process", plain(program)))
            .hint("`sublet enforce status` lists the processes on GPUs without a lease")),
    }
}

/// Gives an unleased process a lease for the VRAM that it has.
fn adopt_process(globals: &Globals, args: &AdoptArgs, pid: u32) -> Result<u8, Failure> {
    globals.must_be_local("a process is adopted on its host", "leave `--url` out and unset SUBLET_URL")?;
    let client = Client::open(globals)?;
    if args.dry_run {
        let found: UnleasedProcesses = client.get("/v1/unleased")?;
        let one = found.processes.iter().find(|one| one.pid == pid).ok_or_else(|| {
            let why = format!("process {} is not on a GPU without a lease, or not yours", pid);
            Failure::usage(why).hint("`sublet enforce status` lists those that are")
        })?;
        match globals.json {
            true => output::json(one)?,
            false => {
                let has = one.vram_bytes.map_or_else(|| "an unknown amount".to_owned(), size::show);
                output::print(&format!("{} ({}) has {has}\n", one.id, plain(&what(one))))?;
            }
        }
        return Ok(exit::OK);
    }
    let lease = client.adopt(&AdoptRequest { pid, vram_bytes: args.vram, tier: args.tier.into() })?;
    if globals.json {
        output::json(&lease)?;
        return Ok(exit::OK);
    }
    let held = text::or_none(lease.vram_bytes.map(size::show).as_deref()).to_owned();
    output::print(&format!("process {} has {} now: {held}\n", pid, lease.id))?;
    tell_hint("it ends with its last process; `sublet ps` shows it");
    Ok(exit::OK)
}

fn drop_in(globals: &Globals, args: &AdoptArgs) -> Result<u8, Failure> {
    globals.must_be_local("a unit is changed on its host", "leave `--url` out and unset SUBLET_URL")?;
    let vram = args.vram.ok_or_else(|| Failure::usage("say how much it needs, with `--vram`"))?;
    let manager = Manager::of(args.user, args.root.as_deref())?;
    let name = unit_name(&args.program)?.ok_or_else(|| {
        Failure::usage(format!("`{}` is no unit, and only units have drop-ins", plain(&args.program)))
            .hint("write unit:NAME.service; start anything else with `sublet run`")
    })?;
    let unit = Unit::read(&manager, &name)?;
    let sublet = wrap::sublet()?;
    // Without a socket here, the unit looks for the daemon in the usual places, as any client does.
    let socket = globals.socket().map(Path::to_owned).or_else(|| place::variable("SUBLET_SOCKET"));
    let socket = socket.map(|socket| place::absolute(&socket));
    let text = dropin::text(&unit, &UnitRequest { sublet: &sublet, socket: socket.as_deref(), vram, tier: args.tier })?;
    let file = dropin::at(&manager, &name);
    file.must_be_ours()?;
    if args.write {
        file.put(&text)?;
    }
    let systemctl = if args.user { "systemctl --user" } else { "systemctl" };
    let then = vec![format!("{systemctl} daemon-reload"), format!("{systemctl} restart {name}")];
    if globals.json {
        let shown = DropInJson { unit: &name, file: file.path(), text: &text, written: args.write, then };
        output::json(&shown)?;
        return Ok(exit::OK);
    }
    if !args.write {
        eprintln!("would write {}:", file.path().display());
    }
    output::print(&text)?;
    if args.write {
        eprintln!("wrote {}", file.path().display());
        tell_hint(&format!("it takes effect after `{}` and `{}`", then[0], then[1]));
        let user = if args.user { " --user" } else { "" };
        tell_hint(&format!("`sublet unadopt unit:{name}{user}` undoes it"));
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
pub fn unadopt(globals: &Globals, args: &UnadoptArgs) -> Result<u8, Failure> {
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
    let who = rule.as_ref().map_or(args.what.as_str(), |rule| rule.matches.as_str());
    let file = match file_of(args, who) {
        // A rule may name a unit of a user's own service manager. Such a unit has no drop-in of Sublet's.
        Err(_) if rule.is_some() => None,
        found => found?.filter(OwnFile::is_there),
    };
    if rule.is_none() && file.is_none() {
        return Err(Failure::new(exit::FAILURE, format!("no rule and no drop-in is about `{}`", plain(who)))
            .hint("`sublet enforce status` lists the rules; drop-ins of your own units need `--user`"));
    }
    if let Some(rule) = rule.as_ref().filter(|_| !is_rule && !args.dry_run) {
        Client::open(globals)?.drop_rule(&rule.id)?;
    }
    if let Some(rule) = rule.as_ref().filter(|_| !globals.json) {
        let words = if args.dry_run { rule_words(rule) } else { format!("{} is removed", rule.id) };
        output::print(&format!("{words}\n"))?;
    }
    // A file that Sublet did not write stays, even if the rule was removed.
    if let Some(file) = &file {
        if args.dry_run { file.must_be_ours() } else { file.remove_with_directory() }?;
    }
    let drop_in = file.map(|file| file.path().to_owned());
    if globals.json {
        output::json(&Unadopted { rule, drop_in, done: !args.dry_run })?;
    } else if let Some(path) = drop_in {
        let what = if args.dry_run { "would remove" } else { "removed" };
        output::print(&format!("{what} {}\n", path.display()))?;
        let systemctl = if args.user { "systemctl --user" } else { "systemctl" };
        tell_hint(&format!("it takes effect after `{systemctl} daemon-reload` and a restart of the unit"));
    }
    Ok(exit::OK)
}

/// The drop-in of a unit; `None` if the text names no unit.
fn file_of(args: &UnadoptArgs, who: &str) -> Result<Option<OwnFile>, Failure> {
    let Some(name) = unit_name(who)? else { return Ok(None) };
    let manager = Manager::of(args.user, args.root.as_deref())?;
    Ok(Some(dropin::at(&manager, &name)))
}

fn rule_named(client: &Client, id: &str) -> Result<Rule, Failure> {
    let found: UnleasedProcesses = client.get("/v1/unleased")?;
    let rule = found.rules.into_iter().find(|rule| rule.id.eq_ignore_ascii_case(id));
    rule.ok_or_else(|| {
        Failure::usage(format!("there is no rule `{}`", plain(id))).hint("`sublet enforce status` lists them")
    })
}

/// The standing request of a service, if a daemon answers and the caller may see it.
fn rule_about(globals: &Globals, who: &str) -> Option<Rule> {
    let found: UnleasedProcesses = Client::open(globals).ok()?.get("/v1/unleased").ok()?;
    let full = |who: &str| unit_name(who).ok().flatten().map_or_else(|| who.to_owned(), |name| format!("unit:{name}"));
    found.rules.into_iter().find(|rule| rule.action == RuleAction::Adopt && full(&rule.matches) == full(who))
}
