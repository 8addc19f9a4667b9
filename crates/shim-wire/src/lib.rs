//! The messages between the shim and the daemon, and the page of numbers that both see.
//!
//! Messages are packets of JSON, one object each, on a Unix socket that preserves packet boundaries; descriptors come
//! along with the packets that say so. Each side ignores fields that it does not know, so a daemon may be newer than
//! the shims of running programs.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// The environment variable that says where the daemon listens for shims.
pub const SOCKET_ENV: &str = "SUBLET_SHIM_SOCKET";
/// The largest length of a packet.
pub const PACKET_MAX: usize = 4096;
/// The first number of a page.
pub const MAGIC: u64 = u64::from_le_bytes(*b"subletpg");
/// The version of the page's layout.
pub const VERSION: u32 = 1;
/// The largest number of GPUs of a lease.
pub const GPUS_MAX: usize = 16;
/// The largest number of processes of a holder.
pub const PROCESSES_MAX: usize = 64;

/// What the daemon sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum ShimOrder {
    /// The first answer. A descriptor of the lease's page comes along if there is one.
    Welcome {
        /// Whether a descriptor of the page comes along.
        page: bool,
        /// The pid of this process as the daemon sees it: in another pid namespace the number differs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pid: Option<u32>,
        /// The lease that the process named is over.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        over: bool,
    },
    /// Take the memory off the GPU.
    Park {
        /// The number of the order.
        id: u64,
        /// Do it within this time or not at all.
        deadline_ms: u64,
        /// Refuse if there are more bytes than this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        most: Option<u64>,
    },
    /// Put the memory back.
    Resume {
        /// The number of the order.
        id: u64,
    },
    /// The driver is about to take the context of a parked program, too: calls of the driver wait from now on.
    Deepen {
        /// The number of the order.
        id: u64,
    },
    /// The driver has not taken the context, or has given it back: the program is parked as before.
    Shallow {
        /// The number of the order.
        id: u64,
    },
    /// Get ready to be parked: register this much of the arena with the driver in advance.
    Prepare {
        /// How many bytes.
        bytes: u64,
    },
    /// More memory for parked bytes comes along as a descriptor; it is empty, and no other process has it.
    Arena {
        /// How many bytes.
        bytes: u64,
        /// True if its pages are there already.
        #[serde(default)]
        filled: bool,
    },
    /// Free the memory for parked bytes.
    Trim {
        /// The number of the order.
        id: u64,
    },
    /// The lease is over, and parked bytes are lost: calls that wait for them fail.
    Over {
        /// The reason, for messages.
        why: String,
    },
}

/// What the shim sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum ShimReport {
    /// The first message.
    Hello {
        /// The version of these messages.
        version: u32,
        /// The process.
        pid: u32,
        /// The lease that it was started for.
        lease: Option<String>,
        /// True if its memory is parked: the daemon may have been restarted.
        parked: bool,
        /// How many bytes are parked.
        #[serde(default)]
        bytes: u64,
        /// True if it does not call the driver at all: the driver may have the context, too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        deep: bool,
        /// The tool that takes the shim's place: the shim does nothing, cannot park, and closes the connection after
        /// this message.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        aside: Option<String>,
        /// True if it only reads the page and closes the connection after the answer: the process does not use the
        /// driver.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        looks: bool,
    },
    /// The memory is off the GPU, as far as the shim knows.
    Parked {
        /// The number of the order.
        id: u64,
        /// How many bytes.
        bytes: u64,
        /// How long each part took.
        took: MoveDurations,
    },
    /// The memory stays where it is: on the GPU after an order to park, off it after one to resume.
    Refused {
        /// The number of the order.
        id: u64,
        /// The reason, for messages.
        why: String,
    },
    /// The memory is back, and the program goes on.
    Resumed {
        /// The number of the order.
        id: u64,
        /// How many bytes.
        bytes: u64,
        /// How long each part took.
        took: MoveDurations,
    },
    /// The program makes no calls of the driver.
    Deep {
        /// The number of the order.
        id: u64,
    },
    /// Calls of the driver are answered again.
    Shallow {
        /// The number of the order.
        id: u64,
    },
    /// This much of the arena is ready.
    Prepared {
        /// How many bytes.
        bytes: u64,
    },
    /// A call of the program waits at the gate for its memory.
    Wants {
        /// The name of the function.
        call: String,
    },
}

