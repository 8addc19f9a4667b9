//! What the shim and the daemon say to each other, and the page of numbers both see.
//!
//! Packets of JSON on a Unix socket that keeps their bounds, one object each; descriptors come along
//! with the packets that say so. Fields that one side does not know it passes over, so that a daemon
//! may be newer than the shims of the programs that run.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// The environment variable that says where the daemon listens for shims.
pub const SOCKET: &str = "SUBLET_SHIM_SOCKET";
/// A packet is not longer than this.
pub const PACKET_MAX: usize = 4096;
/// The first number of a page.
pub const MAGIC: u64 = u64::from_le_bytes(*b"subletpg");
/// Of the page's layout.
pub const VERSION: u32 = 1;
/// Cards of a lease.
pub const CARDS: usize = 16;
/// Processes of a holder.
pub const SLOTS: usize = 64;

/// What the daemon says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Order {
    /// The first answer. A descriptor of the lease's page comes along if there is one.
    Welcome {
        /// Whether it does.
        page: bool,
        /// Which process this is, as the daemon counts: in another namespace of processes it is another number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        /// The lease that the process named is over.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        over: bool,
    },
    /// Take the memory off the card.
    Park {
        /// Which order this is.
        id: u64,
        /// Do it within so many milliseconds or not at all.
        deadline_ms: u64,
        /// No more bytes than this, or not at all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        most: Option<u64>,
    },
    /// Put it back.
    Resume {
        /// Which order this is.
        id: u64,
    },
    /// The driver is about to take the context of a parked program, too: whatever calls it from now on waits.
    Deepen {
        /// Which order this is.
        id: u64,
    },
    /// The driver has not taken it, or has given it back: the program is parked as before.
    Shallow {
        /// Which order this is.
        id: u64,
    },
    /// Get ready to be parked: so many bytes of the arena are made known to the driver in advance.
    Prepare {
        /// How many.
        bytes: u64,
    },
    /// More memory to be parked in comes along as a descriptor; it is empty, and nobody else's.
    Arena {
        /// How much.
        bytes: u64,
        /// Its pages are there already.
        #[serde(default)]
        filled: bool,
    },
    /// Give back the memory that parked bytes were in.
    Trim {
        /// Which order this is.
        id: u64,
    },
    /// The lease is over, and with it whatever is parked: the program is told so where it waits for it.
    Over {
        /// Why, for people.
        why: String,
    },
}

/// What the shim says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum Word {
    /// The first word.
    Hello {
        /// Of these messages.
        version: u32,
        /// Which process.
        pid: u32,
        /// For which lease it was started.
        lease: Option<String>,
        /// Whether its memory is away: a daemon may be new.
        parked: bool,
        /// So much of it.
        #[serde(default)]
        bytes: u64,
        /// It calls the driver for nothing: that may have its context, too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        deep: bool,
        /// A tool is in the shim's place: it does nothing, cannot park, and hangs up after this word.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        aside: Option<String>,
        /// It only looks at the page, and hangs up after the answer: the process does not use the driver.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        looks: bool,
    },
    /// The memory is off the card, as far as the shim knows.
    Parked {
        /// The order.
        id: u64,
        /// How much.
        bytes: u64,
        /// What it took.
        took: Took,
    },
    /// It stays where it is: on the card after an order to park, off it after one to resume.
    Refused {
        /// The order.
        id: u64,
        /// Why, for people.
        why: String,
    },
    /// The memory is back, and the program goes on.
    Resumed {
        /// The order.
        id: u64,
        /// How much.
        bytes: u64,
        /// What it took.
        took: Took,
    },
    /// Nothing of the program calls the driver.
    Deep {
        /// The order.
        id: u64,
    },
    /// Its questions are answered again.
    Shallow {
        /// The order.
        id: u64,
    },
    /// The arena is ready for so many bytes.
    Prepared {
        /// How many.
        bytes: u64,
    },
    /// The program is at the gate and needs its memory.
    Wants {
        /// The call.
        call: String,
    },
}

