//! The other end of a connection: the kernel or a token says which user it is, never the caller.

use crate::access::Access;
use crate::credentials::Credentials;
use crate::tokens::KnownToken;
use crate::user_directory::tenant_of;
use std::sync::Arc;
use sublet_core::event::Caller;
use sublet_core::ids::ProcKey;
use sublet_host::process;
use sublet_wire::{Code, Problem, ProcessRef};

/// The user at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The caller as core knows it.
    pub caller: Caller,
    /// How its identity is known.
    pub proof: Proof,
}

/// How the identity of a peer is known.
#[derive(Clone, Debug)]
pub enum Proof {
    /// The kernel says so, on the socket.
    Local {
        /// What the kernel says.
        credentials: Arc<Credentials>,
        /// The rules, which may change.
        access: Access,
    },
    /// It sent the secret of this token.
    Token(Arc<KnownToken>),
}

/// Which users have rights beyond their own leases.
#[derive(Clone, Debug)]
pub struct Operators {
    /// The daemon's own user.
    pub own_uid: u32,
    /// Members of this group are operators.
    pub gid: Option<u32>,
    /// Groups that have shares or caps, by name.
    pub groups: Vec<(u32, String)>,
}

impl Peer {
    /// The peer of a connection to the socket, in these of the groups that rules name.
    pub fn of(credentials: Arc<Credentials>, groups: Vec<String>, access: Access) -> Arc<Peer> {
        let operator = access.is_operator(&credentials);
        let caller = Caller { tenant: tenant_of(credentials.uid), groups, operator, token: None };
        Arc::new(Peer { caller, proof: Proof::Local { credentials, access } })
    }

    /// The peer of a token's secret. A token never makes an operator.
    pub fn of_token(known: Arc<KnownToken>) -> Arc<Peer> {
        let token = &known.token;
        let groups = Vec::new();
        let caller = Caller { tenant: token.tenant.clone(), groups, operator: false, token: Some(token.id) };
        Arc::new(Peer { caller, proof: Proof::Token(known) })
    }

    /// The same in these groups.
    pub fn within(&self, groups: Vec<String>) -> Arc<Peer> {
        Arc::new(Peer { caller: Caller { groups, ..self.caller.clone() }, proof: self.proof.clone() })
    }

    /// True if it may only read, and not act for its tenant.
    pub fn is_read_only(&self) -> bool {
        matches!(&self.proof, Proof::Token(known) if known.token.read_only)
    }

    /// Its Unix user, if it is on this host.
    pub fn uid(&self) -> Option<u32> {
        match &self.proof {
            Proof::Local { credentials, .. } => Some(credentials.uid),
            Proof::Token(_) => None,
        }
    }

    /// Its Unix user, if that number means the same on this host: a user of a container may have another's number.
    pub fn host_uid(&self) -> Option<u32> {
        match &self.proof {
            Proof::Local { credentials, .. } if credentials.spaces.pids && credentials.spaces.users => {
                Some(credentials.uid)
            }
            _ => None,
        }
    }

    /// True if it has not changed: a token may be revoked, or expire, during a long call, and an operator may have
    /// ceased to be one.
    pub fn is_valid(&self, wall_us: u64) -> bool {
        match &self.proof {
            Proof::Local { credentials, access } => !self.caller.operator || access.is_operator(credentials),
            Proof::Token(known) => known.is_good(wall_us),
        }
    }

    /// The process with this pid, if it is the peer's own; any process for an operator.
    pub fn process_or_any(&self, pid: u32) -> Result<ProcKey, Problem> {
        let any = || process::identify(pid).ok().map(|identity| identity.key);
        match &self.proof {
            // In another pid namespace the number means another process.
            Proof::Local { credentials, .. } if self.caller.operator && credentials.spaces.pids => {
                any().map_or_else(|| self.process(pid), Ok)
            }
            _ => self.process(pid),
        }
    }

    /// The process of a bind, if it is the peer's own.
    pub fn named_process(&self, process: ProcessRef) -> Result<ProcKey, Problem> {
        match process {
            ProcessRef::Pid(pid) => self.process(pid),
            ProcessRef::Caller => self.calling_process(),
        }
    }

    /// The process that made the connection, whatever its pid is in its own namespace.
    fn calling_process(&self) -> Result<ProcKey, Problem> {
        let Proof::Local { credentials, .. } = &self.proof else { return Err(not_local()) };
        let found = credentials.process.and_then(|connected| {
            let identity = process::identify(connected.pid).ok()?;
            let is_it = identity.key.start <= connected.by && identity.uid == credentials.uid;
            is_it.then_some(identity.key)
        });
        found.ok_or_else(|| {
            let detail = "the process that made this connection is gone, changed its user, or cannot be seen from here";
            Problem::new(Code::NotYourProcess, detail).hint("call on a connection that the process made itself")
        })
    }

    /// The process with this pid, if it is the peer's own.
    pub fn process(&self, pid: u32) -> Result<ProcKey, Problem> {
        let no = || {
            Problem::new(Code::NotYourProcess, format!("process {pid} is not there, or not yours"))
                .hint("bind a live process of your own user")
        };
        let Proof::Local { credentials, .. } = &self.proof else { return Err(not_local()) };
        if !credentials.spaces.pids {
            return Err(
                no().hint("this client counts pids otherwise: say \"caller\" to bind it, or bind from the host")
            );
        }
        match process::identify(pid) {
            Ok(identity) if identity.uid == credentials.uid => Ok(identity.key),
            _ => Err(no()),
        }
    }
}

fn not_local() -> Problem {
    Problem::new(Code::PidNotLocal, "a process can be named on the host's own socket only")
        .hint("leave `pid` out and renew the lease yourself, or ask on the host")
}

impl Operators {
    /// True if the kernel's facts make an operator; the directory makes none.
    pub fn include(&self, credentials: &Credentials) -> bool {
        let Credentials { uid, gids, spaces, .. } = credentials;
        // Root in a container is not root here, and becomes any user and a member of any group there: an operator must
        // share our namespaces.
        let is_ours = spaces.pids && spaces.users;
        is_ours && (*uid == 0 || *uid == self.own_uid || self.gid.is_some_and(|gid| gids.contains(&gid)))
    }

    /// Which of the groups that rules name are among these.
    pub fn groups_among(&self, gids: &[u32]) -> Vec<String> {
        let mut names: Vec<String> =
            self.groups.iter().filter(|(gid, _)| gids.contains(gid)).map(|(_, name)| name.clone()).collect();
        names.sort();
        names
    }
}
