//! How the shim treats each function of the driver, by its name without version suffix and form.

use crate::page::Reason;
use std::collections::BTreeSet;
use std::sync::OnceLock;

/// The largest number of words of the stack that a function has as arguments.
pub const WORDS_MAX: usize = 12;

/// How a call passes the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Without the gate, unless the driver has the context. For questions, and for waiting for the GPU.
    Straight,
    /// When the gate is open.
    Gated,
    /// Like `Gated`, and it submits work to the GPU.
    Launch,
    /// Like `Gated`, and it moves bytes.
    Copy,
    /// Also while the memory is away: the shim's own function handles that.
    Anytime,
    /// When the gate is open; the effect of the function is not known, so the holder is not parked afterwards.
    Unknown,
}

/// How a function is treated.
#[derive(Clone, Copy, Debug)]
pub struct Class {
    /// How its calls pass the gate.
    pub kind: Kind,
    /// A successful call makes the holder not parkable.
    pub mark: Option<Reason>,
    /// A successful call makes the holder not parkable for a while (true), or ends that (false).
    pub held: Option<(Reason, bool)>,
    /// It begins (true) or ends (false) a capture.
    pub capture: Option<bool>,
}

/// The name without `_v2`, `_ptsz` and `_ptds`.
pub fn base(name: &str) -> &str {
    let mut base = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    if let Some((rest, version)) = base.rsplit_once("_v")
        && !version.is_empty()
        && version.bytes().all(|byte| byte.is_ascii_digit())
    {
        base = rest;
    }
    base
}

/// How many words of the stack a function has as arguments.
pub fn words(base: &str) -> usize {
    match base {
        "cuStreamGetCaptureInfo" | "cuOccupancyMaxPotentialBlockSizeWithFlags" => 1,
        "cuLinkAddData" | "cuLibraryLoadData" | "cuLibraryLoadFromFile" => 2,
        "cuMemPrefetchBatchAsync" | "cuMemDiscardAndPrefetchBatchAsync" => 2,
        "cuMemcpyBatchAsync" => 3,
        "cuLaunchCooperativeKernel" => 4,
        "cuLaunchKernel" => 5,
        "cuTensorMapEncodeTiled" => 6,
        // A handle of 64 bytes, passed by value.
        "cuIpcOpenMemHandle" | "cuIpcOpenEventHandle" => 8,
        "cuTensorMapEncodeIm2col" => 9,
        "cuTensorMapEncodeIm2colWide" => 10,
        _ if is_known(base) => 0,
        _ => WORDS_MAX,
    }
}

/// Functions that only ask, change the thread's own state, or wait for the GPU.
const STRAIGHT: &[&str] = &[
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGetExportTable",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceGetLuid",
    "cuDeviceGetAttribute",
    "cuDeviceGetProperties",
    "cuDeviceComputeCapability",
    "cuDeviceTotalMem",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetByPCIBusId",
    "cuDeviceCanAccessPeer",
    "cuDeviceGetP2PAttribute",
    "cuDeviceGetExecAffinitySupport",
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetMemPool",
    "cuDevicePrimaryCtxGetState",
    "cuDeviceGetTexture1DLinearMaxWidth",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuCtxGetDevice",
    "cuCtxGetId",
    "cuCtxGetApiVersion",
    "cuCtxGetFlags",
    "cuCtxGetLimit",
    "cuCtxGetCacheConfig",
    "cuCtxGetStreamPriorityRange",
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuStreamQuery",
    "cuStreamIsCapturing",
    "cuStreamGetCaptureInfo",
    "cuStreamGetCtx",
    "cuStreamGetPriority",
    "cuStreamGetFlags",
    "cuStreamGetId",
    "cuStreamGetDevice",
    "cuStreamGetAttribute",
    "cuThreadExchangeStreamCaptureMode",
    "cuEventSynchronize",
    "cuEventQuery",
    "cuEventElapsedTime",
    "cuFuncGetName",
    "cuFuncGetModule",
    "cuFuncGetParamInfo",
    "cuKernelGetName",
    "cuKernelGetParamInfo",
    "cuKernelGetLibrary",
    "cuModuleGetLoadingMode",
    "cuMemGetAllocationGranularity",
    "cuMemHostGetFlags",
    "cuMemHostGetDevicePointer",
    "cuGraphNodeGetType",
    "cuGraphGetNodes",
    "cuGraphGetRootNodes",
    "cuGraphGetEdges",
    "cuGraphNodeGetDependencies",
    "cuGraphNodeGetDependentNodes",
    "cuCheckpointProcessGetState",
    "cuCheckpointProcessLock",
    "cuCheckpointProcessCheckpoint",
    "cuCheckpointProcessRestore",
    "cuCheckpointProcessUnlock",
    "cuCheckpointProcessGetRestoreThreadId",
];

