//! One unloaded durable grant, beside one fdatasync on the same file system, alternately.

use crate::client::{Client, ask, bare, text_of};
use crate::disk::Pages;
use crate::figure::{Figure, Outcome, Target, digits};
use crate::rig::Rig;
use crate::samples::Samples;
use crate::service;
use anyhow::{Context, Result, ensure};
use std::thread;
use std::time::{Duration, Instant};

/// Enough for a steady median. At 512 MiB each, all of them fit on the GPU together, even if no reading
/// frees released bytes meanwhile.
const COUNT: usize = 500;

/// Long enough for the service to read the GPU after a release and to write the result: the service is
/// idle when a grant or a sync is measured.
const REST: Duration = Duration::from_millis(3);

/// Requests and syncs alternately.
pub fn run(rig: &Rig) -> Result<Outcome> {
    let folder = rig.fresh("grant")?;
    let service = service::sublet(rig, &folder, "scripted:1x1TiB")?.ready(&folder)?;
    let mut written = Pages::written(&folder.join("bench-written"), COUNT)?;
    let mut growing = Pages::growing(&folder.join("bench-growing"))?;
    let mut client = Client::connect(&service.socket)?;
    let request = ask(r#"{"vram_bytes":536870912,"tier":"batch"}"#);
    let [mut asks, mut releases, mut syncs, mut growths] = [(); 4].map(|()| Samples::with_capacity(COUNT));
    for _ in 0..COUNT {
        thread::sleep(REST);
        syncs.push(written.append()?);
        thread::sleep(REST);
        let start = Instant::now();
        let (status, body) = client.call(&request)?;
        asks.push(start.elapsed());
        ensure!(status == 201, "ask was answered {status}: {}", String::from_utf8_lossy(body));
        let id = text_of(body, br#""id":""#).context("granted lease without an id")?;
        let release = bare("DELETE", &format!("/v1/leases/{}", String::from_utf8_lossy(id)));
        let start = Instant::now();
        let (status, body) = client.call(&release)?;
        releases.push(start.elapsed());
        ensure!(status == 200, "release was answered {status}: {}", String::from_utf8_lossy(body));
    }
    for _ in 0..COUNT {
        growths.push(growing.append()?);
    }
    let (ask, sync) = (asks.quantiles(), syncs.quantiles());
    Ok(Outcome {
        figures: vec![Figure {
            what: "p50 of one unloaded durable grant, beside one fdatasync of 4 KiB",
            target: Target::AtMost(2.5),
            measured: ask.p50_us / sync.p50_us,
            unit: "×",
            note: format!("{} beside {} µs", digits(ask.p50_us), digits(sync.p50_us)),
        }],
        raw: serde_json::json!({
            "ask": ask,
            "release": releases.quantiles(),
            "fdatasync_written_file": sync,
            "fdatasync_growing_file": growths.quantiles(),
        }),
    })
}