/// Microseconds of each part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Took {
    /// Waiting for captures that were open. The program goes on meanwhile.
    #[serde(default)]
    pub capture_us: u64,
    /// Closing the gate: from when calls began to wait at it until those that were past it had left.
    pub gate_us: u64,
    /// Waiting for the card: copies that were past the gate and did, and then the park itself.
    pub drain_us: u64,
    /// Copying.
    pub copy_us: u64,
    /// Mapping and unmapping, making and giving back.
    pub map_us: u64,
    /// All of it.
    pub all_us: u64,
}

/// The page of a lease.
#[repr(C)]
pub struct Page {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    reserved: AtomicU32,
    /// Its cards.
    pub cards: [CardPage; CARDS],
    /// Its processes.
    pub processes: [ProcessPage; SLOTS],
    /// What they copied, in the same order. It came later: pages of an older daemon end before it.
    pub copied: [CopiedPage; SLOTS],
}

/// The length of pages that end before what was copied.
pub const SHORT_PAGE: usize = std::mem::offset_of!(Page, copied);

/// What a process copied: written by its shim.
#[repr(C)]
pub struct CopiedPage {
    /// Not zero: it counts that. A library of before does not.
    pub is_counted: AtomicU64,
    /// Bytes.
    pub bytes: AtomicU64,
}

impl Page {
    /// What a process copied that has this place.
    pub fn copied_of(&self, slot: &ProcessPage) -> &CopiedPage {
        let place = self.processes.iter().position(|own| std::ptr::eq(own, slot));
        &self.copied[place.unwrap_or(SLOTS - 1)]
    }

    /// Forgets what is counted in a place.
    pub fn wipe(&self, slot: &ProcessPage) {
        slot.wipe();
        let copied = self.copied_of(slot);
        copied.is_counted.store(0, SeqCst);
        copied.bytes.store(0, SeqCst);
    }
}

impl Default for Page {
    fn default() -> Page {
        // SAFETY: numbers only, for which zeros do.
        unsafe { std::mem::zeroed() }
    }
}

/// A card of the lease: written by the daemon.
#[repr(C)]
pub struct CardPage {
    /// Which.
    pub uuid: [AtomicU8; 16],
    /// So many bytes of it are the lease's; zero: there is no such card.
    pub cap: AtomicU64,
    /// So many of them a context takes.
    pub context: AtomicU64,
}

/// A process of the holder: written by its shim.
#[repr(C)]
pub struct ProcessPage {
    /// Which; zero: nobody.
    pub pid: AtomicU32,
    /// Why it cannot be parked: bits.
    pub reasons: AtomicU32,
    /// Kernels and graphs launched.
    pub launches: AtomicU64,
    /// Copies and fills.
    pub copies: AtomicU64,
    /// When it last did anything, in nanoseconds of the monotonic clock.
    pub active_ns: AtomicU64,
    /// Bytes that are parked.
    pub parked: AtomicU64,
    /// What it has of each card.
    pub cards: [SharePage; CARDS],
    /// Errors, by number.
    pub errors: [ErrorPage; 16],
}

impl ProcessPage {
    fn wipe(&self) {
        for card in &self.cards {
            card.bytes.store(0, SeqCst);
            card.peak.store(0, SeqCst);
            card.contexts.store(0, SeqCst);
        }
        for error in &self.errors {
            error.code.store(0, SeqCst);
            error.count.store(0, SeqCst);
        }
        for number in [&self.launches, &self.copies, &self.active_ns, &self.parked] {
            number.store(0, SeqCst);
        }
        self.reasons.store(0, SeqCst);
    }
}

/// What a process has of a card.
#[repr(C)]
pub struct SharePage {
    /// Bytes, without the context.
    pub bytes: AtomicU64,
    /// The most it had.
    pub peak: AtomicU64,
    /// Whether it has a context.
    pub contexts: AtomicU64,
}

