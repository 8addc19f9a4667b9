//! Loaded PTX: its kernels, and its variables on the GPU; and libraries, which are loaded into each context when it
//! first needs them.

use crate::api::memory::has_managed;
use crate::function::ContextKernel;
use crate::handles;
use crate::log;
use crate::result::{CuResult, Outcome};
use crate::runtime::{DriverContext, Runtime};
use crate::space::MemoryKind;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use sublet_ptx::{Module, ModuleVariable};

/// A module in a context.
pub struct LoadedModule {
    /// What was read.
    pub module: Arc<Module>,
    /// The address of each of its variables.
    pub variables: Vec<u64>,
    /// Its context, by handle.
    pub context: usize,
    /// Handles of functions that were asked for, by name.
    functions: Mutex<BTreeMap<String, usize>>,
}

/// Parses PTX.
pub fn read(text: &str) -> Outcome<Arc<Module>> {
    let module = Module::parse(text).map_err(|error| {
        log::once(&format!("a module cannot be loaded: {error}"));
        CuResult::INVALID_PTX
    })?;
    Ok(Arc::new(module))
}

/// The kind of memory of a variable; managed only if managed memory is supported.
fn kind_of(variable: &ModuleVariable) -> MemoryKind {
    if variable.managed && has_managed() { MemoryKind::Managed } else { MemoryKind::Device }
}

impl LoadedModule {
    /// Places the variables of a module on the GPU of a context.
    pub fn load(runtime: &Runtime, context: &DriverContext, module: Arc<Module>) -> Outcome<LoadedModule> {
        let (variables, functions) = (Vec::new(), Mutex::default());
        let mut loaded = LoadedModule { module, variables, context: context.handle, functions };
        let done = loaded.place(runtime, context).and_then(|()| loaded.fill(runtime));
        // A load that fails leaves nothing behind.
        done.inspect_err(|_| loaded.unload(runtime))?;
        Ok(loaded)
    }

    /// Allocates memory for the variables.
    fn place(&mut self, runtime: &Runtime, context: &DriverContext) -> Outcome {
        for variable in self.module.variables() {
            let (gpu, handle, bytes) = (context.gpu, context.handle, variable.bytes.max(1));
            let kind = kind_of(variable);
            self.variables.push(runtime.space.alloc(runtime, kind, gpu, handle, bytes)?);
            if kind == MemoryKind::Managed {
                runtime.client.row().managed.fetch_add(1, SeqCst);
            }
        }
        Ok(())
    }

    /// Writes the initial values of the variables.
    fn fill(&self, runtime: &Runtime) -> Outcome {
        let held = runtime.space.snapshot();
        for (variable, at) in self.module.variables().iter().zip(&self.variables) {
            if variable.initial.is_empty() {
                continue;
            }
            let place = held.bytes(*at, variable.initial.len() as u64, true)?;
            // SAFETY: the allocation has that many bytes, and no kernel knows it yet.
            unsafe { std::ptr::copy_nonoverlapping(variable.initial.as_ptr(), place, variable.initial.len()) };
            for relocation in &variable.relocations {
                let Some(target) = relocation.variable.and_then(|number| self.variables.get(number)) else {
                    return Err(CuResult::NOT_SUPPORTED);
                };
                let value = target.wrapping_add_signed(relocation.addend).to_le_bytes();
                let length = (relocation.bytes as usize).min(value.len());
                let place = held.bytes(at.wrapping_add(relocation.offset), length as u64, true)?;
                // SAFETY: checked just now to be in the allocation.
                unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), place, length) };
            }
        }
        Ok(())
    }

    /// Frees the variables and forgets the functions.
    pub fn unload(&self, runtime: &Runtime) {
        let functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        for handle in functions.values() {
            let _ = runtime.functions.remove(*handle);
        }
        // A context that ended took them with it.
        for (variable, at) in self.module.variables().iter().zip(&self.variables) {
            let _ = match kind_of(variable) {
                MemoryKind::Managed => runtime.free_managed(*at),
                own => runtime.space.free(*at, |kind| kind == own).map(drop),
            };
        }
    }

    /// The handle of a function; every call returns the same one.
    pub fn function(self: &Arc<LoadedModule>, runtime: &Runtime, module: usize, name: &str) -> Outcome<usize> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = functions.get(name) {
            return Ok(*handle);
        }
        let handle = runtime.functions.insert(Arc::new(ContextKernel::new(Arc::clone(self), module, name)?));
        functions.insert(name.to_owned(), handle);
        Ok(handle)
    }

    /// Address and length of a variable.
    pub fn variable(&self, name: &str) -> Outcome<(u64, u64)> {
        let mut all = self.module.variables().iter().zip(&self.variables);
        let (variable, at) = all.find(|(variable, _)| variable.name == name).ok_or(CuResult::NOT_FOUND)?;
        Ok((*at, variable.bytes))
    }
}

