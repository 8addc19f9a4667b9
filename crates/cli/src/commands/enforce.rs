//! `sublet enforce`: unleased processes on GPUs, and what is done about them.

use crate::args::Globals;
use crate::client::Client;
use crate::completion;
use crate::failure::Failure;
use crate::output;
use crate::table::{Table, TextFormat, Tone, once, plain, wrapped};
use crate::text;
use clap::{Args, Subcommand, ValueEnum};
use sublet_wire::{
    Gpu, Gpus, Mode, ModeRequest, NextStep, Rule, RuleAction, RuleRequest, Tier, UnleasedProcess, UnleasedProcesses,
    UnleasedStep, exit, size, span,
};

/// See unleased processes, and choose what is done about them
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct EnforceArgs {
    #[command(subcommand)]
    what: EnforceAction,
}

const AFTER_HELP: &str = "\
Modes, for each GPU:
  observe   they are recorded and counted (the default)
  adopt     those of users that had a lease before get one for what they have
  warn      their owners are warned
  enforce   a warned process has 5 minutes to get a lease; then the driver
            parks it where a restore is sure to have room; otherwise it gets
            SIGTERM, and SIGKILL after 5 more minutes

A process of a lease is one of them on a GPU that its lease does not have: it is
warned and ended there, and neither adopted nor parked. End that lease, or ask
for all of its GPUs in one. A process that was parked has a lease from then on:
`sublet resume L5` brings it back.

Never parked or ended: processes that a rule allows, display servers of a user,
and processes that could not be audited. Only with a `deny` rule: processes that
use the GPU for graphics only, and processes in containers. Graphics-only
processes with less than 256 MiB are not audited.

Examples:
  sublet enforce preview                what would be ended or not, and why
  sublet enforce allow unit:ollama.service
  sublet enforce mode 0 enforce";

/// What to do.
#[derive(Subcommand, Clone, Debug)]
enum EnforceAction {
    /// Show processes on GPUs without a lease, the modes and the rules
    Status,
    Preview(PreviewArgs),
    Mode(ModeArgs),
    /// Make a rule: these processes are never warned, parked or ended (operators)
    Allow(RuleArgs),
    /// Make a rule: these may be ended in containers, or if they use the GPU for graphics only (operators)
    Deny(RuleArgs),
    Forget(ForgetArgs),
}

/// Show what would happen to each, in a mode; nothing does
#[derive(Args, Clone, Debug)]
pub struct PreviewArgs {
    /// In this mode
    #[arg(value_enum, default_value_t = ModeArg::Enforce)]
    mode: ModeArg,
}

/// Choose what is done on a GPU (operators)
#[derive(Args, Clone, Debug)]
pub struct ModeArgs {
    /// The GPU's index or UUID, or `all`
    #[arg(value_name = "GPU", add = completion::gpu())]
    gpu: String,
    /// What to do there
    #[arg(value_enum)]
    mode: ModeArg,
    /// Only show what would happen
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before a process could be ended
    #[arg(long)]
    yes: bool,
}

#[derive(Args, Clone, Debug)]
pub struct RuleArgs {
    /// exe:PATH (or its name), unit:NAME, container:ID or uid:N
    #[arg(value_name = "PROGRAM")]
    who: String,
    /// Only show which processes the rule would match
    #[arg(long)]
    dry_run: bool,
}

/// Remove a rule (operators)
#[derive(Args, Clone, Debug)]
pub struct ForgetArgs {
    /// Its id, such as R1
    #[arg(value_name = "RULE")]
    rule: String,
    /// Only show the rule
    #[arg(long)]
    dry_run: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum ModeArg {
    Observe,
    Adopt,
    Warn,
    Enforce,
}

impl ModeArg {
    fn wire(self) -> Mode {
        match self {
            ModeArg::Observe => Mode::Observe,
            ModeArg::Adopt => Mode::Adopt,
            ModeArg::Warn => Mode::Warn,
            ModeArg::Enforce => Mode::Enforce,
        }
    }
}

fn name(mode: Mode) -> &'static str {
    match mode {
        Mode::Observe => "observe",
        Mode::Adopt => "adopt",
        Mode::Warn => "warn",
        Mode::Enforce => "enforce",
    }
}

