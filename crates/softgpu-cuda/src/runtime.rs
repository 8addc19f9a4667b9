//! What a process has: its row on the soft GPUs, its contexts, and the handles it was given.
//!
//! After a fork the child has nothing, as with the real driver: every call returns that it is not initialised.

use crate::engine::JobEngine;
use crate::function::ContextKernel;
use crate::graph::{InstantiatedGraph, WorkGraph, WorkNode};
use crate::handles::{self, HandleTable};
use crate::log;
use crate::module::{KernelLibrary, LibraryKernel, LoadedModule};
use crate::object::UserObject;
use crate::pool::GpuPool;
use crate::result::{CuResult, Outcome};
use crate::space::{KernelReach, MemoryKind, ProgramMemory};
use crate::stream::{StreamEvent, WorkStream};
use crate::visible;
use crate::vmm::{Allocation, ReservedRanges};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use sublet_softgpu::state::{CONTEXT_BYTES, ENV};
use sublet_softgpu::{SoftGpuClient, SoftGpuState};

static RUNTIME: OnceLock<Result<Runtime, CuResult>> = OnceLock::new();
/// The file that the program named, instead of the environment's.
static NAMED_STATE: OnceLock<PathBuf> = OnceLock::new();
/// The process that called `cuInit`.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Has the process use the soft GPUs of this file, whatever its environment says. Returns 0, or 1 if it uses those of
/// another file already. A program that finds its daemon while it runs cannot set its environment safely.
///
/// # Safety
/// The path is a text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_soft_use_state(path: *const c_char) -> c_int {
    // SAFETY: the caller promises a text that ends with a zero.
    let path = unsafe { CStr::from_ptr(path) };
    let path = PathBuf::from(OsStr::from_bytes(path.to_bytes()));
    let known = match RUNTIME.get() {
        None => NAMED_STATE.get_or_init(|| path.clone()).clone(),
        Some(_) => NAMED_STATE.get().cloned().or_else(|| std::env::var_os(ENV).map(PathBuf::from)).unwrap_or_default(),
    };
    c_int::from(known != path)
}

/// What a process has.
pub struct Runtime {
    /// Its registration with the soft GPUs.
    pub client: SoftGpuClient,
    /// The GPUs that it may see, in its own order.
    pub visible: Vec<usize>,
    /// Its memory.
    pub space: ProgramMemory,
    /// Addresses it has reserved.
    pub reserved: ReservedRanges,
    /// Addresses that are reserved for graphs' memory, and the length of each.
    pub graph_addresses: Mutex<BTreeMap<u64, u64>>,
    /// Its submitted work.
    pub engine: JobEngine,
    /// Primary contexts, by GPU.
    pub primary: Vec<Mutex<Primary>>,
    /// The pool that each GPU allocates from: its default pool, or one that was chosen.
    pub current_pools: Vec<Mutex<Option<Arc<GpuPool>>>>,
    /// Each GPU's default pool.
    pub default_pools: Vec<OnceLock<Arc<GpuPool>>>,
    /// Contexts with access to the memory of others: (with access, owner of the memory).
    pub peers: Mutex<BTreeSet<(usize, usize)>>,
    /// Contexts.
    pub contexts: HandleTable<DriverContext>,
    /// Modules.
    pub modules: HandleTable<LoadedModule>,
    /// Functions.
    pub functions: HandleTable<ContextKernel>,
    /// Libraries.
    pub libraries: HandleTable<KernelLibrary>,
    /// Kernels of libraries.
    pub kernels: HandleTable<LibraryKernel>,
    /// Streams.
    pub streams: HandleTable<WorkStream>,
    /// Events.
    pub events: HandleTable<StreamEvent>,
    /// Memory without an address.
    pub allocations: HandleTable<Allocation>,
    /// Pools.
    pub pools: HandleTable<GpuPool>,
    /// Graphs.
    pub graphs: HandleTable<WorkGraph>,
    /// Nodes of graphs.
    pub nodes: HandleTable<WorkNode>,
    /// Objects that graphs keep.
    pub objects: HandleTable<UserObject>,
    /// Instantiated graphs.
    pub execs: HandleTable<InstantiatedGraph>,
}

/// A GPU's primary context.
#[derive(Default)]
pub struct Primary {
    /// How many references are held.
    pub count: u32,
    /// The context; `None` before it was first retained.
    pub context: Option<Arc<DriverContext>>,
    /// Flags for the next one.
    pub flags: u32,
}

/// A context: the work of a program on one GPU.
pub struct DriverContext {
    /// Its handle.
    pub handle: usize,
    /// The GPU.
    pub gpu: usize,
    /// The handle of its legacy stream, which programs do not see.
    pub legacy: usize,
    /// Its flags as created, or as changed later.
    pub flags: AtomicU32,
    /// What a program set its limits to, by number.
    pub limits: Mutex<BTreeMap<i32, usize>>,
    /// Its preferred cache configuration.
    pub cache: AtomicI32,
    /// Set to stop its kernels.
    pub stop: AtomicBool,
    /// The first error on the GPU; from then on every call returns it.
    error: AtomicU32,
}

