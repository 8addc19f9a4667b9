//! The text of a wrapper: a shell script with its recipe in the second line.
//!
//! That line marks the file as Sublet's, and is all that is read back.

use crate::hold::environment::word_of_sh;
use crate::table::plain;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The beginning of a wrapper. The format number and the recipe follow in the same line.
const HEAD: &str = "#!/bin/sh\n# sublet wrap ";
/// The format that this release writes and reads.
const FORM: &str = "1 ";
/// The most bytes that are read of a file. A wrapper has a few hundred.
const READ_MAX: u64 = 64 << 10;

/// What a wrapper is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recipe {
    /// The path of the tool's own file.
    pub tool: String,
    /// The options for `sublet run`.
    pub options: Vec<String>,
    /// The path of `sublet`.
    pub sublet: String,
}

/// What a file is.
#[derive(Debug, PartialEq, Eq)]
pub enum RecipeFile {
    /// A file that Sublet did not write.
    Foreign,
    /// A wrapper of another release, or one that was changed by hand.
    Changed,
    /// A wrapper.
    Wrapper(Recipe),
}

impl RecipeFile {
    /// What a file is; a link is followed.
    pub fn at(file: &Path) -> io::Result<RecipeFile> {
        let mut bytes = Vec::new();
        File::open(file)?.take(READ_MAX).read_to_end(&mut bytes)?;
        Ok(RecipeFile::of(&String::from_utf8_lossy(&bytes)))
    }

    fn of(text: &str) -> RecipeFile {
        let Some(rest) = text.strip_prefix(HEAD) else { return RecipeFile::Foreign };
        let line = rest.lines().next().and_then(|line| line.strip_prefix(FORM));
        match line.and_then(|recipe| serde_json::from_str(recipe).ok()) {
            Some(recipe) => RecipeFile::Wrapper(recipe),
            None => RecipeFile::Changed,
        }
    }
}

impl Recipe {
    /// The command that the wrapper runs, without the tool's own arguments.
    pub fn command(&self) -> String {
        let words = self.options.iter().map(String::as_str).chain(["--", &self.tool]);
        words.fold("sublet run".to_owned(), |line, word| format!("{line} {}", word_of_sh(word)))
    }

    /// The whole file, for a tool of this name.
    pub fn script(&self, name: &str) -> serde_json::Result<String> {
        let recipe = serde_json::to_string(self)?;
        // A part of it is in a comment, where a newline would begin a command.
        let name = &plain(name);
        let [tool, sublet, typed] = [&self.tool, &self.sublet, name].map(|text| word_of_sh(text));
        let options: String = self.options.iter().map(|word| format!("{} ", word_of_sh(word))).collect();
        let gone = word_of_sh(&format!("error: {} is not there any more: `{name}` gets no lease", self.sublet));
        let hint =
            word_of_sh(&format!("hint: write this wrapper anew with `sublet wrap {typed}`; without a lease: {tool}"));
        Ok(format!(
            r#"{HEAD}{FORM}{recipe}
# To take it away: sublet wrap --remove {typed}

if [ ! -x {sublet} ]; then
    printf '%s\n' {gone} \
        {hint} >&2
    exit 127
fi
exec {sublet} run {options}-- {tool} "$@"
"#
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn recipe() -> Recipe {
        Recipe {
            tool: "/opt/it's/python".to_owned(),
            options: vec!["--vram".to_owned(), "8G".to_owned(), "--name".to_owned(), "a $b".to_owned()],
            sublet: "/usr/bin/sublet".to_owned(),
        }
    }

    #[test]
    fn a_wrapper_is_a_script_that_people_can_read() {
        expect![[r##"
            #!/bin/sh
            # sublet wrap 1 {"tool":"/opt/it's/python","options":["--vram","8G","--name","a $b"],"sublet":"/usr/bin/sublet"}
            # To take it away: sublet wrap --remove python

            if [ ! -x /usr/bin/sublet ]; then
                printf '%s\n' 'error: /usr/bin/sublet is not there any more: `python` gets no lease' \
                    'hint: write this wrapper anew with `sublet wrap python`; without a lease: '\''/opt/it'\''\'\'''\''s/python'\''' >&2
                exit 127
            fi
            exec /usr/bin/sublet run --vram 8G --name 'a $b' -- '/opt/it'\''s/python' "$@"
        "##]]
        .assert_eq(&recipe().script("python").unwrap());
        assert_eq!(recipe().command(), r"sublet run --vram 8G --name 'a $b' -- '/opt/it'\''s/python'");
    }

    #[test]
    fn a_wrapper_is_known_by_its_second_line_and_read_back() {
        let script = recipe().script("python").unwrap();
        assert_eq!(RecipeFile::of(&script), RecipeFile::Wrapper(recipe()));
        assert_eq!(RecipeFile::of(&script.replace("wrap 1 ", "wrap 2 ")), RecipeFile::Changed);
        assert_eq!(RecipeFile::of(&script.replace("\"tool\"", "\"toll\"")), RecipeFile::Changed);
        for foreign in ["", "#!/bin/sh\n", "#!/bin/sh\nexec python\n", "\x7fELF", "x\n# sublet wrap 1 {}"] {
            assert_eq!(RecipeFile::of(foreign), RecipeFile::Foreign, "{foreign:?}");
        }
    }

    #[test]
    fn no_name_breaks_out_of_its_line() {
        let odd = Recipe { tool: "/opt/a\nb'; rm -rf x; '".to_owned(), ..recipe() };
        let script = odd.script("x\nreboot").unwrap();
        let comments: Vec<&str> = script.lines().take_while(|line| line.starts_with('#')).collect();
        assert_eq!(comments[2..], ["# To take it away: sublet wrap --remove 'x reboot'"]);
        assert_eq!(RecipeFile::of(&script), RecipeFile::Wrapper(odd));
    }
}
