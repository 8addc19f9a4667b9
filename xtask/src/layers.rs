//! Modules of a crate use each other in one direction: no cycles, and no use of a higher layer.
//!
//! ```text
//!   a crate's files ──► tokens ──► paths that begin with `crate::` or reach the root by `super::`
//!                                    │  (layers/source.rs)
//!                                    ▼
//!   which top-level module uses which other ──► cycles;  uses of a higher layer of the table below
//! ```
//! A module is a top-level one with all that is below it. In some crates the modules of each layer are checked in the
//! same way. Tests are left out: `#[cfg(test)]`, `tests.rs`, `tests/`.
//!
//! Absent: macros by their textual scope, `#[path]`, and paths that a macro builds. `cargo xtask layers CRATE` prints the
//! cycles of any crate, also of one that is not in the table.

mod source;

use anyhow::{Result, bail};
use source::{CrateSource, UsePlace};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A crate whose modules have no cycles.
struct LayeredCrate {
    /// Its folder in `crates`.
    name: &'static str,
    /// Its modules, the lowest layer first: a module may use those of its own layer and of lower ones. Empty: only
    /// cycles are checked.
    layers: &'static [&'static [&'static str]],
    /// Top-level modules whose own modules have no cycles either.
    inside: &'static [&'static str],
}

/// To add a crate, measure it with `cargo xtask layers CRATE` and add an entry.
const CRATES: &[LayeredCrate] = &[CORE, SHIM];

const CORE: LayeredCrate = LayeredCrate {
    name: "core",
    layers: &[&["model"], &["state"], &["policy"], &["decide"]],
    inside: &["model", "state", "policy"],
};

const SHIM: LayeredCrate = LayeredCrate {
    name: "shim",
    layers: &[
        // What knows nothing of the driver: plain data, the system, the environment.
        &[
            "contexts",
            "copy_size",
            "daemon_link",
            "function_class",
            "lease_setting",
            "loader_symbols",
            "log",
            "packet_socket",
            "ranges",
            "small_allocations",
            "threads",
        ],
        // The driver's functions, and the lease.
        &["arena", "driver", "lease_page", "memory_table", "out_pointer", "outside_access", "slots"],
        // The gate and the way through it.
        &["gate", "trampoline"],
        // The memory of the program.
        &[
            "allocations",
            "driver_pools",
            "gpu_memory",
            "ipc",
            "peer_access",
            "plain_blocks",
            "pool",
            "unmovable_memory",
        ],
        // What moves it.
        &["deferred_calls", "park"],
        // The daemon's orders.
        &["control_thread"],
        // What the program gets instead of the driver's functions and of NVML's.
        &["activation", "hook", "nvml", "replacements"],
        // How programs enter.
        &["entry_points"],
    ],
    inside: &[],
};

/// One line for each cycle, and for each use of a higher layer, in the crates of the table.
pub fn violations(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for layered in CRATES {
        let source = source_of(root, layered.name)?;
        let graph = ModuleGraph::of(&source);
        found.extend(cycle_lines(&graph));
        found.extend(layer_lines(&graph, layered.layers));
        found.extend(layered.inside.iter().flat_map(|module| cycle_lines(&ModuleGraph::of(&source.inside(module)))));
    }
    Ok(found)
}

/// Prints the modules in cycles of a crate, or of all crates of the table.
pub fn report(root: &Path, arguments: &[String]) -> Result<()> {
    let names: Vec<&str> = match arguments {
        [] => CRATES.iter().map(|layered| layered.name).collect(),
        [name] => vec![name],
        _ => bail!("`cargo xtask layers` takes one crate: the name of a folder in crates/"),
    };
    for name in names {
        let source = source_of(root, name)?;
        print!("{}", report_text(name, &ModuleGraph::of(&source)));
        let layered = CRATES.iter().find(|layered| layered.name == name);
        for module in layered.into_iter().flat_map(|layered| layered.inside) {
            print!("{}", report_text(&format!("{name}::{module}"), &ModuleGraph::of(&source.inside(module))));
        }
    }
    Ok(())
}

fn source_of(root: &Path, name: &str) -> Result<CrateSource> {
    CrateSource::read(root, &format!("crates/{name}"))
}

/// Which modules use which others.
struct ModuleGraph {
    /// The crate's folder.
    folder: String,
    modules: BTreeSet<String>,
    /// For each module what it uses, and where it does so first.
    uses: BTreeMap<String, BTreeMap<String, UsePlace>>,
    /// Uses that cannot be followed.
    unclear: Vec<UsePlace>,
}

