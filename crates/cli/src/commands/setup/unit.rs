//! The daemon's systemd unit. A package brings one; otherwise it is written to /etc.

use super::steps::Steps;
use crate::commands::adopt::dropin;
use crate::failure::Failure;
use crate::own_file::{OwnFile, marked};
use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use sublet_wire::exit;

/// The unit's name.
pub const NAME: &str = "sublet.service";
/// The unit as a package installs it.
const TEXT: &str = include_str!("../../../../../dist/sublet.service");
/// The path of the program in the packaged unit.
const PACKAGED: &str = "/usr/bin/sublet";
/// The beginning of the first line of a unit that setup wrote.
const MARK: &str = "# sublet unit ";
/// The path where setup writes the unit.
const OWN: &str = "/etc/systemd/system/sublet.service";
/// Where packages put units.
const PACKAGES: [&str; 3] = ["/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];

/// The path of this program, for the unit to start. Root starts it, so no other user may be able to replace it; an
/// error if one can.
pub fn program(steps: &Steps) -> Result<PathBuf, Failure> {
    let own = env::current_exe().and_then(fs::canonicalize);
    let own = own.map_err(|error| Failure::new(exit::FAILURE, format!("this program cannot find itself: {error}")))?;
    if let Some(why) = steps.host_only(|| exposed(&own)) {
        return Err(Failure::new(exit::FAILURE, format!("root would run {}, and {why}", own.display()))
            .hint("unpack it as root in a directory such as /opt/sublet, and run setup from there"));
    }
    Ok(own)
}

/// Why a user other than root could replace the program; `None` if no such user can.
fn exposed(program: &Path) -> Option<String> {
    program.ancestors().find_map(|path| {
        let found = fs::metadata(path).ok()?;
        // In a sticky directory, only its owner can replace a file.
        let writable = found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0;
        match found.uid() {
            0 if !writable => None,
            0 => Some(format!("users other than root can write to {}", path.display())),
            uid => Some(format!("{} belongs to the user {uid}", path.display())),
        }
    })
}

/// The text of the unit for a program.
fn text(sublet: &Path) -> Result<String, Failure> {
    let text = TEXT.replacen(PACKAGED, &dropin::program(sublet)?, 1);
    Ok(marked(
        MARK,
        &format!("# Written by `sublet setup`; `sublet setup --remove` removes it, unless it was changed.\n{text}"),
    ))
}

/// The unit of a package that starts this program, if there is one.
fn packaged(steps: &Steps, sublet: &Path) -> Option<PathBuf> {
    let files = PACKAGES.iter().map(|dir| steps.path(&Path::new(dir).join(NAME)));
    let starts = |text: &str| text.lines().any(|line| line == format!("ExecStart={} serve", sublet.display()));
    files.into_iter().find(|file| fs::read_to_string(file).is_ok_and(|text| starts(&text)))
}

fn own(steps: &Steps) -> OwnFile {
    OwnFile::new(steps.path(Path::new(OWN)), MARK)
}

/// Whether systemd finds a unit.
pub fn is_installed(steps: &Steps) -> bool {
    let packaged = PACKAGES.iter().any(|dir| steps.path(&Path::new(dir).join(NAME)).exists());
    packaged || own(steps).is_there()
}

/// Writes the unit if no package has one. Returns whether it is new or changed.
pub fn write(steps: &mut Steps, sublet: &Path) -> Result<bool, Failure> {
    let file = own(steps);
    if let Some(packaged) = packaged(steps, sublet).filter(|_| !file.is_there()) {
        steps.say("there", packaged.display().to_string());
        return Ok(false);
    }
    let text = text(sublet)?;
    if fs::read_to_string(file.path()).is_ok_and(|there| there == text) {
        steps.say("there", file.path().display().to_string());
        return Ok(false);
    }
    if let Err(failure) = file.must_be_ours() {
        steps.say("kept", failure.message().to_owned());
        return Ok(false);
    }
    let what = format!("{} (starts {})", file.path().display(), sublet.display());
    steps.act("wrote", &what, || file.put(&text))?;
    Ok(true)
}

/// Removes the unit that setup wrote. Returns whether it existed.
pub fn remove(steps: &mut Steps) -> Result<bool, Failure> {
    let file = own(steps);
    if !file.is_there() {
        return Ok(false);
    }
    if let Err(failure) = file.must_be_ours() {
        steps.say("kept", failure.message().to_owned());
        return Ok(false);
    }
    steps.act("removed", &file.path().display().to_string(), || file.remove())?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_starts_the_program_that_was_set_up() {
        let said = text(Path::new("/opt/sub let/bin/sublet")).unwrap();
        assert!(said.contains("\nExecStart=\"/opt/sub let/bin/sublet\" serve\n"), "{said}");
        assert!(!said.contains(PACKAGED), "{said}");
    }

    #[test]
    fn a_program_that_others_can_replace_is_not_for_root() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(exposed(Path::new("/")), None);
        let open = dir.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(exposed(&open).is_some());
    }
}