impl DriverContext {
    /// Records an error; only the first one counts.
    pub fn fail(&self, error: CuResult) {
        let _ = self.error.compare_exchange(0, error.0, SeqCst, SeqCst);
    }

    /// Returns the recorded error, if there is one.
    pub fn check(&self) -> Outcome {
        match self.error.load(SeqCst) {
            0 => Ok(()),
            error => Err(CuResult(error)),
        }
    }
}

thread_local! {
    /// The contexts of this thread, by handle; the last is current. It is never dropped, because programs free objects
    /// while a thread is ending, after its thread-locals are dropped.
    static STACK: ManuallyDrop<RefCell<Vec<usize>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
    /// True while this thread runs a function of the program that a stream called.
    static IN_STREAM: Cell<bool> = const { Cell::new(false) };
}

impl Runtime {
    /// What the process has; an error before `cuInit`.
    pub fn get() -> Outcome<&'static Runtime> {
        if OWNER.load(SeqCst) != std::process::id() {
            return Err(CuResult::NOT_INITIALIZED);
        }
        // A function that waits for its own stream would wait for ever.
        if IN_STREAM.get() {
            return Err(CuResult::NOT_PERMITTED);
        }
        match RUNTIME.get() {
            Some(Ok(runtime)) => Ok(runtime),
            Some(Err(error)) => Err(*error),
            None => Err(CuResult::NOT_INITIALIZED),
        }
    }

    /// `cuInit`.
    pub fn init() -> Outcome {
        RUNTIME.get_or_init(|| {
            OWNER.store(std::process::id(), SeqCst);
            Runtime::open()
        });
        Runtime::get().map(drop)
    }

    fn open() -> Outcome<Runtime> {
        let named = NAMED_STATE.get().cloned();
        let Some(path) = named.or_else(|| std::env::var_os(ENV).map(PathBuf::from)) else {
            log::once(&format!("`{ENV}` does not say where the soft GPUs are"));
            return Err(CuResult::NO_DEVICE);
        };
        let said = |error: sublet_softgpu::StateError| {
            log::once(&error.to_string());
            CuResult::NO_DEVICE
        };
        let state = SoftGpuState::open(&path).map_err(said)?;
        let visible = visible::visible_gpus(&state);
        if visible.is_empty() {
            return Err(CuResult::NO_DEVICE);
        }
        let client = SoftGpuClient::register(state).map_err(said)?;
        close_in_children(client.descriptors());
        let gpus = client.state().gpus().len();
        Ok(Runtime {
            visible,
            space: ProgramMemory::default(),
            reserved: ReservedRanges::default(),
            graph_addresses: Mutex::default(),
            engine: JobEngine::default(),
            primary: (0..gpus).map(|_| Mutex::default()).collect(),
            current_pools: (0..gpus).map(|_| Mutex::default()).collect(),
            default_pools: (0..gpus).map(|_| OnceLock::new()).collect(),
            peers: Mutex::default(),
            contexts: HandleTable::default(),
            modules: HandleTable::default(),
            functions: HandleTable::default(),
            libraries: HandleTable::default(),
            kernels: HandleTable::default(),
            streams: HandleTable::default(),
            events: HandleTable::default(),
            allocations: HandleTable::default(),
            pools: HandleTable::default(),
            graphs: HandleTable::default(),
            nodes: HandleTable::default(),
            objects: HandleTable::default(),
            execs: HandleTable::default(),
            client,
        })
    }

    /// The GPU with a program's device number.
    pub fn gpu(&self, device: i32) -> Outcome<usize> {
        let number = usize::try_from(device).map_err(|_| CuResult::INVALID_DEVICE)?;
        self.visible.get(number).copied().ok_or(CuResult::INVALID_DEVICE)
    }

    /// A program's device number of a GPU.
    pub fn device(&self, gpu: usize) -> i32 {
        self.visible.iter().position(|own| *own == gpu).map_or(-1, |number| number as i32)
    }

    /// Reserves the bytes of a context on a GPU, and creates it.
    pub fn make_context(&self, gpu: usize, flags: u32) -> Outcome<Arc<DriverContext>> {
        self.client.reserve(gpu, CONTEXT_BYTES).map_err(|_| CuResult::OUT_OF_MEMORY)?;
        self.client.row().gpus[gpu].contexts.fetch_add(1, SeqCst);
        let context = Arc::new(DriverContext {
            handle: handles::fresh(),
            gpu,
            legacy: handles::fresh(),
            flags: AtomicU32::new(flags),
            limits: Mutex::default(),
            cache: AtomicI32::new(0),
            stop: AtomicBool::new(false),
            error: AtomicU32::new(0),
        });
        self.contexts.insert_as(context.handle, Arc::clone(&context));
        Ok(context)
    }

    /// Ends a context: its work stops, its memory is freed.
    pub fn end_context(&self, handle: usize) -> Outcome {
        let context = self.contexts.remove(handle).map_err(|_| CuResult::INVALID_CONTEXT)?;
        context.stop.store(true, SeqCst);
        self.engine.wait(&self.engine.last_jobs_of_all(Some(handle)));
        self.drop_captures(|_, context| context == handle);
        self.engine.forget_all(handle);
        self.streams.drop_where(|stream| stream.context.handle == handle);
        let is_of = |pair: &(usize, usize)| pair.0 == handle || pair.1 == handle;
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).retain(|pair| !is_of(pair));
        self.functions.drop_where(|function| function.loaded.context == handle);
        self.modules.drop_where(|module| module.context == handle);
        self.free_counted(handle);
        self.space.free_all(handle);
        self.client.give_back(context.gpu, CONTEXT_BYTES);
        if self.client.row().gpus[context.gpu].contexts.fetch_sub(1, SeqCst) == 1
            && let Some(pool) = self.default_pools[context.gpu].get()
        {
            pool.trim(0);
        }
        Ok(())
    }

    /// Frees a context's memory that is counted elsewhere, too: by its pool, or by the process.
    fn free_counted(&self, context: usize) {
        let held = self.space.snapshot();
        let own = held.range(0, u64::MAX).filter(|(_, block)| block.context == context);
        let own: Vec<(u64, MemoryKind)> = own.map(|(at, block)| (at, block.kind)).collect();
        drop(held);
        for (at, kind) in own {
            // Another thread may have freed it just now.
            let _ = match kind {
                MemoryKind::Pool(_) => self.free_pooled(at),
                MemoryKind::Managed => self.free_managed(at),
                _ => Ok(()),
            };
        }
    }

    /// Frees managed memory, which a checkpoint cannot take.
    pub fn free_managed(&self, at: u64) -> Outcome {
        self.space.free(at, |kind| kind == MemoryKind::Managed)?;
        self.client.row().managed.fetch_sub(1, SeqCst);
        Ok(())
    }

    /// The memory that kernels of a context can reach.
    pub fn kernel_reach(&self, context: &DriverContext) -> KernelReach {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let contexts = peers.iter().filter(|(own, _)| *own == context.handle).map(|(_, other)| *other).collect();
        let pools = self.pools.all().into_iter().filter(|pool| pool.is_reached_by(context.gpu)).map(|pool| pool.handle);
        KernelReach { gpu: context.gpu, contexts, pools: pools.collect() }
    }

    /// A GPU's default pool.
    pub fn default_pool(&self, gpu: usize) -> Arc<GpuPool> {
        Arc::clone(self.default_pools[gpu].get_or_init(|| GpuPool::create(self, gpu, 0, true)))
    }

    /// The pool that a GPU allocates from.
    pub fn current_pool(&self, gpu: usize) -> Arc<GpuPool> {
        let chosen = self.current_pools[gpu].lock().unwrap_or_else(PoisonError::into_inner).clone();
        chosen.unwrap_or_else(|| self.default_pool(gpu))
    }
}