/// Microseconds that each part took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveDurations {
    /// Waiting for open captures. The program goes on meanwhile.
    #[serde(default)]
    pub capture_us: u64,
    /// Closing the gate: from the moment when calls began to wait at it until those past it had returned.
    pub gate_us: u64,
    /// Waiting for the GPU: by copies that were past the gate, and then by the park itself.
    pub drain_us: u64,
    /// Copying.
    pub copy_us: u64,
    /// Mapping, unmapping, allocating and freeing.
    pub map_us: u64,
    /// All parts.
    pub all_us: u64,
}

/// The page of a lease.
#[repr(C)]
pub struct LeasePage {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    reserved: AtomicU32,
    /// The lease's GPUs.
    pub gpus: [GpuPage; GPUS_MAX],
    /// The holder's processes.
    pub processes: [ProcessPage; PROCESSES_MAX],
    /// What the processes copied, in the same order. It was added later: pages of an older daemon end before it.
    pub copied: [CopiedPage; PROCESSES_MAX],
}

/// The length of pages without [`LeasePage::copied`].
pub const OLD_PAGE_BYTES: usize = std::mem::offset_of!(LeasePage, copied);

/// What a process copied: written by its shim.
#[repr(C)]
pub struct CopiedPage {
    /// Not zero if the process counts bytes; an older shim does not.
    pub is_counted: AtomicU64,
    /// Bytes copied.
    pub bytes: AtomicU64,
}

impl LeasePage {
    /// The copy counter of the process with this slot.
    pub fn copy_counter_of(&self, slot: &ProcessPage) -> &CopiedPage {
        let place = self.processes.iter().position(|own| std::ptr::eq(own, slot));
        &self.copied[place.unwrap_or(PROCESSES_MAX - 1)]
    }

    /// Clears the counters of a slot.
    pub fn clear_slot(&self, slot: &ProcessPage) {
        slot.clear_slot();
        let copied = self.copy_counter_of(slot);
        copied.is_counted.store(0, SeqCst);
        copied.bytes.store(0, SeqCst);
    }
}

impl Default for LeasePage {
    fn default() -> LeasePage {
        // SAFETY: numbers only, for which zeros are valid.
        unsafe { std::mem::zeroed() }
    }
}

/// A GPU of the lease: written by the daemon.
#[repr(C)]
pub struct GpuPage {
    /// The UUID of the GPU.
    pub uuid: [AtomicU8; 16],
    /// Bytes of the GPU that the lease has; zero: there is no such GPU.
    pub cap: AtomicU64,
    /// Bytes of the cap that a context takes.
    pub context: AtomicU64,
}

/// A process of the holder: written by its shim.
#[repr(C)]
pub struct ProcessPage {
    /// The pid; zero: the slot is free.
    pub pid: AtomicU32,
    /// Bits of [`ParkObstacle`]: why the process cannot be parked.
    pub obstacles: AtomicU32,
    /// Kernels and graphs launched.
    pub launches: AtomicU64,
    /// Copies and fills.
    pub copies: AtomicU64,
    /// When it last did anything, in nanoseconds of the monotonic clock.
    pub active_ns: AtomicU64,
    /// Bytes that are parked.
    pub parked: AtomicU64,
    /// What the process has of each GPU.
    pub gpus: [ProcessGpuPage; GPUS_MAX],
    /// Errors, by number.
    pub errors: [ErrorPage; 16],
}

impl ProcessPage {
    fn clear_slot(&self) {
        for gpu in &self.gpus {
            gpu.bytes.store(0, SeqCst);
            gpu.peak.store(0, SeqCst);
            gpu.contexts.store(0, SeqCst);
        }
        for error in &self.errors {
            error.code.store(0, SeqCst);
            error.count.store(0, SeqCst);
        }
        for number in [&self.launches, &self.copies, &self.active_ns, &self.parked] {
            number.store(0, SeqCst);
        }
        self.obstacles.store(0, SeqCst);
    }
}

/// What a process has of a GPU.
#[repr(C)]
pub struct ProcessGpuPage {
    /// Bytes, without the context.
    pub bytes: AtomicU64,
    /// The largest value of `bytes` so far.
    pub peak: AtomicU64,
    /// Whether it has a context.
    pub contexts: AtomicU64,
}

/// How often calls returned one error.
#[repr(C)]
pub struct ErrorPage {
    /// The `CUresult`.
    pub code: AtomicU32,
    /// How often.
    pub count: AtomicU32,
}

