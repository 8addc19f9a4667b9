//! Which systemd unit and which container a cgroup path names.
//!
//! Only the front of a path counts, which root or a service permitted by root made: below its own unit or container
//! every user may make cgroups with any name. So the unit is the first component that is no slice, as systemd itself
//! reads it, and of nested containers the outermost counts. Below a user's own manager (`user@1000.service/…`) the
//! user chose all names: a container counts only where root made it.
//!
//! Absent: asking systemd or a container engine. Only paths are read, and what is uncertain stays `None`.

use super::clean_text::{WORD_MAX, clean};
use crate::process::{self, Cgroup, ProcessError};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// Hexadecimal digits of an id that Docker, containerd, CRI-O and Podman give a container.
const ID_DIGITS: usize = 64;

/// The cgroup of a process, and the unit and container that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupLocation {
    pub(super) cgroup: String,
    pub(super) unit: Option<String>,
    pub(super) container: Option<String>,
}

/// Reads the lines of `/proc/PID/cgroup`: one line with version 2, one for each hierarchy with version 1, both where
/// both are mounted.
pub(super) fn location_in(cgroups: &[Cgroup]) -> CgroupLocation {
    let mut by_priority: Vec<&Cgroup> = cgroups.iter().collect();
    // The hierarchy in which systemd keeps its units comes first; a controller's own may be used by other software.
    by_priority.sort_by_key(|cgroup| match cgroup.controllers.as_str() {
        "" => 0,
        "name=systemd" => 1,
        _ => 2,
    });
    let paths = || by_priority.iter().map(|cgroup| cgroup.path.as_str());
    CgroupLocation {
        cgroup: paths().find(|path| *path != "/").unwrap_or("/").to_owned(),
        unit: paths().find_map(unit),
        container: paths().find_map(container),
    }
}

/// The place of a process. A cgroup that a user may name freely is no container: a name exempts no process.
pub(super) fn location_of(pid: u32) -> Result<CgroupLocation, ProcessError> {
    let cgroups = process::cgroups(pid)?;
    let location = location_in(&cgroups);
    let is_users = cgroups.into_iter().filter_map(container_maker).any(|uid| uid != 0);
    Ok(CgroupLocation { container: location.container.filter(|_| !is_users), ..location })
}

/// The user that made the container that a cgroup names, if that can be found out. From inside a cgroup namespace it
/// cannot be found out for cgroups beside it.
fn container_maker(cgroup: Cgroup) -> Option<u32> {
    let path = container_in(&cgroup.path).map(|(above, _)| above.to_owned()).filter(|above| !above.contains(".."))?;
    let above = Cgroup { path, ..cgroup }.directory()?;
    fs::metadata(above).ok().map(|above| above.uid())
}

/// True if a process is in a container that root or this user made, as far as its cgroups say. Otherwise any other
/// user that may make cgroups could name one like a container and pass as this user's.
pub(crate) fn is_in_container_of(pid: u32, uid: u32) -> bool {
    let is_one = |cgroup: Cgroup| container_maker(cgroup).is_some_and(|maker| [0, uid].contains(&maker));
    process::cgroups(pid).is_ok_and(|cgroups| cgroups.into_iter().any(is_one))
}

/// The unit that a cgroup path names.
fn unit(path: &str) -> Option<String> {
    let mut parts = parts(path).skip_while(|part| part.ends_with(".slice"));
    let system = parts.next().filter(|part| is_unit(part))?;
    // A user's manager: below it are that user's units, with names that the user chose.
    if system.starts_with("user@") {
        let own = parts.find(|part| !part.ends_with(".slice")).filter(|part| is_unit(part));
        if let Some(own) = own {
            return Some(clean(&format!("{system}/{own}"), WORD_MAX));
        }
    }
    Some(clean(system, WORD_MAX))
}

fn is_unit(part: &str) -> bool {
    let kinds = [".service", ".scope", ".socket", ".mount", ".swap"];
    kinds.iter().any(|kind| part.strip_suffix(kind).is_some_and(|name| !name.is_empty()))
}

/// The components of a path. systemd puts `_` before a name that could be mistaken for a kernel file.
fn parts(path: &str) -> impl Iterator<Item = &str> {
    placed_parts(path).map(|(_, part)| part)
}

/// The components, each with the path that it is in.
fn placed_parts(path: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut next = 0;
    let placed = path.split('/').map(move |part| {
        let at = next;
        next += part.len() + 1;
        (path[..at].trim_end_matches('/'), part)
    });
    let named = placed.filter(|(_, part)| !part.is_empty() && *part != "..");
    named.map(|(above, part)| (above, part.strip_prefix('_').unwrap_or(part)))
}

