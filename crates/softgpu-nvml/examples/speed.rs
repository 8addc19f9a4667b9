//! How long calls take: `cargo run --release --package sublet-softgpu-nvml --example speed [processes]`.
//!
//! Prints microseconds per call: for many calls in a row, and for some with a pause before each. The processes are open
//! files of this one, which the library treats alike; the library is the one that cargo built beside this example.

use libloading::{Library, Symbol};
use std::ffi::{c_uint, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use sublet_softgpu::state::ENV;
use sublet_softgpu::{SoftGpuClient, SoftGpuState};

const CALLS: usize = 100_000;
/// Longer than the library uses its newest sample.
const PAUSE: Duration = Duration::from_millis(21);

type Ask<T> = unsafe extern "C" fn(*mut c_void, *mut T) -> c_uint;
type List = unsafe extern "C" fn(*mut c_void, *mut c_uint, *mut [u64; 3]) -> c_uint;
type Samples = unsafe extern "C" fn(*mut c_void, *mut [u64; 4], *mut c_uint, u64) -> c_uint;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let processes: usize = std::env::args().nth(1).map_or(Ok(1), |count| count.parse())?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("cards");
    SoftGpuState::create(&path, &"1x64GiB".parse()?)?;
    let clients: Result<Vec<_>, _> = (0..processes).map(|_| register_client(&path)).collect();
    let clients = clients?;
    let _kernel = clients.first().map(|client| client.start_kernel(0));
    // SAFETY: this process has one thread.
    unsafe { std::env::set_var(ENV, &path) };
    let place = std::env::current_exe()?;
    let place = place.ancestors().nth(2).ok_or("no directory")?.join("deps/libnvidia_ml.so");
    // SAFETY: the library does nothing when it is loaded.
    let library = unsafe { Library::new(&place)? };
    println!("{processes} processes, {}", place.display());
    measure(&library)
}

fn register_client(path: &Path) -> Result<SoftGpuClient, sublet_softgpu::StateError> {
    let client = SoftGpuClient::register(SoftGpuState::open(path)?)?;
    // Without free memory its bytes are zero, which costs no less to list.
    let _ = client.reserve(0, 64 << 20);
    client.row().gpus[0].contexts.store(1, SeqCst);
    Ok(client)
}

fn measure(library: &Library) -> Result<(), Box<dyn std::error::Error>> {
    let mut device = null_mut();
    // SAFETY: the functions have these arguments in NVML, and every pointer is to enough memory.
    unsafe {
        let init: Symbol<unsafe extern "C" fn() -> c_uint> = library.get("nvmlInit_v2")?;
        let handle: Symbol<unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_uint> =
            library.get("nvmlDeviceGetHandleByIndex_v2")?;
        assert_eq!((init(), handle(0, &raw mut device)), (0, 0));
        let memory: Symbol<Ask<[u64; 3]>> = library.get("nvmlDeviceGetMemoryInfo")?;
        time("memory info", || memory(device, &mut [0; 3]));
        let list: Symbol<List> = library.get("nvmlDeviceGetComputeRunningProcesses_v3")?;
        let mut room = vec![[0; 3]; 512];
        time("process list", || list(device, &mut 512, room.as_mut_ptr()));
        let rates: Symbol<Ask<[c_uint; 2]>> = library.get("nvmlDeviceGetUtilizationRates")?;
        time("utilisation", || rates(device, &mut [0; 2]));
        // After a pause the library reads the processes again, and the caches are cold.
        time_apart("utilisation, rested", 200, PAUSE, || rates(device, &mut [0; 2]));
        let samples: Symbol<Samples> = library.get("nvmlDeviceGetProcessUtilization")?;
        let mut room = vec![[0; 4]; 512];
        time("process utilisation", || samples(device, room.as_mut_ptr(), &mut 512, 0));
        let name: Symbol<unsafe extern "C" fn(*mut c_void, *mut u8, c_uint) -> c_uint> =
            library.get("nvmlDeviceGetName")?;
        time("name", || name(device, [0; 96].as_mut_ptr(), 96));
        time_apart("name, rested", 200, PAUSE, || name(device, [0; 96].as_mut_ptr(), 96));
    }
    Ok(())
}

fn time(what: &str, call: impl FnMut() -> c_uint) {
    time_apart(what, CALLS, Duration::ZERO, call);
}

fn time_apart(what: &str, calls: usize, pause: Duration, mut call: impl FnMut() -> c_uint) {
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        let begun = Instant::now();
        let code = call();
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        assert_eq!(code, 0, "{what}");
    }
    times.sort_by(f64::total_cmp);
    let at = |percent: usize| times[(calls - 1) * percent / 100];
    println!("{what:<20} median {:>6.2}, 99 % within {:>6.2}, longest {:.0}", at(50), at(99), at(100));
}
