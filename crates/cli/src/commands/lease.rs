//! `sublet lease`: a lease for this shell, as lines to evaluate.

use super::run::by_signal;
use crate::args::Globals;
use crate::client::{Client, RESTART};
use crate::failure::{Failure, tell_hint};
use crate::hold::ask::AskArgs;
use crate::hold::environment;
use crate::hold::events;
use crate::hold::shell;
use crate::hold::visible::Visible;
use crate::hold::wait::{self, Outcome};
use crate::hold::{shim, soft};
use crate::output;
use clap::{Args, ValueEnum};
use std::io::{self, IsTerminal};
use sublet_softgpu::NOTICE;
use sublet_wire::{Ask, Bind, Code, Lease, LeaseState, exit, span};

/// Take a lease for this shell and print its environment for `eval`
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct LeaseArgs {
    #[command(flatten)]
    ask: AskArgs,
    /// Bind it to no process: it ends when it is not renewed (`sublet renew`), or by `sublet end`
    #[arg(long)]
    detach: bool,
    /// For which shell the lines are
    #[arg(long, value_enum, value_name = "SHELL", default_value_t = ShellArg::Sh)]
    shell: ShellArg,
}

const AFTER_HELP: &str = "\
The lease holds while this shell lives and what is started from it uses the card; `exit` or
`sublet end` gives it back.

Examples:
  eval \"$(sublet lease --vram 4G)\"                  sh, bash, zsh
  sublet lease --vram 4G --shell fish | source      fish";

/// `--shell`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShellArg {
    /// sh, bash, zsh, ksh, dash
    Sh,
    /// fish
    Fish,
}

/// Takes a lease and prints what the shell should know.
pub fn run(globals: &Globals, args: &LeaseArgs) -> Result<u8, Failure> {
    if !args.detach {
        globals.must_be_local(
            "a shell holds a lease where its card is",
            "`--detach` asks for one that no process holds",
        )?;
    }
    if let Some(flag) = args.ask.needs_wrapper() {
        return Err(Failure::usage(format!("`{flag}` takes a program that stays, and `sublet lease` ends at once"))
            .hint(format!("`sublet run {flag} … -- COMMAND` stays as long as the command")));
    }
    let client = Client::open(globals)?;
    // What is visible here says nothing of the cards of another host.
    let visible = if client.socket().is_some() { Visible::here()? } else { Visible::ALL };
    let on = visible.narrow(args.ask.on.clone(), || client.get("/v1/cards"))?;
    let shell = (!args.detach).then(shell::pid);
    let ask = Ask { on, ..args.ask.ask(shell) };
    let lease = match obtain(&client, ask, shell).map_err(|failure| visible.explain(failure))? {
        Outcome::Granted(lease) => *lease,
        Outcome::GivenUp(signal) => return Ok(by_signal(signal)),
    };
    if globals.json {
        output::json(&lease)?;
        return Ok(exit::OK);
    }
    match environment(&client, &lease, args, &visible) {
        Ok(variables) => print(&variables, args.shell)?,
        Err(failure) => {
            // The lease is of no use here; if nobody answers it ends unused.
            let _ = client.release(&lease.id, lease.epoch, RESTART);
            return Err(failure);
        }
    }
    say(&lease, args.detach);
    Ok(exit::OK)
}

fn environment(
    client: &Client,
    lease: &Lease,
    args: &LeaseArgs,
    visible: &Visible,
) -> Result<environment::Variables, Failure> {
    let mut variables = environment::variables(lease, args.ask.visible, &client.variable(), visible)?;
    if let Some(soft) = soft::of_lease(client, lease)? {
        eprintln!("{NOTICE}");
        variables.extend(soft);
    }
    if !args.ask.no_shim {
        variables.extend(shim::variables(client));
    }
    Ok(variables)
}

/// Where there is room, one request does it. Where there is none, this process waits for
/// the shell: killed, it leaves the queue, and nobody gets a lease that nobody knows of.
fn obtain(client: &Client, ask: Ask, shell: Option<u32>) -> Result<Outcome, Failure> {
    match client.ask(&Ask { wait_s: Some(0), ..ask.clone() }) {
        Ok(lease) if lease.state == LeaseState::Active => return Ok(Outcome::Granted(Box::new(lease))),
        Err(failure) if failure.code() != Some(Code::NoRoom) || ask.wait_s == Some(0) => return Err(failure),
        Ok(_) | Err(_) => {}
    }
    let Some(shell) = shell else { return queue(client, &ask) };
    let outcome = queue(client, &Ask { pid: Some(std::process::id()), ..ask })?;
    if let Outcome::Granted(lease) = &outcome {
        let bind = Bind { epoch: lease.epoch.unwrap_or(0), pid: shell };
        client.bind(&lease.id, &bind, RESTART).map_err(|error| client.failure(error))?;
    }
    Ok(outcome)
}

fn queue(client: &Client, ask: &Ask) -> Result<Outcome, Failure> {
    let (sender, receiver) = events::listen()?;
    wait::obtain(client, ask, &sender, &receiver)
}

fn print(variables: &environment::Variables, shell: ShellArg) -> Result<(), Failure> {
    output::print(&match shell {
        ShellArg::Sh => environment::for_sh(variables),
        ShellArg::Fish => environment::for_fish(variables),
    })
}

fn say(lease: &Lease, detach: bool) {
    if detach {
        let ttl = span::show(lease.ttl_s as f64);
        eprintln!("{} is bound to no process: it ends {ttl} after its last renewal if somebody waits", lease.id);
        tell_hint(&format!("go on with it by `sublet renew {0}`, give it back by `sublet end {0}`", lease.id));
    } else if io::stdout().is_terminal() {
        tell_hint("to use it in this shell: eval \"$(sublet lease …)\"");
    }
}
