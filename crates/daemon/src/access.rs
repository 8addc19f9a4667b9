//! The identity and the rights of a caller, under the configuration of this moment.
//!
//! A connection keeps only what the kernel said about it: when the rules, or the directory's groups, have changed, the
//! next call on it is made by another [peer](Peer). A number tells whether they have; no lock that other threads hold
//! is taken for that.

use crate::credentials::Credentials;
use crate::peer::{Operators, Peer};
use crate::user_directory::{FOR_A_NAME, UserDirectory, uid_of};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};
use sublet_wire::{Code, Problem};

/// How long a call waits for its caller's groups if rules name some; then it is refused.
const FOR_GROUPS: Duration = Duration::from_secs(10);
/// A peer is made anew after this time, so that its groups are looked up again.
const ANEW: Duration = Duration::from_secs(60);

/// The rules about rights, and the users that they are about.
#[derive(Clone, Debug)]
pub struct Access(Arc<AccessTable>);

#[derive(Debug)]
struct AccessTable {
    operators: RwLock<Arc<Operators>>,
    names: UserDirectory,
}

impl Access {
    /// Returns these rules for these users.
    pub fn new(operators: Operators, names: UserDirectory) -> Access {
        Access(Arc::new(AccessTable { operators: RwLock::new(Arc::new(operators)), names }))
    }

    /// Replaces the rules, for open connections, too.
    pub fn set(&self, gid: Option<u32>, groups: Vec<(u32, String)>) {
        let own_uid = self.operators().own_uid;
        let operators = Arc::new(Operators { own_uid, gid, groups });
        *self.0.operators.write().unwrap_or_else(PoisonError::into_inner) = operators;
        self.0.names.expire_all();
    }

