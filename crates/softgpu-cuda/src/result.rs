//! The results of calls: the driver API's numbers and their names.

use std::ffi::CStr;
use std::fmt;

/// The result of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct CuResult(pub u32);

/// The internal result: done, or why not.
pub type Outcome<T = ()> = Result<T, CuResult>;

macro_rules! codes {
    ($($name:ident = $number:literal: $full:literal, $words:literal;)*) => {
        // All are named, so that every number has its texts; some are never returned.
        #[expect(dead_code, reason = "the table is the driver API's, whole")]
        impl CuResult {
            $(
                #[doc = concat!("`", $full, "`")]
                pub const $name: CuResult = CuResult($number);
            )*

            /// Its name and its meaning; `None` if there is no such number.
            pub fn texts(self) -> Option<(&'static CStr, &'static CStr)> {
                let texts: (&str, &str) = match self.0 {
                    $($number => (concat!($full, "\0"), concat!($words, "\0")),)*
                    _ => return None,
                };
                let text = |text: &'static str| CStr::from_bytes_with_nul(text.as_bytes()).ok();
                Some((text(texts.0)?, text(texts.1)?))
            }
        }
    };
}

impl fmt::Debug for CuResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.texts() {
            Some((name, _)) => write!(f, "{}", name.to_string_lossy()),
            None => write!(f, "CUresult {}", self.0),
        }
    }
}

