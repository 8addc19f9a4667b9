//! `sublet gpus`: the GPUs one by one, and taking them out of and into service.

use crate::args::Globals;
use crate::client::Client;
use crate::failure::Failure;
use crate::output;
use crate::table::Table;
use crate::text;
use clap::{Args, Subcommand};
use sublet_wire::{Gpu, GpuState, Gpus, exit, size};

/// Show the GPUs, let one run empty, or put it back into service
#[derive(Args, Clone, Debug)]
pub struct GpusArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
}

/// What to do to a GPU.
#[derive(Subcommand, Clone, Debug)]
pub enum Verb {
    /// Grant nothing new on a GPU; what is on it goes on (operators only)
    Drain {
        /// Index or UUID
        gpu: String,
    },
    /// Put a GPU back into service (operators only)
    Clear {
        /// Index or UUID
        gpu: String,
    },
}

/// Lists or changes GPUs.
pub fn run(globals: &Globals, args: &GpusArgs) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let gpus: Gpus = client.get("/v1/gpus")?;
    let (name, verb) = match &args.verb {
        None => return show(globals, &gpus),
        Some(Verb::Drain { gpu }) => (gpu, "drain"),
        Some(Verb::Clear { gpu }) => (gpu, "clear"),
    };
    client.gpu(&find(&gpus, name)?.uuid, verb)?;
    let gpus: Gpus = client.get("/v1/gpus")?;
    let gpu = find(&gpus, name)?;
    if globals.json {
        output::json(gpu)?;
    } else {
        output::print(&format!("GPU {} is {}\n", gpu.index, text::gpu_state(gpu.state)))?;
    }
    Ok(exit::OK)
}

fn show(globals: &Globals, gpus: &Gpus) -> Result<u8, Failure> {
    if globals.json {
        output::json(gpus)?;
    } else {
        output::print(&render(gpus, text::now_unix_s()))?;
    }
    Ok(exit::OK)
}

/// The GPU with this index or UUID.
pub fn find<'a>(gpus: &'a Gpus, name: &str) -> Result<&'a Gpu, Failure> {
    let is_meant = |gpu: &&Gpu| match name.parse::<u32>() {
        Ok(index) => gpu.index == index,
        Err(_) => gpu.uuid.eq_ignore_ascii_case(name),
    };
    let known: Vec<String> = gpus.gpus.iter().map(|gpu| gpu.index.to_string()).collect();
    gpus.gpus.iter().find(is_meant).ok_or_else(|| {
        let failure = Failure::usage(format!("there is no GPU `{name}`"));
        if known.is_empty() { failure } else { failure.hint(format!("the GPUs are {}", known.join(", "))) }
    })
}

/// One line for each GPU.
pub fn overview(gpus: &Gpus) -> String {
    let trouble = gpus.trouble.as_ref().map(|trouble| format!("the driver does not list its GPUs: {trouble}\n"));
    if gpus.gpus.is_empty() {
        return trouble.unwrap_or_else(|| "no GPUs\n".into());
    }
    let mut table = Table::new(&["GPU", "MODEL", ">USED", ">TOTAL", ">FREE TO LEASE", "STATE"]);
    for gpu in &gpus.gpus {
        table.row([
            gpu.index.to_string(),
            gpu.name.clone(),
            text::bytes(gpu.used_bytes),
            size::show(gpu.total_bytes),
            size::show(gpu.promisable_bytes),
            state(gpu),
        ]);
    }
    table.show("") + &trouble.unwrap_or_default()
}

/// The state of a GPU: `in service` if it is also readable, and otherwise with the reason.
fn state(gpu: &Gpu) -> String {
    let state = text::gpu_state(gpu.state);
    match (&gpu.unreadable, &gpu.state_why) {
        (Some(unreadable), _) if gpu.state == GpuState::InService => format!("unreadable: {}", unreadable.sentence),
        (_, Some(why)) => format!("{state}: {why}"),
        (_, None) => state.into(),
    }
}