/// Why a holder cannot be parked. The values are bits of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ParkObstacle {
    /// Managed memory.
    Managed = 1,
    /// Arrays, which have no addresses.
    Arrays = 1 << 1,
    /// Memory or semaphores imported from other APIs.
    External = 1 << 2,
    /// Graphics resources.
    Graphics = 1 << 3,
    /// Memory shared with other processes.
    Shared = 1 << 4,
    /// Memory of several GPUs at one address.
    Multicast = 1 << 5,
    /// Memory that graphs allocate.
    GraphMemory = 1 << 6,
    /// GPUs with access to each other's memory.
    Peers = 1 << 7,
    /// Too much memory from the driver's own stream-ordered pools.
    StreamOrdered = 1 << 8,
    /// A function that the shim does not know.
    UnknownCall = 1 << 9,
    /// Memory that a network card may access.
    Rdma = 1 << 10,
    /// A GPU that is shared through MPS.
    Mps = 1 << 11,
    /// A driver that can be waited for, but not asked whether it is done.
    OldDriver = 1 << 12,
}

impl ParkObstacle {
    /// All reasons.
    pub const ALL: [ParkObstacle; 13] = [
        ParkObstacle::Managed,
        ParkObstacle::Arrays,
        ParkObstacle::External,
        ParkObstacle::Graphics,
        ParkObstacle::Shared,
        ParkObstacle::Multicast,
        ParkObstacle::GraphMemory,
        ParkObstacle::Peers,
        ParkObstacle::StreamOrdered,
        ParkObstacle::UnknownCall,
        ParkObstacle::Rdma,
        ParkObstacle::Mps,
        ParkObstacle::OldDriver,
    ];

    /// The first reason with its bit set; `None` if none is.
    pub fn first(bits: u32) -> Option<ParkObstacle> {
        ParkObstacle::ALL.into_iter().find(|reason| bits & *reason as u32 != 0)
    }

    /// The reason in words, for messages.
    pub fn text(self) -> &'static str {
        match self {
            ParkObstacle::Managed => "it uses managed memory",
            ParkObstacle::Arrays => "it uses CUDA arrays or textures",
            ParkObstacle::External => "it uses memory of another API",
            ParkObstacle::Graphics => "it shares memory with graphics",
            ParkObstacle::Shared => "it shares memory with other processes",
            ParkObstacle::Multicast => "it uses multicast memory",
            ParkObstacle::GraphMemory => "its graphs allocate memory",
            ParkObstacle::Peers => "its GPUs reach each other's memory",
            ParkObstacle::StreamOrdered => "more than 256 MiB were allocated in the order of streams",
            ParkObstacle::UnknownCall => "it called a function of the driver that Sublet does not know",
            ParkObstacle::Rdma => "a network card may reach its memory (RDMA): it has an InfiniBand device open",
            ParkObstacle::Mps => "it uses its GPU through MPS",
            ParkObstacle::OldDriver => "its driver is older than CUDA 12.5, and does not say when the GPU is done",
        }
    }
}

/// The path at which a daemon that listens at `socket` listens for shims.
pub fn shim_socket_path(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".shim");
    PathBuf::from(name)
}

/// A size in words, for messages.
pub fn size_text(bytes: u64) -> String {
    const GIB: f64 = (1_u64 << 30) as f64;
    let gib = bytes as f64 / GIB;
    if gib >= 1.0 { format!("{gib:.1} GiB") } else { format!("{} MiB", bytes >> 20) }
}

#[cfg(test)]
mod tests {
    use super::{ShimOrder, ShimReport};

    #[test]
    fn unknown_fields_of_a_newer_side_are_ignored() {
        let order: ShimOrder =
            serde_json::from_str(r#"{"do":"park","id":7,"deadline_ms":500,"mood":"new"}"#).expect("an order");
        assert_eq!(order, ShimOrder::Park { id: 7, deadline_ms: 500, most: None });
        let report: ShimReport =
            serde_json::from_str(r#"{"say":"wants","call":"cuLaunchKernel","since":3}"#).expect("a word");
        assert_eq!(report, ShimReport::Wants { call: "cuLaunchKernel".to_owned() });
        assert!(serde_json::from_str::<ShimOrder>(r#"{"do":"dance"}"#).is_err());
        let order: ShimOrder = serde_json::from_str(r#"{"do":"welcome","page":true}"#).expect("an older daemon's");
        assert_eq!(order, ShimOrder::Welcome { page: true, pid: None, over: false });
    }
}
