//! `sublet wrap`: makes a tool take a lease, by a small script with the tool's name on PATH.
//!
//! Absent on purpose: any contact with the daemon, and any change to a shell's startup files.

mod folder;
mod recipe;
mod startup;

use crate::args::Globals;
use crate::failure::{Failure, tell_hint};
use crate::hold::ask::AskArgs;
use crate::hold::child;
use crate::hold::environment::word_of_sh;
use crate::output;
use crate::place;
use crate::table::{Table, TextFormat, Tone, once, plain, wrapped};
use crate::text;
use clap::Args;
pub use folder::sublet;
use folder::{First, Folder, is_wrapper, same};
use recipe::{Recipe, RecipeFile};
use serde::Serialize;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use sublet_wire::exit;

/// Put a wrapper on PATH that leases before a tool runs
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct WrapArgs {
    /// The tool, by its name on PATH or by its file
    #[arg(value_name = "TOOL", required_unless_present = "list")]
    tools: Vec<String>,
    /// Show the wrappers, and whether PATH finds them
    #[arg(long, conflicts_with_all = ["tools", "remove", "dry_run"])]
    list: bool,
    /// Take the tool's wrapper away
    #[arg(long)]
    remove: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Where wrappers are [default: sublet/wrap/bin in XDG_DATA_HOME or ~/.local/share]
    #[arg(long, value_name = "PATH", hide_short_help = true)]
    dir: Option<PathBuf>,
    #[command(flatten)]
    ask: AskArgs,
}

const AFTER_HELP: &str = "\
The options are those of `sublet run`, and the wrapper is a small script that
runs the tool through it. On a lease already, the tool runs on that one. Without
a lease: call the tool by its path. What comes earlier on PATH, such as an
active environment of Python's, hides it.

Your shell's startup files are yours: the line that puts the folder on PATH is
shown, not written.

Examples:
  sublet wrap python --vram 8G    `python` is `sublet run --vram 8G -- python`
  sublet wrap --list              what is wrapped, and whether PATH finds it
  sublet wrap --remove python     as before";

/// A wrapper, as `--json` prints it.
#[derive(Serialize)]
struct WrapperJson {
    name: String,
    file: PathBuf,
    /// Null if the file was changed by hand or written by another release.
    tool: Option<String>,
    options: Vec<String>,
    /// The tool's file does not exist any more.
    tool_gone: bool,
    /// A shell starts the wrapper for this name.
    first_on_path: bool,
    /// The file that a shell starts for this name.
    path_finds: Option<PathBuf>,
}

#[derive(Serialize)]
struct Listed {
    dir: PathBuf,
    on_path: bool,
    wrappers: Vec<WrapperJson>,
}

#[derive(Serialize)]
struct Wrote<'a> {
    #[serde(flatten)]
    shown: WrapperJson,
    script: &'a str,
    written: bool,
}

#[derive(Serialize)]
struct Removed<'a> {
    name: &'a str,
    file: PathBuf,
    removed: bool,
}

/// Runs `sublet wrap`.
pub fn run(globals: &Globals, args: &WrapArgs) -> Result<u8, Failure> {
    if globals.has_url() {
        globals.must_be_local("a tool runs where its GPU is", "wrap it on that host")?;
    }
    if (args.list || args.remove) && !args.ask.words().is_empty() {
        let words = args.ask.words().join(" ");
        return Err(Failure::usage(format!("no lease is asked for here, and `{words}` would be lost"))
            .hint("options of a lease are said when a tool is wrapped"));
    }
    args.ask.check()?;
    let folder = Folder::of(args.dir.as_deref())?;
    if args.list {
        return list(globals, &folder);
    }
    let (mut code, mut hints) = (exit::OK, Vec::new());
    for tool in &args.tools {
        let done = if args.remove { remove(globals, args, &folder, tool) } else { wrap(globals, args, &folder, tool) };
        match done {
            Ok(hint) => hints.extend(hint),
            Err(failure) => {
                failure.tell(globals.json);
                code = if code == exit::OK { failure.exit() } else { code };
            }
        }
    }
    // For several tools, the hint about a folder that is not on PATH is the same.
    hints.dedup();
    hints.iter().for_each(|hint| tell_hint(hint));
    Ok(code)
}

/// Writes a wrapper. Returns a hint about what is left to do.
fn wrap(globals: &Globals, args: &WrapArgs, folder: &Folder, tool: &str) -> Result<Option<String>, Failure> {
    let (name, file) = named(folder, tool)?;
    let sublet = folder::sublet()?;
    if same(&file, &sublet) {
        return Err(Failure::usage("sublet itself needs no lease").hint("name the tool that uses a GPU"));
    }
    let recipe = Recipe { tool: text_of(&file)?, options: options(globals, args)?, sublet: text_of(&sublet)? };
    let script = recipe
        .script(&name)
        .map_err(|error| Failure::new(exit::FAILURE, format!("the wrapper cannot be written down: {error}")))?;
    let replaces = folder.may_change(&name)?;
    if !args.dry_run {
        folder.put(&name, &script)?;
    }
    if globals.json {
        let shown = shown(folder, name, RecipeFile::Wrapper(recipe));
        output::json_line(&Wrote { shown, script: &script, written: !args.dry_run })?;
        return Ok(None);
    }
    let at = folder.file(&name);
    if args.dry_run {
        eprintln!("would write {}:", at.display());
        output::print(&script)?;
        return Ok(None);
    }
    output::print(&format!("wrote {}: runs `{}`\n", at.display(), recipe.command()))?;
    Ok(startup::hint(folder, &name, folder.first(&name), replaces))
}