/// Those of them that answer even while the context is away, or must not wait for it.
const NEVER_HANG: &[&str] = &["cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetExportTable"];

/// True if the program may call the driver's own function at all times.
pub fn hangs_never(base: &str) -> bool {
    NEVER_HANG.contains(&base) || base.starts_with("cuCheckpoint")
}

/// Prefixes of functions that are known to be safe behind the gate: they submit work, or make and destroy objects that
/// have their memory in the context.
const GATED: &[&str] = &[
    "cuInit",
    "cuCtx",
    "cuDevicePrimaryCtx",
    "cuDeviceSetMemPool",
    "cuModule",
    "cuLibrary",
    "cuKernel",
    "cuFunc",
    "cuLink",
    "cuLaunch",
    "cuMem",
    "cuPointer",
    "cuStream",
    "cuEvent",
    "cuGraph",
    "cuOccupancy",
    "cuProfiler",
    "cuUserObject",
    "cuTensorMap",
    "cuCoredump",
    "cuLogs",
    "cuDeviceGraphMem",
    "cuDeviceGetGraphMem",
    "cuDeviceSetGraphMem",
    "cuDeviceRegisterAsyncNotification",
    "cuDeviceUnregisterAsyncNotification",
    "cuFlushGPUDirectRDMAWrites",
    "cuThread",
    "cuArray",
    "cuMipmappedArray",
    "cuTex",
    "cuSurf",
    "cuIpc",
    // Operations on external memory and semaphores concern objects that keep the holder from being parked anyway.
    "cuExternalMemory",
    "cuSignalExternalSemaphores",
    "cuWaitExternalSemaphores",
];

/// Functions that leave something on the GPU that cannot be taken off, or that other processes or devices reach.
const MARKS: &[(&str, Reason)] = &[
    ("cuLibraryGetManaged", Reason::Managed),
    ("cuMemImportFromShareableHandle", Reason::Shared),
    ("cuGraphicsMapResources", Reason::Graphics),
    ("cuGraphicsGLRegisterBuffer", Reason::Graphics),
    ("cuGraphicsEGLRegisterImage", Reason::Graphics),
    ("cuGraphicsVDPAURegisterVideoSurface", Reason::Graphics),
    ("cuEGLStreamConsumerConnect", Reason::Graphics),
    ("cuEGLStreamProducerConnect", Reason::Graphics),
    ("cuMulticastCreate", Reason::Multicast),
    ("cuMulticastBindMem", Reason::Multicast),
    ("cuMulticastBindAddr", Reason::Multicast),
    ("cuMemPoolExportToShareableHandle", Reason::Shared),
    ("cuMemPoolImportFromShareableHandle", Reason::Shared),
    ("cuMemGetHandleForAddressRange", Reason::Shared),
    ("cuGraphAddMemAllocNode", Reason::GraphMemory),
    ("cuMemMapArrayAsync", Reason::Arrays),
    ("cuCtxEnablePeerAccess", Reason::Peers),
];

