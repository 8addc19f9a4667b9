//! `cargo xtask test-dist`: the tarball and the Debian package, installed and used in a fresh Debian.
//!
//! ```text
//!   debootstrap ──► base (kept) ──copy──► tree ──► chroot without systemd: dist/test/without-systemd.sh
//!                                   └───► tree ──► booted by systemd-nspawn: the commands of README, as typed
//! ```
//! Needs root and Debian's archive, at the mirror that this machine's apt uses. Each copy of the tree runs in
//! namespaces of its own, which end all of its processes and mounts.

use crate::dist::{self, DistFiles};
use crate::setup;
use crate::shell::program;
use crate::workspace::root;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What the tests need beyond a minimal Debian: an interpreter for the example, and an init to boot.
const PACKAGES: &str = "python3,systemd,systemd-sysv,dbus";
/// A tree that takes longer to boot, run its commands and shut down is stuck.
const BOOTED_MAX_S: &str = "300";
/// The section of README with the commands that are run.
const SECTION: &str = "## Running it for everybody";

/// Builds both, and tries both.
pub fn test() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "a fresh Debian can only be made by root\nhint: use sudo");
    let commands = readme_commands(&fs::read_to_string(root().join("README.md"))?)?;
    setup::debootstrap()?;
    setup::nspawn()?;
    let made = dist::dist()?;
    let folder = root().join("target/dist-test");
    let base = fresh_debian(&folder)?;
    test_without_systemd(&base, &folder.join("tree"), &made)?;
    test_booted(&base, &folder.join("tree"), &made, &commands)?;
    eprintln!("the package and the tarball work in a fresh Debian");
    Ok(())
}

/// A Debian as debootstrap makes it, kept for the next time.
fn fresh_debian(folder: &Path) -> Result<PathBuf> {
    let base = folder.join("base");
    let stamp = folder.join("base-packages.txt");
    if fs::read_to_string(&stamp).is_ok_and(|text| text == PACKAGES) {
        return Ok(base);
    }
    remove(&base)?;
    fs::create_dir_all(&base)?;
    let (mirror, codename) = apt_mirror()?;
    program("debootstrap")
        .args(["--variant=minbase", &format!("--include={PACKAGES}"), &codename])
        .args([&base])
        .args([mirror])
        .run()?;
    fs::write(&stamp, PACKAGES)?;
    Ok(base)
}

/// Where this machine's apt gets Debian from, and which release.
fn apt_mirror() -> Result<(String, String)> {
    let format = "$(LABEL)|$(REPO_URI)|$(CODENAME)";
    let list = || program("apt-get").args(["indextargets", "--format", format, "Created-By: Packages"]).output();
    let listed = match list()? {
        text if text.trim().is_empty() => {
            program("apt-get").args(["update"]).run()?;
            list()?
        }
        text => text,
    };
    // The release itself; its updates and security fixes have names with a dash.
    let found = listed.lines().find_map(|line| {
        let mut fields = line.split('|');
        let (label, uri, codename) = (fields.next()?, fields.next()?, fields.next()?);
        (label == "Debian" && !codename.contains('-')).then(|| (uri.to_owned(), codename.to_owned()))
    });
    found.context("apt gets no Debian from anywhere\nhint: this test needs a Debian with its archive in apt's sources")
}

fn remove(path: &Path) -> Result<()> {
    match path.exists() {
        true => fs::remove_dir_all(path).with_context(|| format!("{} could not be removed", path.display())),
        false => Ok(()),
    }
}

/// A copy of the base with the package and the tarball in it; returns their paths inside.
fn copy_base(base: &Path, tree: &Path, made: &DistFiles) -> Result<(String, String)> {
    remove(tree)?;
    program("cp").args(["--archive"]).args([base, tree]).run()?;
    let put = |from: &Path| -> Result<String> {
        let name = from.file_name().and_then(|name| name.to_str()).context("a file has a name")?;
        fs::copy(from, tree.join(name)).with_context(|| format!("{name} could not be copied"))?;
        Ok(format!("/{name}"))
    };
    Ok((put(&made.package)?, put(&made.tarball)?))
}

fn test_without_systemd(base: &Path, tree: &Path, made: &DistFiles) -> Result<()> {
    let (package, tarball) = copy_base(base, tree, made)?;
    fs::copy(root().join("dist/test/without-systemd.sh"), tree.join("try.sh"))?;
    let enter = "mount -t proc proc \"$0/proc\" && mount -t tmpfs tmpfs \"$0/run\" && exec chroot \"$0\" /bin/sh /try.sh \"$@\"";
    program("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", enter])
        .args([tree])
        .args([package, tarball])
        .run()?;
    remove(tree)
}

