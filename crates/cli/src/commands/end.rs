//! `sublet end`: gives leases back, or leaves the queue.

use crate::args::{Globals, LeaseName};
use crate::client::Client;
use crate::failure::Failure;
use crate::output;
use clap::Args;
use std::time::Duration;
use sublet_wire::exit;

/// End leases or leave the queue; processes are not touched
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
        match client.release(&lease.to_string(), None, Duration::ZERO) {
            Ok(Some(lease)) if globals.json => output::json_line(&lease)?,
            Ok(_) => output::print(&format!("{lease} ended\n"))?,
            Err(error) => {
                let failure = client.failure(error).about(lease);
                failure.tell(globals.json);
                code = if code == exit::OK { failure.exit() } else { code };
            }
        }
    }
    Ok(code)
}
