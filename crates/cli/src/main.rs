//! The only binary: every command of `sublet`, and the daemon.
//!
//! [`args`] reads the command line, [`commands`] has a file for each command,
//! [`client`] speaks to the daemon, [`hold`] gets and keeps leases for commands.
//! Only [`daemon`] and [`journal_files`] use the daemon's crate, and only `commands::replay` that of replays.
//!
//! Absent on purpose: any decision about leases, and any async runtime in the client, which must start at almost no
//! cost. `commands::proxy` starts a runtime of its own.

mod args;
mod client;
mod commands;
mod completion;
mod daemon;
#[cfg(test)]
mod documents;
mod elsewhere;
mod failure;
mod groups;
mod hold;
mod journal_files;
mod named;
mod output;
mod own_file;
mod place;
mod processes;
#[cfg(test)]
mod sample;
mod table;
mod text;

use args::{Cli, Command};
use failure::Failure;
use std::ffi::OsString;
use std::process::ExitCode;
use sublet_wire::exit;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    // The daemon starts its workers this way; users never do.
    if args.get(1).is_some_and(|first| first == "worker") {
        let rest: Vec<String> = args[2..].iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
        return daemon::worker(&rest);
    }
    if completion::answer(&args) {
        return ExitCode::SUCCESS;
    }
    let cli = match args::parse(args) {
        Ok(cli) => cli,
        Err(code) => return ExitCode::from(code),
    };
    match run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            failure.tell(cli.globals.json);
            ExitCode::from(failure.exit())
        }
    }
}

fn run(cli: &Cli) -> Result<u8, Failure> {
    let globals = &cli.globals;
    match &cli.command {
        None => commands::status::run(globals),
        Some(Command::Run(args)) => commands::run::run(globals, args),
        Some(Command::Lease(args)) => commands::lease::run(globals, args),
        Some(Command::Wrap(args)) => commands::wrap::run(globals, args),
        Some(Command::Ps(args)) => commands::ps::run(globals, args),
        Some(Command::Queue) => commands::queue::run(globals),
        Some(Command::Explain(args)) => commands::explain::run(globals, args),
        Some(Command::Aside(args)) => commands::aside::run(globals, args),
        Some(Command::Park(args)) => commands::park::park(globals, args),
        Some(Command::Renew(args)) => commands::renew::run(globals, args),
        Some(Command::Resume(args)) => commands::park::resume(globals, args),
        Some(Command::Accept(args)) => commands::accept::run(globals, args),
        Some(Command::Gpus(args)) => commands::gpus::run(globals, args),
        Some(Command::Stop(args)) => commands::stop::run(globals, args),
        Some(Command::Release(args)) => commands::release::run(globals, args),
        Some(Command::Usage(args)) => commands::usage::run(globals, args),
        Some(Command::Audit(args)) => commands::audit::run(globals, args),
        Some(Command::Enforce(args)) => commands::enforce::run(globals, args),
        Some(Command::Adopt(args)) => commands::adopt::adopt(globals, args),
        Some(Command::Unadopt(args)) => commands::adopt::unadopt(globals, args),
        Some(Command::Proxy(args)) => commands::proxy::run(globals, args),
        Some(Command::Checkpoint(args)) => commands::checkpoint::run(globals, args),
        Some(Command::Token(args)) => commands::token::run(globals, args),
        Some(Command::Tls(args)) => commands::tls::run(globals, args),
        Some(Command::Doctor(args)) => commands::doctor::run(globals, args),
        Some(Command::Soft(args)) => commands::soft::run(globals, args),
        Some(Command::Serve(args)) => commands::serve::run(globals, args),
        Some(Command::Setup(args)) => commands::setup::run(globals, args),
        Some(Command::Config(args)) => commands::config::run(globals, args),
        Some(Command::Journal(args)) => commands::journal::run(globals, args),
        Some(Command::Replay(args)) => commands::replay::run(globals, args),
        Some(Command::Completions(args)) => commands::completions::run(args),
        Some(Command::Man(args)) => commands::man::run(args),
        Some(Command::Openapi) => print_text(&daemon::openapi()),
        Some(Command::Reference) => print_text(&commands::reference::markdown()),
    }
}

fn print_text(text: &str) -> Result<u8, Failure> {
    let end = if text.ends_with('\n') { "" } else { "\n" };
    output::print(&format!("{text}{end}"))?;
    Ok(exit::OK)
}
