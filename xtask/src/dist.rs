//! `cargo xtask dist`: a tarball and a Debian package, in `target/dist`.
//!
//! ```text
//!   release-program, release-shim, release-soft ─┐
//!   sublet man, sublet completions ──────────────┼─► target/dist/tree ─┬─► sublet-VERSION-x86_64.tar.gz
//!   dist/, docs/, README, licences ──────────────┘                     └─► sublet_VERSION_amd64.deb (cargo-deb)
//! ```
//! The tree is one directory that works wherever it lies: `bin/sublet` looks for its libraries in `../lib/sublet`.
//! The package has the same tree in /usr. Both are built from the same files, so they cannot differ.

use crate::shell::{cargo, program};
use crate::workspace::{all_packages, own_packages, root};
use crate::{release, setup};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What was made.
pub struct DistFiles {
    /// The tarball.
    pub tarball: PathBuf,
    /// The Debian package.
    pub package: PathBuf,
}

/// Documents that go with it, beside the licence, with the paths that they have here: files, and all of a folder.
const DOCUMENTS: [&str; 10] = [
    "README.md",
    "CHANGELOG.md",
    "docs/guide",
    "docs/reference",
    "docs/recipes",
    "docs/backup.md",
    "docs/fairness.md",
    "docs/replay.md",
    "docs/security.md",
    "docs/openapi.json",
];

/// Where a shell looks for completions, below `share/`.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/sublet"),
    ("zsh", "zsh/site-functions/_sublet"),
    ("fish", "fish/vendor_completions.d/sublet.fish"),
];

/// Builds both.
pub fn dist() -> Result<DistFiles> {
    let deb_tool = setup::cargo_deb()?;
    let (programs, shim, soft) = (release::program_file()?, release::shim()?, release::soft()?);
    // Fixed, whatever CARGO_TARGET_DIR says: the package's list of files names it.
    let folder = root().join("target/dist");
    let tree = folder.join("tree");
    if tree.exists() {
        fs::remove_dir_all(&tree).with_context(|| format!("{} could not be removed", tree.display()))?;
    }
    let sublet = copy_file(&programs.join("sublet"), &tree.join("bin/sublet"), 0o755)?;
    copy_file(&shim.join("libsublet-shim.so"), &tree.join("lib/sublet/libsublet-shim.so"), 0o644)?;
    for library in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        copy_file(&soft.join(library), &tree.join("lib/sublet/soft").join(library), 0o644)?;
    }
    copy_file(&root().join("dist/sublet.service"), &tree.join("lib/systemd/system/sublet.service"), 0o644)?;
    write_documents(&tree, &sublet)?;
    let version = version()?;
    let tarball = pack(&folder, &version)?;
    let package = folder.join(format!("sublet_{version}_amd64.deb"));
    // The package's own revision is 1, and is left out of its name.
    program(&deb_tool)
        .args(["--quiet", "--no-build", "--no-strip", "--deb-revision", "", "--package", "sublet-cli", "--output"])
        .args([&package])
        .dir(&root())
        .run()?;
    write_checksums(&folder, &[&tarball, &package])?;
    Ok(DistFiles { tarball, package })
}

fn version() -> Result<String> {
    let packages = own_packages()?;
    let packages = packages["packages"].as_array().context("`cargo metadata` lists no packages")?;
    let own =
        packages.iter().find(|package| package["name"] == "sublet-cli").context("there is no package `sublet-cli`")?;
    own["version"].as_str().map(str::to_owned).context("`sublet` has no version")
}

/// Copies a file to its place with a mode, and makes the folders on the way.
fn copy_file(from: &Path, to: &Path, mode: u32) -> Result<PathBuf> {
    let bytes = fs::read(from).with_context(|| format!("{} could not be read", from.display()))?;
    write(to, &bytes, mode)?;
    Ok(to.to_owned())
}

fn write(to: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let written = to.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(to, bytes));
    let written = written.and_then(|()| fs::set_permissions(to, fs::Permissions::from_mode(mode)));
    written.with_context(|| format!("{} could not be written", to.display()))
}

/// Manual pages, completions and texts.
fn write_documents(tree: &Path, sublet: &Path) -> Result<()> {
    let share = tree.join("share");
    let pages = share.join("man/man1");
    fs::create_dir_all(&pages).with_context(|| format!("{} could not be made", pages.display()))?;
    program(sublet).args(["man"]).args([&pages]).run()?;
    for (shell, file) in COMPLETIONS {
        let text = program(sublet).args(["completions", shell]).output()?;
        ensure!(text.contains("sublet"), "the completions for {shell} are empty");
        write(&share.join(file), text.as_bytes(), 0o644)?;
    }
    let doc = share.join("doc/sublet");
    for document in DOCUMENTS {
        for file in files(Path::new(document))? {
            copy_file(&root().join(&file), &doc.join(&file), 0o644)?;
        }
    }
    copy_file(&root().join("dist/sublet.toml"), &doc.join("sublet.toml.sample"), 0o644)?;
    copy_file(&root().join("examples/hold.py"), &doc.join("examples/hold.py"), 0o644)?;
    copy_file(&root().join("LICENSE"), &doc.join("LICENSE"), 0o644)?;
    copy_file(&root().join("dist/INSTALL"), &tree.join("INSTALL"), 0o644)?;
    write(&doc.join("third-party-licences.txt"), third_party_licences()?.as_bytes(), 0o644)
}

