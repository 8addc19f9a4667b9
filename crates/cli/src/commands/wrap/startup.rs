//! Hints for a shell to find the wrappers. Startup files are never changed.

use super::folder::{First, Folder};
use crate::hold::environment::{word_of_fish, word_of_sh};
use std::env;
use std::path::Path;

/// The hint about what is left to do after a wrapper was written; `None` if nothing is.
pub fn hint(folder: &Folder, name: &str, first: First, replaces: bool) -> Option<String> {
    match first {
        First::Wrapper if replaces => None,
        First::Wrapper => Some(format!("a shell that has run `{name}` before finds the wrapper after `hash -r`")),
        First::Other(other) if folder.is_on_path() => {
            Some(format!("PATH finds {} first; {}", other.display(), end_with(folder)))
        }
        First::Other(_) | First::Nothing => Some(missing(folder)),
    }
}

/// The hint about a folder that is not on PATH.
pub fn missing(folder: &Folder) -> String {
    format!("{} is not on your PATH; {}", folder.path().display(), end_with(folder))
}

fn end_with(folder: &Folder) -> String {
    let shell = env::var_os("SHELL");
    let (file, line) = line(shell.as_deref().map(Path::new), &folder.path().to_string_lossy());
    format!("end {file} with this line, and open a new shell:\n  {line}")
}

/// The startup file of a shell, and the line that puts a folder first on its PATH.
fn line(shell: Option<&Path>, folder: &str) -> (&'static str, String) {
    let for_sh = || format!("export PATH={}:\"$PATH\"", word_of_sh(folder));
    match shell.and_then(Path::file_name).and_then(|name| name.to_str()) {
        Some("fish") => ("~/.config/fish/config.fish", format!("set -gx PATH {} $PATH", word_of_fish(folder))),
        Some("zsh") => ("~/.zshrc", for_sh()),
        Some("bash") => ("~/.bashrc", for_sh()),
        _ => ("~/.profile", for_sh()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_gets_its_own_line() {
        let line = |shell: &str, folder| line(Some(Path::new(shell)), folder);
        assert_eq!(line("/bin/bash", "/h/bin"), ("~/.bashrc", "export PATH=/h/bin:\"$PATH\"".to_owned()));
        assert_eq!(line("/bin/zsh", "/h/my bin"), ("~/.zshrc", "export PATH='/h/my bin':\"$PATH\"".to_owned()));
        let fish = ("~/.config/fish/config.fish", "set -gx PATH /h/bin $PATH".to_owned());
        assert_eq!(line("/usr/bin/fish", "/h/bin"), fish);
        assert_eq!(line("/bin/ksh", "/h/bin").0, "~/.profile");
        assert_eq!(super::line(None, "/h/bin").0, "~/.profile");
    }
}