impl ModuleGraph {
    fn of(source: &CrateSource) -> ModuleGraph {
        let mut graph = ModuleGraph {
            folder: source.folder.clone(),
            modules: source.modules(),
            uses: BTreeMap::new(),
            unclear: Vec::new(),
        };
        for found in source.uses() {
            match found.to {
                Some(to) if to != found.from => {
                    graph.uses.entry(found.from).or_default().entry(to).or_insert(found.place);
                }
                Some(_) => {}
                None => graph.unclear.push(found.place),
            }
        }
        graph
    }

    fn uses_of(&self, module: &str) -> impl Iterator<Item = (&str, &UsePlace)> {
        self.uses.get(module).into_iter().flatten().map(|(to, place)| (to.as_str(), place))
    }

    /// All modules that a module uses, directly or through others.
    fn reachable(&self, from: &str) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        let mut open: Vec<&str> = self.uses_of(from).map(|(to, _)| to).collect();
        while let Some(module) = open.pop() {
            if found.insert(module) {
                open.extend(self.uses_of(module).map(|(to, _)| to));
            }
        }
        found
    }

    /// Groups of modules that all reach each other, with at least two modules each.
    fn cycles(&self) -> Vec<BTreeSet<&str>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.modules.iter().map(|module| (module.as_str(), self.reachable(module))).collect();
        let reaches = |from: &str, to: &str| reached.get(from).is_some_and(|found| found.contains(to));
        let groups: BTreeSet<BTreeSet<&str>> = self
            .modules
            .iter()
            .map(String::as_str)
            .filter(|module| reaches(module, module))
            .map(|module| {
                self.modules
                    .iter()
                    .map(String::as_str)
                    .filter(|other| reaches(module, other) && reaches(other, module))
                    .collect()
            })
            .collect();
        groups.into_iter().collect()
    }

    /// The uses between the modules of a group.
    fn uses_within<'a>(&'a self, group: &'a BTreeSet<&str>) -> impl Iterator<Item = String> + 'a {
        group.iter().flat_map(move |from| {
            let inner = self.uses_of(from).filter(|(to, _)| group.contains(to));
            inner.map(move |(to, place)| format!("{from} uses {to} ({place})"))
        })
    }
}

fn cycle_lines(graph: &ModuleGraph) -> Vec<String> {
    let unclear = graph.unclear.iter().map(|place| {
        format!("{place}: it uses all names of the crate's root; name what is used, so that cycles can be seen")
    });
    let cycles = graph.cycles().into_iter().map(|group| {
        let names: Vec<&str> = group.iter().copied().collect();
        let uses: Vec<String> = graph.uses_within(&group).collect();
        format!(
            "{}: {} modules use each other in a cycle ({}): {}; move what two of them need to a lower module",
            graph.folder,
            names.len(),
            names.join(", "),
            uses.join(", ")
        )
    });
    unclear.chain(cycles).collect()
}

fn layer_lines(graph: &ModuleGraph, layers: &[&[&str]]) -> Vec<String> {
    if layers.is_empty() {
        return Vec::new();
    }
    let layer_of = |module: &str| layers.iter().position(|layer| layer.contains(&module));
    let mut found = Vec::new();
    for module in &graph.modules {
        let Some(own) = layer_of(module) else {
            found.push(format!("{}: module `{module}` has no layer: add it to xtask/src/layers.rs", graph.folder));
            continue;
        };
        for (to, place) in graph.uses_of(module) {
            if layer_of(to).is_some_and(|layer| layer > own) {
                found
                    .push(format!("{place}: `{module}` uses `{to}`, which is in a higher layer (xtask/src/layers.rs)"));
            }
        }
    }
    for module in layers.iter().flat_map(|layer| layer.iter()).filter(|module| !graph.modules.contains(**module)) {
        found.push(format!("xtask/src/layers.rs names the module `{module}`, which {} does not have", graph.folder));
    }
    found
}

