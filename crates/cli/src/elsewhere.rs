//! Words that other tools (Slurm, gflow, Docker, NVIDIA's own) use for what Sublet has.
//!
//! A user that types one of them is told the word to use here. Misspelt words are not in these tables: the command-line
//! parser suggests corrections for those.

/// Commands of other tools, and what to type here.
const COMMANDS: [(&[&str], &str); 14] = [
    (&["status", "info"], "`sublet` without a command shows the status, `sublet ps` your leases"),
    (&["list", "ls", "jobs"], "`sublet ps` lists your leases, `sublet queue` those that wait"),
    (&["squeue", "gqueue"], "`sublet queue` shows what waits, in order of service"),
    (&["srun", "exec", "start"], "`sublet run --vram SIZE -- COMMAND` runs a command on a lease"),
    (&["sbatch", "gbatch", "batch"], "`sublet run --vram SIZE -- COMMAND` waits for room and runs the command"),
    (&["salloc", "acquire"], "`eval \"$(sublet lease --vram SIZE)\"` takes a lease for this shell"),
    (
        &["scancel", "gcancel", "rm"],
        "`sublet stop ID` ends a program and its lease, `sublet release ID` the lease alone",
    ),
    (&["sinfo", "ginfo", "nvidia-smi", "nvtop", "gpu"], "`sublet gpus` shows the GPUs and their leases"),
    (&["sacct", "history", "report"], "`sublet usage` adds up what was leased, `sublet audit` shows what happened"),
    (&["pause", "suspend", "freeze", "sleep"], "`sublet park ID` moves a lease's VRAM to host memory"),
    (
        &["attach", "register"],
        "`sublet adopt PID` or `sublet adopt unit:NAME` gives a program that runs already a lease",
    ),
    (&["detach", "unregister"], "`sublet unadopt unit:NAME` undoes `sublet adopt`, `sublet release ID` ends a lease"),
    (&["door", "gateway"], "`sublet proxy` holds requests to a service while its lease is parked"),
    (&["unpark", "unpause", "continue", "wake", "thaw"], "`sublet resume ID` brings a parked lease back"),
];

/// Flags of other tools, and the flag here with its meaning.
const FLAGS: [(&[&str], &str); 5] = [
    (
        &["--mem", "--memory", "--gpu-mem", "--gpu-memory", "--vmem", "--size", "--mem-per-gpu"],
        "`--vram`, the VRAM on each GPU",
    ),
    (
        &["-G", "--gres", "--gpus-per-node", "--gpus-per-task", "--num-gpus", "--ngpus", "--gpu"],
        "`--gpus`, the number of GPUs",
    ),
    (&["-t", "--time-limit", "--timeout", "--walltime", "--duration"], "`--time`, how long at most, such as 30m or 4h"),
    (&["-p", "--partition", "--qos", "--class"], "`--tier`, one of interactive, batch and spot"),
    (&["-J", "--job-name", "--job"], "`--name`, by which `stop`, `park` and others find the lease"),
];

/// What to type instead of a command of another tool; `None` if the word is not known.
pub fn command(word: &str) -> Option<&'static str> {
    find(&COMMANDS, word)
}

/// The flag here, with its meaning, for a flag of another tool; `None` if the word is not known.
pub fn flag(word: &str) -> Option<&'static str> {
    find(&FLAGS, word)
}

fn find(table: &[(&[&str], &'static str)], word: &str) -> Option<&'static str> {
    table.iter().find(|(elsewhere, _)| elsewhere.contains(&word)).map(|(_, here)| *here)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    #[test]
    fn no_word_of_the_tables_is_one_of_sublets_own() {
        let cli = Cli::command();
        let words: Vec<&str> = COMMANDS.iter().flat_map(|(words, _)| *words).copied().collect();
        let is_own = |word: &&&str| {
            cli.get_subcommands()
                .any(|own| own.get_all_aliases().any(|name| name == **word) || own.get_name() == **word)
        };
        assert_eq!(words.iter().filter(is_own).collect::<Vec<_>>(), Vec::<&&str>::new());
    }

    #[test]
    fn each_hint_names_a_command_or_flag_that_there_is() {
        let cli = Cli::command();
        for (_, hint) in COMMANDS {
            let named = hint.split("sublet ").skip(1).filter_map(|rest| rest.split([' ', '`', ')']).next());
            for name in named.filter(|name| !name.is_empty()) {
                assert!(cli.find_subcommand(name).is_some(), "{name}: {hint}");
            }
        }
        let run = cli.find_subcommand("run").expect("it runs commands");
        for (_, hint) in FLAGS {
            let name = hint.trim_start_matches("`--").split('`').next().unwrap_or_default();
            assert!(run.get_arguments().any(|argument| argument.get_long() == Some(name)), "{hint}");
        }
    }
}
