//! A campaign: `cargo xtask fuzz-ptx --minutes 30 [--seed S] [--out FOLDER]`.
//!
//! Seeds are tried one after the other in a process with bounded memory. A rule that is
//! broken, a panic, a crash or a hang is kept as `FOLDER/SEED.ptx` with its reason in
//! `FOLDER/SEED.txt`, and the campaign goes on. `ptx-fuzz show SEED` prints the text of
//! a seed, `ptx-fuzz try SEED|FILE` checks one.

use anyhow::{Context, Result, bail};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use sublet_ptx_fuzz::arena::GuardedArena;
use sublet_ptx_fuzz::check::{self, CaseOutcome};
use sublet_ptx_fuzz::deadlines::Deadlines;
use sublet_ptx_fuzz::text::{self, Corpus};

/// Address space of the process that tries seeds.
const BYTES_MAX: u64 = 3 << 30;
/// The campaign ends after this many findings.
const FINDINGS_MAX: u64 = 500;
/// The time between two progress messages.
const PROGRESS_PERIOD: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["show", seed] => print_text(seed),
        ["try", what] => check_one(what),
        ["worker", first, until, folder] => worker(first, until, Path::new(folder)),
        _ => campaign(&words),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn print_text(seed: &str) -> Result<bool> {
    print!("{}", text::of_seed(&Corpus::new(), seed.parse()?));
    Ok(true)
}

fn check_one(what: &str) -> Result<bool> {
    let (seed, text) = match what.parse() {
        Ok(seed) => (seed, text::of_seed(&Corpus::new(), seed)),
        Err(_) => {
            // A finding is launched as it was found: its name is its seed.
            let seed = Path::new(what).file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok());
            (seed.unwrap_or(0), fs::read_to_string(what).with_context(|| format!("`{what}` could not be read"))?)
        }
    };
    let outcome = check::check(&text, seed, &mut GuardedArena::new(check::SLOTS)?, &Deadlines::start());
    println!("{outcome:?}");
    Ok(outcome.is_ok())
}

/// What a worker has done so far, stored in a file that outlives it.
#[derive(Debug, Clone, Copy, Default)]
struct CampaignProgress {
    /// The seed at hand.
    seed: u64,
    texts: u64,
    parsed: u64,
    launches: u64,
    faults: u64,
    stopped: u64,
    findings: u64,
}

impl CampaignProgress {
    fn numbers(&self) -> [u64; 7] {
        [self.seed, self.texts, self.parsed, self.launches, self.faults, self.stopped, self.findings]
    }

    fn write(&self, file: &File) -> Result<()> {
        let bytes: Vec<u8> = self.numbers().iter().flat_map(|number| number.to_le_bytes()).collect();
        Ok(file.write_all_at(&bytes, 0)?)
    }

    fn read(path: &Path) -> Result<CampaignProgress> {
        let bytes = fs::read(path)?;
        let mut numbers = bytes.as_chunks::<8>().0.iter().map(|eight| u64::from_le_bytes(*eight));
        let mut next = || numbers.next().unwrap_or(0);
        let (seed, texts, parsed) = (next(), next(), next());
        Ok(CampaignProgress {
            seed,
            texts,
            parsed,
            launches: next(),
            faults: next(),
            stopped: next(),
            findings: next(),
        })
    }

    fn add(&mut self, other: CampaignProgress) {
        self.seed = other.seed;
        self.texts += other.texts;
        self.parsed += other.parsed;
        self.launches += other.launches;
        self.faults += other.faults;
        self.stopped += other.stopped;
        self.findings += other.findings;
    }

    fn add_case(&mut self, outcome: CaseOutcome) {
        self.texts += 1;
        self.parsed += u64::from(outcome.parsed);
        self.launches += outcome.launches;
        self.faults += outcome.faults;
        self.stopped += outcome.stopped;
    }