fn report_text(name: &str, graph: &ModuleGraph) -> String {
    let cycles = graph.cycles();
    let in_cycles: usize = cycles.iter().map(BTreeSet::len).sum();
    let mut text = format!("{name}: {in_cycles} of {} modules are in cycles\n", graph.modules.len());
    for group in &cycles {
        let names: Vec<&str> = group.iter().copied().collect();
        text.push_str(&format!("  {} in one cycle: {}\n", names.len(), names.join(", ")));
        for line in graph.uses_within(group) {
            text.push_str(&format!("    {line}\n"));
        }
    }
    for place in &graph.unclear {
        text.push_str(&format!("  {place}: uses all names of the crate's root\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> ModuleGraph {
        ModuleGraph::of(&CrateSource::from_files("crates/planted", files))
    }

    const ROOT: (&str, &str) = ("lib.rs", "mod a; mod b; mod c;");

    #[test]
    fn a_planted_cycle_is_named_with_its_uses() {
        let planted = graph(&[
            ROOT,
            ("a.rs", "use crate::b::X;"),
            ("b.rs", "fn f() {\n    crate::c::g();\n}"),
            ("c.rs", "use super::a;"),
        ]);
        assert_eq!(
            cycle_lines(&planted),
            [
                "crates/planted: 3 modules use each other in a cycle (a, b, c): a uses b (crates/planted/src/a.rs:1), b uses c \
              (crates/planted/src/b.rs:2), c uses a (crates/planted/src/c.rs:1); move what two of them need to a lower module"
            ]
        );
        assert_eq!(report_text("planted", &planted).lines().next(), Some("planted: 3 of 3 modules are in cycles"));
    }

    #[test]
    fn two_separate_cycles_are_two_lines_and_a_chain_is_none() {
        let root = ("lib.rs", "mod a; mod b; mod c; mod d; mod e;");
        let two = [
            root,
            ("a.rs", "use crate::b;"),
            ("b.rs", "use crate::{a, c};"),
            ("c.rs", "use crate::d;"),
            ("d.rs", "use crate::c;"),
        ];
        let planted = graph(&two);
        assert_eq!(planted.cycles(), [BTreeSet::from(["a", "b"]), BTreeSet::from(["c", "d"])]);
        let chain = graph(&[root, ("a.rs", "use crate::b;"), ("b.rs", "use crate::c;"), ("c.rs", "use crate::d;")]);
        assert!(cycle_lines(&chain).is_empty());
    }

    #[test]
    fn a_cycle_through_a_name_that_the_root_exports_is_seen() {
        let root = ("lib.rs", "mod a; mod b;\npub use a::{Thing, other};");
        let planted = graph(&[root, ("a.rs", "use crate::b;"), ("b.rs", "use crate::Thing;")]);
        assert_eq!(planted.cycles().len(), 1);
        let star =
            graph(&[("lib.rs", "mod a; mod b; pub use a::*;"), ("a.rs", "use crate::b;"), ("b.rs", "use crate::Any;")]);
        assert_eq!(star.cycles().len(), 1, "a name that is not known may be any of those");
    }

    #[test]
    fn a_use_of_all_names_of_the_root_is_refused() {
        let planted =
            graph(&[ROOT, ("a.rs", "use crate::*;"), ("b.rs", "use super::*;"), ("c.rs", "use crate::b::*;")]);
        assert_eq!(cycle_lines(&planted).len(), 2);
    }

    #[test]
    fn a_use_of_a_higher_layer_is_named_with_its_place() {
        let planted = graph(&[ROOT, ("a.rs", "\nuse crate::b;"), ("b.rs", ""), ("c.rs", "use crate::a;")]);
        assert_eq!(layer_lines(&planted, &[&["b"], &["a"], &["c"]]), Vec::<String>::new());
        assert_eq!(layer_lines(&planted, &[&["a", "b"], &["c"]]), Vec::<String>::new(), "one layer has no order");
        assert_eq!(
            layer_lines(&planted, &[&["a"], &["b", "c"]]),
            ["crates/planted/src/a.rs:2: `a` uses `b`, which is in a higher layer (xtask/src/layers.rs)"]
        );
        assert_eq!(layer_lines(&planted, &[]), Vec::<String>::new(), "only cycles are checked");
    }

    #[test]
    fn a_cycle_inside_of_a_module_is_seen() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a/mod.rs", "mod x; mod y;"),
            ("a/x.rs", "use crate::a::y::Y; use crate::b::y;"),
            ("a/y.rs", "use super::x;"),
            ("b.rs", "use crate::a::x;"),
        ];
        let source = CrateSource::from_files("crates/planted", &files);
        assert_eq!(ModuleGraph::of(&source.inside("a")).cycles(), [BTreeSet::from(["x", "y"])]);
        assert!(ModuleGraph::of(&source.inside("b")).cycles().is_empty());
    }

    #[test]
    fn the_table_and_the_modules_must_agree() {
        assert_eq!(
            layer_lines(&graph(&[ROOT]), &[&["a", "b", "z"]]),
            [
                "crates/planted: module `c` has no layer: add it to xtask/src/layers.rs",
                "xtask/src/layers.rs names the module `z`, which crates/planted does not have",
            ]
        );
    }

    #[test]
    fn this_workspace_keeps_its_layers() {
        assert_eq!(violations(&crate::workspace::root()).unwrap(), Vec::<String>::new());
    }
}
