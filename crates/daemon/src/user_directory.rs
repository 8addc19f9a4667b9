//! The host's user directory: names of users, for people, and their groups, which must not depend on the process that
//! calls.
//!
//! Looking one up can take seconds (LDAP). A few threads of its own do only that; all other threads read what is known,
//! and wait if they must. What is known is looked up again after some minutes and after a reload of the configuration,
//! and counts until then.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How many users are looked up at a time: one that takes long must not hold up all others.
const THREADS: usize = 4;
/// After this time a user is looked up again, so a change takes effect within it.
const OLD: Duration = Duration::from_secs(300);
/// The same for a user that the directory does not know: it may have been away.
const OLD_UNKNOWN: Duration = Duration::from_secs(30);

/// The longest wait for a name: names are for people, and may come later.
pub const FOR_A_NAME: Duration = Duration::from_millis(50);

/// What a directory says about a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundUser {
    /// Its name, if there is such a user.
    pub name: Option<String>,
    /// All of its groups, if they are known.
    pub gids: Option<Vec<u32>>,
}

/// Users known so far.
#[derive(Clone)]
pub struct UserDirectory(Arc<DirectoryCache>);

struct DirectoryCache {
    known: RwLock<HashMap<u32, KnownUser>>,
    pending: Mutex<HashSet<u32>>,
    asks: mpsc::Sender<u32>,
    /// Signalled when a user was looked up.
    looked_up: watch::Sender<()>,
    /// Grows when more may follow from what is known.
    generation: AtomicU64,
    /// Grows when what is known must be looked up again.
    round: AtomicU64,
}

struct KnownUser {
    name: Option<String>,
    gids: Option<Arc<[u32]>>,
    at: Instant,
    round: u64,
}

impl KnownUser {
    fn is_fresh(&self, round: u64) -> bool {
        let old = if self.name.is_some() && self.gids.is_some() { OLD } else { OLD_UNKNOWN };
        self.round == round && self.at.elapsed() < old
    }
}

impl UserDirectory {
    /// Users of this host.
    pub fn start() -> io::Result<UserDirectory> {
        UserDirectory::of_directory(look_up)
    }

    /// Users of another directory; `look_up` may block.
    pub fn of_directory(look_up: impl Fn(u32) -> FoundUser + Clone + Send + 'static) -> io::Result<UserDirectory> {
        let (asks, inbox) = mpsc::channel();
        let inside = Arc::new(DirectoryCache {
            known: RwLock::default(),
            pending: Mutex::default(),
            asks,
            looked_up: watch::Sender::new(()),
            generation: AtomicU64::new(0),
            round: AtomicU64::new(0),
        });
        let inbox = Arc::new(Mutex::new(inbox));
        for _ in 0..THREADS {
            // Held weakly: the threads end when the directory is dropped.
            let (inside, inbox, look_up) = (Arc::downgrade(&inside), Arc::clone(&inbox), look_up.clone());
            let work = move || answer(&inside, &inbox, &look_up);
            thread::Builder::new().name("sublet-names".to_owned()).spawn(work)?;
        }
        Ok(UserDirectory(inside))
    }

    /// The name of a tenant: its user's, or the tenant itself.
    pub fn of(&self, tenant: &str) -> String {
        let name = uid_of(tenant).and_then(|uid| self.0.known.read().ok()?.get(&uid)?.name.clone());
        name.unwrap_or_else(|| tenant.to_owned())
    }

    /// Grows whenever a [peer](crate::peer::Peer) may have changed.
    pub fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    /// Looks up all users again, and makes all that follows from it anew.
    pub fn expire_all(&self) {
        self.0.round.fetch_add(1, Ordering::AcqRel);
        self.0.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Has a user looked up, unless it was lately. Does not wait.
    pub fn ask(&self, uid: u32) {
        if self.has_fresh(uid) {
            return;
        }
        let mut pending = self.0.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if pending.insert(uid) {
            // The threads live as long as the directory.
            let _ = self.0.asks.send(uid);
        }
    }

    /// The known groups of a user, of any age.
    pub fn groups(&self, uid: u32) -> Option<Arc<[u32]>> {
        self.0.known.read().ok()?.get(&uid)?.gids.clone()
    }

    /// Has a user looked up, and waits for that, but not longer.
    pub async fn wait(&self, uid: u32, patience: Duration) {
        let mut looked_up = self.0.looked_up.subscribe();
        self.ask(uid);
        let looked_up = async {
            while !self.has_fresh(uid) {
                if looked_up.changed().await.is_err() {
                    return;
                }
                // It may have been looked up just before the reload.
                self.ask(uid);
            }
        };
        // After a wait in vain the old answer counts.
        let _ = tokio::time::timeout(patience, looked_up).await;
    }

    /// The same for the names of several users, with a short wait.
    pub async fn wait_for_names(&self, uids: impl IntoIterator<Item = u32>) {
        let until = tokio::time::Instant::now() + FOR_A_NAME;
        let uids: Vec<u32> = uids.into_iter().inspect(|uid| self.ask(*uid)).collect();
        for uid in uids {
            self.wait(uid, until.saturating_duration_since(tokio::time::Instant::now())).await;
        }
    }

    fn has_fresh(&self, uid: u32) -> bool {
        let round = self.0.round.load(Ordering::Acquire);
        self.0.known.read().is_ok_and(|known| known.get(&uid).is_some_and(|known| known.is_fresh(round)))
    }
}

impl std::fmt::Debug for UserDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Names").finish_non_exhaustive()
    }
}

