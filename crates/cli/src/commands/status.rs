//! `sublet` without a command: the GPUs, their leases and processes, and a summary of the queue.

use super::gpus::{occupants, overview};
use crate::args::Globals;
use crate::client::Client;
use crate::failure::{Failure, tell_hint};
use crate::output;
use crate::table::{TextFormat, plain, wrapped};
use crate::text;
use serde::Serialize;
use sublet_softgpu::NOTICE;
use sublet_wire::{
    Gpu, GpuState, Gpus, Lease, Leases, NextStep, UnleasedProcess, UnleasedProcesses, UnleasedStep, exit, span,
};

/// What `--json` prints.
#[derive(Serialize)]
struct Status<'a> {
    kind: &'a str,
    gpus: &'a [Gpu],
    queue: &'a [Lease],
}

/// Prints the status.
pub fn run(globals: &Globals) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let gpus: Gpus = client.get("/v1/gpus")?;
    let queue: Leases = client.get("/v1/queue")?;
    let unleased: UnleasedProcesses = client.get("/v1/unleased")?;
    if globals.json {
        output::json(&Status { kind: &gpus.kind, gpus: &gpus.gpus, queue: &queue.leases })?;
        return Ok(exit::OK);
    }
    let own = client.leases(false)?;
    output::print(&render(&gpus, &queue, &own.leases, text::now_unix_s(), TextFormat::of_stdout()))?;
    if let Some(trouble) = &gpus.config_trouble {
        eprintln!(
            "the last reload of the configuration was refused, and the one before it is in use: {}",
            plain(trouble)
        );
    }
    unleased
        .processes
        .iter()
        .filter_map(warning)
        .for_each(|warning| eprintln!("{}", wrapped(&warning, 2, TextFormat::of_stderr())));
    tell_hint(&hint(&gpus, &queue));
    Ok(exit::OK)
}

fn render(gpus: &Gpus, queue: &Leases, own: &[Lease], now_unix_s: f64, format: TextFormat) -> String {
    let mut sections = vec![overview(gpus, format)];
    sections.extend(occupants(gpus, own, now_unix_s, format));
    sections.push(wrapped(&waiting(queue), 2, format) + "\n");
    match gpus.kind.as_str() {
        "real" => {}
        "soft" => sections.push(wrapped(NOTICE, 2, format) + "\n"),
        kind => sections.push(format!("these GPUs are {kind}: nothing is computed on them\n")),
    }
    sections.join("\n")
}

/// The warning to the owner of an unleased process that is about to be parked or ended; `None` if nothing is about to
/// happen.
fn warning(process: &UnleasedProcess) -> Option<String> {
    if process.step == UnleasedStep::Found {
        return None;
    }
    let left = span::show(process.next_in_s.unwrap_or_default().max(0.0));
    let who = format!("{} (process {} of {})", process.id, process.pid, plain(&process.user));
    let next = match (&process.next_signal, process.next, &process.lease) {
        (Some(signal), ..) => format!("gets {signal} in {left}"),
        (None, NextStep::Parked, None) => format!("is parked in {left}, or ended if it cannot be"),
        (None, NextStep::Parked, Some(lease)) => {
            return Some(format!(
                "{who} never asked for a lease and is being parked: `sublet resume {lease}` brings it back"
            ));
        }
        _ => return None,
    };
    Some(match &process.belongs_to {
        None => format!("{who} has no lease and {next}: `sublet adopt {}` gives it one", process.pid),
        Some(lease) => {
            let gpus = if process.gpu_indices.len() == 1 { "its GPU" } else { "its GPUs" };
            format!("{who} is of {lease}, which is not for {gpus}, and {next}: ask for all of its GPUs in one lease")
        }
    })
}

fn waiting(queue: &Leases) -> String {
    let Some(first) = queue.leases.first() else { return "no request waits".into() };
    let more = if queue.more { " or more" } else { "" };
    let n = queue.leases.len();
    let (request, wait) = if n == 1 && !queue.more { ("request", "waits") } else { ("requests", "wait") };
    let asks = text::wish(first.requested_vram_bytes, first.gpus);
    let start = first.waiting.as_ref().map_or_else(String::new, |waiting| format!(", {}", text::start(waiting)));
    let (tier, user) = (text::tier(first.tier), plain(&first.user));
    format!("{n}{more} {request} {wait}; next: {asks} ({tier}) for {user}{start}")
}

fn hint(gpus: &Gpus, queue: &Leases) -> String {
    let usable = |gpu: &&Gpu| gpu.state == GpuState::InService && gpu.unreadable.is_none();
    match gpus.gpus.iter().filter(usable).map(|gpu| gpu.promisable_bytes).max() {
        None => "no lease can be granted now; `sublet doctor` says why".into(),
        Some(_) if !queue.leases.is_empty() => "`sublet queue` shows what waits, and why".into(),
        Some(room) => match room >> 30 {
            0 => "`sublet run -- COMMAND` waits for room and runs a command".into(),
            gib => format!("`sublet run --vram {}G -- COMMAND` runs a command on a GPU", gib.min(8)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use expect_test::expect;

    #[test]
    fn the_status_says_who_is_where_and_who_waits() {
        expect![[r#"
            GPU  MODEL                    USED   TOTAL  FREE TO LEASE  STATE
            0    NVIDIA A100-SXM4-40GB  11 GiB  40 GiB         26 GiB  in service
            1    NVIDIA A100-SXM4-40GB     0 B  40 GiB            0 B  draining
            2    NVIDIA A100-SXM4-40GB       -  40 GiB            0 B  unreadable
            GPU 1 is draining: an operator drains it
            GPU 2 is unreadable: the GPU did not answer; no new leases there until it does

            GPU  LEASE    NAME   USER  TIER   STATE     LEASED     USED   FOR
            0    L7       train  ana   batch  active    10 GiB  7.8 GiB  60 s
            0    pid 991  -      -     -      unleased       -    3 GiB     -

            2 requests wait; next: 16 GiB on each of 2 GPUs (batch) for ana, when it starts is not known
        "#]]
        .assert_eq(&render(&sample::gpus(), &sample::queue(), &[sample::lease()], sample::NOW, TextFormat::default()));
        expect!["`sublet queue` shows what waits, and why"].assert_eq(&hint(&sample::gpus(), &sample::queue()));
    }

    #[test]
    fn an_empty_host_is_short() {
        let mut gpus = sample::gpus();
        gpus.kind = "scripted".into();
        gpus.gpus.truncate(1);
        gpus.gpus[0].occupants.clear();
        let queue = Leases { leases: vec![], more: false };
        expect![[r#"
            GPU  MODEL                    USED   TOTAL  FREE TO LEASE  STATE
            0    NVIDIA A100-SXM4-40GB  11 GiB  40 GiB         26 GiB  in service

            no request waits

            these GPUs are scripted: nothing is computed on them
        "#]]
        .assert_eq(&render(&gpus, &queue, &[], sample::NOW, TextFormat::default()));
        expect!["`sublet run --vram 8G -- COMMAND` runs a command on a GPU"].assert_eq(&hint(&gpus, &queue));
        gpus.kind = "soft".into();
        gpus.gpus.clear();
        expect![[r#"
            no GPUs

            no request waits

            these are soft GPUs: programs of CUDA's driver API run on them, PyTorch and the like do not
        "#]]
        .assert_eq(&render(&gpus, &queue, &[], sample::NOW, TextFormat::default()));
        expect!["no lease can be granted now; `sublet doctor` says why"].assert_eq(&hint(&gpus, &queue));
    }
}