/// Functions that do the same for a while: until the matching function was called as often.
const HOLDS: &[(&str, Reason, bool)] = &[
    ("cuImportExternalMemory", Reason::External, true),
    ("cuDestroyExternalMemory", Reason::External, false),
    ("cuImportExternalSemaphore", Reason::External, true),
    ("cuDestroyExternalSemaphore", Reason::External, false),
];

/// True if the effect of a function is known: its name is in a list here, or it has a known prefix and is in
/// `names.txt`. A function that a later driver adds with such a prefix is not known.
fn is_known(base: &str) -> bool {
    static BASES: OnceLock<BTreeSet<&str>> = OnceLock::new();
    let was_there = || BASES.get_or_init(|| include_str!("names.txt").lines().map(self::base).collect()).contains(base);
    STRAIGHT.contains(&base)
        || MARKS.iter().any(|(name, _)| *name == base)
        || HOLDS.iter().any(|(name, ..)| *name == base)
        || (GATED.iter().any(|begin| base.starts_with(begin)) && was_there())
}

/// Functions that only destroy objects, none of which is parked memory: a program may end while its memory is away.
const TIDYING: &[&str] = &[
    "cuCtxDestroy",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxReset",
    "cuEventDestroy",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuLibraryUnload",
    "cuLinkDestroy",
    "cuMemFreeHost",
    "cuMemHostUnregister",
    "cuModuleUnload",
    "cuStreamDestroy",
    "cuSurfObjectDestroy",
    "cuTexObjectDestroy",
    "cuUserObjectRelease",
];

/// True if a function only destroys something.
pub fn is_tidying(base: &str) -> bool {
    TIDYING.contains(&base)
}

/// True if the call can be done later, if it cannot be done now: the program may go on meanwhile.
pub fn is_put_off(base: &str) -> bool {
    // The program may free host memory that it registered before the driver has unregistered it.
    is_free(base) || (is_tidying(base) && base != "cuMemHostUnregister")
}

/// True if it frees memory that is away with the rest.
pub fn is_free(base: &str) -> bool {
    matches!(base, "cuMemFree" | "cuMemFreeAsync")
}

/// How a function is treated.
pub fn of(base: &str) -> Class {
    let kind = match base {
        "cuInit" => Kind::Anytime,
        _ if is_tidying(base) => Kind::Anytime,
        _ if STRAIGHT.contains(&base) => Kind::Straight,
        "cuGraphLaunch" => Kind::Launch,
        // Functions of the program, not work for the GPU, but they keep their place in the stream's order.
        "cuLaunchHostFunc" => Kind::Gated,
        "cuMemFree"
        | "cuMemFreeAsync"
        | "cuMemRelease"
        | "cuMemAddressFree"
        | "cuMemPoolDestroy"
        | "cuMemPoolTrimTo"
        | "cuIpcCloseMemHandle"
        | "cuMemPoolGetAttribute"
        | "cuMemGetInfo"
        | "cuMemGetAddressRange"
        | "cuPointerGetAttribute"
        | "cuPointerGetAttributes" => Kind::Anytime,
        _ if !is_known(base) => Kind::Unknown,
        _ if base.starts_with("cuLaunch") => Kind::Launch,
        _ if base.starts_with("cuMemcpy") || base.starts_with("cuMemset") => Kind::Copy,
        _ => Kind::Gated,
    };
    let mark = MARKS.iter().find(|(name, _)| *name == base).map(|(_, reason)| *reason);
    let capture = match base {
        _ if base.starts_with("cuStreamBeginCapture") || base.starts_with("cuStreamBeginRecapture") => Some(true),
        "cuStreamEndCapture" => Some(false),
        _ => None,
    };
    let held = HOLDS.iter().find(|(name, ..)| *name == base).map(|(_, reason, begins)| (*reason, *begins));
    Class { kind, mark, held, capture }
}

#[cfg(test)]
mod tests {
    use super::{BTreeSet, GATED, HOLDS, Kind, MARKS, NEVER_HANG, STRAIGHT, TIDYING, base, of, words};