/// The leases and processes on the GPUs; `None` if there are none.
pub fn occupants(gpus: &Gpus, now_unix_s: f64) -> Option<String> {
    let mut table = Table::new(&["GPU", "USER", "LEASE", "TIER", "STATE", ">LEASED", ">SEEN", ">FOR"]);
    for gpu in &gpus.gpus {
        for occupant in &gpu.occupants {
            let process = || occupant.pid.map_or_else(|| text::NONE.into(), |pid| format!("pid {pid}"));
            table.row([
                gpu.index.to_string(),
                text::or_none(occupant.user.as_deref()),
                occupant.lease.clone().unwrap_or_else(process),
                occupant.tier.map_or(text::NONE, text::tier).into(),
                if occupant.exceeds_lease { format!("{}, over", occupant.state) } else { occupant.state.clone() },
                text::bytes(occupant.reserved_bytes),
                text::bytes(occupant.seen_bytes),
                text::since(occupant.since_unix_s, now_unix_s),
            ]);
        }
    }
    (!table.is_empty()).then(|| table.show(""))
}

fn render(gpus: &Gpus, now_unix_s: f64) -> String {
    let mut sections = vec![overview(gpus)];
    sections.extend(gpus.gpus.iter().map(details));
    sections.extend(occupants(gpus, now_unix_s));
    sections.join("\n")
}

fn details(gpu: &Gpu) -> String {
    let taken = match (gpu.committed_bytes, gpu.unowned_bytes) {
        (Some(taken), Some(loose)) => {
            format!("{} taken or promised, {} of it without a lease", size::show(taken), size::show(loose))
        }
        _ => "what is taken is unknown".into(),
    };
    let context = gpu.context_bytes.map_or_else(
        || "what a CUDA context takes was not measured".into(),
        |bytes| format!("a CUDA context takes {}", size::show(bytes)),
    );
    let seen = if gpu.coarse { "; bytes per process are not known (coarse)" } else { "" };
    format!("GPU {}: {}\n  {taken}\n  {context}{seen}\n", gpu.index, gpu.uuid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use expect_test::expect;

    #[test]
    fn each_gpu_is_shown_with_who_is_on_it() {
        expect![[r#"
            GPU  MODEL                    USED   TOTAL  FREE TO LEASE  STATE
            0    NVIDIA A100-SXM4-40GB  11 GiB  40 GiB         26 GiB  in service
            1    NVIDIA A100-SXM4-40GB     0 B  40 GiB            0 B  draining: an operator drains it
            2    NVIDIA A100-SXM4-40GB       -  40 GiB            0 B  unreadable: the GPU did not answer; no new leases there until it does

            GPU 0: GPU-0a
              14 GiB taken or promised, 3 GiB of it without a lease
              a CUDA context takes 420 MiB

            GPU 1: GPU-1b
              256 MiB taken or promised, 0 B of it without a lease
              what a CUDA context takes was not measured; bytes per process are not known (coarse)

            GPU 2: GPU-2c
              what is taken is unknown
              what a CUDA context takes was not measured; bytes per process are not known (coarse)

            GPU  USER  LEASE    TIER   STATE     LEASED     SEEN   FOR
            0    ana   L7       batch  active    10 GiB  7.8 GiB  60 s
            0    -     pid 991  -      unleased       -    3 GiB     -
        "#]].assert_eq(&render(&sample::gpus(), sample::NOW));
    }

    #[test]
    fn a_gpu_is_found_by_index_or_uuid() {
        let gpus = sample::gpus();
        assert_eq!(find(&gpus, "1").unwrap().uuid, "GPU-1b");
        assert_eq!(find(&gpus, "gpu-2C").unwrap().index, 2);
        expect![[r#"
            there is no GPU `9`
            hint: the GPUs are 0, 1, 2"#]]
        .assert_eq(&find(&gpus, "9").unwrap_err().to_string());
    }
}