/// A document, or the documents in a folder; paths are from the root of the tree.
fn files(document: &Path) -> Result<Vec<PathBuf>> {
    let path = root().join(document);
    if !path.is_dir() {
        return Ok(vec![document.to_owned()]);
    }
    let entries = fs::read_dir(&path).with_context(|| format!("{} could not be listed", path.display()))?;
    entries.map(|entry| Ok(document.join(entry?.file_name()))).collect()
}

/// The licences of every package that is linked in. Each text is there once, before the packages that have it.
fn third_party_licences() -> Result<String> {
    let linked = cargo(["tree", "--edges", "normal", "--prefix", "none", "--format", "{p}", "--target"])
        .args(["x86_64-unknown-linux-gnu"])
        .args(
            ["sublet-cli", "sublet-shim", "sublet-softgpu-cuda", "sublet-softgpu-nvml"]
                .map(|name| format!("--package={name}")),
        )
        .output()?;
    let linked: BTreeSet<String> =
        linked.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
    let metadata = all_packages()?;
    let packages = metadata["packages"].as_array().context("`cargo metadata` lists no packages")?;
    let mut by_text: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages.iter().filter(|package| !package["source"].is_null()) {
        let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        if !linked.contains(&format!("{} v{}", text("name"), text("version"))) {
            continue;
        }
        let named = format!("{} {} ({})", text("name"), text("version"), text("license"));
        for licence in licence_texts(package)? {
            by_text.entry(licence).or_default().insert(named.clone());
        }
    }
    ensure!(by_text.len() > 10, "the licences of the linked packages were not found");
    let section = |(text, packages): (&String, &BTreeSet<String>)| {
        let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
        format!("{}\n{}\n\n{}\n\n", "=".repeat(80), packages.join("\n"), text.trim())
    };
    let head =
        "Sublet is under the Apache License 2.0 (LICENSE). Its programs and libraries contain the following:\n\n";
    Ok(head.to_owned() + &by_text.iter().map(section).collect::<String>())
}

/// The licence files of a package; its expression where it has none.
fn licence_texts(package: &Value) -> Result<Vec<String>> {
    let manifest = package["manifest_path"].as_str().context("a package has a manifest")?;
    let folder = Path::new(manifest).parent().context("a manifest lies in a folder")?;
    let is_licence =
        |name: &str| ["LICENSE", "LICENCE", "COPYING", "NOTICE"].iter().any(|begin| name.starts_with(begin));
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("{} cannot be listed", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_ascii_uppercase();
        if is_licence(&name) && path.is_file() {
            texts.push(String::from_utf8_lossy(&fs::read(&path)?).into_owned());
        }
    }
    if texts.is_empty() {
        texts.push(format!("(no licence file; the package says {})", package["license"]));
    }
    texts.sort();
    Ok(texts)
}

/// Packs the tree. The same tree gives the same bytes: times, owners and order are fixed.
fn pack(folder: &Path, version: &str) -> Result<PathBuf> {
    let name = format!("sublet-{version}-x86_64");
    let tarball = folder.join(format!("{name}.tar.gz"));
    let commit_time = program("git").args(["log", "-1", "--format=%ct"]).dir(&root()).output();
    let time = commit_time.ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    program("tar")
        .args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u+rwX,go+rX,go-w"])
        .args([format!("--mtime=@{}", time.as_deref().unwrap_or("0")), format!("--transform=s,^tree,{name},")])
        .args(["--use-compress-program=gzip -n", "--file"])
        .args([&tarball])
        .args(["tree"])
        .dir(folder)
        .run()
        .context("the tarball could not be made\nhint: it needs GNU tar and gzip")?;
    Ok(tarball)
}

/// Writes the checksums beside the files, for `sha256sum --check`.
fn write_checksums(folder: &Path, files: &[&PathBuf]) -> Result<()> {
    let names: Vec<&str> = files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
    let text = program("sha256sum").args(&names).dir(folder).output()?;
    write(&folder.join("SHA256SUMS"), text.as_bytes(), 0o644)?;
    for name in names {
        let size = fs::metadata(folder.join(name))?.len();
        eprintln!("{}: {:.1} MiB", folder.join(name).display(), size as f64 / f64::from(1 << 20));
    }
    Ok(())
}
