//! A disk in memory that fails at a chosen operation, and forgets at a power cut what was not synced.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use sublet_checkpoint::files::{Files, ReadFile, WriteFile};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The machine stops before the operation.
    PowerCut,
    /// The machine stops in the middle of a write.
    TornWrite,
    /// The operation fails, once. A write is done by half, and an unsynced file is lost.
    InputOutput,
    /// The disk is full from this operation on.
    NoSpace,
    /// The disk answers nothing from this operation on.
    Dead,
}

/// What is there after a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surviving {
    /// Only what was synced.
    Synced,
    /// All names, and half of each file that was not synced.
    NamesAndHalves,
    /// All names, and nothing of a file that was not synced.
    NamesOnly,
}

#[derive(Debug)]
enum DiskNode {
    File { bytes: Vec<u8>, synced: Option<Vec<u8>> },
    Directory { names: BTreeMap<String, usize>, synced: BTreeMap<String, usize> },
    Link(String),
}

#[derive(Debug)]
struct DiskTree {
    nodes: Vec<DiskNode>,
    /// Only operations below this path are counted and fail.
    below: PathBuf,
    operations: u64,
    fault: Option<(u64, FaultKind)>,
    has_failed: bool,
    /// The fault that lasts.
    lasting: Option<FaultKind>,
    /// Syncs below this path report success and do nothing.
    liar: Option<PathBuf>,
}

/// A disk that all clones share.
#[derive(Clone, Debug)]
pub struct SimulatedDisk(Arc<Mutex<DiskTree>>);

/// What an operation needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Room,
    Nothing,
}

impl SimulatedDisk {
    /// An empty disk with these directories at its root.
    pub fn new(roots: &[&str]) -> SimulatedDisk {
        let root = DiskNode::Directory { names: BTreeMap::new(), synced: BTreeMap::new() };
        let tree = DiskTree {
            nodes: vec![root],
            below: PathBuf::from("/"),
            operations: 0,
            fault: None,
            has_failed: false,
            lasting: None,
            liar: None,
        };
        let disk = SimulatedDisk(Arc::new(Mutex::new(tree)));
        for name in roots {
            disk.create_dir(&Path::new("/").join(name)).expect("a directory");
        }
        disk.sync_dir(Path::new("/")).expect("a sync");
        disk.tree().operations = 0;
        disk
    }

    fn tree(&self) -> MutexGuard<'_, DiskTree> {
        self.0.lock().expect("no panic")
    }

    /// Makes the operation of this number fail; the first one is 0. Only those below the path count.
    pub fn fail_at(&self, number: u64, kind: FaultKind, below: &str) {
        let mut tree = self.tree();
        (tree.operations, tree.fault, tree.below) = (0, Some((number, kind)), PathBuf::from(below));
    }

    /// Makes syncs below this path do nothing.
    pub fn lie_below(&self, path: &str) {
        self.tree().liar = Some(PathBuf::from(path));
    }

    /// True if the fault has happened.
    pub fn has_failed(&self) -> bool {
        self.tree().has_failed
    }

    /// True if the machine has stopped.
    pub fn is_off(&self) -> bool {
        matches!(self.tree().lasting, Some(FaultKind::PowerCut | FaultKind::TornWrite))
    }

    /// Ends a fault that lasts, without a power cut.
    pub fn mend(&self) {
        self.tree().lasting = None;
    }

    /// Lets nothing fail any more.
    pub fn disarm(&self) {
        self.tree().fault = None;
    }

    /// Starts the machine again.
    pub fn restart(&self, surviving: Surviving) {
        let mut tree = self.tree();
        tree.lasting = None;
        for node in &mut tree.nodes {
            match node {
                DiskNode::Directory { names, synced } if surviving == Surviving::Synced => names.clone_from(synced),
                DiskNode::Directory { names, synced } => synced.clone_from(names),
                DiskNode::File { bytes, synced } => {
                    let left = match surviving {
                        Surviving::NamesAndHalves => bytes[..bytes.len() / 2].to_vec(),
                        Surviving::Synced | Surviving::NamesOnly => Vec::new(),
                    };
                    *bytes = synced.clone().unwrap_or(left);
                    *synced = Some(bytes.clone());
                }
                DiskNode::Link(_) => {}
            }
        }
    }

    /// Flips a bit of a file behind the program's back.
    pub fn damage(&self, path: &Path) {
        let mut tree = self.tree();
        let node = tree.find(path).expect("a file");
        let DiskNode::File { bytes, .. } = &mut tree.nodes[node] else { panic!("{} is no file", path.display()) };
        if let Some(byte) = bytes.first_mut() {
            *byte ^= 1;
        }
    }
}