/// Calls a function of the program in a stream's order; it may not use the driver API meanwhile.
pub fn call_in_stream(call: impl FnOnce()) {
    IN_STREAM.set(true);
    call();
    IN_STREAM.set(false);
}

/// The handle of the context that is current in this thread.
pub fn current_handle() -> Option<usize> {
    STACK.with(|stack| stack.borrow().last().copied())
}

/// The context that is current in this thread; an error if it has failed.
pub fn current() -> Outcome<(&'static Runtime, Arc<DriverContext>)> {
    let runtime = Runtime::get()?;
    let handle = current_handle().ok_or(CuResult::INVALID_CONTEXT)?;
    let context = runtime.contexts.get(handle).map_err(|_| CuResult::CONTEXT_IS_DESTROYED)?;
    context.check()?;
    Ok((runtime, context))
}

/// The context that a program names: zero is the current one.
pub fn context_named(handle: usize) -> Outcome<(&'static Runtime, Arc<DriverContext>)> {
    if handle == 0 {
        return current();
    }
    let runtime = Runtime::get()?;
    let context = runtime.contexts.get(handle).map_err(|_| CuResult::INVALID_CONTEXT)?;
    context.check()?;
    Ok((runtime, context))
}

/// Changes the contexts of this thread.
pub fn with_stack<T>(change: impl FnOnce(&mut Vec<usize>) -> T) -> T {
    STACK.with(|stack| change(&mut stack.borrow_mut()))
}

static CHILD_CLOSES: Mutex<[i32; 2]> = Mutex::new([-1, -1]);

/// A forked child must not keep its parent's row.
fn close_in_children(descriptors: [i32; 2]) {
    extern "C" fn in_child() {
        // The lock is never held for long, and the child never waits for it.
        if let Ok(mut descriptors) = CHILD_CLOSES.try_lock() {
            // Once: a child of the child may have other files with these numbers.
            for descriptor in std::mem::replace(&mut *descriptors, [-1, -1]) {
                // SAFETY: the child's copy of a descriptor of this library, which nothing there uses.
                unsafe { libc::close(descriptor) };
            }
        }
    }
    *CHILD_CLOSES.lock().unwrap_or_else(PoisonError::into_inner) = descriptors;
    // SAFETY: the handler calls nothing that must not be called after a fork.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}
