//! The truth: which process has how many bytes on which card.
//!
//! Nothing here knows of leases being right or wrong. A process takes what the
//! card has, keeps it as long as it likes, and gives it back when it exits.

use crate::programs::{ReportKey, SimProgram};
use crate::rng::Rng;
use crate::shape::WorldShape;
use crate::unleased::ProcessAudit;
use std::collections::BTreeMap;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::reading::{GpuFacts, Resident};
use sublet_core::units::Bytes;

/// What ails a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuFault {
    /// Nothing.
    Well,
    /// It does not answer.
    Mute,
    /// The driver says that it is lost.
    Lost,
    /// The driver does not list it.
    Hidden,
}

/// A card as it really is.
#[derive(Debug)]
pub struct SimGpu {
    /// What the driver says of it.
    pub facts: GpuFacts,
    /// The driver hides the bytes of each process.
    pub coarse: bool,
    /// What ails it.
    pub ail: GpuFault,
    /// Who is on it.
    pub residents: Vec<Resident>,
    /// When somebody came to it whom nothing keeps to a lease.
    pub intruded_us: u64,
    used: u64,
}

impl SimGpu {
    /// Bytes that nobody has.
    pub fn free(&self) -> Bytes {
        self.facts.total.less(Bytes(self.used))
    }

    /// What a process has of it.
    pub fn bytes_of(&self, process: ProcKey) -> Bytes {
        let resident = self.residents.iter().find(|resident| resident.process == process);
        resident.and_then(|resident| resident.bytes).unwrap_or_default()
    }
}

/// A process and its descendants.
#[derive(Debug)]
pub struct ProcessTree {
    /// Its live processes; the first is the root. Empty: all exited.
    pub live: Vec<ProcKey>,
    /// Leases that the host watches it for.
    pub leases: Vec<LeaseId>,
}

/// All cards and processes.
#[derive(Debug)]
pub struct World {
    /// The cards, by index.
    pub cards: Vec<SimGpu>,
    /// Live trees by their number.
    pub trees: BTreeMap<u32, ProcessTree>,
    /// Whose root a process is.
    pub roots: BTreeMap<ProcKey, u32>,
    /// Programs with the library in them, and processes as the driver has them.
    pub programs: BTreeMap<ReportKey, SimProgram>,
    /// Those of them that exited, and nobody has noticed.
    pub left: Vec<(ReportKey, SimProgram)>,
    /// Host memory that nobody takes but parked programs.
    pub ram: Bytes,
    /// What audits read of processes.
    pub papers: BTreeMap<ProcKey, ProcessAudit>,
    /// Processes that exited, and nobody has noticed.
    pub exited: Vec<ProcKey>,
    next_tree: u32,
    next_pid: u32,
    starts: u64,
}

impl World {
    /// The world at the beginning: cards with nothing but the driver's own bytes.
    pub fn new(shape: &WorldShape, rng: &mut Rng) -> World {
        let gpu = |(facts, coarse): &(GpuFacts, bool), used| SimGpu {
            facts: facts.clone(),
            coarse: *coarse,
            ail: GpuFault::Well,
            residents: Vec::new(),
            intruded_us: 0,
            used,
        };
        let cards = shape.cards.iter().map(|card| gpu(card, rng.within(0, 500) << 20)).collect();
        World {
            cards,
            trees: BTreeMap::new(),
            roots: BTreeMap::new(),
            programs: BTreeMap::new(),
            left: Vec::new(),
            ram: shape.habits.ram,
            papers: BTreeMap::new(),
            exited: Vec::new(),
            next_tree: 1,
            next_pid: 1,
            starts: 1,
        }
    }

    /// Starts a process.
    pub fn spawn(&mut self) -> u32 {
        let (number, root) = (self.next_tree, self.process());
        self.next_tree += 1;
        self.roots.insert(root, number);
        self.trees.insert(number, ProcessTree { live: vec![root], leases: Vec::new() });
        number
    }

    /// A child of a tree's root, unless the tree is gone.
    pub fn fork(&mut self, tree: u32) -> Option<ProcKey> {
        let child = self.process();
        self.trees.get_mut(&tree).map(|tree| tree.live.push(child))?;
        Some(child)
    }

    /// Pids come round soon, so that a pid alone tells nothing.
    fn process(&mut self) -> ProcKey {
        self.next_pid = self.next_pid % 500 + 1;
        self.starts += 1;
        ProcKey { pid: self.next_pid, start: self.starts }
    }

    /// A process of the tree takes bytes, as many of them as there are.
    pub fn allocate(&mut self, card: usize, process: ProcKey, bytes: Bytes, graphics: bool) {
        let gpu = &mut self.cards[card];
        let bytes = bytes.min(gpu.free());
        gpu.used += bytes.0;
        match gpu.residents.iter_mut().find(|resident| resident.process == process) {
            Some(resident) => resident.bytes = Some(resident.bytes.unwrap_or_default() + bytes),
            None => gpu.residents.push(Resident { process, bytes: Some(bytes), only_draws: graphics }),
        }
    }

