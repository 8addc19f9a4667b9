//! Keeps an eye on the lease while a command runs on it.
//!
//! On a thread of its own: gives the command a cgroup, makes it a holder in its own
//! right (so that it stays one if the wrapper is killed), then waits to hear that the
//! lease ended. A daemon that is away is waited for; nothing here disturbs the command.

use super::events::Event;
use super::scope::Scope;
use crate::client::{Client, RESTART, Until};
use std::sync::mpsc::Sender;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use sublet_wire::{Bind, Lease, LeaseState};

/// One long poll.
const POLL: Duration = Duration::from_secs(30);
/// Between two tries while no daemon answers.
const SILENT_PAUSE: Duration = Duration::from_secs(1);

/// The watch over one command.
#[derive(Debug)]
pub struct Watch {
    enclosed: JoinHandle<Option<Scope>>,
}

impl Watch {
    /// Begins to watch a lease that `pid` runs on.
    pub fn begin(client: &Client, lease: &Lease, pid: u32, sender: &Sender<Event>) -> Watch {
        let bind = Bind { epoch: lease.epoch.unwrap_or(0), pid };
        let (client, id, sender) = (client.clone(), lease.id.clone(), sender.clone());
        let enclosed = thread::spawn(move || {
            // Before the bind: the daemon looks then whether the command has a cgroup of its own.
            let scope = Scope::enclose(&id, pid);
            thread::spawn(move || {
                // Refused: the command just ended, or the lease did, which the first poll tells.
                let _ = client.bind(&id, &bind, RESTART);
                follow(&client, &id, &sender);
            });
            scope
        });
        Watch { enclosed }
    }

    /// The command ended: its cgroup is removed. The polls end with the program.
    pub fn end(self) {
        drop(self.enclosed.join());
    }
}

fn follow(client: &Client, id: &str, sender: &Sender<Event>) {
    loop {
        let begun = Instant::now();
        match client.poll(id, POLL, Until::Ended) {
            Ok(lease) if matches!(lease.state, LeaseState::Ending | LeaseState::Ended) => {
                // Nobody listens any more: the command is over too.
                let _ = sender.send(Event::Told(Box::new(lease)));
                return;
            }
            // A daemon that is stopping answers early: never ask in a tight circle.
            Ok(_) if begun.elapsed() < SILENT_PAUSE => thread::sleep(SILENT_PAUSE),
            Ok(_) => {}
            Err(error) if error.may_pass() => thread::sleep(SILENT_PAUSE),
            Err(_) => return,
        }
    }
}
