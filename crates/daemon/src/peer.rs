//! Who is at the other end of a connection: the kernel says, or a token; never the caller.

use crate::credentials::Credentials;
use crate::names::tenant_of;
use crate::tokens::Known;
use std::sync::Arc;
use sublet_core::event::Caller;
use sublet_core::ids::ProcKey;
use sublet_host::process;
use sublet_wire::{Code, Problem};

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// For core.
    pub caller: Caller,
    /// How we know.
    pub proof: Proof,
}

/// How we know who somebody is.
#[derive(Clone, Debug)]
pub enum Proof {
    /// The kernel says so, on the socket.
    Local {
        /// Its Unix user.
        uid: u32,
        /// It shares our pid namespace, so its pids mean what ours do.
        same_pids: bool,
    },
    /// It sent the secret of this token.
    Token(Arc<Known>),
}

/// Who may do what beyond its own leases.
#[derive(Clone, Debug)]
pub struct Operators {
    /// The daemon's own user.
    pub own_uid: u32,
    /// Members of this group.
    pub gid: Option<u32>,
    /// Groups that have shares or caps, by name.
    pub groups: Vec<(u32, String)>,
}

impl Peer {
    /// Whoever connected, and what follows from that.
    pub fn of(credentials: &Credentials, operators: &Operators) -> Arc<Peer> {
        let Credentials { uid, gids, spaces } = credentials;
        // Root in a container is not root here: it must share our namespaces.
        let operator = (*uid == 0 && spaces.pids && spaces.users)
            || (*uid == operators.own_uid && *uid != 0)
            || operators.gid.is_some_and(|gid| gids.contains(&gid));
        let groups = operators.groups_of(gids);
        let caller = Caller { tenant: tenant_of(*uid), groups, operator, token: None };
        Arc::new(Peer { caller, proof: Proof::Local { uid: *uid, same_pids: spaces.pids } })
    }

    /// Whoever sent a token's secret. A token is never an operator's.
    pub fn through(known: Arc<Known>) -> Arc<Peer> {
        let token = &known.token;
        let groups = Vec::new();
        let caller = Caller { tenant: token.tenant.clone(), groups, operator: false, token: Some(token.id) };
        Arc::new(Peer { caller, proof: Proof::Token(known) })
    }

    /// Its Unix user, if it is on this host.
    pub fn uid(&self) -> Option<u32> {
        match self.proof {
            Proof::Local { uid, .. } => Some(uid),
            Proof::Token(_) => None,
        }
    }

    /// Whether it may see who is on a card. What local users show each other is not shown beyond
    /// the host.
    pub fn sees_all(&self, local_users_do: bool) -> bool {
        self.caller.operator || (local_users_do && self.uid().is_some())
    }

    /// Whether it still is who it was: a token may be revoked, or expire, under a long call.
    pub fn still_good(&self, wall_us: u64) -> bool {
        match &self.proof {
            Proof::Local { .. } => true,
            Proof::Token(known) => known.is_good(wall_us),
        }
    }

    /// The process with this pid, if it is the peer's own.
    pub fn process(&self, pid: u32) -> Result<ProcKey, Problem> {
        let no = || {
            Problem::new(Code::NotYourProcess, format!("process {pid} is not there, or not yours"))
                .hint("bind a live process of your own user")
        };
        let Proof::Local { uid, same_pids } = self.proof else {
            let detail = "a process can be named on the host's own socket only";
            return Err(Problem::new(Code::PidNotLocal, detail)
                .hint("leave `pid` out and renew the lease yourself, or ask on the host"));
        };
        if !same_pids {
            return Err(no().hint("this client runs in another pid namespace: bind from the host"));
        }
        match process::identify(pid) {
            Ok(identity) if identity.uid == uid => Ok(identity.key),
            _ => Err(no()),
        }
    }
}

impl Operators {
    /// Which of the groups that matter are among these.
    fn groups_of(&self, gids: &[u32]) -> Vec<String> {
        let mut names: Vec<String> =
            self.groups.iter().filter(|(gid, _)| gids.contains(gid)).map(|(_, name)| name.clone()).collect();
        names.sort();
        names
    }
}
