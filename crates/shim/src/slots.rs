//! What is behind each stub: the driver's function, the function that is called instead, and how its calls pass the
//! gate.
//!
//! There is one slot for each address of the driver, however often and by whatever name a program asks for it. A slot
//! is filled once, by `hook`; after that its calls only read it. Functions of the shim are here as addresses, so that
//! the gate can jump to them and knows nothing else of them.

use crate::copy_size::CopySize;
use crate::driver;
use crate::function_class::{CaptureStep, GateRule, ObstacleCount, WORDS_MAX};
use crate::message::ParkObstacle;
use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, OnceLock, PoisonError};

/// How many functions can have a stub: a driver has about a thousand.
pub const STUBS: usize = 2048;

/// What is behind a stub.
pub struct HookSlot {
    real: AtomicUsize,
    target: AtomicUsize,
    constants: OnceLock<SlotConstants>,
}

/// The constant part of a slot.
pub struct SlotConstants {
    /// The name that the program asked for.
    pub name: String,
    /// How calls pass the gate.
    pub gate_rule: GateRule,
    /// How many words of the stack a call may have as arguments.
    pub stack_words: usize,
    /// A successful call sets this obstacle.
    pub sets_obstacle: Option<ParkObstacle>,
    /// A successful call counts or uncounts an obstacle.
    pub counts_obstacle: Option<ObstacleCount>,
    /// Whether a call begins or ends a capture.
    pub capture: Option<CaptureStep>,
    /// How many bytes a call copies.
    pub copy_size: CopySize,
    /// What happens to a call while the driver has the context.
    pub without_context: WithoutContext,
}

/// What happens to a call while the driver has the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutContext {
    /// The call waits until the context is back.
    Waits,
    /// The call succeeds at once: it only asks, or waits, whether the GPU is done, and while the memory is away it is.
    Succeeds,
    /// The shim's function at this address notes the call, to be done when the context is back.
    Defers(usize),
    /// The shim's function at this address answers the call.
    Answers(usize),
}

static SLOTS: [HookSlot; STUBS] =
    [const { HookSlot { real: AtomicUsize::new(0), target: AtomicUsize::new(0), constants: OnceLock::new() } }; STUBS];
/// The driver's own functions again, for stubs that pass without the gate.
pub static STRAIGHT: [AtomicUsize; STUBS] = [const { AtomicUsize::new(0) }; STUBS];
static SLOT_BY_ADDRESS: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);

/// The slot with this number.
pub fn slot(number: usize) -> &'static HookSlot {
    &SLOTS[number]
}

/// What a new slot is filled with.
pub struct NewSlot {
    /// The function that is called once the gate is passed.
    pub target: usize,
    /// The constant part.
    pub constants: SlotConstants,
}

/// The number of the slot for the driver's function at `real`. A new slot is filled with what `fill` returns. `None` if
/// all slots are taken.
pub fn number_of(real: usize, fill: impl FnOnce() -> NewSlot) -> Option<usize> {
    let mut known = SLOT_BY_ADDRESS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_with(HashMap::new);
    if let Some(number) = known.get(&real) {
        return Some(*number);
    }
    let number = known.len();
    let slot = SLOTS.get(number)?;
    let new = fill();
    slot.real.store(real, Release);
    STRAIGHT[number].store(real, Release);
    slot.target.store(new.target, Release);
    let filled = slot.constants.set(new.constants);
    debug_assert!(filled.is_ok(), "slot {number} was filled before it had an address");
    known.insert(real, number);
    Some(number)
}

impl HookSlot {
    /// The driver's own function.
    pub fn real(&self) -> usize {
        self.real.load(Acquire)
    }

    /// The function that is called once the gate is passed.
    pub fn target(&self) -> usize {
        self.target.load(Acquire)
    }

    /// The constant part; `None` if the slot was never filled.
    pub fn constants(&self) -> Option<&SlotConstants> {
        self.constants.get()
    }

    /// How calls pass the gate.
    pub fn gate_rule(&self) -> GateRule {
        self.constants().map_or(GateRule::Gated, |constants| constants.gate_rule)
    }

    /// How many words of the stack it may have as arguments.
    pub fn stack_words(&self) -> usize {
        self.constants().map_or(WORDS_MAX, |constants| constants.stack_words)
    }

    /// What happens to a call while the driver has the context.
    pub fn without_context(&self) -> WithoutContext {
        self.constants().map_or(WithoutContext::Waits, |constants| constants.without_context)
    }

    /// How many bytes a call of it copies.
    pub fn copy_size(&self) -> CopySize {
        self.constants().map_or(CopySize::Nothing, |constants| constants.copy_size)
    }

    /// The name that the program asked for.
    pub fn name(&self) -> &str {
        self.constants().map_or("", |constants| &constants.name)
    }

    /// True if a result means an error: "not ready" does not.
    pub fn is_error(&self, result: u32) -> bool {
        result != driver::NOT_READY
    }

    /// True if a call begins a capture.
    pub fn begins_capture(&self) -> bool {
        self.constants().is_some_and(|constants| constants.capture == Some(CaptureStep::Begins))
    }
}