/// How often a call answered with one error.
#[repr(C)]
pub struct ErrorPage {
    /// Which.
    pub code: AtomicU32,
    /// How often.
    pub count: AtomicU32,
}

/// Why a holder cannot be parked. The numbers are bits of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// Managed memory.
    Managed = 1,
    /// Arrays, which have no addresses.
    Arrays = 1 << 1,
    /// Memory or semaphores of others.
    External = 1 << 2,
    /// Pictures.
    Graphics = 1 << 3,
    /// Memory that other processes have, too.
    Shared = 1 << 4,
    /// Memory of several cards at one address.
    Multicast = 1 << 5,
    /// Memory that graphs allocate.
    GraphMemory = 1 << 6,
    /// Cards that reach each other's memory.
    Peers = 1 << 7,
    /// Too much memory that streams allocate.
    StreamOrdered = 1 << 8,
    /// A function that the shim does not know.
    UnknownCall = 1 << 9,
    /// Memory that a network card may reach.
    Rdma = 1 << 10,
    /// A card that processes share below the driver.
    Mps = 1 << 11,
    /// A driver that can be waited for, but not asked whether it is done.
    OldDriver = 1 << 12,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 13] = [
        Reason::Managed,
        Reason::Arrays,
        Reason::External,
        Reason::Graphics,
        Reason::Shared,
        Reason::Multicast,
        Reason::GraphMemory,
        Reason::Peers,
        Reason::StreamOrdered,
        Reason::UnknownCall,
        Reason::Rdma,
        Reason::Mps,
        Reason::OldDriver,
    ];

    /// The first of those whose bits are set.
    pub fn first(bits: u32) -> Option<Reason> {
        Reason::ALL.into_iter().find(|reason| bits & *reason as u32 != 0)
    }

    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Reason::Managed => "it uses managed memory",
            Reason::Arrays => "it uses CUDA arrays or textures",
            Reason::External => "it uses memory of another API",
            Reason::Graphics => "it shares memory with graphics",
            Reason::Shared => "it shares memory with other processes",
            Reason::Multicast => "it uses multicast memory",
            Reason::GraphMemory => "its graphs allocate memory",
            Reason::Peers => "its cards reach each other's memory",
            Reason::StreamOrdered => "more than 256 MiB were allocated in the order of streams",
            Reason::UnknownCall => "it called a function of the driver that Sublet does not know",
            Reason::Rdma => "a network card may reach its memory (RDMA): it has an InfiniBand device open",
            Reason::Mps => "it uses its card through MPS",
            Reason::OldDriver => "its driver is older than CUDA 12.5, and does not say when the card is done",
        }
    }
}

/// Where a daemon that listens at a socket listens for shims.
pub fn beside(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".shim");
    PathBuf::from(name)
}

/// A size for people.
pub fn size(bytes: u64) -> String {
    const GIB: f64 = (1_u64 << 30) as f64;
    let gib = bytes as f64 / GIB;
    if gib >= 1.0 { format!("{gib:.1} GiB") } else { format!("{} MiB", bytes >> 20) }
}

#[cfg(test)]
mod tests {
    use super::{Order, Word};

    #[test]
    fn words_of_a_newer_side_are_understood() {
        let order: Order =
            serde_json::from_str(r#"{"do":"park","id":7,"deadline_ms":500,"mood":"new"}"#).expect("an order");
        assert_eq!(order, Order::Park { id: 7, deadline_ms: 500, most: None });
        let word: Word = serde_json::from_str(r#"{"say":"wants","call":"cuLaunchKernel","since":3}"#).expect("a word");
        assert_eq!(word, Word::Wants { call: "cuLaunchKernel".to_owned() });
        assert!(serde_json::from_str::<Order>(r#"{"do":"dance"}"#).is_err());
        let order: Order = serde_json::from_str(r#"{"do":"welcome","page":true}"#).expect("an older daemon's");
        assert_eq!(order, Order::Welcome { page: true, pid: None, over: false });
    }
}
