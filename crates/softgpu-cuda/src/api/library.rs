//! Libraries, which belong to no context, and their kernels.

use super::function::{attribute, param_info};
use super::pointers::{CallerOut, CallerText};
use super::{checked_place, exports, text, write_out, write_out_if_wanted};
use crate::image;
use crate::module::{KernelLibrary, LibraryKernel, read};
use crate::result::{CuResult, Outcome};
use crate::runtime::{DriverContext, Runtime, current};
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, PoisonError};

/// # Safety
/// The image is null, or one that can be loaded.
unsafe fn load(place: CallerOut<usize>, image: *const c_void) -> Outcome {
    let runtime = Runtime::get()?;
    let _pass = runtime.client.pass_gate();
    let place = checked_place(place)?;
    // SAFETY: the caller promises an image.
    let text = unsafe { image::text_at(image)? };
    write_out(place, runtime.libraries.insert(Arc::new(KernelLibrary::new(read(&text)?))))
}

/// The context in which a question about a GPU is answered: the current one, if it is on that GPU.
fn context_on(runtime: &Runtime, device: c_int) -> Outcome<Arc<DriverContext>> {
    let gpu = runtime.gpu(device)?;
    if let Ok((_, context)) = current()
        && context.gpu == gpu
    {
        return Ok(context);
    }
    let primary = runtime.primary[gpu].lock().unwrap_or_else(PoisonError::into_inner);
    primary.context.clone().ok_or(CuResult::INVALID_CONTEXT)
}

fn kernel(handle: usize) -> Outcome<(&'static Runtime, Arc<LibraryKernel>)> {
    let runtime = Runtime::get()?;
    Ok((runtime, runtime.kernels.get(handle)?))
}

exports! {
    "cuLibraryLoadData" 12000 fn cuLibraryLoadData(
        place: CallerOut<usize>,
        image: *const c_void,
        _options: *mut c_int,
        _values: *mut *mut c_void,
        _count: u32,
        _library_options: *mut c_int,
        _library_values: *mut *mut c_void,
        _library_count: u32,
    ) {
        // SAFETY: the caller of the C function promises an image.
        unsafe { load(place, image) }
    }
    "cuLibraryLoadFromFile" 12000 fn cuLibraryLoadFromFile(
        place: CallerOut<usize>,
        name: CallerText,
        _options: *mut c_int,
        _values: *mut *mut c_void,
        _count: u32,
        _library_options: *mut c_int,
        _library_values: *mut *mut c_void,
        _library_count: u32,
    ) {
        let image = image::file(text(&name)?)?;
        // SAFETY: the file ends with a zero, and a fat binary in it is whole.
        unsafe { load(place, image.as_ptr().cast()) }
    }
    "cuLibraryUnload" 12000 fn cuLibraryUnload(library: usize) {
        let runtime = Runtime::get()?;
        runtime.libraries.get(library)?;
        // Its kernels may be running.
        runtime.engine.wait(&runtime.engine.last_jobs_of_all(None));
        let _pass = runtime.client.pass_gate();
        runtime.libraries.remove(library)?.unload(runtime);
        Ok(())
    }
    "cuLibraryGetKernel" 12000 fn cuLibraryGetKernel(place: CallerOut<usize>, library: usize, name: CallerText) {
        let runtime = Runtime::get()?;
        write_out(place, runtime.libraries.get(library)?.kernel(runtime, library, text(&name)?)?)
    }
    "cuLibraryGetKernelCount" 12040 fn cuLibraryGetKernelCount(count: CallerOut<u32>, library: usize) {
        write_out(count, Runtime::get()?.libraries.get(library)?.module.kernels().count() as u32)
    }
    "cuLibraryEnumerateKernels" 12040 fn cuLibraryEnumerateKernels(places: CallerOut<usize>, count: u32, library: usize) {
        let runtime = Runtime::get()?;
        let own = runtime.libraries.get(library)?;
        for (number, kernel) in own.module.kernels().take(count as usize).enumerate() {
            // SAFETY: the caller of the C function promises room for as many as it states.
            write_out(unsafe { places.at(number) }, own.kernel(runtime, library, kernel.name())?)?;
        }
        Ok(())
    }
    "cuLibraryGetModule" 12000 fn cuLibraryGetModule(place: CallerOut<usize>, library: usize) {
        let (runtime, context) = current()?;
        write_out(place, runtime.libraries.get(library)?.module_in(runtime, &context)?)
    }
    "cuLibraryGetGlobal" 12000 fn cuLibraryGetGlobal(
        place: CallerOut<u64>,
        bytes: CallerOut<usize>,
        library: usize,
        name: CallerText,
    ) {
        let (runtime, context) = current()?;
        let module = runtime.libraries.get(library)?.module_in(runtime, &context)?;
        let (at, length) = runtime.modules.get(module)?.variable(text(&name)?)?;
        write_out_if_wanted(bytes, length as usize)?;
        write_out_if_wanted(place, at)
    }
    "cuLibraryGetManaged" 12000 fn cuLibraryGetManaged(
        _place: *mut u64,
        _bytes: *mut usize,
        library: usize,
        _name: *const c_char,
    ) {
        Runtime::get()?.libraries.get(library)?;
        // No variable of PTX is managed here.
        Err(CuResult::NOT_FOUND)
    }
    "cuKernelGetFunction" 12000 fn cuKernelGetFunction(place: CallerOut<usize>, handle: usize) {
        let (runtime, context) = current()?;
        write_out(place, kernel(handle)?.1.function_in(runtime, &context)?)
    }
    "cuKernelGetLibrary" 12050 fn cuKernelGetLibrary(place: CallerOut<usize>, handle: usize) {
        write_out(place, kernel(handle)?.1.library_handle)
    }
    "cuKernelGetName" 12030 fn cuKernelGetName(place: CallerOut<*const c_char>, handle: usize) {
        write_out(place, kernel(handle)?.1.name.as_ptr())
    }
    "cuKernelGetAttribute" 12000 fn cuKernelGetAttribute(
        value: CallerOut<c_int>,
        which: c_int,
        handle: usize,
        device: c_int,
    ) {
        let (runtime, own) = kernel(handle)?;
        attribute(runtime, value, which, own.function_in(runtime, &*context_on(runtime, device)?)?)
    }
    "cuKernelSetAttribute" 12000 fn cuKernelSetAttribute(which: c_int, value: c_int, handle: usize, device: c_int) {
        let (runtime, own) = kernel(handle)?;
        let function = own.function_in(runtime, &*context_on(runtime, device)?)?;
        runtime.functions.get(function)?.set_attribute(which, value)
    }
    "cuKernelSetCacheConfig" 12000 fn cuKernelSetCacheConfig(handle: usize, _config: c_int, device: c_int) {
        let (runtime, _) = kernel(handle)?;
        runtime.gpu(device).map(drop)
    }
    "cuKernelGetParamInfo" 12040 fn cuKernelGetParamInfo(
        handle: usize,
        number: usize,
        offset: CallerOut<usize>,
        size: CallerOut<usize>,
    ) {
        let (_, own) = kernel(handle)?;
        let name = own.name.to_str().map_err(|_| CuResult::NOT_FOUND)?;
        param_info(own.library.module.kernel(name).ok_or(CuResult::NOT_FOUND)?, number, offset, size)
    }
}