/// A library: a module that is not in a context yet.
pub struct KernelLibrary {
    /// What was read.
    pub module: Arc<Module>,
    /// Modules of it, by context.
    loaded: Mutex<HashMap<usize, usize>>,
    /// Kernels that were asked for, by name.
    kernels: Mutex<BTreeMap<String, usize>>,
}

/// A kernel of a library.
pub struct LibraryKernel {
    /// Which library.
    pub library: Arc<KernelLibrary>,
    /// Its handle.
    pub library_handle: usize,
    /// Its name.
    pub name: CString,
}

impl KernelLibrary {
    /// A library of a module.
    pub fn new(module: Arc<Module>) -> KernelLibrary {
        KernelLibrary { module, loaded: Mutex::default(), kernels: Mutex::default() }
    }

    /// The handle of its module in a context; loads it there if it is the first time.
    pub fn module_in(&self, runtime: &Runtime, context: &DriverContext) -> Outcome<usize> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = loaded.get(&context.handle).filter(|handle| runtime.modules.get(**handle).is_ok()) {
            return Ok(*handle);
        }
        let module = LoadedModule::load(runtime, context, Arc::clone(&self.module))?;
        let handle = runtime.modules.insert(Arc::new(module));
        loaded.insert(context.handle, handle);
        Ok(handle)
    }

    /// The handle of a kernel; every call returns the same one.
    pub fn kernel(self: &Arc<KernelLibrary>, runtime: &Runtime, library: usize, name: &str) -> Outcome<usize> {
        self.module.kernel(name).ok_or(CuResult::NOT_FOUND)?;
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = kernels.get(name) {
            return Ok(*handle);
        }
        let name_of_c = CString::new(name).map_err(|_| CuResult::NOT_FOUND)?;
        let kernel = LibraryKernel { library: Arc::clone(self), library_handle: library, name: name_of_c };
        let handle = handles::fresh();
        runtime.kernels.insert_as(handle, Arc::new(kernel));
        kernels.insert(name.to_owned(), handle);
        Ok(handle)
    }

    /// Unloads it from all contexts.
    pub fn unload(&self, runtime: &Runtime) {
        for handle in self.loaded.lock().unwrap_or_else(PoisonError::into_inner).values() {
            if let Ok(module) = runtime.modules.remove(*handle) {
                module.unload(runtime);
            }
        }
        for handle in self.kernels.lock().unwrap_or_else(PoisonError::into_inner).values() {
            let _ = runtime.kernels.remove(*handle);
        }
    }
}

impl LibraryKernel {
    /// The kernel's function in a context.
    pub fn function_in(&self, runtime: &Runtime, context: &DriverContext) -> Outcome<usize> {
        let module = self.library.module_in(runtime, context)?;
        let name = self.name.to_str().map_err(|_| CuResult::NOT_FOUND)?;
        runtime.modules.get(module)?.function(runtime, module, name)
    }
}
