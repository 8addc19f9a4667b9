//! `sublet checkpoint` on a store in a real S3 service.
//!
//! The test runs itself again as a child that saves: its environment has the credentials.

#[path = "../../softgpu-nvml/tests/python/venv.rs"]
mod venv;
#[path = "../../checkpoint/tests/service/weed.rs"]
mod weed;

use std::env;
use std::path::Path;
use std::process::{Command, Output};
use sublet::replicated::{CheckpointName, CheckpointStore, LogicalResourceName, SaveRequest, SchemaId, Version};
use weed::Weed;

const CONFIG: &str = "SUBLET_TEST_S3_CONFIG";

#[test]
fn child_saves() {
    let Some(config) = env::var_os(CONFIG) else { return };
    let store = CheckpointStore::from_config(config).expect("a store");
    let checkpoints =
        store.checkpoints(LogicalResourceName::new("training"), SchemaId::new("v1")).expect("checkpoints");
    let name = CheckpointName::new("job:demo:latest");
    let fence = checkpoints.open(&name).expect("a fence");
    for version in 0..2 {
        let request = SaveRequest::new(name.clone(), Version(version), fence).step(version * 10);
        checkpoints.save(request.part("layers/weights", vec![version as u8; 2048])).expect("a version");
    }
}

fn sublet(weed: &Weed, config: &Path, words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sublet"));
    command.env_clear().env("SUBLET_CHECKPOINTS", config).current_dir(config.parent().expect("a directory"));
    command.arg("checkpoint").args(words.split_whitespace());
    weed.lend_to(&mut command);
    command.output().expect("the command line can be started")
}

fn shown(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn checkpoints_in_a_real_service_are_listed_exported_and_removed() {
    if env::var_os(CONFIG).is_some() {
        return;
    }
    let weed = Weed::start();
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("checkpoints.toml");
    // One more copy lies in a directory.
    std::fs::create_dir(directory.path().join("disk")).expect("a directory");
    let text = weed.config("checkpoints").replace("[replicas]\n", "[replicas]\ndisk = \"disk\"\n");
    std::fs::write(&config, text).expect("a file");
    let mut child = Command::new(env::current_exe().expect("a path"));
    child.args(["child_saves", "--exact", "--nocapture"]).env(CONFIG, &config);
    weed.lend_to(&mut child);
    let saved = child.output().expect("a child");
    assert!(saved.status.success(), "{}", shown(&saved));

    let listed = shown(&sublet(&weed, &config, "ls"));
    assert!(listed.contains("job:demo:latest") && listed.contains("  2 KiB  3 "), "{listed}");
    let versions = shown(&sublet(&weed, &config, "show demo"));
    assert!(versions.contains("s3://checkpoints/copies/a/training/job:demo:latest/000002-f2-"), "{versions}");
    let exported = sublet(&weed, &config, "export demo 1 model");
    assert!(exported.status.success(), "{}", shown(&exported));
    assert_eq!(std::fs::read(directory.path().join("model/layers/weights")).expect("a file"), vec![0; 2048]);
    let removed = sublet(&weed, &config, "rm demo 1");
    assert!(removed.status.success(), "{}", shown(&removed));
    let scrubbed = shown(&sublet(&weed, &config, "scrub demo"));
    assert!(scrubbed.contains("3 copies were whole"), "{scrubbed}");

    let denied = Command::new(env!("CARGO_BIN_EXE_sublet"))
        .env_clear()
        .env("SUBLET_CHECKPOINTS", &config)
        .envs([("AWS_ACCESS_KEY_ID", "wrong"), ("AWS_SECRET_ACCESS_KEY", "wrong")])
        .args(["checkpoint", "ls"])
        .output()
        .expect("the command line can be started");
    let denied_text = shown(&denied);
    assert!(!denied.status.success() && denied_text.contains("access is denied"), "{denied_text}");

    let text = std::fs::read_to_string(&config).expect("a file").replace("checkpoints/training", "none/training");
    std::fs::write(&config, text).expect("a file");
    let missing = shown(&sublet(&weed, &config, "ls"));
    assert!(missing.contains("bucket does not exist"), "{missing}");
}
