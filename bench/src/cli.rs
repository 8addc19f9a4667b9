//! What the command line costs: `sublet run` compared with the bare command, one `sublet lease` compared with
//! gflow's `gbatch`. All four kinds of call alternate.

use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::gflow::Gflow;
use crate::rig::BenchRig;
use crate::samples::Samples;
use crate::service;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Calls of each kind before the clock starts: page cache, first connection, first rows.
const WARM_UP: usize = 3;

/// Times all four.
pub fn run(rig: &BenchRig) -> Result<BenchOutcome> {
    let folder = rig.fresh_folder("cli")?;
    // A GPU with 1 GiB for every call, since a detached lease stays.
    let daemon = service::sublet(rig, &folder, "scripted:1x4TiB")?.await_ready(&folder)?;
    let gflow = Gflow::start(rig)?;
    let sublet = rig.sublet()?;
    let ours = |arguments: &[&str]| at_socket(&sublet, &daemon.socket, arguments);
    let mut bare = Command::new("true");
    let mut wrapped = ours(&["run", "--vram", "1G", "--", "true"]);
    let mut lease = ours(&["lease", "--vram", "1G", "--json", "--detach"]);
    let mut gbatch = gflow.submit();
    let [mut bares, mut wrappeds, mut leases, mut gbatches] = [(); 4].map(|()| Samples::with_capacity(rig.calls));
    for call in 0..WARM_UP + rig.calls {
        let each = [&mut bare, &mut wrapped, &mut lease, &mut gbatch].map(timed);
        let kept = [&mut bares, &mut wrappeds, &mut leases, &mut gbatches];
        for (took, samples) in each.into_iter().zip(kept) {
            let took = took?;
            if call >= WARM_UP {
                samples.push(took);
            }
        }
    }
    let [bare, wrapped, lease, gbatch] = [bares, wrappeds, leases, gbatches].map(|samples| samples.quantiles());
    let ms = |us: f64| us / 1e3;
    Ok(BenchOutcome {
        figures: vec![
            Figure {
                what: "`sublet run -- true` minus `true`, p50",
                target: FigureTarget::AtMost(10.0),
                measured: ms(wrapped.p50_us - bare.p50_us),
                unit: "ms",
                note: format!("{} minus {} ms", digits(ms(wrapped.p50_us)), digits(ms(bare.p50_us))),
            },
            Figure {
                what: "one `sublet lease` call, compared with gflow's `gbatch`, p50",
                target: FigureTarget::AtMost(0.2),
                measured: lease.p50_us / gbatch.p50_us,
                unit: "×",
                note: format!("{} compared with {} ms", digits(ms(lease.p50_us)), digits(ms(gbatch.p50_us))),
            },
        ],
        raw: serde_json::json!({ "true": bare, "sublet_run_true": wrapped, "sublet_lease": lease, "gbatch": gbatch }),
    })
}

fn at_socket(sublet: &Path, socket: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(sublet);
    command.args(arguments).env("SUBLET_SOCKET", socket);
    command
}

/// From before the spawn until the process was reaped.
fn timed(command: &mut Command) -> Result<Duration> {
    let program = command.get_program().to_owned();
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let start = Instant::now();
    let status = command.status().with_context(|| format!("cannot start `{}`", program.display()))?;
    let took = start.elapsed();
    ensure!(status.success(), "`{}` failed ({status})", program.display());
    Ok(took)
}