/// Removes a wrapper. Nothing is left to do then.
fn remove(globals: &Globals, args: &WrapArgs, folder: &Folder, tool: &str) -> Result<Option<String>, Failure> {
    let name = name_of(tool)?;
    let file = folder.file(&name);
    if !folder.may_change(&name)? {
        return Err(Failure::new(exit::FAILURE, format!("there is no wrapper {}", file.display()))
            .hint("`sublet wrap --list` shows those there are"));
    }
    if !args.dry_run {
        folder.remove(&name)?;
    }
    if globals.json {
        output::json_line(&Removed { name: &name, file, removed: !args.dry_run })?;
    } else if args.dry_run {
        eprintln!("would remove {}", file.display());
    } else {
        output::print(&format!("removed {}\n", file.display()))?;
    }
    Ok(None)
}

fn list(globals: &Globals, folder: &Folder) -> Result<u8, Failure> {
    let wrappers: Vec<WrapperJson> =
        folder.all()?.into_iter().map(|(name, found)| shown(folder, name, found)).collect();
    if globals.json {
        output::json(&Listed { dir: folder.path().to_owned(), on_path: folder.is_on_path(), wrappers })?;
    } else if wrappers.is_empty() {
        eprintln!("no wrappers in {}", folder.path().display());
    } else {
        output::print(&table(&wrappers, TextFormat::of_stdout()))?;
        if !folder.is_on_path() {
            tell_hint(&startup::missing(folder));
        }
    }
    Ok(exit::OK)
}

fn shown(folder: &Folder, name: String, found: RecipeFile) -> WrapperJson {
    let first = folder.first(&name);
    let (tool, options) = match found {
        RecipeFile::Wrapper(recipe) => (Some(recipe.tool), recipe.options),
        RecipeFile::Changed | RecipeFile::Foreign => (None, Vec::new()),
    };
    WrapperJson {
        file: folder.file(&name),
        tool_gone: tool.as_ref().is_some_and(|tool| child::find(OsStr::new(tool)).is_err()),
        tool,
        options,
        first_on_path: first == First::Wrapper,
        path_finds: match first {
            First::Wrapper => Some(folder.file(&name)),
            First::Other(file) => Some(file),
            First::Nothing => None,
        },
        name,
    }
}

fn table(wrappers: &[WrapperJson], format: TextFormat) -> String {
    let mut table = Table::new(&["TOOL", "~RUNS", "~OPTIONS", "STATE"]);
    let mut reasons = Vec::new();
    for wrapper in wrappers {
        let options: Vec<String> = wrapper.options.iter().map(|word| word_of_sh(word)).collect();
        let (state, why) = state(wrapper);
        table.row([
            wrapper.name.clone(),
            text::or_none(wrapper.tool.as_deref()),
            text::or_none(Some(&options.join(" "))),
            state.to_owned(),
        ]);
        if let Some(why) = why {
            table.set_tone("STATE", Tone::Notable);
            reasons.push((wrapper.name.as_str(), format!("{state}: {}", plain(&why))));
        }
    }
    let reasons = once(reasons).into_iter().map(|(tools, why)| {
        let is = if tools.len() == 1 { "is" } else { "are" };
        wrapped(&format!("{} {is} {why}", text::names(&tools)), 2, format) + "\n"
    });
    table.show("", format) + &reasons.collect::<String>()
}

/// The state of a wrapper, and why it is not in use.
fn state(wrapper: &WrapperJson) -> (&'static str, Option<String>) {
    match (&wrapper.tool, &wrapper.path_finds) {
        (None, _) => ("unknown", Some("it was changed by hand, or is of another release; wrap it anew".to_owned())),
        (Some(_), _) if wrapper.tool_gone => {
            ("broken", Some("its tool does not exist any more; wrap it anew, or remove it".to_owned()))
        }
        (Some(_), Some(_)) if wrapper.first_on_path => ("in use", None),
        (Some(_), Some(other)) => ("not used", Some(format!("PATH finds {} first", other.display()))),
        (Some(_), None) => ("not used", Some("its folder is not on PATH".to_owned())),
    }
}

/// A tool's name and the path of its own file.
fn named(folder: &Folder, tool: &str) -> Result<(String, PathBuf), Failure> {
    let name = name_of(tool)?;
    if !tool.contains('/') {
        let file = folder.tool(&name)?;
        return Ok((name, file));
    }
    child::find(OsStr::new(tool))?;
    let file = place::absolute(Path::new(tool));
    if is_wrapper(&file) {
        return Err(Failure::usage(format!("{} is a wrapper itself", file.display()))
            .hint(format!("name the tool: `sublet wrap {name}` looks for it on PATH")));
    }
    Ok((name, file))
}

fn name_of(tool: &str) -> Result<String, Failure> {
    let name = Path::new(tool).file_name().and_then(OsStr::to_str);
    let name = name.filter(|name| !tool.ends_with('/') && !name.contains(char::is_control));
    name.map(str::to_owned).ok_or_else(|| Failure::usage(format!("`{}` names no tool", plain(tool))))
}

/// The options for `sublet run`: the request, and the daemon if one was given.
fn options(globals: &Globals, args: &WrapArgs) -> Result<Vec<String>, Failure> {
    let mut words = args.ask.words();
    if let Some(socket) = globals.socket() {
        words.extend(["--socket".to_owned(), text_of(&place::absolute(socket))?]);
    }
    Ok(words)
}

fn text_of(path: &Path) -> Result<String, Failure> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        Failure::usage(format!("{} is not written in UTF-8, and cannot be in a wrapper", path.display()))
    })
}
