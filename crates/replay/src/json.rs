//! A trace as JSON: an array of jobs, or one job on each line.

use crate::host_gpus::read_size;
use crate::trace::{JobRow, Trace, TraceBuilder, TraceError};
use serde::Deserialize;
use serde_json::value::RawValue;
use sublet_core::request::Tier;

/// One job. Unknown fields are errors: a misspelt `priority` must not be lost.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JobJson {
    arrival_s: f64,
    tenant: String,
    vram: SizeJson,
    gpus: u64,
    duration_s: f64,
    tier: Tier,
    #[serde(default)]
    priority: i64,
    #[serde(default)]
    name: Option<String>,
}

/// Bytes, or a text with a unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum SizeJson {
    Bytes(u64),
    Text(String),
}

/// True if a text is meant as JSON.
pub fn is_json(text: &str) -> bool {
    text.trim_start_matches('\u{feff}').trim_start().starts_with(['[', '{'])
}

/// Reads a trace in either form.
pub fn read(text: &str, source: &str) -> Result<Trace, TraceError> {
    let text = text.trim_start_matches('\u{feff}');
    let mut builder = TraceBuilder::new(source);
    if text.trim_start().starts_with('[') {
        let jobs: Vec<&RawValue> = serde_json::from_str(text)
            .map_err(|error| TraceError::at(error.line(), message_without_position(&error)))?;
        let (mut line, mut counted) = (1, 0);
        for job in jobs {
            // The position of the job in the text gives its line.
            let begins = job.get().as_ptr() as usize - text.as_ptr() as usize;
            line += text[counted..begins].matches('\n').count();
            counted = begins;
            push(&mut builder, job.get(), line)?;
        }
    } else {
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            push(&mut builder, line, number + 1)?;
        }
    }
    builder.finish()
}

fn push(builder: &mut TraceBuilder, text: &str, line: usize) -> Result<(), TraceError> {
    let job: JobJson = serde_json::from_str(text)
        .map_err(|error| TraceError::at(line + error.line().max(1) - 1, message_without_position(&error)))?;
    row(job).and_then(|row| builder.push(row)).map_err(|what| TraceError::at(line, what))
}

/// The message of the JSON library without its position: the caller puts the line in front.
fn message_without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_owned()
}

fn row(job: JobJson) -> Result<JobRow, String> {
    let vram = match job.vram {
        SizeJson::Bytes(bytes) => bytes,
        SizeJson::Text(text) => read_size(&text).map_err(|what| format!("`vram`: {what}"))?,
    };
    Ok(JobRow {
        arrival_s: job.arrival_s,
        tenant: job.tenant,
        vram,
        gpus: job.gpus,
        duration_s: job.duration_s,
        tier: job.tier,
        priority: job.priority,
        name: job.name,
    })
}
