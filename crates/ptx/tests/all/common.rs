//! A little device memory, and launches on it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use sublet_ptx::{DeviceMemory, KernelFault, Launch, Module, Region, Stats, run};

/// Allocations with gaps between them, so that an access past an end is seen.
#[derive(Default)]
pub struct TestMemory {
    allocations: Vec<(u64, u64, Box<[u128]>)>,
}

// SAFETY: the boxes are neither moved nor freed while a launch borrows the device.
unsafe impl DeviceMemory for TestMemory {
    fn region(&self, address: u64) -> Option<Region> {
        let found = self.allocations.iter().find(|(first, bytes, _)| address.wrapping_sub(*first) < *bytes)?;
        let (first, bytes, memory) = found;
        Some(Region { first: *first, bytes: *bytes, host: memory.as_ptr().cast_mut().cast(), writable: true })
    }
}

impl TestMemory {
    /// Memory that begins with `bytes`.
    pub fn allocate(&mut self, bytes: &[u8]) -> u64 {
        let mut memory = vec![0_u128; bytes.len().div_ceil(16)].into_boxed_slice();
        for (unit, chunk) in memory.iter_mut().zip(bytes.chunks(16)) {
            let mut whole = [0; 16];
            whole[..chunk.len()].copy_from_slice(chunk);
            *unit = u128::from_le_bytes(whole);
        }
        let first = self.allocations.last().map_or(0x7000_0000_0000, |(first, bytes, _)| (first + bytes + 4096) & !255);
        self.allocations.push((first, bytes.len() as u64, memory));
        first
    }

    /// What lies in the allocation that begins at `address`.
    pub fn read(&self, address: u64) -> Vec<u8> {
        let (_, bytes, memory) = self.allocations.iter().find(|(first, ..)| *first == address).expect("allocated");
        memory.iter().flat_map(|unit| unit.to_le_bytes()).take(*bytes as usize).collect()
    }

    pub fn read_u32(&self, address: u64) -> Vec<u32> {
        let bytes = self.read(address);
        bytes.as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(*four)).collect()
    }

    /// Gives every variable of a module its memory.
    pub fn load(&mut self, module: &Module) -> Vec<u64> {
        let mut addresses = Vec::new();
        for variable in module.variables() {
            let mut bytes = variable.initial.clone();
            bytes.resize(variable.bytes.max(1) as usize, 0);
            addresses.push(self.allocate(&bytes));
        }
        for (variable, address) in module.variables().iter().zip(&addresses) {
            for relocation in variable.relocations.iter().filter(|relocation| relocation.variable.is_some()) {
                let value = addresses[relocation.variable.unwrap()].wrapping_add_signed(relocation.addend);
                let mut bytes = self.read(*address);
                let at = relocation.offset as usize;
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
                self.write(*address, &bytes);
            }
        }
        addresses
    }

    fn write(&mut self, address: u64, bytes: &[u8]) {
        let found = self.allocations.iter_mut().find(|(first, ..)| *first == address).expect("allocated");
        for (unit, chunk) in found.2.iter_mut().zip(bytes.chunks(16)) {
            let mut whole = [0; 16];
            whole[..chunk.len()].copy_from_slice(chunk);
            *unit = u128::from_le_bytes(whole);
        }
    }
}

/// How to launch; the rest is usual.
pub struct LaunchOptions<'a> {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub params: &'a [u8],
    pub variables: &'a [u64],
    pub threads: usize,
    pub print: Option<&'a (dyn Fn(&str) + Sync)>,
}

impl Default for LaunchOptions<'_> {
    fn default() -> Self {
        LaunchOptions {
            grid: [1; 3],
            block: [32, 1, 1],
            shared: 0,
            params: &[],
            variables: &[],
            threads: 1,
            print: None,
        }
    }
}

/// Launches, and stops the launch after some seconds.
pub fn launch(
    module: &Module,
    kernel: &str,
    device: &TestMemory,
    options: &LaunchOptions<'_>,
) -> Result<Stats, KernelFault> {
    launch_for(module, kernel, device, options, Duration::from_secs(60))
}

pub fn launch_for(
    module: &Module,
    kernel: &str,
    device: &TestMemory,
    options: &LaunchOptions<'_>,
    limit: Duration,
) -> Result<Stats, KernelFault> {
    let stop = AtomicBool::new(false);
    let (done, wait) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let wait = wait;
            if wait.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                stop.store(true, Ordering::Relaxed);
            }
        });
        let result = run(&Launch {
            module,
            kernel: module.kernel(kernel).expect("the kernel is there"),
            grid: options.grid,
            block: options.block,
            dynamic_shared: options.shared,
            params: options.params,
            variables: options.variables,
            memory: device,
            stop: &stop,
            threads: options.threads,
            clock: &|| 0,
            print: options.print,
        });
        drop(done);
        result
    })
}

/// Parameters one after another, each aligned to its size.
pub fn params(values: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in values {
        bytes.resize(bytes.len().next_multiple_of(value.len().clamp(1, 8)), 0);
        bytes.extend_from_slice(value);
    }
    bytes
}
