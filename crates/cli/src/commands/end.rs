//! `sublet end`: gives leases back, or leaves the queue.

use crate::args::{Globals, LeaseName};
use crate::client::{CallError, Client, RESTART};
use crate::failure::Failure;
use crate::output;
use crate::table::plain;
use clap::Args;
use sublet_wire::{Code, exit};

/// End leases or leave the queue; processes are not touched, and what is over already is no error
#[derive(Args, Clone, Debug)]
pub struct EndArgs {
    /// Their ids, such as L7
    #[arg(required = true, value_name = "LEASE")]
    leases: Vec<LeaseName>,
}

/// Ends each; the first failure decides the exit code.
pub fn run(globals: &Globals, args: &EndArgs) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let mut code = exit::OK;
    for lease in &args.leases {
        match client.release(&lease.to_string(), None, RESTART) {
            Ok(Some(lease)) if globals.json => output::json_line(&lease)?,
            Ok(_) => output::print(&format!("{lease} ended\n"))?,
            // What is wanted is so: somebody, or its time, was quicker.
            Err(CallError::Refused(problem)) if problem.code == Code::LeaseEnded => {
                eprintln!("{lease} was over already: {}", plain(&problem.detail));
                if globals.json {
                    let name = lease.to_string();
                    output::json_line(&client.lease(&name, RESTART).map_err(|error| client.failure(error))?)?;
                }
            }
            Err(error) => {
                let failure = client.failure(error).about(lease);
                failure.tell(globals.json);
                code = if code == exit::OK { failure.exit() } else { code };
            }
        }
    }
    Ok(code)
}