codes! {
    SUCCESS = 0: "CUDA_SUCCESS", "no error";
    INVALID_VALUE = 1: "CUDA_ERROR_INVALID_VALUE", "invalid value";
    OUT_OF_MEMORY = 2: "CUDA_ERROR_OUT_OF_MEMORY", "out of memory";
    NOT_INITIALIZED = 3: "CUDA_ERROR_NOT_INITIALIZED", "not initialized";
    DEINITIALIZED = 4: "CUDA_ERROR_DEINITIALIZED", "deinitialized";
    PROFILER_DISABLED = 5: "CUDA_ERROR_PROFILER_DISABLED", "profiler disabled";
    PROFILER_NOT_INITIALIZED = 6: "CUDA_ERROR_PROFILER_NOT_INITIALIZED", "profiler not initialized";
    PROFILER_ALREADY_STARTED = 7: "CUDA_ERROR_PROFILER_ALREADY_STARTED", "profiler already started";
    PROFILER_ALREADY_STOPPED = 8: "CUDA_ERROR_PROFILER_ALREADY_STOPPED", "profiler already stopped";
    STUB_LIBRARY = 34: "CUDA_ERROR_STUB_LIBRARY", "stub library";
    CALL_REQUIRES_NEWER_DRIVER = 36: "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "call requires newer driver";
    DEVICE_UNAVAILABLE = 46: "CUDA_ERROR_DEVICE_UNAVAILABLE", "device unavailable";
    NO_DEVICE = 100: "CUDA_ERROR_NO_DEVICE", "no device";
    INVALID_DEVICE = 101: "CUDA_ERROR_INVALID_DEVICE", "invalid device";
    DEVICE_NOT_LICENSED = 102: "CUDA_ERROR_DEVICE_NOT_LICENSED", "device not licensed";
    INVALID_IMAGE = 200: "CUDA_ERROR_INVALID_IMAGE", "invalid image";
    INVALID_CONTEXT = 201: "CUDA_ERROR_INVALID_CONTEXT", "invalid context";
    CONTEXT_ALREADY_CURRENT = 202: "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", "context already current";
    MAP_FAILED = 205: "CUDA_ERROR_MAP_FAILED", "map failed";
    UNMAP_FAILED = 206: "CUDA_ERROR_UNMAP_FAILED", "unmap failed";
    ARRAY_IS_MAPPED = 207: "CUDA_ERROR_ARRAY_IS_MAPPED", "array is mapped";
    ALREADY_MAPPED = 208: "CUDA_ERROR_ALREADY_MAPPED", "already mapped";
    NO_BINARY_FOR_GPU = 209: "CUDA_ERROR_NO_BINARY_FOR_GPU", "no binary for gpu";
    ALREADY_ACQUIRED = 210: "CUDA_ERROR_ALREADY_ACQUIRED", "already acquired";
    NOT_MAPPED = 211: "CUDA_ERROR_NOT_MAPPED", "not mapped";
    NOT_MAPPED_AS_ARRAY = 212: "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", "not mapped as array";
    NOT_MAPPED_AS_POINTER = 213: "CUDA_ERROR_NOT_MAPPED_AS_POINTER", "not mapped as pointer";
    ECC_UNCORRECTABLE = 214: "CUDA_ERROR_ECC_UNCORRECTABLE", "ecc uncorrectable";
    UNSUPPORTED_LIMIT = 215: "CUDA_ERROR_UNSUPPORTED_LIMIT", "unsupported limit";
    CONTEXT_ALREADY_IN_USE = 216: "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "context already in use";
    PEER_ACCESS_UNSUPPORTED = 217: "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access unsupported";
    INVALID_PTX = 218: "CUDA_ERROR_INVALID_PTX", "invalid ptx";
    INVALID_GRAPHICS_CONTEXT = 219: "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", "invalid graphics context";
    NVLINK_UNCORRECTABLE = 220: "CUDA_ERROR_NVLINK_UNCORRECTABLE", "nvlink uncorrectable";
    JIT_COMPILER_NOT_FOUND = 221: "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "jit compiler not found";
    UNSUPPORTED_PTX_VERSION = 222: "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "unsupported ptx version";
    JIT_COMPILATION_DISABLED = 223: "CUDA_ERROR_JIT_COMPILATION_DISABLED", "jit compilation disabled";
    UNSUPPORTED_EXEC_AFFINITY = 224: "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", "unsupported exec affinity";
    UNSUPPORTED_DEVSIDE_SYNC = 225: "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", "unsupported devside sync";
    CONTAINED = 226: "CUDA_ERROR_CONTAINED", "contained";
    INVALID_SOURCE = 300: "CUDA_ERROR_INVALID_SOURCE", "invalid source";
    FILE_NOT_FOUND = 301: "CUDA_ERROR_FILE_NOT_FOUND", "file not found";
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302: "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "shared object symbol not found";
    SHARED_OBJECT_INIT_FAILED = 303: "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "shared object init failed";
    OPERATING_SYSTEM = 304: "CUDA_ERROR_OPERATING_SYSTEM", "operating system";
    INVALID_HANDLE = 400: "CUDA_ERROR_INVALID_HANDLE", "invalid handle";
    ILLEGAL_STATE = 401: "CUDA_ERROR_ILLEGAL_STATE", "illegal state";
    LOSSY_QUERY = 402: "CUDA_ERROR_LOSSY_QUERY", "lossy query";
    NOT_FOUND = 500: "CUDA_ERROR_NOT_FOUND", "not found";
    NOT_READY = 600: "CUDA_ERROR_NOT_READY", "not ready";
    ILLEGAL_ADDRESS = 700: "CUDA_ERROR_ILLEGAL_ADDRESS", "illegal address";
    LAUNCH_OUT_OF_RESOURCES = 701: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "launch out of resources";
    LAUNCH_TIMEOUT = 702: "CUDA_ERROR_LAUNCH_TIMEOUT", "launch timeout";
    LAUNCH_INCOMPATIBLE_TEXTURING = 703: "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", "launch incompatible texturing";
    PEER_ACCESS_ALREADY_ENABLED = 704: "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access already enabled";
    PEER_ACCESS_NOT_ENABLED = 705: "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access not enabled";
    PRIMARY_CONTEXT_ACTIVE = 708: "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "primary context active";
    CONTEXT_IS_DESTROYED = 709: "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed";
    ASSERT = 710: "CUDA_ERROR_ASSERT", "assert";
    TOO_MANY_PEERS = 711: "CUDA_ERROR_TOO_MANY_PEERS", "too many peers";
    HOST_MEMORY_ALREADY_REGISTERED = 712: "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "host memory already registered";
    HOST_MEMORY_NOT_REGISTERED = 713: "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "host memory not registered";
    HARDWARE_STACK_ERROR = 714: "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error";
    ILLEGAL_INSTRUCTION = 715: "CUDA_ERROR_ILLEGAL_INSTRUCTION", "illegal instruction";
    MISALIGNED_ADDRESS = 716: "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address";
    INVALID_ADDRESS_SPACE = 717: "CUDA_ERROR_INVALID_ADDRESS_SPACE", "invalid address space";
    INVALID_PC = 718: "CUDA_ERROR_INVALID_PC", "invalid pc";
    LAUNCH_FAILED = 719: "CUDA_ERROR_LAUNCH_FAILED", "launch failed";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720: "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "cooperative launch too large";
    TENSOR_MEMORY_LEAK = 721: "CUDA_ERROR_TENSOR_MEMORY_LEAK", "tensor memory leak";
    NOT_PERMITTED = 800: "CUDA_ERROR_NOT_PERMITTED", "not permitted";
    NOT_SUPPORTED = 801: "CUDA_ERROR_NOT_SUPPORTED", "not supported";
    SYSTEM_NOT_READY = 802: "CUDA_ERROR_SYSTEM_NOT_READY", "system not ready";
    SYSTEM_DRIVER_MISMATCH = 803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system driver mismatch";
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804: "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "compat not supported on device";
    MPS_CONNECTION_FAILED = 805: "CUDA_ERROR_MPS_CONNECTION_FAILED", "mps connection failed";
    MPS_RPC_FAILURE = 806: "CUDA_ERROR_MPS_RPC_FAILURE", "mps rpc failure";
    MPS_SERVER_NOT_READY = 807: "CUDA_ERROR_MPS_SERVER_NOT_READY", "mps server not ready";
    MPS_MAX_CLIENTS_REACHED = 808: "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "mps max clients reached";
    MPS_MAX_CONNECTIONS_REACHED = 809: "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "mps max connections reached";
    MPS_CLIENT_TERMINATED = 810: "CUDA_ERROR_MPS_CLIENT_TERMINATED", "mps client terminated";
    CDP_NOT_SUPPORTED = 811: "CUDA_ERROR_CDP_NOT_SUPPORTED", "cdp not supported";
    CDP_VERSION_MISMATCH = 812: "CUDA_ERROR_CDP_VERSION_MISMATCH", "cdp version mismatch";
    STREAM_CAPTURE_UNSUPPORTED = 900: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "stream capture unsupported";
    STREAM_CAPTURE_INVALIDATED = 901: "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "stream capture invalidated";
    STREAM_CAPTURE_MERGE = 902: "CUDA_ERROR_STREAM_CAPTURE_MERGE", "stream capture merge";
    STREAM_CAPTURE_UNMATCHED = 903: "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "stream capture unmatched";
    STREAM_CAPTURE_UNJOINED = 904: "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "stream capture unjoined";
    STREAM_CAPTURE_ISOLATION = 905: "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "stream capture isolation";
    STREAM_CAPTURE_IMPLICIT = 906: "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "stream capture implicit";
    CAPTURED_EVENT = 907: "CUDA_ERROR_CAPTURED_EVENT", "captured event";
    STREAM_CAPTURE_WRONG_THREAD = 908: "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "stream capture wrong thread";
    TIMEOUT = 909: "CUDA_ERROR_TIMEOUT", "timeout";
    GRAPH_EXEC_UPDATE_FAILURE = 910: "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "graph exec update failure";
    EXTERNAL_DEVICE = 911: "CUDA_ERROR_EXTERNAL_DEVICE", "external device";
    INVALID_CLUSTER_SIZE = 912: "CUDA_ERROR_INVALID_CLUSTER_SIZE", "invalid cluster size";
    FUNCTION_NOT_LOADED = 913: "CUDA_ERROR_FUNCTION_NOT_LOADED", "function not loaded";
    INVALID_RESOURCE_TYPE = 914: "CUDA_ERROR_INVALID_RESOURCE_TYPE", "invalid resource type";
    INVALID_RESOURCE_CONFIGURATION = 915: "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "invalid resource configuration";
    KEY_ROTATION = 916: "CUDA_ERROR_KEY_ROTATION", "key rotation";
    UNKNOWN = 999: "CUDA_ERROR_UNKNOWN", "unknown";
}
