//! The truth: which process has how many bytes on which GPU.
//!
//! Nothing here knows leases. A process takes what the GPU has, keeps it as long as it likes, and gives it back when it
//! exits.

use crate::programs::{ReportKey, SimProgram};
use crate::rng::Rng;
use crate::shape::WorldShape;
use crate::unleased::ProcessAudit;
use std::collections::BTreeMap;
use sublet_core::ids::{LeaseId, ProcKey};
use sublet_core::method::Method;
use sublet_core::reading::{GpuFacts, Resident};
use sublet_core::units::Bytes;

/// A fault of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuFault {
    /// None.
    Healthy,
    /// It does not answer.
    NoAnswer,
    /// The driver says that it is lost.
    Lost,
    /// The driver does not list it.
    NotListed,
}

/// A GPU as it really is.
#[derive(Debug)]
pub struct SimGpu {
    /// What the driver reports about it.
    pub facts: GpuFacts,
    /// The driver hides the bytes of each process.
    pub coarse: bool,
    /// Its present fault.
    pub fault: GpuFault,
    /// The processes on it.
    pub residents: Vec<Resident>,
    /// When a process last took memory that no shim limits to a lease.
    pub uncapped_use_us: u64,
    used: u64,
}

impl SimGpu {
    /// Bytes that no process has.
    pub fn free(&self) -> Bytes {
        self.facts.total.less(Bytes(self.used))
    }

    /// What a process has on this GPU.
    pub fn bytes_of(&self, process: ProcKey) -> Bytes {
        let resident = self.residents.iter().find(|resident| resident.process == process);
        resident.and_then(|resident| resident.bytes).unwrap_or_default()
    }
}

/// A process and its descendants.
#[derive(Debug)]
pub struct ProcessTree {
    /// Its live processes, the root first; empty if all exited.
    pub live: Vec<ProcKey>,
    /// Leases for which the host watches it.
    pub leases: Vec<LeaseId>,
}

/// All GPUs and processes.
#[derive(Debug)]
pub struct World {
    /// The GPUs, by index.
    pub gpus: Vec<SimGpu>,
    /// Live trees by their number.
    pub trees: BTreeMap<u32, ProcessTree>,
    /// The tree of each root process.
    pub roots: BTreeMap<ProcKey, u32>,
    /// Programs with the shim, and processes that the driver can move.
    pub programs: BTreeMap<ReportKey, SimProgram>,
    /// Those of them that exited without a report so far.
    pub unnoticed_programs: Vec<(ReportKey, SimProgram)>,
    /// Host memory that only parked programs take.
    pub host_memory: Bytes,
    /// What an audit reads of each process.
    pub audits: BTreeMap<ProcKey, ProcessAudit>,
    /// Processes that exited without a report so far.
    pub unnoticed_exits: Vec<ProcKey>,
    next_tree: u32,
    next_pid: u32,
    starts: u64,
}

impl World {
    /// Returns the world at the beginning: only the driver has memory on the GPUs.
    pub fn new(shape: &WorldShape, rng: &mut Rng) -> World {
        let gpu = |(facts, coarse): &(GpuFacts, bool), used| SimGpu {
            facts: facts.clone(),
            coarse: *coarse,
            fault: GpuFault::Healthy,
            residents: Vec::new(),
            uncapped_use_us: 0,
            used,
        };
        let gpus = shape.gpus.iter().map(|shape| gpu(shape, rng.within(0, 500) << 20)).collect();
        World {
            gpus,
            trees: BTreeMap::new(),
            roots: BTreeMap::new(),
            programs: BTreeMap::new(),
            unnoticed_programs: Vec::new(),
            host_memory: shape.habits.ram,
            audits: BTreeMap::new(),
            unnoticed_exits: Vec::new(),
            next_tree: 1,
            next_pid: 1,
            starts: 1,
        }
    }

    /// Starts a process and returns the number of its tree.
    pub fn spawn(&mut self) -> u32 {
        let (number, root) = (self.next_tree, self.process());
        self.next_tree += 1;
        self.roots.insert(root, number);
        self.trees.insert(number, ProcessTree { live: vec![root], leases: Vec::new() });
        number
    }

    /// Adds a child to a tree; `None` if the tree is gone.
    pub fn fork(&mut self, tree: u32) -> Option<ProcKey> {
        let child = self.process();
        self.trees.get_mut(&tree).map(|tree| tree.live.push(child))?;
        Some(child)
    }

    /// Pids repeat after 500 processes, so that a pid alone does not name a process.
    fn process(&mut self) -> ProcKey {
        self.next_pid = self.next_pid % 500 + 1;
        self.starts += 1;
        ProcKey { pid: self.next_pid, start: self.starts }
    }

    /// Gives a process these bytes, or all that are free.
    pub fn allocate(&mut self, index: usize, process: ProcKey, bytes: Bytes, graphics: bool) {
        let gpu = &mut self.gpus[index];
        let bytes = bytes.min(gpu.free());
        gpu.used += bytes.0;
        match gpu.residents.iter_mut().find(|resident| resident.process == process) {
            Some(resident) => resident.bytes = Some(resident.bytes.unwrap_or_default() + bytes),
            None => gpu.residents.push(Resident { process, bytes: Some(bytes), only_draws: graphics }),
        }
    }

