//! Dependencies go one way: which packages a package may depend on (know).
//!
//! ```text
//!   core   wire   checkpoint   ptx   softgpu   shim-wire   know no other; shim knows shim-wire
//!   journal  host  replay   know core; host also softgpu, to make soft GPUs, and shim-wire; its
//!                        tests know the soft GPUs' libraries
//!   ptx-fuzz             knows ptx
//!   daemon               knows core, journal, host, wire, checkpoint
//!   sublet (crates/sdk)  knows wire and checkpoint; it reaches the daemon over its API only
//!   cli                  knows sublet, for its client of the API, wire, shim-wire, replay and softgpu, and starts daemon
//!   sim, bench, blackbox, xtask   may know all, and no other knows them
//!   cookbook             knows sublet, as users' programs do
//!   examples             know no other; their tests know the soft GPUs
//!   examples/train       knows sublet and examples
//! ```

use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeSet;

/// The packages that a package of this workspace may depend on.
enum MayKnow {
    /// Only these.
    Only(&'static [&'static str]),
    /// The first list; its tests may also depend on the second.
    PlusInTests(&'static [&'static str], &'static [&'static str]),
    /// All packages.
    Everything,
}

const RULES: [(&str, MayKnow); 25] = [
    ("sublet-core", MayKnow::Only(&[])),
    ("sublet-wire", MayKnow::Only(&[])),
    ("sublet-checkpoint", MayKnow::Only(&[])),
    ("sublet-ptx", MayKnow::Only(&[])),
    ("sublet-shim-wire", MayKnow::Only(&[])),
    ("sublet-shim", MayKnow::Only(&["sublet-shim-wire"])),
    ("sublet-ptx-fuzz", MayKnow::Only(&["sublet-ptx"])),
    ("sublet-journal", MayKnow::Only(&["sublet-core"])),
    (
        "sublet-host",
        MayKnow::PlusInTests(
            &["sublet-core", "sublet-softgpu", "sublet-shim-wire"],
            &["sublet-softgpu-cuda", "sublet-softgpu-nvml"],
        ),
    ),
    ("sublet-replay", MayKnow::Only(&["sublet-core"])),
    ("sublet-softgpu", MayKnow::Only(&[])),
    ("sublet-softgpu-nvml", MayKnow::Only(&["sublet-softgpu"])),
    ("sublet-softgpu-cuda", MayKnow::Only(&["sublet-softgpu", "sublet-ptx"])),
    (
        "sublet-daemon",
        MayKnow::Only(&["sublet-core", "sublet-journal", "sublet-host", "sublet-wire", "sublet-checkpoint"]),
    ),
    ("sublet", MayKnow::Only(&["sublet-wire", "sublet-checkpoint"])),
    (
        "sublet-cli",
        MayKnow::Only(&[
            "sublet",
            "sublet-wire",
            "sublet-daemon",
            "sublet-replay",
            "sublet-softgpu",
            "sublet-shim-wire",
        ]),
    ),
    (
        "sublet-examples",
        MayKnow::PlusInTests(&[], &["sublet-softgpu", "sublet-softgpu-cuda", "sublet-softgpu-nvml", "sublet-shim"]),
    ),
    ("sublet-example-train", MayKnow::Only(&["sublet", "sublet-examples"])),
    ("cookbook-preemptible-training", MayKnow::Only(&["sublet"])),
    ("cookbook-gpu-studio", MayKnow::Only(&["sublet"])),
    ("cookbook-five-minute-gpu", MayKnow::Only(&["sublet"])),
    ("sublet-sim", MayKnow::Everything),
    ("sublet-bench", MayKnow::Everything),
    ("sublet-blackbox", MayKnow::Everything),
    ("xtask", MayKnow::Everything),
];

/// One sentence for each dependency that goes the wrong way.
pub fn violations(metadata: &Value) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().context("`cargo metadata` lists no packages")?;
    let own: BTreeSet<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut found = Vec::new();
    for package in packages {
        let name = package["name"].as_str().context("a package has no name")?;
        let Some((_, rule)) = RULES.iter().find(|(ruled, _)| *ruled == name) else {
            found.push(format!(
                "package `{name}` has no rule: say in xtask/src/direction.rs which packages it may depend on"
            ));
            continue;
        };
        let (allowed, in_tests): (&[&str], &[&str]) = match rule {
            MayKnow::Only(allowed) => (allowed, &[]),
            MayKnow::PlusInTests(allowed, in_tests) => (allowed, in_tests),
            MayKnow::Everything => continue,
        };
        let dependencies = package["dependencies"].as_array().context("a package has no list of dependencies")?;
        let known: BTreeSet<(&str, bool)> = dependencies
            .iter()
            .filter_map(|dependency| Some((dependency["name"].as_str()?, dependency["kind"] == "dev")))
            .collect();
        for (wrong, is_in_tests) in known {
            let tested = in_tests.iter().filter(|_| is_in_tests);
            let allowed: Vec<&str> = allowed.iter().chain(tested).copied().collect();
            if own.contains(wrong) && !allowed.contains(&wrong) {
                let rule = if allowed.is_empty() { "none".into() } else { allowed.join(", ") };
                found.push(format!("`{name}` depends on `{wrong}`, but may depend only on: {rule}"));
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_dependency_the_wrong_way_is_named_with_its_rule() {
        let metadata = json!({"packages": [
            {"name": "sublet-core", "dependencies": [{"name": "serde"}, {"name": "sublet-wire"}]},
            {"name": "sublet-wire", "dependencies": []},
            {"name": "sublet-journal", "dependencies": [{"name": "sublet-core"}]},
            {"name": "sublet-sim", "dependencies": [{"name": "sublet-journal"}]},
            {"name": "sublet-softgpu", "dependencies": []},
            {"name": "sublet-examples", "dependencies": [
                {"name": "sublet-softgpu", "kind": "dev"}, {"name": "sublet-softgpu", "kind": null},
            ]},
            {"name": "sublet-new", "dependencies": []},
        ]});
        assert_eq!(
            violations(&metadata).unwrap(),
            [
                "`sublet-core` depends on `sublet-wire`, but may depend only on: none",
                "`sublet-examples` depends on `sublet-softgpu`, but may depend only on: none",
                "package `sublet-new` has no rule: say in xtask/src/direction.rs which packages it may depend on",
            ]
        );
    }

    #[test]
    fn this_workspace_keeps_the_direction() {
        assert_eq!(violations(&crate::workspace::own_packages().unwrap()).unwrap(), Vec::<String>::new());
    }
}
