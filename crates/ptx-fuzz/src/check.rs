//! The rules that hold for every text.

use crate::arena::{GuardedArena, SLOT_BYTES};
use crate::deadlines::Deadlines;
use crate::random::SplitMix64;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use sublet_ptx::{FaultKind, Kernel, Launch, Module, Stats, VariableSpace, run};

/// Regions of a launch besides those of variables.
const REGIONS: usize = 3;
/// Variables of a module that is launched.
const VARIABLES_MAX: usize = 24;
/// Slots that an arena needs.
pub const SLOTS: usize = REGIONS + VARIABLES_MAX;
/// Kernels of a module that are launched.
const KERNELS_MAX: usize = 3;
/// Seconds of this thread that reading a text, or ending a launch that was told to stop, may take.
const SECONDS_MAX: f64 = 3.0;

/// How far a text came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CaseOutcome {
    /// It is a module.
    pub parsed: bool,
    /// Launches, without those that were refused.
    pub launches: u64,
    /// Launches that ended in a fault.
    pub faults: u64,
    /// Launches that ran until they were told to stop.
    pub stopped: u64,
}

/// How a kernel is launched, the same every time.
struct LaunchPlan {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: Vec<u8>,
    variables: Vec<u64>,
    fill: u64,
}

/// What a launch left behind.
#[derive(Debug, PartialEq)]
struct LaunchResult {
    result: Result<Stats, String>,
    memory: u64,
    printed: u64,
}

/// Reads a text and launches its kernels; an error says which rule was broken.
pub fn check(text: &str, seed: u64, arena: &mut GuardedArena, deadlines: &Deadlines) -> Result<CaseOutcome, String> {
    deadlines.begin_case();
    let outcome = check_within(text, seed, arena, deadlines);
    deadlines.end_case();
    outcome
}

fn check_within(text: &str, seed: u64, arena: &mut GuardedArena, deadlines: &Deadlines) -> Result<CaseOutcome, String> {
    let mut random = SplitMix64::new(!seed);
    let mut outcome = CaseOutcome::default();
    let begun = thread_seconds();
    let parsed = Module::parse(text);
    check_seconds(begun, "reading")?;
    let module = match parsed {
        Ok(module) => module,
        Err(error) => {
            // A refusal must have a message.
            return if error.to_string().is_empty() { Err("an error without words".into()) } else { Ok(outcome) };
        }
    };
    let plain = Module::parse_plain(text).map_err(|error| format!("refused for a host without vectors: {error}"))?;
    outcome.parsed = true;
    let kernels: Vec<&Kernel> = module.kernels().collect();
    for _ in 0..kernels.len().min(KERNELS_MAX) {
        let index = random.below(kernels.len());
        let Some(plan) = launch_plan(&module, kernels[index], arena, &mut random) else { continue };
        let workers = if random.chance(25) { 2 + random.below(2) } else { 1 };
        compare_launches(&module, &plain, index, &plan, workers, arena, deadlines, &mut outcome)?;
    }
    Ok(outcome)
}

#[expect(clippy::too_many_arguments, reason = "one launch in four ways: they have no better name together")]
fn compare_launches(
    module: &Module,
    plain: &Module,
    index: usize,
    plan: &LaunchPlan,
    workers: usize,
    arena: &mut GuardedArena,
    deadlines: &Deadlines,
    outcome: &mut CaseOutcome,
) -> Result<(), String> {
    let mut launch_once = |module: &Module, workers: usize| {
        let kernel = module.kernels().nth(index).ok_or("a kernel is missing")?;
        launch(module, kernel, plan, workers, arena, deadlines, outcome)
    };
    if workers > 1 {
        // Blocks may race, so the results are not compared.
        launch_once(module, workers)?;
    }
    let Some(first) = launch_once(module, 1)? else { return Ok(()) };
    for (again, what) in [(module, "launched again"), (plain, "without vector instructions")] {
        if let Some(other) = launch_once(again, 1)?
            && other != first
        {
            return Err(format!("{what}, {other:?} instead of {first:?}"));
        }
    }
    Ok(())
}

/// The seconds that this thread has run.
fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn check_seconds(begun: f64, what: &str) -> Result<(), String> {
    let took = thread_seconds() - begun;
    if took > SECONDS_MAX { Err(format!("{what} took {took:.1} s")) } else { Ok(()) }
}