/// The commands of the README's section: `#` is root's prompt, `$` a user's; remarks are left out.
fn readme_commands(readme: &str) -> Result<Vec<(char, String)>> {
    let section = readme.split(SECTION).nth(1).with_context(|| format!("README has no section `{SECTION}`"))?;
    let block = section.split("```").nth(1).context("the section has no commands")?;
    let command = |line: &str| {
        let (prompt, rest) = (line.chars().next()?, line.get(1..)?.strip_prefix(' ')?);
        let typed = rest.split("  #").next().unwrap_or(rest).trim().to_owned();
        matches!(prompt, '#' | '$').then_some((prompt, typed))
    };
    let commands: Vec<(char, String)> = block.lines().filter_map(command).collect();
    ensure!(commands.len() >= 4, "the section `{SECTION}` has too few commands: {commands:?}");
    Ok(commands)
}

/// A script that types these commands, and says which one failed.
fn script(commands: &[(char, String)]) -> String {
    let mut text = "#!/bin/sh\ncd /\nexport EDITOR=true HOME=/root\nuseradd --create-home ana\n".to_owned();
    for (prompt, typed) in commands {
        let quoted = typed.replace('\'', r"'\''");
        let run = match prompt {
            '#' => format!("sh -c '{quoted}'"),
            _ => format!("runuser -u ana -- env HOME=/home/ana sh -c '{quoted}'"),
        };
        text.push_str(&format!("echo '{prompt} {quoted}'\n{run} || {{ echo failed > /result; exit 1; }}\n"));
    }
    // What the commands leave running, and that a stop and a removal leave nothing.
    text.push_str(
        "systemctl is-active sublet || { echo 'the unit is not active' > /result; exit 1; }\n\
         systemctl reload sublet || { echo 'the unit does not reload' > /result; exit 1; }\n\
         apt-get remove -y sublet || { echo 'the package is not removed' > /result; exit 1; }\n\
         systemctl is-active sublet && { echo 'the unit is left' > /result; exit 1; }\n\
         [ ! -e /etc/systemd/system/multi-user.target.wants/sublet.service ] || { echo 'it is left enabled' > /result; exit 1; }\n\
         echo passed > /result\n",
    );
    text
}

fn test_booted(base: &Path, tree: &Path, made: &DistFiles, commands: &[(char, String)]) -> Result<()> {
    copy_base(base, tree, made)?;
    fs::write(tree.join("try.sh"), script(commands))?;
    fs::set_permissions(tree.join("try.sh"), fs::Permissions::from_mode(0o755))?;
    let unit = "[Unit]\nAfter=dbus.service\n[Service]\nType=oneshot\nExecStart=/try.sh\nStandardOutput=file:/said\n\
                StandardError=inherit\nExecStopPost=systemctl --no-block poweroff\n[Install]\nWantedBy=multi-user.target\n";
    fs::write(tree.join("etc/systemd/system/try.service"), unit)?;
    program("chroot").args([tree]).args(["systemctl", "enable", "try.service"]).run()?;
    let console = program("timeout")
        .args(["--kill-after=10", BOOTED_MAX_S, "systemd-nspawn", "--quiet", "--register=no", "--keep-unit"])
        .args(["--console=pipe", "--boot", "--directory"])
        .args([tree])
        .output();
    let said = fs::read_to_string(tree.join("said")).unwrap_or_default();
    let result = fs::read_to_string(tree.join("result")).unwrap_or_else(|_| "nothing was run".to_owned());
    eprintln!("{said}");
    if result.trim() != "passed" {
        let console = console.unwrap_or_else(|error| format!("{error:#}"));
        bail!("the commands of README do not work in a booted Debian: {}\n{console}", result.trim());
    }
    remove(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_has_commands_to_run() {
        let readme = fs::read_to_string(root().join("README.md")).unwrap();
        let commands = readme_commands(&readme).unwrap();
        assert!(commands.contains(&('#', "sublet setup".to_owned())), "{commands:?}");
        assert!(script(&commands).contains("\nsh -c 'sublet setup' || "));
    }

    #[test]
    fn prompts_and_remarks_are_separated_from_commands() {
        let text = format!("{SECTION}\n```console\n# a b      # why\n$ c 'd'\noutput\n# e\n# f\n```\n");
        let typed = |prompt, text: &str| (prompt, text.to_owned());
        assert_eq!(
            readme_commands(&text).unwrap(),
            [typed('#', "a b"), typed('$', "c 'd'"), typed('#', "e"), typed('#', "f")]
        );
        assert!(readme_commands("nothing").is_err());
    }
}