/// The container that a cgroup path names.
fn container(path: &str) -> Option<String> {
    container_in(path).map(|(_, container)| clean(&container, WORD_MAX))
}

/// The container with the path that it is in: the user that may make cgroups there chose the name.
fn container_in(path: &str) -> Option<(&str, String)> {
    let mut before = "";
    for (above, part) in placed_parts(path) {
        if let Some(found) = container_by_id(part).or_else(|| container_by_name(before, part)) {
            return Some((above, found));
        }
        before = part;
    }
    None
}

/// `ID`, `docker-ID.scope`, `cri-containerd-ID.scope`, `libpod-ID`, and `pod….slice:cri-containerd:ID`, which
/// containerd makes when it is configured with the wrong driver.
fn container_by_id(part: &str) -> Option<String> {
    let bare = part.strip_suffix(".scope").unwrap_or(part);
    let (engine, id) = bare.rsplit_once(['-', ':']).unwrap_or(("", bare));
    let is_id = id.len() == ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    // The engine's own process beside the container carries its id, too.
    (is_id && !engine.ends_with("conmon")).then(|| id.to_owned())
}

/// LXC and machined use names that people chose.
fn container_by_name(above: &str, part: &str) -> Option<String> {
    let named = |name: &str| (!name.is_empty()).then(|| unescape(name));
    if let Some(name) = part.strip_prefix("lxc.payload.") {
        return named(name);
    }
    // Older LXC. Its monitors are beside the containers, and are not containers.
    if above == "lxc" || above == "lxc.payload" {
        return named(part);
    }
    if let Some(name) = part.strip_prefix("machine-").and_then(|rest| rest.strip_suffix(".scope")) {
        return named(name);
    }
    named(part.strip_prefix("systemd-nspawn@")?.strip_suffix(".service")?)
}