    fn summary(&self) -> String {
        let CampaignProgress { texts, parsed, launches, faults, stopped, findings, seed } = self;
        format!(
            "{texts} texts (the last is seed {seed}), {parsed} of them modules; {launches} launches, \
             {faults} ended in a fault, {stopped} were stopped; {findings} findings"
        )
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Tries seeds until the time is up; whatever ends this process early is a finding.
fn worker(first: &str, until: &str, folder: &Path) -> Result<bool> {
    let bound = Rlimit { current: Some(BYTES_MAX), maximum: Some(BYTES_MAX) };
    setrlimit(Resource::As, bound).context("the memory of this process cannot be bounded")?;
    let (mut seed, until): (u64, u64) = (first.parse()?, until.parse()?);
    let progress_file = File::options().write(true).open(folder.join("progress"))?;
    let (corpus, mut arena, deadlines) = (Corpus::new(), GuardedArena::new(check::SLOTS)?, Deadlines::start());
    let mut progress = CampaignProgress::default();
    while unix_seconds() < until && progress.findings < FINDINGS_MAX {
        progress.seed = seed;
        progress.write(&progress_file)?;
        let text = text::of_seed(&corpus, seed);
        match check::check(&text, seed, &mut arena, &deadlines) {
            Ok(outcome) => progress.add_case(outcome),
            Err(reason) => {
                progress.add_case(CaseOutcome::default());
                progress.findings += 1;
                save_finding(folder, seed, &text, &reason)?;
            }
        }
        seed += 1;
    }
    progress.write(&progress_file)?;
    Ok(true)
}

fn save_finding(folder: &Path, seed: u64, text: &str, reason: &str) -> Result<()> {
    println!("seed {seed}: {reason}");
    fs::write(folder.join(format!("{seed}.ptx")), text)?;
    fs::write(folder.join(format!("{seed}.txt")), format!("{reason}\n"))?;
    Ok(())
}

fn campaign(words: &[&str]) -> Result<bool> {
    let (mut minutes, mut first, mut folder) = (30_u64, 0_u64, PathBuf::from("target/ptx-fuzz"));
    let mut rest = words;
    while let [name, value, left @ ..] = rest {
        match *name {
            "--minutes" => minutes = value.parse().context("`--minutes` takes a number")?,
            "--seed" => first = value.parse().context("`--seed` takes a number")?,
            "--out" => folder = PathBuf::from(value),
            other => bail!("`{other}` is not known; use --minutes N, --seed S, --out FOLDER, or show, try"),
        }
        rest = left;
    }
    if let [word] = rest {
        bail!("`{word}` is not known or lacks its value");
    }
    fs::create_dir_all(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let (begun, until) = (Instant::now(), unix_seconds() + minutes * 60);
    let mut total = CampaignProgress::default();
    while unix_seconds() < until && total.findings < FINDINGS_MAX {
        total.add(run_worker(first, until, &folder)?);
        first = total.seed + 1;
    }
    println!("{:.1} minutes: {}", begun.elapsed().as_secs_f64() / 60.0, total.summary());
    if total.findings > 0 {
        println!("findings are in {}: try one with `ptx-fuzz try FILE`", folder.display());
    }
    Ok(total.findings == 0)
}

/// Runs one process until it ends, and keeps what ended it.
fn run_worker(first: u64, until: u64, folder: &Path) -> Result<CampaignProgress> {
    let progress_path = folder.join("progress");
    fs::write(&progress_path, first.to_le_bytes())?;
    let stderr_path = folder.join("said");
    let mut child = Command::new(std::env::current_exe()?)
        .args(["worker", &first.to_string(), &until.to_string()])
        .arg(folder)
        .stderr(File::create(&stderr_path)?)
        .spawn()
        .context("the process that tries seeds does not start")?;
    let mut last_message = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        std::thread::sleep(Duration::from_millis(50));
        if last_message.elapsed() > PROGRESS_PERIOD {
            last_message = Instant::now();
            println!("{}", CampaignProgress::read(&progress_path)?.summary());
        }
    };
    let mut progress = CampaignProgress::read(&progress_path)?;
    if !status.success() {
        let stderr = fs::read_to_string(&stderr_path).unwrap_or_default();
        let text = text::of_seed(&Corpus::new(), progress.seed);
        save_finding(folder, progress.seed, &text, &format!("the process ended ({status}): {}", stderr.trim()))?;
        progress.texts += 1;
        progress.findings += 1;
    }
    Ok(progress)
}