/// Runs `sublet enforce`.
pub fn run(globals: &Globals, args: &EnforceArgs) -> Result<u8, Failure> {
    match &args.what {
        EnforceAction::Status => status(globals),
        EnforceAction::Preview(args) => preview(globals, args.mode),
        EnforceAction::Mode(args) => mode(globals, args),
        EnforceAction::Allow(args) => set_rule(globals, args, RuleAction::Allow),
        EnforceAction::Deny(args) => set_rule(globals, args, RuleAction::Deny),
        EnforceAction::Forget(args) => forget(globals, args),
    }
}

fn status(globals: &Globals) -> Result<u8, Failure> {
    let found: UnleasedProcesses = Client::open(globals)?.get("/v1/unleased")?;
    if globals.json {
        output::json(&found)?;
        return Ok(exit::OK);
    }
    let modes: Vec<String> = found.modes.iter().map(|gpu| format!("GPU {}: {}", gpu.index, name(gpu.mode))).collect();
    output::print(&format!("{}\n", modes.join(", ")))?;
    if let Some(why) = &found.cannot_enforce {
        output::print(&format!("unleased processes can be neither adopted nor ended here: {}\n", plain(why)))?;
    }
    for rule in &found.rules {
        output::print(&format!("{}\n", rule_words(rule)))?;
    }
    show(&found)
}

fn preview(globals: &Globals, mode: ModeArg) -> Result<u8, Failure> {
    let found = ahead(&Client::open(globals)?, mode)?;
    if globals.json {
        output::json(&found)?;
        return Ok(exit::OK);
    }
    show(&found)
}

fn ahead(client: &Client, mode: ModeArg) -> Result<UnleasedProcesses, Failure> {
    client.get(&format!("/v1/unleased?mode={}", name(mode.wire())))
}

fn show(found: &UnleasedProcesses) -> Result<u8, Failure> {
    if found.processes.is_empty() {
        output::print("no process is on a GPU without a lease\n")?;
    } else {
        output::print(&format!("\n{}", render(found, TextFormat::of_stdout())))?;
        for again in found.processes.iter().filter_map(started_anew) {
            output::print(&format!("{again}\n"))?;
        }
    }
    Ok(exit::OK)
}

/// The table, and below it what happens next to each process.
fn render(found: &UnleasedProcesses, format: TextFormat) -> String {
    let headers = ["ID", ">PID", "~USER", "GPUS", ">VRAM", ">FOR", "~PROGRAM", "~IN"];
    let mut table = Table::new(&headers).drops(&["IN", "FOR"]);
    for process in &found.processes {
        let gpus: Vec<String> = process.gpu_indices.iter().map(u32::to_string).collect();
        table.row([
            process.id.clone(),
            process.pid.to_string(),
            process.user.clone(),
            gpus.join(","),
            process.vram_bytes.map_or_else(|| "?".to_owned(), size::show),
            span::show(process.age_s),
            program(process).to_owned(),
            text::or_none(place(process).as_deref()),
        ]);
        if process.step != UnleasedStep::Found {
            table.set_tone("ID", Tone::Notable);
        }
    }
    let wrong = found.processes.iter().filter_map(|process| {
        let gpus = if process.gpu_indices.len() == 1 { "this GPU" } else { "these GPUs" };
        let lease = process.belongs_to.as_ref()?;
        Some((process.id.as_str(), format!("a process of {lease}, which is not for {gpus}")))
    });
    let next = found.processes.iter().map(|process| (process.id.as_str(), plain(&next(process))));
    let lines = once(wrong).into_iter().chain(once(next));
    let lines = lines.map(|(ids, what)| wrapped(&format!("{}: {what}", text::names(&ids)), 2, format) + "\n");
    format!("{}\n{}", table.show("", format), lines.collect::<String>())
}

