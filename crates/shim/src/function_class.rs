//! How the shim treats each function of the driver, by its name without version suffix and form.

use crate::message::ParkObstacle;
use std::collections::BTreeSet;
use std::sync::OnceLock;

/// The largest number of words of the stack that a function has as arguments.
pub const WORDS_MAX: usize = 12;

/// How a call passes the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GateRule {
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
pub struct FunctionClass {
    /// How its calls pass the gate.
    pub gate_rule: GateRule,
    /// A successful call sets this obstacle.
    pub sets_obstacle: Option<ParkObstacle>,
    /// A successful call counts or uncounts an obstacle.
    pub counts_obstacle: Option<ObstacleCount>,
    /// Whether it begins or ends a capture.
    pub capture: Option<CaptureStep>,
}

/// How a successful call changes the count of an obstacle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObstacleCount {
    /// One more: the obstacle stays until it was removed as often.
    Add(ParkObstacle),
    /// One less.
    Remove(ParkObstacle),
}

/// What a function does to a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureStep {
    /// It begins one.
    Begins,
    /// It ends one.
    Ends,
}

/// The name without `_v2`, `_ptsz` and `_ptds`.
pub fn base_name(name: &str) -> &str {
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
pub fn stack_words(base: &str) -> usize {
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
const ALWAYS_ANSWERED: &[&str] = &["cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetExportTable"];

/// True if the program may call the driver's own function at all times.
pub fn is_always_answered(base: &str) -> bool {
    ALWAYS_ANSWERED.contains(&base) || base.starts_with("cuCheckpoint")
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

/// Functions after which something on the GPU cannot be taken off it, or can be reached by other processes or devices.
/// Of these reasons the shim clears only `Peers` and `GraphMemory`.
const SETS_OBSTACLE: &[(&str, ParkObstacle)] = &[
    ("cuLibraryGetManaged", ParkObstacle::Managed),
    ("cuMemImportFromShareableHandle", ParkObstacle::Shared),
    ("cuGraphicsMapResources", ParkObstacle::Graphics),
    ("cuGraphicsGLRegisterBuffer", ParkObstacle::Graphics),
    ("cuGraphicsEGLRegisterImage", ParkObstacle::Graphics),
    ("cuGraphicsVDPAURegisterVideoSurface", ParkObstacle::Graphics),
    ("cuEGLStreamConsumerConnect", ParkObstacle::Graphics),
    ("cuEGLStreamProducerConnect", ParkObstacle::Graphics),
    ("cuMulticastCreate", ParkObstacle::Multicast),
    ("cuMulticastBindMem", ParkObstacle::Multicast),
    ("cuMulticastBindAddr", ParkObstacle::Multicast),
    ("cuMemPoolExportToShareableHandle", ParkObstacle::Shared),
    ("cuMemPoolImportFromShareableHandle", ParkObstacle::Shared),
    ("cuMemGetHandleForAddressRange", ParkObstacle::Shared),
    ("cuGraphAddMemAllocNode", ParkObstacle::GraphMemory),
    ("cuMemMapArrayAsync", ParkObstacle::Arrays),
    ("cuCtxEnablePeerAccess", ParkObstacle::Peers),
];

/// Functions that do the same until the matching function was called as often.
const COUNTS_OBSTACLE: &[(&str, ObstacleCount)] = &[
    ("cuImportExternalMemory", ObstacleCount::Add(ParkObstacle::External)),
    ("cuDestroyExternalMemory", ObstacleCount::Remove(ParkObstacle::External)),
    ("cuImportExternalSemaphore", ObstacleCount::Add(ParkObstacle::External)),
    ("cuDestroyExternalSemaphore", ObstacleCount::Remove(ParkObstacle::External)),
];

/// True if the effect of a function is known: its name is in a list here, or it has a known prefix and is in
/// `driver_names.txt`. A function that a later driver adds with such a prefix is not known.
fn is_known(base: &str) -> bool {
    static BASES: OnceLock<BTreeSet<&str>> = OnceLock::new();
    let was_there =
        || BASES.get_or_init(|| include_str!("driver_names.txt").lines().map(self::base_name).collect()).contains(base);
    STRAIGHT.contains(&base)
        || SETS_OBSTACLE.iter().any(|(name, _)| *name == base)
        || COUNTS_OBSTACLE.iter().any(|(name, _)| *name == base)
        || (GATED.iter().any(|begin| base.starts_with(begin)) && was_there())
}

/// Functions that only destroy objects, none of which is parked memory: a program may end while its memory is away.
const DESTROYING: &[&str] = &[
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
pub fn only_destroys(base: &str) -> bool {
    DESTROYING.contains(&base)
}

/// True if a function only asks, or waits, whether the GPU is done: while the memory is away it always is.
pub fn only_waits(base: &str) -> bool {
    matches!(base, "cuStreamQuery" | "cuStreamSynchronize" | "cuEventQuery" | "cuEventSynchronize" | "cuCtxSynchronize")
}

/// True if the call can be done later, if it cannot be done now: the program may go on meanwhile.
pub fn is_deferrable(base: &str) -> bool {
    // The program may free host memory that it registered before the driver has unregistered it.
    frees_memory(base) || (only_destroys(base) && base != "cuMemHostUnregister")
}

/// True if it frees memory that is away with the rest.
pub fn frees_memory(base: &str) -> bool {
    matches!(base, "cuMemFree" | "cuMemFreeAsync")
}

/// How a function is treated.
pub fn classify(base: &str) -> FunctionClass {
    let gate_rule = match base {
        "cuInit" => GateRule::Anytime,
        _ if only_destroys(base) => GateRule::Anytime,
        _ if STRAIGHT.contains(&base) => GateRule::Straight,
        "cuGraphLaunch" => GateRule::Launch,
        // Functions of the program, not work for the GPU, but they keep their place in the stream's order.
        "cuLaunchHostFunc" => GateRule::Gated,
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
        | "cuPointerGetAttributes" => GateRule::Anytime,
        _ if !is_known(base) => GateRule::Unknown,
        _ if base.starts_with("cuLaunch") => GateRule::Launch,
        _ if base.starts_with("cuMemcpy") || base.starts_with("cuMemset") => GateRule::Copy,
        _ => GateRule::Gated,
    };
    let sets_obstacle = SETS_OBSTACLE.iter().find(|(name, _)| *name == base).map(|(_, reason)| *reason);
    let capture = match base {
        _ if base.starts_with("cuStreamBeginCapture") || base.starts_with("cuStreamBeginRecapture") => {
            Some(CaptureStep::Begins)
        }
        "cuStreamEndCapture" => Some(CaptureStep::Ends),
        _ => None,
    };
    let counts_obstacle = COUNTS_OBSTACLE.iter().find(|(name, _)| *name == base).map(|(_, change)| *change);
    FunctionClass { gate_rule, sets_obstacle, counts_obstacle, capture }
}

#[cfg(test)]
mod tests {
    use super::{
        ALWAYS_ANSWERED, BTreeSet, COUNTS_OBSTACLE, CaptureStep, DESTROYING, GATED, GateRule, SETS_OBSTACLE, STRAIGHT,
        base_name, classify, stack_words,
    };

    #[test]
    fn base_name_drops_version_and_stream_suffixes() {
        for (name, plain) in [
            ("cuMemAlloc_v2", "cuMemAlloc"),
            ("cuMemcpyHtoDAsync_v2_ptsz", "cuMemcpyHtoDAsync"),
            ("cuMemcpy_ptds", "cuMemcpy"),
            ("cuInit", "cuInit"),
            ("cuStreamGetCaptureInfo_v3_ptsz", "cuStreamGetCaptureInfo"),
        ] {
            assert_eq!(base_name(name), plain);
        }
    }

    #[test]
    fn functions_have_the_expected_class() {
        for (name, gate_rule) in [
            ("cuLaunchKernel", GateRule::Launch),
            ("cuGraphLaunch", GateRule::Launch),
            ("cuMemsetD2D8Async", GateRule::Copy),
            ("cuStreamSynchronize", GateRule::Straight),
            ("cuMemCreate", GateRule::Gated),
            ("cuGraphUpload", GateRule::Gated),
            ("cuEventRecord", GateRule::Gated),
            ("cuEventDestroy", GateRule::Anytime),
            ("cuSomethingNewOfNextYear", GateRule::Unknown),
            ("cuGreenCtxCreate", GateRule::Unknown),
            // Same prefixes as known functions, but their effect is not known.
            ("cuMemSomethingNew", GateRule::Unknown),
            ("cuMemcpySomethingNew", GateRule::Unknown),
            ("cuLaunchSomethingNew", GateRule::Unknown),
            ("cuStreamSomethingNew", GateRule::Unknown),
            ("cuMemcpyBatchAsync", GateRule::Copy),
            ("cuLaunchKernelEx", GateRule::Launch),
            ("cuDestroyExternalMemory", GateRule::Gated),
        ] {
            assert_eq!(classify(name).gate_rule, gate_rule, "{name}");
        }
        assert!(
            classify("cuLibraryGetManaged").sets_obstacle.is_some() && classify("cuMemAlloc").sets_obstacle.is_none()
        );
        assert_eq!(classify("cuStreamBeginCaptureToGraph").capture, Some(CaptureStep::Begins));
        assert_eq!(
            (stack_words("cuLaunchKernel"), stack_words("cuMemAlloc"), stack_words("cuSomethingNew")),
            (5, 0, 12)
        );
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
        let unknown: BTreeSet<&str> = include_str!("driver_names.txt")
            .lines()
            .map(base_name)
            .filter(|name| classify(name).gate_rule == GateRule::Unknown)
            .collect();
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
        let exported: BTreeSet<&str> = include_str!("driver_names.txt").lines().map(base_name).collect();
        let names = STRAIGHT.iter().chain(ALWAYS_ANSWERED).chain(DESTROYING).copied();
        let names = names
            .chain(SETS_OBSTACLE.iter().map(|(name, _)| *name))
            .chain(COUNTS_OBSTACLE.iter().map(|(name, _)| *name));
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