/// systemd escapes characters that a unit's name cannot hold, as in `\x2d`.
fn unescape(name: &str) -> String {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let [first, after @ ..] = rest {
        let escaped = after.strip_prefix(b"x").and_then(|hex| hex.get(..2));
        let escaped = escaped.and_then(|hex| u8::from_str_radix(str::from_utf8(hex).ok()?, 16).ok());
        match escaped.filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f4e5d6c7b8a99881726354433221100ffeeddccbbaa00998877665544332211";
    const INNER: &str = "00004d6c7b8a99881726354433221100ffeeddccbbaa00998877665544332211";

    fn check(path: &str, unit: Option<&str>, container: Option<&str>) {
        let path = path.replace("ID2", INNER).replace("ID", ID);
        let location = location_in(&[Cgroup { controllers: String::new(), path: path.clone() }]);
        let full = |text: &str| text.replace("ID", ID);
        assert_eq!((location.unit, location.container), (unit.map(full), container.map(full)), "{path}");
        assert_eq!(location.cgroup, path);
    }

    #[test]
    fn units_are_read_from_cgroup_paths() {
        check("/", None, None);
        check("/init.scope", Some("init.scope"), None);
        check("/system.slice/ollama.service", Some("ollama.service"), None);
        check("/system.slice/system-getty.slice/getty@tty1.service", Some("getty@tty1.service"), None);
        check(r"/system.slice/foo\x2dbar.service", Some(r"foo\x2dbar.service"), None);
        check("/system.slice/_cpu.service", Some("cpu.service"), None);
        check("/user.slice/user-1000.slice/session-3.scope", Some("session-3.scope"), None);
        check("/user.slice/user-1000.slice/user@1000.service/init.scope", Some("user@1000.service/init.scope"), None);
        check(
            "/user.slice/user-1000.slice/user@1000.service/app.slice/app-jupyter.slice/jupyter.service",
            Some("user@1000.service/jupyter.service"),
            None,
        );
        check(
            r"/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-org\x2eblender-77.scope",
            Some(r"user@1000.service/app-gnome-org\x2eblender-77.scope"),
            None,
        );
        check("/user.slice/user-1000.slice/user@1000.service", Some("user@1000.service"), None);
        check("/user.slice", None, None);
        check("/slurm/uid_1000/job_7/step_0", None, None);
        check("/.service", None, None);
    }

    #[test]
    fn names_below_an_own_unit_or_container_do_not_count() {
        check("/system.slice/mine.service/ollama.service", Some("mine.service"), None);
        check("/system.slice/mine.service/system.slice/ollama.service", Some("mine.service"), None);
        check(
            "/user.slice/user-1000.slice/user@1000.service/app.slice/a.scope/ssh.service",
            Some("user@1000.service/a.scope"),
            None,
        );
        check("/docker/ID/docker/ID2", None, Some("ID"));
        check("/docker/ID/lxc.payload.other", None, Some("ID"));
    }

    #[test]
    fn containers_are_read_from_cgroup_paths() {
        check("/docker/ID", None, Some("ID"));
        check("/docker/ID/inner", None, Some("ID"));
        check("/system.slice/docker-ID.scope", Some("docker-ID.scope"), Some("ID"));
        check("/system.slice/docker.service", Some("docker.service"), None);
        check("/kubepods/burstable/podd3b0-11/ID", None, Some("ID"));
        check("/kubepods/podd3b0-11/ID", None, Some("ID"));
        check(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podd3b0_11.slice/cri-containerd-ID.scope",
            Some("cri-containerd-ID.scope"),
            Some("ID"),
        );
        check("/kubepods.slice/kubepods-podd3b0.slice/crio-ID.scope", Some("crio-ID.scope"), Some("ID"));
        check("/kubepods.slice/kubepods-podd3b0.slice/crio-conmon-ID.scope", Some("crio-conmon-ID.scope"), None);
        check(
            "/system.slice/containerd.service/kubepods-besteffort-podd3b0.slice:cri-containerd:ID",
            Some("containerd.service"),
            Some("ID"),
        );
        check("/default/ID", None, Some("ID"));
        check("/system.slice/nerdctl-ID.scope", Some("nerdctl-ID.scope"), Some("ID"));
        check("/machine.slice/libpod-ID.scope/container", Some("libpod-ID.scope"), Some("ID"));
        check("/machine.slice/libpod-conmon-ID.scope", Some("libpod-conmon-ID.scope"), None);
        check("/libpod_parent/libpod-ID", None, Some("ID"));
        check(
            "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container",
            Some("user@1000.service/libpod-ID.scope"),
            Some("ID"),
        );
        check("/lxc/web/system.slice/nginx.service", None, Some("web"));
        check("/lxc.payload/web", None, Some("web"));
        check("/lxc.payload.web/system.slice/nginx.service", None, Some("web"));
        check("/lxc.monitor.web", None, None);
        check(r"/machine.slice/machine-my\x2dbox.scope/payload", Some(r"machine-my\x2dbox.scope"), Some("my-box"));
        check("/machine.slice/systemd-nspawn@box.service/payload", Some("systemd-nspawn@box.service"), Some("box"));
        check("/../../docker/ID", None, Some("ID"));
        check("/system.slice/docker-3f4e.scope", Some("docker-3f4e.scope"), None);
    }

    #[test]
    fn a_container_is_found_with_the_path_that_it_is_in() {
        let above = |path: &str| container_in(&path.replace("ID", ID)).map(|(above, _)| above.to_owned());
        for (path, made_in) in [
            ("/docker/ID/inner", "/docker"),
            ("/ID", ""),
            ("/user.slice/user@1000.service/ID", "/user.slice/user@1000.service"),
            ("/lxc/web/system.slice", "/lxc"),
            ("/system.slice/_docker-ID.scope", "/system.slice"),
        ] {
            assert_eq!(above(path).as_deref(), Some(made_in), "{path}");
        }
        assert_eq!(above("/system.slice/ollama.service"), None);
    }

    #[test]
    fn of_several_hierarchies_the_first_that_names_one_counts() {
        let names_in = |text: &str| {
            let parse = |line: &str| {
                let (controllers, path) = line.split_once(':').unwrap();
                Cgroup { controllers: controllers.to_owned(), path: path.replace("ID", ID) }
            };
            let CgroupLocation { cgroup, unit, container } =
                location_in(&text.split(' ').map(parse).collect::<Vec<_>>());
            (cgroup.replace(ID, "ID"), unit, container.map(|id| id.replace(ID, "ID")))
        };
        let own = |text: &str| Some(text.to_owned());
        // Version 1 alone, both, and a container's own hierarchies where systemd has none.
        assert_eq!(
            names_in("memory:/user.slice name=systemd:/system.slice/a.service"),
            ("/system.slice/a.service".into(), own("a.service"), None)
        );
        assert_eq!(
            names_in("cpu,cpuacct:/other name=systemd:/ :/system.slice/a.service"),
            ("/system.slice/a.service".into(), own("a.service"), None)
        );
        assert_eq!(names_in("memory:/docker/ID name=systemd:/ :/"), ("/docker/ID".into(), None, own("ID")));
        assert_eq!(names_in("memory:/ :/"), ("/".into(), None, None));
        assert_eq!(location_in(&[]).cgroup, "/");
    }

    #[test]
    fn invalid_escapes_are_left_unchanged() {
        for (name, plain) in [(r"a\x2db", "a-b"), (r"a\x2", r"a\x2"), (r"\xzz", r"\xzz"), (r"\", r"\"), ("é", "é")] {
            assert_eq!(unescape(name), plain);
        }
    }
}
