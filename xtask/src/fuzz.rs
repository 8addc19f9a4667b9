//! The API of a live service against its own description: openapi-spec-validator
//! reads the document, schemathesis tries what it promises.

use crate::service::ThrowawayService;
use crate::shell::program;
use crate::workspace::{Profile, build_sublet};
use crate::{bridge, setup};
use anyhow::Result;
use std::fs;
use std::path::Path;

/// Enough to meet every operation with every kind of bad value; more finds little in CI's time.
const EXAMPLES: &str = "40";

/// `cargo xtask fuzz`.
pub fn fuzz() -> Result<()> {
    setup::c_compiler()?;
    let tools = setup::python_tools()?;
    against(&build_sublet(Profile::Debug)?, &tools)
}

/// Starts `sublet`, tries it with the programs in `tools`, stops it.
pub fn against(sublet: &Path, tools: &Path) -> Result<()> {
    let service = ThrowawayService::start(sublet)?;
    let document = service.dir().join("openapi.json");
    fs::write(&document, service.get("/openapi.json")?)?;
    program(tools.join("openapi-spec-validator")).args([&document]).run()?;
    let port = bridge::open(service.socket())?;
    program(tools.join("schemathesis"))
        .dir(service.dir())
        .args(["run", &format!("http://127.0.0.1:{port}/openapi.json")])
        // Events never end by themselves; the black-box tests read them.
        .args(["--exclude-path", "/v1/events"])
        .args(["--phases", "examples,coverage,fuzzing"])
        // A well-formed request may still be too big for the GPU (422), so the check
        // that all valid data is accepted cannot be used.
        .args(["--checks", "all", "--exclude-checks", "positive_data_acceptance"])
        .args(["--max-examples", EXAMPLES, "--request-timeout", "60", "--workers", "2"])
        // The same run every time, so that a failure can be reproduced.
        .args(["--generation-deterministic", "--no-color"])
        .run()?;
    service.stop()
}
