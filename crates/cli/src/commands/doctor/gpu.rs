//! Checks of one GPU.

use super::{Check, CheckState};
use sublet_wire::{Gpu, GpuState, Mode, size};

/// All checks of one GPU.
pub fn checks(gpu: &Gpu, parking: bool) -> Vec<Check> {
    let name = |what: &str| format!("GPU {} {what}", gpu.index);
    vec![
        Check::new(format!("GPU {}", gpu.index), CheckState::Ok, format!("{}, {}", gpu.name, gpu.uuid)),
        grant(gpu, name("grant")),
        processes(gpu, name("bytes")),
        context(gpu, name("context")),
        Check::new(name("exits"), CheckState::Ok, "a lease ends as soon as its last process has ended"),
        park(gpu, parking, name("park")),
        enforce(gpu, name("enforce")),
    ]
}

fn enforce(gpu: &Gpu, name: String) -> Check {
    let what = match gpu.mode {
        Mode::Observe => "observe: unleased processes are recorded and left alone",
        Mode::Adopt => "adopt: unleased processes of known users get a lease",
        Mode::Warn => "warn: the users of unleased processes are warned",
        Mode::Enforce if gpu.coarse => {
            let text = "enforce: but the driver does not tell bytes per process, so no process is ended";
            return Check::new(name, CheckState::Limited, text);
        }
        Mode::Enforce => "enforce: unleased processes are warned, then ended; `sublet enforce status` shows them",
    };
    Check::new(name, CheckState::Ok, what)
}

fn park(gpu: &Gpu, parking: bool, name: String) -> Check {
    match () {
        () if !parking => {
            Check::new(name, CheckState::Limited, "no program is parked here: a waiter waits until a lease's term ends")
        }
        () if gpu.unreadable.is_some() => {
            Check::new(name, CheckState::Limited, "unknown while the GPU does not answer")
        }
        () if gpu.coarse => {
            let text = "one program at a time is parked, and only with Sublet's library in it: a park is verified by \
                        the use of the whole GPU";
            Check::new(name, CheckState::Limited, text)
        }
        () => Check::new(
            name,
            CheckState::Ok,
            "programs that `sublet run` starts are parked; `sublet ps` says which cannot be",
        ),
    }
}

fn grant(gpu: &Gpu, name: String) -> Check {
    if let (Some(unreadable), GpuState::InService) = (&gpu.unreadable, gpu.state) {
        return Check::new(name, CheckState::Bad, unreadable.sentence.clone());
    }
    let why = |fallback: &str| gpu.state_why.clone().unwrap_or_else(|| fallback.into());
    let put_back = format!("hint: put it back with `sublet gpus clear {}`", gpu.index);
    match gpu.state {
        GpuState::InService => {
            let (free, total) = (size::show(gpu.promisable_bytes), size::show(gpu.total_bytes));
            Check::new(name, CheckState::Ok, format!("{free} of {total} free to lease"))
        }
        GpuState::Aside => Check::new(name, CheckState::Limited, format!("it steps aside {}", why("for a user"))),
        GpuState::Draining => {
            Check::new(name, CheckState::Bad, format!("draining: {}\n{put_back}", why("by an operator")))
        }
        GpuState::OutOfService => {
            Check::new(name, CheckState::Bad, format!("out of service: {}\n{put_back}", why("it could not be trusted")))
        }
        GpuState::Unusable => Check::new(name, CheckState::Bad, why("it cannot be leased as it is set up")),
        GpuState::Missing => Check::new(name, CheckState::Bad, why("it was there once and is not now")),
    }
}

fn processes(gpu: &Gpu, name: String) -> Check {
    if gpu.unreadable.is_some() {
        Check::new(name, CheckState::Limited, "unknown while the GPU does not answer")
    } else if gpu.coarse {
        let sentence = "the driver does not tell the memory of each process (coarse): the larger of used and leased \
                        memory counts as taken, and peaks are unknown";
        Check::new(name, CheckState::Limited, sentence)
    } else {
        Check::new(name, CheckState::Ok, "the driver tells the memory of each process")
    }
}

fn context(gpu: &Gpu, name: String) -> Check {
    match gpu.context_bytes {
        Some(bytes) => Check::new(
            name,
            CheckState::Ok,
            format!("a CUDA context needs {}; smaller requests are refused", size::show(bytes)),
        ),
        None => Check::new(
            name,
            CheckState::Limited,
            "the size of a CUDA context was not measured: requests too small for one are granted",
        ),
    }
}