    fn operators(&self) -> Arc<Operators> {
        Arc::clone(&self.0.operators.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// True if the rules of this moment make a peer an operator.
    pub fn is_operator(&self, credentials: &Credentials) -> bool {
        self.operators().include(credentials)
    }

    /// The peer of a connection to the socket.
    async fn local(&self, credentials: &Arc<Credentials>) -> Result<Arc<Peer>, Problem> {
        let operators = self.operators();
        let mut gids = self.gids(credentials.uid, &operators).await?.to_vec();
        gids.extend(&credentials.gids);
        Ok(Peer::of(Arc::clone(credentials), operators.groups_among(&gids), self.clone()))
    }

    /// A token's peer, with the groups of the user that it acts for.
    pub async fn grouped(&self, peer: Arc<Peer>) -> Result<Arc<Peer>, Problem> {
        let operators = self.operators();
        let uid = uid_of(&peer.caller.tenant).filter(|_| !operators.groups.is_empty());
        let Some(uid) = uid else { return Ok(peer) };
        let gids = self.gids(uid, &operators).await?;
        Ok(peer.within(operators.groups_among(&gids)))
    }

    /// A user's groups. Where rules name groups, a user whose groups are not known is refused: it would have no quota.
    async fn gids(&self, uid: u32, operators: &Operators) -> Result<Arc<[u32]>, Problem> {
        let (names, needed) = (&self.0.names, !operators.groups.is_empty());
        let patience = match names.groups(uid) {
            None if needed => FOR_GROUPS,
            Some(_) if !needed => Duration::ZERO,
            _ => FOR_A_NAME,
        };
        names.wait(uid, patience).await;
        match names.groups(uid) {
            Some(gids) => Ok(gids),
            None if needed => Err(unknown()),
            None => Ok(Arc::default()),
        }
    }
}

fn unknown() -> Problem {
    Problem::new(Code::TooBusy, "this host's directory does not say what groups you are in, and quotas depend on it")
        .retry_after(5)
}

/// One connection: what the kernel said about it, and its last peer.
#[derive(Debug)]
pub struct Session {
    access: Access,
    credentials: Arc<Credentials>,
    last: Mutex<Option<CookieSecret>>,
}

#[derive(Debug)]
struct CookieSecret {
    generation: u64,
    at: Instant,
    peer: Arc<Peer>,
}

impl Session {
    /// Returns a connection of this kind.
    pub fn new(access: Access, credentials: Credentials) -> Session {
        Session { access, credentials: Arc::new(credentials), last: Mutex::new(None) }
    }

    /// The peer of a call on it at this moment.
    pub async fn peer(&self) -> Result<Arc<Peer>, Problem> {
        // Read before anything else: a change meanwhile is seen by the next call.
        let generation = self.access.0.names.generation();
        if let Some(peer) = self.make_peer(generation) {
            return Ok(peer);
        }
        let peer = self.access.local(&self.credentials).await?;
        let made = CookieSecret { generation, at: Instant::now(), peer: Arc::clone(&peer) };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
        Ok(peer)
    }

    /// Calls on one connection come one after the other, so no other call holds this lock.
    fn make_peer(&self, generation: u64) -> Option<Arc<Peer>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let made = last.as_ref().filter(|made| made.generation == generation && made.at.elapsed() < ANEW)?;
        Some(Arc::clone(&made.peer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::Namespaces;
    use crate::user_directory::FoundUser;

    const ANA: u32 = 1000;
    const LAB: u32 = 70;
    const OPS: u32 = 80;
    const OURS: Namespaces = Namespaces { pids: true, users: true };

    /// Users that the directory says are in these groups, under these rules.
    fn access(of_directory: &'static [u32], gid: Option<u32>, groups: &[(u32, &str)]) -> Access {
        let found = move |_| FoundUser { name: Some("ana".to_owned()), gids: Some(of_directory.to_vec()) };
        let names = UserDirectory::of_directory(found).unwrap();
        let groups = groups.iter().map(|(gid, name)| (*gid, (*name).to_owned())).collect();
        Access::new(Operators { own_uid: 1, gid, groups }, names)
    }

    fn session(access: &Access, uid: u32, gids: &[u32], spaces: Namespaces) -> Session {
        Session::new(access.clone(), Credentials { uid, gids: gids.to_vec(), spaces, process: None })
    }

    fn now<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn groups_are_those_of_the_kernel_and_of_the_directory() {
        let access = access(&[LAB], None, &[(LAB, "lab"), (OPS, "ops"), (90, "none")]);
        let groups = |gids: &[u32]| {
            now(session(&access, ANA, gids, Namespaces::default()).peer()).unwrap().caller.groups.clone()
        };
        assert_eq!(groups(&[OPS]), ["lab", "ops"]);
        assert_eq!(groups(&[]), ["lab"], "a user without its groups is in them all the same");
    }

    #[test]
    fn rules_of_a_reload_hold_for_open_connections() {
        let access = access(&[LAB], Some(OPS), &[]);
        let session = session(&access, ANA, &[OPS], OURS);
        let before = now(session.peer()).unwrap();
        assert!(before.caller.operator && before.caller.groups.is_empty() && before.is_valid(0));
        assert!(Arc::ptr_eq(&before, &now(session.peer()).unwrap()), "nothing is made twice");
        access.set(None, vec![(LAB, "lab".to_owned())]);
        assert!(!before.is_valid(0), "what streams to an operator ends");
        let after = now(session.peer()).unwrap();
        assert!(!after.caller.operator && after.is_valid(0));
        assert_eq!(after.caller.groups, ["lab"]);
    }

    #[test]
    fn an_operator_must_share_the_user_namespace() {
        let access = access(&[], Some(OPS), &[]);
        let operator = |uid, gid, pids, users| {
            now(session(&access, uid, &[gid], Namespaces { pids, users }).peer()).unwrap().caller.operator
        };
        // Root, the service's own user, and a member of the group: root in a container becomes any of them.
        for (uid, gid) in [(0, 0), (1, 1), (ANA, OPS)] {
            assert!(operator(uid, gid, true, true), "uid {uid} in group {gid}");
            for (pids, users) in [(true, false), (false, true), (false, false)] {
                assert!(!operator(uid, gid, pids, users), "uid {uid} in group {gid}, pids {pids}, users {users}");
            }
        }
        assert!(!operator(ANA, LAB, true, true));
    }

    #[test]
    fn a_user_with_unknown_groups_is_refused_if_rules_name_groups() {
        let nothing = UserDirectory::of_directory(|_| FoundUser::default()).unwrap();
        let rules = |groups| Access::new(Operators { own_uid: 1, gid: None, groups }, nothing.clone());
        let open = rules(Vec::new());
        assert!(now(session(&open, ANA, &[], Namespaces::default()).peer()).is_ok());
        let strict = rules(vec![(LAB, "lab".to_owned())]);
        let refused = now(session(&strict, ANA, &[LAB], Namespaces::default()).peer()).unwrap_err();
        assert_eq!(refused.code, Code::TooBusy);
    }

    #[tokio::test(start_paused = true)]
    async fn names_are_waited_for_shortly_and_groups_only_if_rules_name_them() {
        let (_say, answers) = std::sync::mpsc::channel();
        let answers = Arc::new(Mutex::new(answers));
        let silent = UserDirectory::of_directory(move |_| answers.lock().unwrap().recv().unwrap_or_default()).unwrap();
        let rules = |groups| Access::new(Operators { own_uid: 1, gid: None, groups }, silent.clone());
        let start = tokio::time::Instant::now();
        assert!(session(&rules(Vec::new()), ANA, &[], Namespaces::default()).peer().await.is_ok());
        assert!(start.elapsed() <= 2 * FOR_A_NAME, "{:?}", start.elapsed());
        let strict = rules(vec![(LAB, "lab".to_owned())]);
        let refused = session(&strict, ANA, &[LAB], Namespaces::default()).peer().await.unwrap_err();
        assert_eq!(refused.code, Code::TooBusy);
        assert!(start.elapsed() >= FOR_GROUPS, "it may come: {:?}", start.elapsed());
    }
}