    /// Frees all that a process has on a GPU.
    pub fn free_all(&mut self, index: usize, process: ProcKey) {
        let gpu = &mut self.gpus[index];
        if let Some(at) = gpu.residents.iter().position(|resident| resident.process == process) {
            let resident = gpu.residents.swap_remove(at);
            gpu.used -= resident.bytes.unwrap_or_default().0;
        }
    }

    /// Frees some of what a process has on a GPU.
    pub fn free_some(&mut self, index: usize, process: ProcKey, bytes: Bytes) {
        let gpu = &mut self.gpus[index];
        if let Some(resident) = gpu.residents.iter_mut().find(|resident| resident.process == process) {
            let has = resident.bytes.unwrap_or_default();
            gpu.used -= bytes.min(has).0;
            resident.bytes = Some(has.less(bytes));
        }
    }

    /// Ends a process anywhere in its tree; returns the leases for which it was watched.
    pub fn exit_process(&mut self, process: ProcKey) -> Vec<LeaseId> {
        let lives = |tree: &&u32| self.trees.get(tree).is_some_and(|tree| tree.live.contains(&process));
        if let Some(tree) = self.roots.get(&process).filter(lives) {
            return self.exit(*tree);
        }
        self.remove_process(process);
        let tree = self.trees.values_mut().find(|tree| tree.live.contains(&process));
        let leases = tree.map(|tree| {
            tree.live.retain(|other| *other != process);
            tree.leases.clone()
        });
        leases.unwrap_or_default()
    }

    /// Ends the root of a tree and keeps its children; a root without children leaves one. Returns the leases for which
    /// it was watched.
    pub fn exit_root(&mut self, root: ProcKey) -> Vec<LeaseId> {
        let Some(number) = self.roots.get(&root).copied() else { return Vec::new() };
        let lives = |tree: &ProcessTree| tree.live.contains(&root);
        let Some(alone) = self.trees.get(&number).filter(|tree| lives(tree)).map(|tree| tree.live.len() == 1) else {
            return Vec::new();
        };
        if alone {
            self.fork(number);
        }
        self.remove_process(root);
        let Some(tree) = self.trees.get_mut(&number) else { return Vec::new() };
        tree.live.retain(|process| *process != root);
        // Leases that are bound to the old root are about its children, so the tree is found by both.
        self.roots.extend(tree.live.first().map(|heir| (*heir, number)));
        tree.leases.clone()
    }

    /// The tree of a live process.
    pub fn tree_of(&self, process: ProcKey) -> Option<u32> {
        let lives = |tree: &u32| self.trees.get(tree).is_some_and(|tree| tree.live.contains(&process));
        let of_root = self.roots.get(&process).copied().filter(lives);
        of_root.or_else(|| self.trees.iter().find(|(_, tree)| tree.live.contains(&process)).map(|(number, _)| *number))
    }

    /// Removes all that there is of a process.
    fn remove_process(&mut self, process: ProcKey) {
        self.audits.remove(&process);
        self.unnoticed_exits.push(process);
        (0..self.gpus.len()).for_each(|gpu| self.free_all(gpu, process));
        for spoken in [(process, Method::Shim), (process, Method::Driver)] {
            self.unnoticed_programs.extend(self.programs.remove(&spoken).map(|program| (spoken, program)));
        }
    }

    /// Ends one process of a tree; returns the leases for which it was watched.
    pub fn exit_child(&mut self, tree: u32) -> Vec<LeaseId> {
        match self.trees.get_mut(&tree).map(|found| (found.live.len(), found.live.pop())) {
            Some((2.., Some(child))) => {
                self.remove_process(child);
                self.trees[&tree].leases.clone()
            }
            Some((1, Some(root))) => {
                self.trees.entry(tree).and_modify(|found| found.live.push(root));
                self.exit(tree)
            }
            _ => Vec::new(),
        }
    }

    /// Ends a whole tree; returns the leases for which it was watched.
    pub fn exit(&mut self, tree: u32) -> Vec<LeaseId> {
        let Some(gone) = self.trees.remove(&tree) else { return Vec::new() };
        self.roots.retain(|_, of| *of != tree);
        gone.live.into_iter().for_each(|process| self.remove_process(process));
        gone.leases
    }

    /// Frees the memory of all processes, which stay.
    pub fn free_everywhere(&mut self) {
        for gpu in 0..self.gpus.len() {
            while let Some(resident) = self.gpus[gpu].residents.last() {
                let process = resident.process;
                self.free_all(gpu, process);
            }
        }
    }

    /// Reboots the host: no process survives.
    pub fn reboot(&mut self) {
        let all: Vec<u32> = self.trees.keys().copied().collect();
        for tree in all {
            self.exit(tree);
        }
        self.unnoticed_programs.clear();
        self.unnoticed_exits.clear();
        self.gpus.iter_mut().for_each(|gpu| gpu.fault = GpuFault::Healthy);
    }
}