/// The name of a process's program: from the executable, because the kernel cuts a process name short.
fn program(process: &UnleasedProcess) -> &str {
    process.exe.as_deref().and_then(|exe| exe.rsplit('/').next()).unwrap_or(&process.name)
}

/// The container or unit of a process.
fn place(process: &UnleasedProcess) -> Option<String> {
    let container = process.container.as_ref();
    let container = container.map(|id| format!("container {}", id.chars().take(12).collect::<String>()));
    container.or_else(|| process.unit.clone())
}

/// A process in words: its program, and its unit or container.
pub fn what(process: &UnleasedProcess) -> String {
    match place(process) {
        Some(place) => format!("{} in {place}", program(process)),
        None => program(process).to_owned(),
    }
}

/// A line for a process that was ended and then started again. It would be ended again and again until the user stops
/// what starts it.
fn started_anew(process: &UnleasedProcess) -> Option<String> {
    let former = process.replaces.as_ref()?;
    let service = process.unit.as_ref().filter(|unit| unit.ends_with(".service"));
    let (by, stop) = match service {
        Some(unit) => {
            (format!("{unit} starts it anew"), format!("`systemctl stop {unit}`, or `sublet adopt unit:{unit}`"))
        }
        None => {
            ("something starts it anew".to_owned(), format!("`sublet audit show {}` names its parents", process.id))
        }
    };
    Some(plain(&format!("{}: {former} was the same and is gone; {by}: {stop}", process.id)))
}

fn next(process: &UnleasedProcess) -> String {
    let when = process.next_in_s.map_or_else(String::new, |s| match s {
        s if s <= 0.0 => " now".to_owned(),
        s => format!(" in {}", span::show(s)),
    });
    let so_far = match process.step {
        UnleasedStep::Found => "",
        UnleasedStep::Warned if process.next == NextStep::Warned => "",
        UnleasedStep::Warned => "warned; ",
        UnleasedStep::Parking => "",
        UnleasedStep::ParkFailed => "could not be parked; ",
        // The signal was due, and could not be sent.
        UnleasedStep::Signalled if process.next == NextStep::Exempt => "",
        UnleasedStep::Signalled => "signalled; ",
        UnleasedStep::Survived => "survived SIGKILL; ",
    };
    let next = match process.next {
        NextStep::Nothing => {
            process.why.clone().unwrap_or_else(|| "recorded and left alone, as the mode says".to_owned())
        }
        NextStep::Exempt => format!("left alone: {}", process.why.as_deref().unwrap_or("no reason was given")),
        NextStep::Adopted => format!("gets a lease{when}"),
        NextStep::Warned => "warned, and nothing else happens to it".to_owned(),
        NextStep::Parked => match &process.lease {
            Some(lease) => format!("being parked, by {lease}"),
            None => format!("parked{when}, or SIGTERM if it cannot be"),
        },
        NextStep::Signal => format!("{}{when}", process.next_signal.as_deref().unwrap_or("a signal")),
    };
    format!("{so_far}{next}")
}

/// A rule in words.
pub fn rule_words(rule: &Rule) -> String {
    let what = match rule.action {
        RuleAction::Allow => "is never warned, parked or ended",
        RuleAction::Deny => "may be ended in a container, or if it uses the GPU for graphics only",
        RuleAction::Adopt => {
            let size = rule.vram_bytes.map_or_else(|| "what it has".to_owned(), size::show);
            let tier = rule.tier.map_or("batch", text::tier);
            return format!(
                "{}: {} gets a lease for {size} ({tier}) wherever it is seen",
                rule.id,
                plain(&rule.matches)
            );
        }
    };
    format!("{}: {} {what}", rule.id, plain(&rule.matches))
}

