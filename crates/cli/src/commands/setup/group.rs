//! The group `sublet`: made for configurations to name, without rights of its own.

use super::steps::Steps;
use crate::failure::Failure;
use crate::place;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use sublet_wire::exit;

/// The name of the group.
const NAME: &str = "sublet";

/// Makes the group if it is missing. The daemon works without it, so a host that cannot make it only gets a message.
pub fn make(steps: &mut Steps) -> Result<(), Failure> {
    if members(steps).is_some() {
        steps.say("there", format!("group {NAME}"));
        return Ok(());
    }
    if !has_tool(steps, "groupadd") {
        steps.say("left out", format!("group {NAME}: there is no `groupadd` here, and nothing needs the group yet"));
        return Ok(());
    }
    let what = format!("group {NAME} (no rights until {} names it)", place::SYSTEM_CONFIG);
    let command = tool(steps, "groupadd", &["--system", NAME]);
    steps.act("made", &what, || run(command))
}

/// Removes the group if no user is in it, and no remaining configuration names it.
pub fn remove(steps: &mut Steps) -> Result<(), Failure> {
    let Some(members) = members(steps) else { return Ok(()) };
    let config = fs::read_to_string(steps.path(Path::new(place::SYSTEM_CONFIG))).unwrap_or_default();
    if !members.is_empty() {
        steps.say("kept", format!("group {NAME}: {members} are in it"));
    } else if names_it(&config) {
        steps.say("kept", format!("group {NAME}: {} names it", place::SYSTEM_CONFIG));
    } else if !has_tool(steps, "groupdel") {
        steps.say("kept", format!("group {NAME}: there is no `groupdel` here"));
    } else {
        let command = tool(steps, "groupdel", &[NAME]);
        steps.act("removed", &format!("group {NAME}"), || run(command))?;
    }
    Ok(())
}

/// Whether a configuration uses the group: a line that is not a comment has its name in quotes or as a table.
fn names_it(config: &str) -> bool {
    let lines = config.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let name = format!("\"{NAME}\"");
    let table = format!("groups.{NAME}");
    lines.into_iter().any(|line| line.contains(&name) || line.contains(&table))
}

/// The members of the group, separated by commas; `None` if there is no such group.
fn members(steps: &Steps) -> Option<String> {
    let of = |text: &str| {
        let line = text.lines().find(|line| line.split(':').next() == Some(NAME))?;
        Some(line.split(':').nth(3).unwrap_or_default().to_owned())
    };
    // `getent` also knows groups of a directory service.
    let asked = steps.host_only(|| Command::new("getent").args(["group", NAME]).output().ok());
    asked
        .and_then(|output| of(&String::from_utf8_lossy(&output.stdout)))
        .or_else(|| of(&fs::read_to_string(steps.path(Path::new("/etc/group"))).ok()?))
}

/// Whether a tool of Debian's `passwd` can be used. For another file system, that one must have an /etc/group.
fn has_tool(steps: &Steps, name: &str) -> bool {
    let is_there = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].iter().any(|dir| Path::new(dir).join(name).is_file());
    is_there && (steps.root().is_none() || steps.path(Path::new("/etc/group")).is_file())
}

fn tool(steps: &Steps, name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(name);
    // Under some `su`, root's PATH lacks these directories.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin:/usr/bin:/bin")).stdin(Stdio::null());
    if let Some(root) = steps.root() {
        command.arg("--prefix").arg(root);
    }
    command.args(arguments);
    command
}

fn run(mut command: Command) -> Result<(), Failure> {
    let shown = format!("{command:?}").replace('"', "");
    let output =
        command.output().map_err(|error| Failure::new(exit::FAILURE, format!("`{shown}` cannot run: {error}")))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(Failure::new(exit::FAILURE, format!("`{shown}` failed: {}", said.trim())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_names_the_group_only_outside_of_comments() {
        assert!(!names_it("# operators = \"sublet\"\n#: socket_group = \"sublet\"\n"));
        assert!(names_it("operators = \"sublet\"\n"));
        assert!(names_it("[groups.sublet]\nvram = \"8G\"\n"));
        assert!(!names_it(super::super::SAMPLE));
    }
}
