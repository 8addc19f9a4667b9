//! Modules of PTX, their kernels and variables, and launches.

use super::{exports, put, text};
use crate::log;
use crate::module::{Loaded, Shape, launch};
use crate::result::{CuResult, Outcome};
use crate::runtime::current;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

/// The first bytes of machine code and of fat binaries.
const ELF: [u8; 4] = [0x7f, b'E', b'L', b'F'];
const FAT: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();

fn load(place: *mut usize, image: *const c_void) -> Outcome {
    let (runtime, handle, context) = current()?;
    let _inside = runtime.seat.pass();
    if image.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: the caller of the C function promises an image, which has at least so many bytes.
    let first = unsafe { image.cast::<[u8; 4]>().read_unaligned() };
    if first == ELF || first == FAT {
        log::once("machine code and fat binaries cannot be loaded: give PTX");
        return Err(CuResult::NO_BINARY_FOR_GPU);
    }
    // SAFETY: what is neither is text that ends with a zero, as the driver API has it.
    let text = unsafe { CStr::from_ptr(image.cast()) };
    let text = text.to_str().map_err(|_| CuResult::INVALID_PTX)?;
    let loaded = Loaded::load(runtime, handle, context.card, text)?;
    put(place, runtime.modules.put(Arc::new(loaded)))
}

/// The parameters, side by side as the kernel wants them.
fn gather(loaded: &Loaded, name: &str, places: *mut *mut c_void, extra: *mut *mut c_void) -> Outcome<Vec<u8>> {
    let kernel = loaded.module.kernel(name).ok_or(CuResult::NOT_FOUND)?;
    let mut bytes = vec![0; kernel.param_bytes() as usize];
    if kernel.params().is_empty() {
        return Ok(bytes);
    }
    if places.is_null() {
        log::once("parameters can only be given one by one, not through `extra`");
        return Err(if extra.is_null() { CuResult::INVALID_VALUE } else { CuResult::NOT_SUPPORTED });
    }
    for (number, param) in kernel.params().iter().enumerate() {
        // SAFETY: the caller of the C function promises a pointer for each parameter of the kernel.
        let place = unsafe { places.add(number).read() }.cast::<u8>();
        if place.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        let own = &mut bytes[param.offset as usize..][..param.bytes as usize];
        // SAFETY: and that there are as many bytes as the parameter has.
        unsafe { std::ptr::copy_nonoverlapping(place, own.as_mut_ptr(), own.len()) };
    }
    Ok(bytes)
}

exports! {
    fn cuModuleLoadData(place: *mut usize, image: *const c_void) {
        load(place, image)
    }
    fn cuModuleLoadDataEx(
        place: *mut usize,
        image: *const c_void,
        _count: u32,
        _options: *mut c_int,
        _values: *mut *mut c_void,
    ) {
        load(place, image)
    }
    fn cuModuleLoad(place: *mut usize, name: *const c_char) {
        let mut image = std::fs::read(text(name)?).map_err(|_| CuResult::FILE_NOT_FOUND)?;
        image.push(0);
        load(place, image.as_ptr().cast())
    }
    fn cuModuleUnload(module: usize) {
        let (runtime, _, _) = current()?;
        let _inside = runtime.seat.pass();
        runtime.modules.take(module)?.unload(runtime);
        Ok(())
    }
    fn cuModuleGetFunction(place: *mut usize, module: usize, name: *const c_char) {
        let (runtime, _, _) = current()?;
        let (loaded, name) = (runtime.modules.get(module)?, text(name)?);
        loaded.module.kernel(name).ok_or(CuResult::NOT_FOUND)?;
        put(place, runtime.functions.put(Arc::new((loaded, name.to_owned()))))
    }
    fn cuModuleGetGlobal_v2(place: *mut u64, bytes: *mut usize, module: usize, name: *const c_char) {
        let (runtime, _, _) = current()?;
        let (loaded, name) = (runtime.modules.get(module)?, text(name)?);
        let variables = loaded.module.variables().iter().zip(&loaded.variables);
        let found = variables.into_iter().find(|(variable, _)| variable.name == name);
        let (variable, at) = found.ok_or(CuResult::NOT_FOUND)?;
        if !bytes.is_null() {
            put(bytes, variable.bytes as usize)?;
        }
        if place.is_null() { Ok(()) } else { put(place, *at) }
    }
    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: usize) {
        let (runtime, _, _) = current()?;
        let function = runtime.functions.get(function)?;
        let kernel = function.0.module.kernel(&function.1).ok_or(CuResult::NOT_FOUND)?;
        put(value, match attribute {
            0 => kernel.max_block().map_or(1024, |block| block.iter().product::<u32>() as c_int),
            1 => kernel.shared_bytes() as c_int,
            3 => kernel.local_bytes() as c_int,
            4 => kernel.registers().min(255) as c_int,
            5 | 6 => 75,
            8 => 48 << 10,
            2 | 7 | 9..=20 => 0,
            _ => return Err(CuResult::INVALID_VALUE),
        })
    }
    fn cuFuncSetAttribute(function: usize, _attribute: c_int, _value: c_int) {
        current()?.0.functions.get(function).map(drop)
    }
    fn cuFuncSetCacheConfig(function: usize, _config: c_int) {
        current()?.0.functions.get(function).map(drop)
    }
    fn cuLaunchKernel(
        function: usize,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        _stream: usize,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let (runtime, _, context) = current()?;
        let _inside = runtime.seat.pass();
        let function = runtime.functions.get(function)?;
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        let threads = shape.block.iter().try_fold(1u32, |all, own| all.checked_mul(*own));
        if shape.grid.contains(&0) || !threads.is_some_and(|threads| (1..=1024).contains(&threads)) {
            return Err(CuResult::INVALID_VALUE);
        }
        let bytes = gather(&function.0, &function.1, params, extra)?;
        launch(runtime, &context, &function.0, &function.1, &shape, &bytes)
    }
}