/// Memory and parameters for a kernel, or nothing if its variables are too large to try.
fn launch_plan(
    module: &Module,
    kernel: &Kernel,
    arena: &mut GuardedArena,
    random: &mut SplitMix64,
) -> Option<LaunchPlan> {
    arena.free_regions();
    let fill = random.bits();
    let mut regions = Vec::new();
    for _ in 0..REGIONS {
        let bytes = [2048, 2048, 4096, 2048, 1200, 4096, 2048, 1 + random.below(3000)][random.below(8)];
        regions.push(arena.allocate(bytes, random.chance(70), true)?);
    }
    if module.variables().len() > VARIABLES_MAX {
        return None;
    }
    let mut variables = Vec::new();
    for variable in module.variables() {
        let bytes = usize::try_from(variable.bytes).ok().filter(|bytes| *bytes <= SLOT_BYTES)?;
        let writable = variable.space == VariableSpace::Global;
        variables.push(arena.allocate(bytes, true, writable)?);
    }
    let mut params = vec![0; kernel.param_bytes() as usize];
    for param in kernel.params() {
        let (start, end) = (param.offset as usize, (param.offset + param.bytes) as usize);
        let address =
            regions[random.below(REGIONS)] + [0, 0, 16, 32, 0, 16, 256, random.below(64) as u64][random.below(8)];
        let value = match (param.bytes, random.below(20)) {
            (_, 0) if random.chance(30) => random.bits(),
            (8, _) => address,
            _ => random.below(40) as u64,
        };
        for (index, byte) in params[start..end].iter_mut().enumerate() {
            *byte = if index < 8 { value.to_le_bytes()[index] } else { random.bits() as u8 };
        }
    }
    let block = kernel.required_block().unwrap_or_else(|| {
        let x = [1, 5, 31, 32, 33, 64, 96, 100][random.below(8)];
        [x, 1 + random.below(2) as u32 * random.below(3) as u32, 1]
    });
    let grid = [1 + random.below(3) as u32, 1 + random.below(2) as u32, 1];
    Some(LaunchPlan { grid, block, shared: [0, 128, 512, 128][random.below(4)], params, variables, fill })
}

/// Launches once and checks the memory; `None` if the launch was stopped, because the results then
/// depend on when.
fn launch(
    module: &Module,
    kernel: &Kernel,
    plan: &LaunchPlan,
    workers: usize,
    arena: &mut GuardedArena,
    deadlines: &Deadlines,
    outcome: &mut CaseOutcome,
) -> Result<Option<LaunchResult>, String> {
    arena.fill(plan.fill);
    for (variable, &address) in module.variables().iter().zip(&plan.variables) {
        arena.write(address, 0, &variable.initial);
        for relocation in &variable.relocations {
            let base = relocation.variable.map_or(0, |index| plan.variables[index]);
            let value = base.wrapping_add_signed(relocation.addend).to_le_bytes();
            arena.write(address, relocation.offset as usize, &value[..(relocation.bytes as usize).min(8)]);
        }
    }
    let constants: Vec<(u64, u64)> = module
        .variables()
        .iter()
        .zip(&plan.variables)
        .filter(|(variable, _)| variable.space == VariableSpace::Const)
        .map(|(_, &address)| (address, arena.region_hash(address)))
        .collect();
    let printed = AtomicU64::new(0);
    let print = |text: &str| {
        let hash = text.bytes().fold(printed.load(Relaxed), |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3).wrapping_add(1)
        });
        printed.store(hash, Relaxed);
    };
    let begun = thread_seconds();
    let result = deadlines.run_launch(|stop| {
        run(&Launch {
            module,
            kernel,
            grid: plan.grid,
            block: plan.block,
            dynamic_shared: plan.shared,
            params: &plan.params,
            variables: &plan.variables,
            memory: arena,
            stop,
            threads: workers,
            clock: &|| 12_345,
            print: Some(&print),
        })
    });
    check_seconds(begun, "a launch that was told to stop")?;
    let memory = arena.checked_hash()?;
    if constants.iter().any(|&(address, was)| arena.region_hash(address) != was) {
        return Err("constant memory changed".into());
    }
    outcome.launches += 1;
    match &result {
        Err(fault) if fault.kind == FaultKind::Stopped => {
            outcome.stopped += 1;
            return Ok(None);
        }
        Err(fault) if matches!(fault.kind, FaultKind::Refused(_)) => outcome.launches -= 1,
        Err(_) => outcome.faults += 1,
        Ok(_) => {}
    }
    let result = result.map_err(|fault| fault.to_string());
    Ok(Some(LaunchResult { result, memory, printed: printed.load(Relaxed) }))
}
