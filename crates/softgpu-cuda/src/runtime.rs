//! What a process has: its seat on the cards, its contexts, and the handles it was given.
//!
//! Handles are numbers that a table gives out once; one that is not in its table is refused, so that
//! no call follows a pointer somebody made up. After a fork the child has nothing, as with the real
//! driver: every call says that it is not initialised.

use crate::log;
use crate::module::Loaded;
use crate::result::{CuResult, Outcome};
use crate::space::Space;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use sublet_softgpu::state::{CONTEXT_BYTES, ENV};
use sublet_softgpu::{Seat, State};

static RUNTIME: OnceLock<Result<Runtime, CuResult>> = OnceLock::new();
/// The process that called `cuInit`.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Handles look like addresses, and are none.
static NEXT_HANDLE: AtomicU64 = AtomicU64::new(0x5000_0000);

/// What a process has.
pub struct Runtime {
    /// Its place on the cards.
    pub seat: Seat,
    /// Its device memory.
    pub space: Space,
    /// Primary contexts, by card.
    pub primary: Vec<Mutex<Primary>>,
    /// Contexts.
    pub contexts: Table<Context>,
    /// Modules.
    pub modules: Table<Loaded>,
    /// Functions: of which module, and which.
    pub functions: Table<(Arc<Loaded>, String)>,
    /// Streams, with their flags and priority.
    pub streams: Table<(u32, i32)>,
    /// Events: when each was recorded last, and its flags.
    pub events: Table<Event>,
}

/// An event.
#[derive(Default)]
pub struct Event {
    /// Nanoseconds; zero: never.
    pub at: AtomicU64,
    /// It keeps no time.
    pub is_timeless: bool,
}

/// A card's primary context.
#[derive(Default)]
pub struct Primary {
    /// How many hold it.
    pub count: u32,
    /// The context, and its handle, once somebody did.
    pub context: Option<(usize, Arc<Context>)>,
    /// Flags for the next one.
    pub flags: u32,
}

/// Things by handle.
pub struct Table<T>(RwLock<HashMap<usize, Arc<T>>>);

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table(RwLock::default())
    }
}

impl<T> Table<T> {
    /// Keeps a thing, and gives its handle.
    pub fn put(&self, thing: Arc<T>) -> usize {
        let handle = NEXT_HANDLE.fetch_add(16, SeqCst) as usize;
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(handle, thing);
        handle
    }

    /// The thing with this handle.
    pub fn get(&self, handle: usize) -> Outcome<Arc<T>> {
        let things = self.0.read().unwrap_or_else(PoisonError::into_inner);
        things.get(&handle).cloned().ok_or(CuResult::INVALID_HANDLE)
    }

    /// Forgets a handle.
    pub fn take(&self, handle: usize) -> Outcome<Arc<T>> {
        let mut things = self.0.write().unwrap_or_else(PoisonError::into_inner);
        things.remove(&handle).ok_or(CuResult::INVALID_HANDLE)
    }
}

/// A context: what a program did on one card.
pub struct Context {
    /// Which card.
    pub card: usize,
    /// As it was made.
    pub flags: u32,
    /// The first thing that went wrong on the card; from then on every call says so.
    error: AtomicU32,
    /// Its kernels stop.
    pub stop: AtomicBool,
}

impl Context {
    /// Something went wrong; the first time counts.
    pub fn fail(&self, error: CuResult) -> CuResult {
        let _ = self.error.compare_exchange(0, error.0, SeqCst, SeqCst);
        error
    }
}

thread_local! {
    /// The contexts of this thread, by handle; the last is current.
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

impl Runtime {
    /// What the process has, once `cuInit` was called in it.
    pub fn get() -> Outcome<&'static Runtime> {
        if OWNER.load(SeqCst) != std::process::id() {
            return Err(CuResult::NOT_INITIALIZED);
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
        let Some(path) = std::env::var_os(ENV).map(PathBuf::from) else {
            log::once(&format!("`{ENV}` does not say where the soft cards are"));
            return Err(CuResult::NO_DEVICE);
        };
        let said = |error: sublet_softgpu::StateError| {
            log::once(&error.to_string());
            CuResult::NO_DEVICE
        };
        let seat = Seat::take(State::open(&path).map_err(said)?).map_err(said)?;
        close_in_children(seat.descriptors());
        let primary = (0..seat.state().cards().len()).map(|_| Mutex::default()).collect();
        Ok(Runtime {
            seat,
            space: Space::default(),
            primary,
            contexts: Table::default(),
            modules: Table::default(),
            functions: Table::default(),
            streams: Table::default(),
            events: Table::default(),
        })
    }

    /// A card's number, if there is such a card.
    pub fn card(&self, device: i32) -> Outcome<usize> {
        let card = usize::try_from(device).map_err(|_| CuResult::INVALID_DEVICE)?;
        if card < self.primary.len() { Ok(card) } else { Err(CuResult::INVALID_DEVICE) }
    }

    /// Takes the bytes of a context on a card, and makes it.
    pub fn make_context(&self, card: usize, flags: u32) -> Outcome<(usize, Arc<Context>)> {
        self.seat.reserve(card, CONTEXT_BYTES).map_err(|_| CuResult::OUT_OF_MEMORY)?;
        self.seat.row().cards[card].contexts.fetch_add(1, SeqCst);
        let (error, stop) = (AtomicU32::new(0), AtomicBool::new(false));
        let context = Arc::new(Context { card, flags, error, stop });
        Ok((self.contexts.put(Arc::clone(&context)), context))
    }

    /// Ends a context: what it runs stops, what it has is freed.
    pub fn end_context(&self, handle: usize) -> Outcome {
        let context = self.contexts.take(handle).map_err(|_| CuResult::INVALID_CONTEXT)?;
        context.stop.store(true, SeqCst);
        self.space.free_all(&self.seat, handle);
        self.seat.give_back(context.card, CONTEXT_BYTES);
        self.seat.row().cards[context.card].contexts.fetch_sub(1, SeqCst);
        Ok(())
    }
}

/// The handle of the context that is current in this thread.
pub fn current_handle() -> Option<usize> {
    STACK.with_borrow(|stack| stack.last().copied())
}

/// The context that is current in this thread, if nothing went wrong in it.
pub fn current() -> Outcome<(&'static Runtime, usize, Arc<Context>)> {
    let runtime = Runtime::get()?;
    let handle = current_handle().ok_or(CuResult::INVALID_CONTEXT)?;
    let context = runtime.contexts.get(handle).map_err(|_| CuResult::CONTEXT_IS_DESTROYED)?;
    match context.error.load(SeqCst) {
        0 => Ok((runtime, handle, context)),
        error => Err(CuResult(error)),
    }
}

/// Changes the contexts of this thread.
pub fn with_stack<T>(change: impl FnOnce(&mut Vec<usize>) -> T) -> T {
    STACK.with_borrow_mut(change)
}

static CHILD_CLOSES: Mutex<[i32; 2]> = Mutex::new([-1, -1]);

/// A forked child must not keep its parent's seat.
fn close_in_children(descriptors: [i32; 2]) {
    extern "C" fn in_child() {
        // Nobody holds the lock for long, and the child never waits for it.
        if let Ok(descriptors) = CHILD_CLOSES.try_lock() {
            for descriptor in *descriptors {
                // SAFETY: the child's copy of a descriptor of this library, which nothing there uses.
                unsafe { libc::close(descriptor) };
            }
        }
    }
    *CHILD_CLOSES.lock().unwrap_or_else(PoisonError::into_inner) = descriptors;
    // SAFETY: the handler calls nothing that must not be called after a fork.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}