    #[test]
    fn names_lose_their_versions_and_forms() {
        for (name, plain) in [
            ("cuMemAlloc_v2", "cuMemAlloc"),
            ("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync"),
            ("cuMemcpy_ptds", "cuMemcpy"),
            ("cuInit", "cuInit"),
            ("cuStreamGetCaptureInfo_v3_ptsz", "cuStreamGetCaptureInfo"),
        ] {
            assert_eq!(base(name), plain);
        }
    }

    #[test]
    fn functions_are_what_they_are() {
        for (name, kind) in [
            ("cuLaunchKernel", Kind::Launch),
            ("cuGraphLaunch", Kind::Launch),
            ("cuMemsetD2D8Async", Kind::Copy),
            ("cuStreamSynchronize", Kind::Straight),
            ("cuMemCreate", Kind::Gated),
            ("cuGraphUpload", Kind::Gated),
            ("cuEventRecord", Kind::Gated),
            ("cuEventDestroy", Kind::Anytime),
            ("cuSomethingNewOfNextYear", Kind::Unknown),
            ("cuGreenCtxCreate", Kind::Unknown),
            // Same prefixes as known functions, but their effect is not known.
            ("cuMemSomethingNew", Kind::Unknown),
            ("cuMemcpySomethingNew", Kind::Unknown),
            ("cuLaunchSomethingNew", Kind::Unknown),
            ("cuStreamSomethingNew", Kind::Unknown),
            ("cuMemcpyBatchAsync", Kind::Copy),
            ("cuLaunchKernelEx", Kind::Launch),
            ("cuDestroyExternalMemory", Kind::Gated),
        ] {
            assert_eq!(of(name).kind, kind, "{name}");
        }
        assert!(of("cuLibraryGetManaged").mark.is_some() && of("cuMemAlloc").mark.is_none());
        assert_eq!(of("cuStreamBeginCaptureToGraph").capture, Some(true));
        assert_eq!((words("cuLaunchKernel"), words("cuMemAlloc"), words("cuSomethingNew")), (5, 0, 12));
    }

    /// Families of exported functions that the shim does not know: a program that calls one is not parked afterwards.
    const NOT_UNDERSTOOD: &[&str] = &[
        "cuDevResource",
        "cuDevSmResource",
        "cuDeviceGetDevResource",
        "cuDeviceGetHostAtomicCapabilities",
        "cuDeviceGetNvSciSyncAttributes",
        "cuDeviceGetP2PAtomicCapabilities",
        "cuEGL",
        "cuGL",
        // The shim answers this one itself.
        "cuGetProcAddress",
        "cuGreenCtx",
        "cuMulticast",
        "cuParamSet",
        "cuVDPAU",
    ];

    #[test]
    fn exported_names_are_classified_or_listed_as_not_understood() {
        let unknown: BTreeSet<&str> =
            include_str!("names.txt").lines().map(base).filter(|name| of(name).kind == Kind::Unknown).collect();
        for name in &unknown {
            assert!(NOT_UNDERSTOOD.iter().any(|family| name.starts_with(family)), "{name} has no class");
        }
        for family in NOT_UNDERSTOOD {
            assert!(
                unknown.iter().any(|name| name.starts_with(family)),
                "{family} is exported no more, or has a class"
            );
        }
    }

    #[test]
    fn lists_of_names_name_only_exported_functions() {
        let exported: BTreeSet<&str> = include_str!("names.txt").lines().map(base).collect();
        let names = STRAIGHT.iter().chain(NEVER_HANG).chain(TIDYING).copied();
        let names = names.chain(MARKS.iter().map(|(name, _)| *name)).chain(HOLDS.iter().map(|(name, ..)| *name));
        for name in names {
            assert!(exported.contains(name), "{name} is not exported: a typing error?");
        }
        for beginning in GATED {
            assert!(
                exported.iter().any(|name| name.starts_with(beginning)),
                "no exported name begins with {beginning}"
            );
        }
    }
}
