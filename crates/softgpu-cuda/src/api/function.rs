//! Functions: their attributes, occupancy, and launches.

use super::pointers::{CallerIn, CallerOut};
use super::{exports, read_in, streamed, write_out, write_out_if_wanted};
use crate::function::{ContextKernel, LaunchGeometry, RawKernelParams, SHARED_MAX};
use crate::log;
use crate::result::{CuResult, Outcome};
use crate::runtime::{DriverContext, Runtime, current};
use crate::stream::{resolve, submit_or_capture};
use crate::work::JobWork;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use sublet_ptx::Kernel;

/// A size of dynamic shared memory that depends on the block's size.
type SharedOfBlock = Option<unsafe extern "C" fn(c_int) -> usize>;

/// `CUlaunchConfig`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CuLaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: usize,
    attributes: CallerIn<CuLaunchAttribute>,
    count: u32,
}

/// `CUlaunchAttribute`: the number, and sixty-four bytes that depend on it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CuLaunchAttribute {
    which: c_int,
    pad: c_int,
    value: [u32; 16],
}

/// The function that a program names: one of a module, or a library's kernel in this context.
pub fn function(runtime: &Runtime, context: &DriverContext, handle: usize) -> Outcome<Arc<ContextKernel>> {
    if let Ok(found) = runtime.functions.get(handle) {
        return Ok(found);
    }
    let found = runtime.kernels.get(handle)?.function_in(runtime, context)?;
    runtime.functions.get(found)
}

/// Writes an attribute of a function.
pub fn attribute(runtime: &Runtime, value: CallerOut<c_int>, which: c_int, function: usize) -> Outcome {
    write_out(value, runtime.functions.get(function)?.attribute(which)?)
}

/// Writes offset and size of a parameter.
pub fn param_info(kernel: &Kernel, number: usize, offset: CallerOut<usize>, size: CallerOut<usize>) -> Outcome {
    let param = kernel.params().get(number).ok_or(CuResult::INVALID_VALUE)?;
    write_out(offset, param.offset as usize)?;
    write_out_if_wanted(size, param.bytes as usize)
}

fn launch(handle: usize, shape: LaunchGeometry, stream: usize, own: bool, given: RawKernelParams) -> Outcome {
    let (runtime, stream) = resolve(stream, own)?;
    let _pass = runtime.client.pass_gate();
    let function = function(runtime, &stream.context, handle)?;
    submit_or_capture(runtime, &stream, JobWork::Kernel(function.call(handle, shape, given)?))
}

/// Refuses launch attributes that ask for features that do not exist here.
fn check_attributes(config: &CuLaunchConfig) -> Outcome {
    // SAFETY: the caller of the C function promises a list of that length.
    for attribute in unsafe { config.attributes.read_list(config.count as usize)? } {
        let is_set = match attribute.which {
            2 => attribute.value[0] != 0,
            // A cluster of one block is none.
            4 => attribute.value[..3] != [1, 1, 1],
            7 | 12 | 13 => true,
            _ => false,
        };
        if is_set {
            log::once("cooperative launches, clusters and events in launches are not supported");
            return Err(CuResult::NOT_SUPPORTED);
        }
    }
    Ok(())
}

