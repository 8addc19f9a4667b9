//! `sublet gpus`: lists the GPUs, drains one, or puts one back into service.

use crate::args::Globals;
use crate::client::Client;
use crate::completion;
use crate::failure::Failure;
use crate::output;
use crate::table::{Table, TextFormat, Tone, once, plain, wrapped};
use crate::text;
use clap::{Args, Subcommand};
use sublet_wire::{Gpu, GpuState, Gpus, Lease, Occupant, exit, size};

/// Show the GPUs, drain one, or put one back into service
#[derive(Args, Clone, Debug)]
pub struct GpusArgs {
    #[command(subcommand)]
    verb: Option<GpuVerb>,
}

/// What to do to a GPU.
#[derive(Subcommand, Clone, Debug)]
pub enum GpuVerb {
    /// Grant no new lease on a GPU; those that are there continue (operators only)
    Drain {
        /// Index or UUID
        #[arg(add = completion::gpu())]
        gpu: String,
    },
    /// Put a GPU back into service (operators only)
    Clear {
        /// Index or UUID
        #[arg(add = completion::gpu())]
        gpu: String,
    },
}

/// Lists or changes GPUs.
pub fn run(globals: &Globals, args: &GpusArgs) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let gpus: Gpus = client.get("/v1/gpus")?;
    let (name, verb) = match &args.verb {
        None => return show(globals, &client, &gpus),
        Some(GpuVerb::Drain { gpu }) => (gpu, "drain"),
        Some(GpuVerb::Clear { gpu }) => (gpu, "clear"),
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

fn show(globals: &Globals, client: &Client, gpus: &Gpus) -> Result<u8, Failure> {
    if globals.json {
        output::json(gpus)?;
    } else {
        let own = client.leases(false)?;
        output::print(&render(gpus, &own.leases, text::now_unix_s(), TextFormat::of_stdout()))?;
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

/// One line for each GPU, and below them why some cannot be leased.
pub fn overview(gpus: &Gpus, format: TextFormat) -> String {
    let trouble = gpus.trouble.as_ref().map(|trouble| format!("the driver does not list its GPUs: {trouble}\n"));
    if gpus.gpus.is_empty() {
        return trouble.unwrap_or_else(|| "no GPUs\n".into());
    }
    let mut table = Table::new(&["GPU", "~MODEL", ">USED", ">TOTAL", ">FREE TO LEASE", "STATE"]);
    for gpu in &gpus.gpus {
        table.row([
            gpu.index.to_string(),
            gpu.name.clone(),
            text::bytes(gpu.used_bytes),
            size::show(gpu.total_bytes),
            size::show(gpu.promisable_bytes),
            state(gpu).into(),
        ]);
        table.set_tone("STATE", tone(gpu));
    }
    table.show("", format) + &reasons(&gpus.gpus, format) + &trouble.unwrap_or_default()
}

/// Why GPUs cannot be leased, each reason once.
fn reasons(gpus: &[Gpu], format: TextFormat) -> String {
    let indices: Vec<String> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
    let known = gpus.iter().zip(&indices).filter_map(|(gpu, index)| {
        let why = match &gpu.unreadable {
            Some(unreadable) if gpu.state == GpuState::InService => &unreadable.sentence,
            _ => gpu.state_why.as_ref()?,
        };
        Some((index.as_str(), format!("{}: {}", state(gpu), plain(why))))
    });
    let lines = once(known).into_iter().map(|(gpus, why)| {
        let (noun, are) = if gpus.len() == 1 { ("GPU", "is") } else { ("GPUs", "are") };
        wrapped(&format!("{noun} {} {are} {why}", text::names(&gpus)), 2, format) + "\n"
    });
    lines.collect()
}

/// The state of a GPU: `in service` only if it is also readable.
fn state(gpu: &Gpu) -> &'static str {
    match gpu.unreadable {
        Some(_) if gpu.state == GpuState::InService => "unreadable",
        _ => text::gpu_state(gpu.state),
    }
}

fn tone(gpu: &Gpu) -> Tone {
    match gpu.state {
        GpuState::InService if gpu.unreadable.is_none() => Tone::Plain,
        GpuState::Aside | GpuState::Draining => Tone::Notable,
        GpuState::InService | GpuState::OutOfService | GpuState::Unusable | GpuState::Missing => Tone::Wrong,
    }
}

/// The leases and processes on the GPUs; `None` if there are none. `own` are the caller's leases, for their names.
pub fn occupants(gpus: &Gpus, own: &[Lease], now_unix_s: f64, format: TextFormat) -> Option<String> {
    let headers = ["GPU", "LEASE", "~NAME", "~USER", "TIER", "STATE", ">LEASED", ">USED", ">FOR"];
    let mut table = Table::new(&headers).drops(&["TIER", "FOR", "NAME"]);
    for gpu in &gpus.gpus {
        for occupant in &gpu.occupants {
            let process = || occupant.pid.map_or_else(|| text::NONE.into(), |pid| format!("pid {pid}"));
            let lease = own.iter().find(|lease| occupant.lease.as_ref() == Some(&lease.id));
            let (state, tone) = occupant_state(occupant);
            table.row([
                gpu.index.to_string(),
                occupant.lease.clone().unwrap_or_else(process),
                text::or_none(lease.and_then(|lease| lease.name.as_deref())),
                text::or_none(occupant.user.as_deref()),
                occupant.tier.map_or(text::NONE, text::tier).into(),
                state,
                text::bytes(occupant.reserved_bytes),
                text::bytes(occupant.seen_bytes),
                text::since(occupant.since_unix_s, now_unix_s),
            ]);
            table.set_tone("STATE", tone);
        }
    }
    (!table.is_empty()).then(|| table.show("", format))
}

/// The state of a lease or process on a GPU. A process without a lease is `unleased`, and one that draws a screen
/// `display`.
fn occupant_state(occupant: &Occupant) -> (String, Tone) {
    match occupant.state.as_str() {
        state if occupant.exceeds_lease => (format!("{state}, exceeds lease"), Tone::Wrong),
        "unleased" => ("unleased".to_owned(), Tone::Notable),
        state @ ("active" | "display") => (state.to_owned(), Tone::Plain),
        state => (state.to_owned(), Tone::Notable),
    }
}

fn render(gpus: &Gpus, own: &[Lease], now_unix_s: f64, format: TextFormat) -> String {
    let mut sections = vec![overview(gpus, format)];
    sections.extend(gpus.gpus.iter().map(details));
    sections.extend(occupants(gpus, own, now_unix_s, format));
    sections.join("\n")
}

fn details(gpu: &Gpu) -> String {
    let taken = match (gpu.committed_bytes, gpu.unowned_bytes) {
        (Some(taken), Some(unowned)) => {
            format!("{} used or leased, {} of it without a lease", size::show(taken), size::show(unowned))
        }
        _ => "its use is unknown while it does not answer".into(),
    };
    let context = gpu.context_bytes.map_or_else(
        || "the size of a CUDA context was not measured".into(),
        |bytes| format!("a CUDA context needs {}", size::show(bytes)),
    );
    let seen = if gpu.coarse { "; the driver reports no memory per process (coarse)" } else { "" };
    format!("GPU {}: {}\n  {taken}\n  {context}{seen}\n", gpu.index, gpu.uuid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use expect_test::expect;

    #[test]
    fn each_gpu_is_shown_with_its_leases_and_processes() {
        expect![[r#"
            GPU  MODEL                    USED   TOTAL  FREE TO LEASE  STATE
            0    NVIDIA A100-SXM4-40GB  11 GiB  40 GiB         26 GiB  in service
            1    NVIDIA A100-SXM4-40GB     0 B  40 GiB            0 B  draining
            2    NVIDIA A100-SXM4-40GB       -  40 GiB            0 B  unreadable
            GPU 1 is draining: an operator drains it
            GPU 2 is unreadable: the GPU did not answer; no new leases there until it does

            GPU 0: GPU-0a
              14 GiB used or leased, 3 GiB of it without a lease
              a CUDA context needs 420 MiB

            GPU 1: GPU-1b
              256 MiB used or leased, 0 B of it without a lease
              the size of a CUDA context was not measured; the driver reports no memory per process (coarse)

            GPU 2: GPU-2c
              its use is unknown while it does not answer
              the size of a CUDA context was not measured; the driver reports no memory per process (coarse)

            GPU  LEASE    NAME   USER  TIER   STATE     LEASED     USED   FOR
            0    L7       train  ana   batch  active    10 GiB  7.8 GiB  60 s
            0    pid 991  -      -     -      unleased       -    3 GiB     -
        "#]]
        .assert_eq(&render(&sample::gpus(), &[sample::lease()], sample::NOW, TextFormat::default()));
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
