//! Modules of PTX, their functions and variables.

use super::pointers::{CallerOut, CallerText};
use super::{checked_place, exports, text, write_out, write_out_if_wanted};
use crate::image;
use crate::module::{LoadedModule, read};
use crate::result::{CuResult, Outcome};
use crate::runtime::current;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// `CU_MODULE_EAGER_LOADING`.
const EAGER: c_int = 1;

/// # Safety
/// The image is null, or one that can be loaded.
unsafe fn load(place: CallerOut<usize>, image: *const c_void) -> Outcome {
    let (runtime, context) = current()?;
    let place = checked_place(place)?;
    let _pass = runtime.client.pass_gate();
    // SAFETY: the caller promises an image.
    let text = unsafe { image::text_at(image)? };
    let loaded = LoadedModule::load(runtime, &context, read(&text)?)?;
    write_out(place, runtime.modules.insert(Arc::new(loaded)))
}

exports! {
    "cuModuleLoadData" 2000 fn cuModuleLoadData(place: CallerOut<usize>, image: *const c_void) {
        // SAFETY: the caller of the C function promises an image.
        unsafe { load(place, image) }
    }
    "cuModuleLoadDataEx" 2010 fn cuModuleLoadDataEx(
        place: CallerOut<usize>,
        image: *const c_void,
        _count: u32,
        _options: *mut c_int,
        _values: *mut *mut c_void,
    ) {
        // SAFETY: the caller of the C function promises an image.
        unsafe { load(place, image) }
    }
    "cuModuleLoadFatBinary" 2000 fn cuModuleLoadFatBinary(place: CallerOut<usize>, image: *const c_void) {
        // SAFETY: the caller of the C function promises an image.
        unsafe { load(place, image) }
    }
    "cuModuleLoad" 2000 fn cuModuleLoad(place: CallerOut<usize>, name: CallerText) {
        let image = image::file(text(&name)?)?;
        // SAFETY: the file ends with a zero, and a fat binary in it is whole.
        unsafe { load(place, image.as_ptr().cast()) }
    }
    "cuModuleUnload" 2000 fn cuModuleUnload(module: usize) {
        let (runtime, _) = current()?;
        let loaded = runtime.modules.get(module)?;
        // Its kernels may be running.
        runtime.engine.wait(&runtime.engine.last_jobs_of_all(Some(loaded.context)));
        let _pass = runtime.client.pass_gate();
        runtime.modules.remove(module)?.unload(runtime);
        Ok(())
    }
    "cuModuleGetLoadingMode" 11070 fn cuModuleGetLoadingMode(mode: CallerOut<c_int>) {
        write_out(mode, EAGER)
    }
    "cuModuleGetFunction" 2000 fn cuModuleGetFunction(place: CallerOut<usize>, module: usize, name: CallerText) {
        let (runtime, _) = current()?;
        write_out(place, runtime.modules.get(module)?.function(runtime, module, text(&name)?)?)
    }
    "cuModuleGetFunctionCount" 12040 fn cuModuleGetFunctionCount(count: CallerOut<u32>, module: usize) {
        let (runtime, _) = current()?;
        write_out(count, runtime.modules.get(module)?.module.kernels().count() as u32)
    }
    "cuModuleEnumerateFunctions" 12040 fn cuModuleEnumerateFunctions(places: CallerOut<usize>, count: u32, module: usize) {
        let (runtime, _) = current()?;
        let loaded = runtime.modules.get(module)?;
        for (number, kernel) in loaded.module.kernels().take(count as usize).enumerate() {
            // SAFETY: the caller of the C function promises room for as many as it states.
            write_out(unsafe { places.at(number) }, loaded.function(runtime, module, kernel.name())?)?;
        }
        Ok(())
    }
    "cuModuleGetGlobal" 3020 fn cuModuleGetGlobal_v2(
        place: CallerOut<u64>,
        bytes: CallerOut<usize>,
        module: usize,
        name: CallerText,
    ) {
        let (runtime, _) = current()?;
        if place.is_null() && bytes.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        let (at, length) = runtime.modules.get(module)?.variable(text(&name)?)?;
        write_out_if_wanted(bytes, length as usize)?;
        write_out_if_wanted(place, at)
    }
}
