//! One unloaded durable grant, compared with one fdatasync on the same file system, alternately.

use crate::client::{BenchClient, bodiless_request, json_text, lease_request};
use crate::disk::Pages;
use crate::figure::{BenchOutcome, Figure, FigureTarget, digits};
use crate::rig::BenchRig;
use crate::samples::Samples;
use crate::service;
use anyhow::{Context, Result, ensure};
use std::thread;
use std::time::{Duration, Instant};

/// Enough for a steady median. At 512 MiB each, all of them fit on the GPU together, even if no reading
/// frees released bytes meanwhile.
const GRANTS: usize = 500;

/// Long enough for the service to read the GPU after a release and to write the result: the service is
/// idle when a grant or a sync is measured.
const SETTLE_TIME: Duration = Duration::from_millis(3);

/// Requests and syncs alternately.
pub fn run(rig: &BenchRig) -> Result<BenchOutcome> {
    let folder = rig.fresh_folder("grant")?;
    let service = service::sublet(rig, &folder, "scripted:1x1TiB")?.await_ready(&folder)?;
    let mut written = Pages::written(&folder.join("bench-written"), GRANTS)?;
    let mut growing = Pages::growing(&folder.join("bench-growing"))?;
    let mut client = BenchClient::connect(&service.socket)?;
    let request = lease_request(r#"{"vram_bytes":536870912,"tier":"batch"}"#);
    let [mut asks, mut releases, mut syncs, mut growths] = [(); 4].map(|()| Samples::with_capacity(GRANTS));
    for _ in 0..GRANTS {
        thread::sleep(SETTLE_TIME);
        syncs.push(written.append()?);
        thread::sleep(SETTLE_TIME);
        let start = Instant::now();
        let (status, body) = client.call(&request)?;
        asks.push(start.elapsed());
        ensure!(status == 201, "ask was answered {status}: {}", String::from_utf8_lossy(body));
        let id = json_text(body, br#""id":""#).context("granted lease without an id")?;
        let release = bodiless_request("DELETE", &format!("/v1/leases/{}", String::from_utf8_lossy(id)));
        let start = Instant::now();
        let (status, body) = client.call(&release)?;
        releases.push(start.elapsed());
        ensure!(status == 200, "release was answered {status}: {}", String::from_utf8_lossy(body));
    }
    for _ in 0..GRANTS {
        growths.push(growing.append()?);
    }
    let (ask, sync) = (asks.quantiles(), syncs.quantiles());
    Ok(BenchOutcome {
        figures: vec![Figure {
            what: "p50 of one unloaded durable grant, compared with one fdatasync of 4 KiB",
            target: FigureTarget::AtMost(3.0),
            measured: ask.p50_us / sync.p50_us,
            unit: "×",
            note: format!("{} compared with {} µs", digits(ask.p50_us), digits(sync.p50_us)),
        }],
        raw: serde_json::json!({
            "ask": ask,
            "release": releases.quantiles(),
            "fdatasync_written_file": sync,
            "fdatasync_growing_file": growths.quantiles(),
        }),
    })
}