fn mode(globals: &Globals, args: &ModeArgs) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let gpus: Gpus = client.get("/v1/gpus")?;
    let is_meant = |gpu: &&Gpu| args.gpu == "all" || gpu.uuid == args.gpu || gpu.index.to_string() == args.gpu;
    let meant: Vec<&Gpu> = gpus.gpus.iter().filter(is_meant).collect();
    if meant.is_empty() {
        return Err(Failure::usage(format!("no GPU is `{}`", plain(&args.gpu))).hint("`sublet gpus` lists them"));
    }
    let enforce = args.mode == ModeArg::Enforce;
    if args.dry_run || (enforce && !args.yes) {
        let found = ahead(&client, args.mode)?;
        if globals.json {
            output::json(&found)?;
        } else {
            show(&found)?;
        }
    }
    if args.dry_run {
        return Ok(exit::OK);
    }
    if enforce && !args.yes {
        return Err(Failure::usage("this is what would happen; nothing was changed")
            .hint(format!("`sublet enforce mode {} enforce --yes` does it", plain(&args.gpu))));
    }
    for gpu in meant {
        let changed = client.set_mode(&gpu.uuid, &ModeRequest { mode: args.mode.wire() })?;
        match globals.json {
            true => output::json_line(&changed)?,
            false => output::print(&format!("GPU {}: {}\n", changed.index, name(changed.mode)))?,
        }
    }
    Ok(exit::OK)
}

fn set_rule(globals: &Globals, args: &RuleArgs, treat: RuleAction) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    if args.dry_run {
        return show_about(globals, &client, &args.who);
    }
    let rule = client.set_rule(&RuleRequest {
        matches: args.who.clone(),
        action: treat,
        vram_bytes: None,
        tier: Tier::Batch,
    })?;
    match globals.json {
        true => output::json(&rule)?,
        false => output::print(&format!("{}\n", rule_words(&rule)))?,
    }
    if let Some(name) = claimable(&args.who).filter(|_| treat == RuleAction::Allow) {
        eprintln!(
            "any user may call a program `{}`: `exe:` with the whole path means this host's file alone",
            plain(name)
        );
    }
    Ok(exit::OK)
}

/// The name in a rule that any user can give a program of their own; `None` if the rule has a path or another kind.
fn claimable(who: &str) -> Option<&str> {
    who.strip_prefix("exe:").filter(|name| !name.contains('/'))
}

/// Prints the processes that a rule would match now.
pub fn show_about(globals: &Globals, client: &Client, who: &str) -> Result<u8, Failure> {
    let found: UnleasedProcesses = client.get(&format!("/v1/unleased?matches={}", escaped(who)))?;
    if globals.json {
        output::json(&found)?;
    } else if found.processes.is_empty() {
        output::print("no process that is on a GPU now\n")?;
    } else {
        let about = found.processes.iter().map(|one| format!("{} ({})\n", one.id, plain(&what(one))));
        output::print(&about.collect::<String>())?;
    }
    Ok(exit::OK)
}

/// A word escaped for a URL.
fn escaped(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/".contains(&byte);
    let one = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    word.bytes().map(one).collect()
}

/// Removes a rule.
pub fn forget(globals: &Globals, args: &ForgetArgs) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    if args.dry_run {
        let found: UnleasedProcesses = client.get("/v1/unleased")?;
        let rule = found.rules.iter().find(|rule| rule.id == args.rule).ok_or_else(|| {
            let why = format!("there is no rule `{}`", plain(&args.rule));
            Failure::usage(why).hint("`sublet enforce status` lists them")
        })?;
        match globals.json {
            true => output::json(rule)?,
            false => output::print(&format!("{}\n", rule_words(rule)))?,
        }
        return Ok(exit::OK);
    }
    let rule = client.drop_rule(&args.rule)?;
    match globals.json {
        true => output::json(&rule)?,
        false => output::print(&format!("{} is removed\n", rule.id))?,
    }
    Ok(exit::OK)
}