    /// A process gives back all it has on a card.
    pub fn vacate(&mut self, card: usize, process: ProcKey) {
        let gpu = &mut self.cards[card];
        if let Some(at) = gpu.residents.iter().position(|resident| resident.process == process) {
            let resident = gpu.residents.swap_remove(at);
            gpu.used -= resident.bytes.unwrap_or_default().0;
        }
    }

    /// A process gives back some of what it has on a card.
    pub fn shrink(&mut self, card: usize, process: ProcKey, bytes: Bytes) {
        let gpu = &mut self.cards[card];
        if let Some(resident) = gpu.residents.iter_mut().find(|resident| resident.process == process) {
            let has = resident.bytes.unwrap_or_default();
            gpu.used -= bytes.min(has).0;
            resident.bytes = Some(has.less(bytes));
        }
    }

    /// A process exits, wherever it stands in its tree. Returns the leases it was watched for.
    pub fn exit_process(&mut self, process: ProcKey) -> Vec<LeaseId> {
        let lives = |tree: &&u32| self.trees.get(tree).is_some_and(|tree| tree.live.contains(&process));
        if let Some(tree) = self.roots.get(&process).filter(lives) {
            return self.exit(*tree);
        }
        self.is_gone(process);
        let tree = self.trees.values_mut().find(|tree| tree.live.contains(&process));
        let leases = tree.map(|tree| {
            tree.live.retain(|other| *other != process);
            tree.leases.clone()
        });
        leases.unwrap_or_default()
    }

    /// The first process of a tree exits, and its children stay; one that has none leaves one behind.
    /// Returns the leases it was watched for.
    pub fn exit_root(&mut self, root: ProcKey) -> Vec<LeaseId> {
        let Some(number) = self.roots.get(&root).copied() else { return Vec::new() };
        let lives = |tree: &ProcessTree| tree.live.contains(&root);
        let Some(alone) = self.trees.get(&number).filter(|tree| lives(tree)).map(|tree| tree.live.len() == 1) else {
            return Vec::new();
        };
        if alone {
            self.fork(number);
        }
        self.is_gone(root);
        let Some(tree) = self.trees.get_mut(&number) else { return Vec::new() };
        tree.live.retain(|process| *process != root);
        // The tree is found by either: leases bound to the one that is gone are about its children.
        self.roots.extend(tree.live.first().map(|heir| (*heir, number)));
        tree.leases.clone()
    }

    /// The tree that a process lives in.
    pub fn tree_of(&self, process: ProcKey) -> Option<u32> {
        let lives = |tree: &u32| self.trees.get(tree).is_some_and(|tree| tree.live.contains(&process));
        let of_root = self.roots.get(&process).copied().filter(lives);
        of_root.or_else(|| self.trees.iter().find(|(_, tree)| tree.live.contains(&process)).map(|(number, _)| *number))
    }

    /// Nothing of a process is left.
    fn is_gone(&mut self, process: ProcKey) {
        self.papers.remove(&process);
        self.exited.push(process);
        (0..self.cards.len()).for_each(|card| self.vacate(card, process));
        for spoken in [(process, Method::Shim), (process, Method::Driver)] {
            self.left.extend(self.programs.remove(&spoken).map(|program| (spoken, program)));
        }
    }

    /// One process exits. Returns the leases it was watched for.
    pub fn exit_child(&mut self, tree: u32) -> Vec<LeaseId> {
        match self.trees.get_mut(&tree).map(|found| (found.live.len(), found.live.pop())) {
            Some((2.., Some(child))) => {
                self.is_gone(child);
                self.trees[&tree].leases.clone()
            }
            Some((1, Some(root))) => {
                self.trees.entry(tree).and_modify(|found| found.live.push(root));
                self.exit(tree)
            }
            _ => Vec::new(),
        }
    }

    /// A whole tree exits. Returns the leases it was watched for.
    pub fn exit(&mut self, tree: u32) -> Vec<LeaseId> {
        let Some(gone) = self.trees.remove(&tree) else { return Vec::new() };
        self.roots.retain(|_, of| *of != tree);
        gone.live.into_iter().for_each(|process| self.is_gone(process));
        gone.leases
    }

    /// Everybody gives back all bytes, and stays.
    pub fn vacate_all(&mut self) {
        for card in 0..self.cards.len() {
            while let Some(resident) = self.cards[card].residents.last() {
                let process = resident.process;
                self.vacate(card, process);
            }
        }
    }

    /// The host starts anew: no process survives.
    pub fn reboot(&mut self) {
        let all: Vec<u32> = self.trees.keys().copied().collect();
        for tree in all {
            self.exit(tree);
        }
        self.left.clear();
        self.exited.clear();
        self.cards.iter_mut().for_each(|card| card.ail = GpuFault::Well);
    }
}