/// The block size with the highest occupancy, and how many blocks fill the GPU.
fn best_block(
    function: &ContextKernel,
    of_block: SharedOfBlock,
    dynamic: usize,
    limit: c_int,
) -> Outcome<(c_int, c_int)> {
    let max = function.attribute(0)?;
    let limit = if limit == 0 { max } else { limit.min(max) };
    let mut best = (0, 0);
    for threads in (1..=limit / 32).rev().map(|warps| warps * 32) {
        // SAFETY: the caller of the C function promises a function of a number.
        let shared = of_block.map_or(dynamic, |of_block| unsafe { of_block(threads) });
        let blocks = function.blocks_at_a_time(threads as u32, shared as u64)? as c_int;
        if blocks * threads > best.0 * best.1 {
            best = (blocks, threads);
        }
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as c_int;
    Ok((best.0 * processors, best.1))
}

fn active_blocks(place: CallerOut<c_int>, handle: usize, threads: c_int, dynamic: usize) -> Outcome {
    let (runtime, context) = current()?;
    let threads = u32::try_from(threads).map_err(|_| CuResult::INVALID_VALUE)?;
    let blocks = function(runtime, &context, handle)?.blocks_at_a_time(threads, dynamic as u64)?;
    write_out(place, blocks as c_int)
}

exports! {
    "cuFuncGetAttribute" 2020 fn cuFuncGetAttribute(value: CallerOut<c_int>, which: c_int, handle: usize) {
        let (runtime, context) = current()?;
        write_out(value, function(runtime, &context, handle)?.attribute(which)?)
    }
    "cuFuncSetAttribute" 9000 fn cuFuncSetAttribute(handle: usize, which: c_int, value: c_int) {
        let (runtime, context) = current()?;
        function(runtime, &context, handle)?.set_attribute(which, value)
    }
    "cuFuncSetCacheConfig" 3000 fn cuFuncSetCacheConfig(handle: usize, _config: c_int) {
        let (runtime, context) = current()?;
        function(runtime, &context, handle).map(drop)
    }
    "cuFuncSetSharedMemConfig" 4020 fn cuFuncSetSharedMemConfig(handle: usize, _config: c_int) {
        let (runtime, context) = current()?;
        function(runtime, &context, handle).map(drop)
    }
    "cuFuncGetModule" 11000 fn cuFuncGetModule(place: CallerOut<usize>, handle: usize) {
        let (runtime, context) = current()?;
        write_out(place, function(runtime, &context, handle)?.module)
    }
    "cuFuncGetName" 12030 fn cuFuncGetName(place: CallerOut<*const c_char>, handle: usize) {
        let (runtime, context) = current()?;
        // The name lives as long as the function, which its module keeps.
        write_out(place, function(runtime, &context, handle)?.name.as_ptr())
    }
    "cuFuncGetParamInfo" 12040 fn cuFuncGetParamInfo(
        handle: usize,
        number: usize,
        offset: CallerOut<usize>,
        size: CallerOut<usize>,
    ) {
        let (runtime, context) = current()?;
        param_info(function(runtime, &context, handle)?.kernel()?, number, offset, size)
    }
    "cuFuncIsLoaded" 12040 fn cuFuncIsLoaded(state: CallerOut<c_int>, handle: usize) {
        let (runtime, context) = current()?;
        function(runtime, &context, handle)?;
        write_out(state, 1)
    }
    "cuFuncLoad" 12040 fn cuFuncLoad(handle: usize) {
        let (runtime, context) = current()?;
        function(runtime, &context, handle).map(drop)
    }
    "cuOccupancyMaxActiveBlocksPerMultiprocessor" 6050 fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        place: CallerOut<c_int>,
        handle: usize,
        threads: c_int,
        dynamic: usize,
    ) {
        active_blocks(place, handle, threads, dynamic)
    }
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags" 7000 fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        place: CallerOut<c_int>,
        handle: usize,
        threads: c_int,
        dynamic: usize,
        _flags: u32,
    ) {
        active_blocks(place, handle, threads, dynamic)
    }
    "cuOccupancyMaxPotentialBlockSize" 6050 fn cuOccupancyMaxPotentialBlockSize(
        grid: CallerOut<c_int>,
        block: CallerOut<c_int>,
        handle: usize,
        of_block: SharedOfBlock,
        dynamic: usize,
        limit: c_int,
    ) {
        let (runtime, context) = current()?;
        let found = best_block(&*function(runtime, &context, handle)?, of_block, dynamic, limit)?;
        write_out(grid, found.0)?;
        write_out(block, found.1)
    }
    "cuOccupancyMaxPotentialBlockSizeWithFlags" 7000 fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: CallerOut<c_int>,
        block: CallerOut<c_int>,
        handle: usize,
        of_block: SharedOfBlock,
        dynamic: usize,
        limit: c_int,
        _flags: u32,
    ) {
        let (runtime, context) = current()?;
        let found = best_block(&*function(runtime, &context, handle)?, of_block, dynamic, limit)?;
        write_out(grid, found.0)?;
        write_out(block, found.1)
    }
    "cuOccupancyAvailableDynamicSMemPerBlock" 10020 fn cuOccupancyAvailableDynamicSMemPerBlock(
        place: CallerOut<usize>,
        handle: usize,
        blocks: c_int,
        threads: c_int,
    ) {
        let (runtime, context) = current()?;
        let function = function(runtime, &context, handle)?;
        let threads = u32::try_from(threads).map_err(|_| CuResult::INVALID_VALUE)?;
        if blocks < 1 || function.blocks_at_a_time(threads, 0)? < blocks as u32 {
            return Err(CuResult::INVALID_VALUE);
        }
        let own = function.kernel()?.shared_bytes();
        write_out(place, (SHARED_MAX / blocks as u32).saturating_sub(own) as usize)
    }
}

streamed! { own;
    "cuLaunchKernel" 4000 fn cuLaunchKernel, cuLaunchKernel_ptsz(
        handle: usize,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: usize,
        each: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let shape = LaunchGeometry { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        // SAFETY: the caller of the C function promises parameters as the kernel declares them.
        launch(handle, shape, stream, own, unsafe { RawKernelParams::new(each, extra) })
    }
    "cuLaunchKernelEx" 11060 fn cuLaunchKernelEx, cuLaunchKernelEx_ptsz(
        config: CallerIn<CuLaunchConfig>,
        handle: usize,
        each: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let config = read_in(config)?;
        check_attributes(&config)?;
        let shape = LaunchGeometry { grid: config.grid, block: config.block, shared: config.shared };
        // SAFETY: the caller of the C function promises parameters as the kernel declares them.
        launch(handle, shape, config.stream, own, unsafe { RawKernelParams::new(each, extra) })
    }
}