impl DiskTree {
    /// Counts an operation, and fails if it is to fail.
    fn count(&mut self, path: &Path, needs: Needs) -> io::Result<()> {
        if !path.starts_with(&self.below) {
            return Ok(());
        }
        self.check_lasting(path, needs)?;
        let number = self.operations;
        self.operations += 1;
        let Some((_, kind)) = self.fault.filter(|(at, _)| *at == number) else { return Ok(()) };
        if kind == FaultKind::NoSpace && needs == Needs::Nothing {
            // It strikes at the next operation that needs room.
            self.fault = Some((number + 1, kind));
            return Ok(());
        }
        (self.fault, self.has_failed) = (None, true);
        if kind != FaultKind::InputOutput {
            self.lasting = Some(kind);
        }
        Err(error_of(kind))
    }

    fn check_lasting(&self, path: &Path, needs: Needs) -> io::Result<()> {
        match self.lasting {
            Some(FaultKind::NoSpace) if needs == Needs::Nothing => Ok(()),
            Some(kind) if path.starts_with(&self.below) => Err(error_of(kind)),
            _ => Ok(()),
        }
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        let mut at = 0;
        for component in path.components() {
            let Component::Normal(name) = component else { continue };
            let DiskNode::Directory { names, .. } = &self.nodes[at] else {
                return Err(io::ErrorKind::NotADirectory.into());
            };
            at = *names.get(name.to_str().expect("UTF-8")).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(at)
    }

    fn directory(&mut self, path: &Path) -> io::Result<&mut BTreeMap<String, usize>> {
        let at = self.find(path)?;
        match &mut self.nodes[at] {
            DiskNode::Directory { names, .. } => Ok(names),
            _ => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn add(&mut self, path: &Path, node: usize) -> io::Result<()> {
        let (directory, name) = split(path);
        let names = self.directory(directory)?;
        if names.contains_key(&name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        names.insert(name, node);
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        let (directory, name) = split(path);
        match self.directory(directory) {
            Ok(names) => drop(names.remove(&name)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn new_node(&mut self, node: DiskNode) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn is_lying(&self, path: &Path) -> bool {
        self.liar.as_ref().is_some_and(|liar| path.starts_with(liar))
    }
}

fn error_of(kind: FaultKind) -> io::Error {
    io::Error::from_raw_os_error(match kind {
        FaultKind::NoSpace => 28,
        _ => 5,
    })
}

fn split(path: &Path) -> (&Path, String) {
    let name = path.file_name().expect("a name").to_str().expect("UTF-8").to_owned();
    (path.parent().expect("a parent"), name)
}

impl Files for SimulatedDisk {
    fn create_dir(&self, directory: &Path) -> io::Result<()> {
        let mut tree = self.tree();
        tree.count(directory, Needs::Room)?;
        if tree.find(directory).is_err() {
            let node = tree.new_node(DiskNode::Directory { names: BTreeMap::new(), synced: BTreeMap::new() });
            tree.add(directory, node)?;
        }
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        let mut tree = self.tree();
        tree.count(path, Needs::Room)?;
        let node = tree.new_node(DiskNode::File { bytes: Vec::new(), synced: None });
        tree.add(path, node)?;
        Ok(Box::new(SimulatedFile { disk: self.clone(), path: path.to_owned(), node }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        let tree = self.tree();
        tree.check_lasting(path, Needs::Nothing)?;
        let node = tree.find(path)?;
        Ok(Box::new(SimulatedFile { disk: self.clone(), path: path.to_owned(), node }))
    }

    fn hard_link(&self, existing: &Path, new: &Path) -> io::Result<()> {
        let mut tree = self.tree();
        tree.count(new, Needs::Room)?;
        let node = tree.find(existing)?;
        tree.add(new, node)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut tree = self.tree();
        tree.count(to, Needs::Nothing)?;
        let node = tree.find(from)?;
        if let Ok(there) = tree.find(to)
            && matches!(tree.nodes[there], DiskNode::Directory { .. })
        {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        tree.remove(from)?;
        tree.remove(to)?;
        tree.add(to, node)
    }

    fn symlink(&self, target: &str, link: &Path) -> io::Result<()> {
        let mut tree = self.tree();
        tree.count(link, Needs::Room)?;
        let node = tree.new_node(DiskNode::Link(target.to_owned()));
        tree.add(link, node)
    }

    fn read_link(&self, link: &Path) -> io::Result<Option<String>> {
        let tree = self.tree();
        tree.check_lasting(link, Needs::Nothing)?;
        Ok(tree.find(link).ok().and_then(|node| match &tree.nodes[node] {
            DiskNode::Link(target) => Some(target.clone()),
            _ => None,
        }))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut tree = self.tree();
        tree.check_lasting(directory, Needs::Nothing)?;
        match tree.directory(directory) {
            Ok(names) => Ok(names.keys().cloned().collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn check_dir(&self, directory: &Path) -> io::Result<()> {
        let mut tree = self.tree();
        tree.check_lasting(directory, Needs::Nothing)?;
        tree.directory(directory).map(|_| ())
    }

    fn remove_dir_all(&self, directory: &Path) -> io::Result<()> {
        let mut tree = self.tree();
        tree.count(directory, Needs::Nothing)?;
        tree.remove(directory)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut tree = self.tree();
        tree.count(path, Needs::Nothing)?;
        tree.remove(path)
    }

    fn sync_dir(&self, directory: &Path) -> io::Result<()> {
        let mut tree = self.tree();
        tree.count(directory, Needs::Nothing)?;
        let node = tree.find(directory)?;
        if tree.is_lying(directory) {
            return Ok(());
        }
        match &mut tree.nodes[node] {
            DiskNode::Directory { names, synced } => synced.clone_from(names),
            _ => return Err(io::ErrorKind::NotADirectory.into()),
        }
        Ok(())
    }
}

/// An open file.
struct SimulatedFile {
    disk: SimulatedDisk,
    path: PathBuf,
    node: usize,
}

impl WriteFile for SimulatedFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut tree = self.disk.tree();
        let was_failed = tree.lasting.is_some();
        let counted = tree.count(&self.path, Needs::Room);
        let is_torn = counted.is_err() && !was_failed && tree.lasting != Some(FaultKind::PowerCut);
        let written = match &counted {
            Ok(()) => bytes,
            Err(_) if is_torn => &bytes[..bytes.len() / 2],
            Err(_) => &[],
        };
        if let DiskNode::File { bytes, .. } = &mut tree.nodes[self.node] {
            bytes.extend_from_slice(written);
        }
        counted
    }

    fn finish(&mut self) -> io::Result<()> {
        let mut tree = self.disk.tree();
        let counted = tree.count(&self.path, Needs::Nothing);
        let is_lying = tree.is_lying(&self.path);
        let DiskNode::File { bytes, synced } = &mut tree.nodes[self.node] else { panic!("no file") };
        match &counted {
            Ok(()) if !is_lying => *synced = Some(bytes.clone()),
            Ok(()) => {}
            // The system drops pages that it could not write.
            Err(_) => bytes.clear(),
        }
        counted
    }
}

impl ReadFile for SimulatedFile {
    fn length(&self) -> io::Result<u64> {
        let tree = self.disk.tree();
        tree.check_lasting(&self.path, Needs::Nothing)?;
        match &tree.nodes[self.node] {
            DiskNode::File { bytes, .. } => Ok(bytes.len() as u64),
            _ => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let tree = self.disk.tree();
        tree.check_lasting(&self.path, Needs::Nothing)?;
        let DiskNode::File { bytes, .. } = &tree.nodes[self.node] else {
            return Err(io::ErrorKind::IsADirectory.into());
        };
        let from = usize::try_from(offset).expect("it fits");
        let found = bytes.get(from..from + buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(found);
        Ok(())
    }
}