fn answer(inside: &Weak<DirectoryCache>, inbox: &Mutex<mpsc::Receiver<u32>>, look_up: &impl Fn(u32) -> FoundUser) {
    loop {
        let next = inbox.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let (Ok(uid), Some(inside)) = (next, inside.upgrade()) else { return };
        let round = inside.round.load(Ordering::Acquire);
        let found = look_up(uid);
        inside.enter(uid, found, round);
    }
}

impl DirectoryCache {
    fn enter(&self, uid: u32, found: FoundUser, round: u64) {
        if let Ok(mut known) = self.known.write() {
            let before = known.remove(&uid);
            let groups_before = before.as_ref().and_then(|before| before.gids.clone());
            // The directory may know this user again later: a user never loses groups by that.
            let gids = found.gids.map(Arc::from).filter(|_| found.name.is_some() || groups_before.is_none());
            let gids = gids.or_else(|| groups_before.clone());
            let name = found.name.or_else(|| before.and_then(|before| before.name));
            if groups_before.is_some() && gids != groups_before {
                self.generation.fetch_add(1, Ordering::AcqRel);
            }
            known.insert(uid, KnownUser { name, gids, at: Instant::now(), round });
        }
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
        self.looked_up.send_replace(());
    }
}

/// What this host's directory says.
fn look_up(uid: u32) -> FoundUser {
    // A user without a name, as in a container, has only the groups that the kernel knows.
    let Some(user) = uzers::get_user_by_uid(uid) else { return FoundUser { name: None, gids: Some(Vec::new()) } };
    let gids = uzers::get_user_groups(user.name(), user.primary_group_id())
        .map(|groups| groups.iter().map(uzers::Group::gid).chain([user.primary_group_id()]).collect());
    FoundUser { name: Some(user.name().to_string_lossy().into_owned()), gids }
}

/// The tenant of a Unix user.
pub fn tenant_of(uid: u32) -> String {
    format!("uid:{uid}")
}

/// The Unix user of a tenant, if it is one.
pub fn uid_of(tenant: &str) -> Option<u32> {
    tenant.strip_prefix("uid:")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// A directory that a test fills step by step.
    fn slow() -> (mpsc::Sender<FoundUser>, UserDirectory) {
        let (say, answers) = mpsc::channel();
        let answers = Arc::new(Mutex::new(answers));
        let names = UserDirectory::of_directory(move |_| answers.lock().unwrap().recv().unwrap_or_default()).unwrap();
        (say, names)
    }

    fn ana(gids: &[u32]) -> FoundUser {
        FoundUser { name: Some("ana".to_owned()), gids: Some(gids.to_vec()) }
    }

    #[test]
    fn a_known_answer_counts_until_a_newer_one_changes_the_generation() {
        let (say, names) = slow();
        runtime().block_on(async {
            names.wait(5, Duration::from_millis(1)).await;
            assert_eq!((names.groups(5), names.of("uid:5").as_str()), (None, "uid:5"), "no name is known yet");
            say.send(ana(&[7])).unwrap();
            names.wait(5, LONG).await;
            assert_eq!((names.groups(5).as_deref(), names.of("uid:5").as_str()), (Some(&[7][..]), "ana"));
            let generation = names.generation();
            names.expire_all();
            assert!(names.generation() > generation, "a reload makes everybody anew");
            names.wait(5, Duration::from_millis(1)).await;
            assert_eq!(names.groups(5).as_deref(), Some(&[7][..]), "until there is an answer the old one counts");
            let generation = names.generation();
            say.send(ana(&[7, 8])).unwrap();
            names.wait(5, LONG).await;
            assert_eq!(names.groups(5).as_deref(), Some(&[7, 8][..]));
            assert!(names.generation() > generation);
        });
    }

    #[test]
    fn users_keep_their_groups_while_the_directory_is_away() {
        let (say, names) = slow();
        runtime().block_on(async {
            for found in [ana(&[7]), FoundUser { name: None, gids: Some(Vec::new()) }, FoundUser::default()] {
                say.send(found).unwrap();
                names.expire_all();
                names.wait(5, LONG).await;
                assert_eq!((names.groups(5).as_deref(), names.of("uid:5").as_str()), (Some(&[7][..]), "ana"));
            }
        });
    }

    #[test]
    fn a_slow_look_up_does_not_delay_other_users() {
        let (say, answers) = mpsc::channel::<()>();
        let answers = Arc::new(Mutex::new(answers));
        let names = UserDirectory::of_directory(move |uid| {
            if uid == 5 {
                let _ = answers.lock().unwrap().recv();
            }
            ana(&[uid])
        });
        let names = names.unwrap();
        runtime().block_on(async {
            names.ask(5);
            names.wait(6, LONG).await;
            assert_eq!(names.groups(6).as_deref(), Some(&[6][..]));
            assert_eq!(names.groups(5), None);
            drop(say);
            names.wait(5, LONG).await;
            assert!(names.groups(5).is_some());
        });
    }
}
