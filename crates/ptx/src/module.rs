//! A module as its user sees it: kernels, variables, and what each needs.

use crate::ast::{Initial, ParsedFunction, ParsedModule, ParsedVariable, StateSpace, Statement, Type};
use crate::error::{PtxError, PtxErrorKind};
use crate::limits;
use crate::lower::{self, CallLayout, FunctionUses, ModuleSymbols};
use crate::op::{Isa, NONE};
use crate::parse;
use crate::program::{Frame, LoweredProgram};
use std::collections::{BTreeSet, HashMap};

/// A text that was read, checked and lowered once, for any number of launches.
pub struct Module {
    text: String,
    /// The offset of each line in `text`.
    lines: Vec<usize>,
    target: ModuleTarget,
    kernels: Vec<Kernel>,
    variables: Vec<ModuleVariable>,
    program: LoweredProgram,
}

/// What a module says it was written for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleTarget {
    /// The PTX version: major, minor.
    pub version: (u32, u32),
    /// The architecture, as in `sm_90`.
    pub architecture: String,
    /// Bits of an address.
    pub address_bits: u32,
}

/// A kernel of a module.
#[derive(Debug, Clone)]
pub struct Kernel {
    name: String,
    params: Vec<Param>,
    param_bytes: u32,
    function: u32,
    shared_bytes: u32,
    /// The offset of each shared variable that it uses, by index.
    shared_offsets: Vec<(u32, u32)>,
    local_bytes: u32,
    local_bytes_reserved: u32,
    registers: u32,
    max_block: Option<[u32; 3]>,
    required_block: Option<[u32; 3]>,
    min_blocks: Option<u32>,
    max_registers: Option<u32>,
}

/// A parameter of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// Where it begins.
    pub offset: u32,
    /// How long it is.
    pub bytes: u32,
    /// Its alignment.
    pub align: u32,
}

/// Which memory a variable lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VariableSpace {
    /// Read and written by kernels.
    Global,
    /// Only read by kernels.
    Const,
}

/// A variable of a module, for which the caller finds an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleVariable {
    /// Its name.
    pub name: String,
    /// Which memory it lies in.
    pub space: VariableSpace,
    /// Its alignment.
    pub align: u32,
    /// How long it is.
    pub bytes: u64,
    /// What it begins with; shorter than `bytes` if the rest is zero.
    pub initial: Vec<u8>,
    /// Addresses to write over `initial` once they are known.
    pub relocations: Vec<Relocation>,
    /// Declared here but defined elsewhere.
    pub external: bool,
    /// The host has it at the same address.
    pub managed: bool,
}

/// An initial value that is an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relocation {
    /// Where in the variable it goes.
    pub offset: u64,
    /// How many bytes it has.
    pub bytes: u32,
    /// The index of the variable that the address points to, or `None` for a function.
    pub variable: Option<usize>,
    /// What to add to that address; for a function this is the whole value.
    pub addend: i64,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kernels: Vec<&str> = self.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        f.debug_struct("Module").field("target", &self.target).field("kernels", &kernels).finish_non_exhaustive()
    }
}

impl Module {
    /// Reads a text.
    pub fn parse(text: &str) -> Result<Module, PtxError> {
        Self::lowered_for(text, Isa::of_host())
    }

    /// Reads a text for a host without vector instructions, which any host can run.
    /// The results are the same; tests use it to check that.
    #[doc(hidden)]
    pub fn parse_plain(text: &str) -> Result<Module, PtxError> {
        Self::lowered_for(text, Isa::Plain)
    }

    fn lowered_for(source: &str, isa: Isa) -> Result<Module, PtxError> {
        let text = parse::parse(source)?;
        let functions = merged_declarations(&text)?;
        if let Some(function) = functions.get(limits::FUNCTIONS_MAX) {
            return function.position.limit("the functions of a module", limits::FUNCTIONS_MAX as u64);
        }
        let mut tables = ModuleTables::collect(&text, &functions)?;
        let mut program =
            LoweredProgram { code: Vec::new(), functions: Vec::new(), tables: Vec::new(), externals: Vec::new() };
        program.functions.resize(functions.len(), Frame { entry: NONE, ..Frame::default() });
        let mut uses = Vec::with_capacity(functions.len());
        for (index, function) in functions.iter().enumerate() {
            uses.push(lower::lower(isa, &tables.symbols, index, function, &mut program)?);
        }
        let variables = std::mem::take(&mut tables.variables);
        let layout = KernelLayout { functions: &functions, uses: &uses, shared: &tables.shared, program: &program };
        let kernels = (0..functions.len())
            .filter(|&index| functions[index].is_kernel && functions[index].body.is_some())
            .map(|index| layout.kernel(index))
            .collect::<Result<Vec<_>, _>>()?;
        let target = ModuleTarget {
            version: text.version,
            architecture: text.target.to_owned(),
            address_bits: text.address_bits,
        };
        let lines = std::iter::once(0).chain(source.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Ok(Module { text: source.to_owned(), lines, target, kernels, variables, program })
    }

    /// All kernels, in the order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = &Kernel> {
        self.kernels.iter()
    }

    /// The kernel of that name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// All variables of global and constant memory.
    pub fn variables(&self) -> &[ModuleVariable] {
        &self.variables
    }

    /// What the module was written for.
    pub fn target(&self) -> &ModuleTarget {
        &self.target
    }

    /// A line of the text, from 1, without blanks around it.
    pub(crate) fn line(&self, line: u32) -> &str {
        let start = self.lines.get((line as usize).wrapping_sub(1)).copied().unwrap_or(self.text.len());
        let end = self.lines.get(line as usize).copied().unwrap_or(self.text.len());
        self.text.get(start..end).unwrap_or("").trim()
    }

    pub(crate) fn program(&self) -> &LoweredProgram {
        &self.program
    }
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its parameters, in order.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// Bytes of all parameters together.
    pub fn param_bytes(&self) -> u32 {
        self.param_bytes
    }

    /// Shared bytes of a block that the kernel itself declares.
    pub fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// Local bytes of a thread.
    pub fn local_bytes(&self) -> u32 {
        self.local_bytes
    }

    /// How many registers its text names.
    pub fn registers(&self) -> u32 {
        self.registers
    }

    /// `.maxntid`.
    pub fn max_block(&self) -> Option<[u32; 3]> {
        self.max_block
    }

    /// `.reqntid`.
    pub fn required_block(&self) -> Option<[u32; 3]> {
        self.required_block
    }

    /// `.minnctapersm`.
    pub fn min_blocks(&self) -> Option<u32> {
        self.min_blocks
    }

    /// `.maxnreg`.
    pub fn max_registers(&self) -> Option<u32> {
        self.max_registers
    }

    pub(crate) fn function(&self) -> u32 {
        self.function
    }

    pub(crate) fn shared_offsets(&self) -> &[(u32, u32)] {
        &self.shared_offsets
    }

    pub(crate) fn local_bytes_reserved(&self) -> u32 {
        self.local_bytes_reserved
    }
}

/// Declarations of a function and its definition are one function.
fn merged_declarations<'a, 't>(text: &'a ParsedModule<'t>) -> Result<Vec<&'a ParsedFunction<'t>>, PtxError> {
    let mut found: Vec<&ParsedFunction<'t>> = Vec::new();
    let mut index_of: HashMap<&str, usize> = HashMap::new();
    for function in &text.functions {
        match index_of.get(function.name) {
            None => {
                index_of.insert(function.name, found.len());
                found.push(function);
            }
            Some(&index) if function.body.is_none() => {
                let _ = index;
            }
            Some(&index) if found[index].body.is_none() => found[index] = function,
            Some(_) => return function.position.name(format!("`{}` is defined twice", function.name)),
        }
    }
    Ok(found)
}

/// A shared variable as the layout needs it.
struct SharedVariable {
    align: u32,
    bytes: u64,
    /// `[]`: begins where the static ones end.
    dynamic: bool,
}

/// The meaning of the names of the whole module.
struct ModuleTables<'t> {
    symbols: ModuleSymbols<'t>,
    variables: Vec<ModuleVariable>,
    shared: Vec<SharedVariable>,
}

impl<'t> ModuleTables<'t> {
    fn collect(text: &ParsedModule<'t>, functions: &[&ParsedFunction<'t>]) -> Result<Self, PtxError> {
        let mut tables = ModuleTables { symbols: ModuleSymbols::default(), variables: Vec::new(), shared: Vec::new() };
        for (index, function) in functions.iter().enumerate() {
            tables.define(function.name, lower::Symbol::Function(index as u32), function.position)?;
            tables.symbols.call_layouts.push(CallLayout::of(&function.signature)?);
            tables.symbols.defined.push(function.body.is_some());
        }
        let mut initials = Vec::new();
        for variable in &text.variables {
            if let Some(lower::Symbol::Variable(known)) = tables.symbols.names.get(variable.name).copied()
                && (variable.external || tables.variables[known as usize].external)
            {
                // A declaration and its definition are one variable.
                if !variable.external {
                    tables.variables[known as usize] = blank_variable(variable);
                    initials.push((known as usize, variable));
                }
                continue;
            }
            let symbol = tables.add_variable(variable, &mut initials)?;
            tables.define(variable.name, symbol, variable.position)?;
        }
        for function in functions {
            for statement in function.body.iter().flatten() {
                if let Statement::Variable(variable) = statement
                    && !matches!(variable.space, StateSpace::Local | StateSpace::Param)
                {
                    let index = match tables.add_variable(variable, &mut initials)? {
                        lower::Symbol::Variable(index) | lower::Symbol::Shared(index) => index,
                        _ => continue,
                    };
                    let key = (variable.position.line, variable.position.column);
                    tables.symbols.inner_shared.insert(key, index);
                }
            }
        }
        let mut budget = limits::INITIAL_BYTES_MAX;
        for (index, variable) in initials {
            tables.initialise(index, variable, &mut budget)?;
        }
        Ok(tables)
    }

    fn define(
        &mut self,
        name: &'t str,
        symbol: lower::Symbol,
        position: crate::error::TextPosition,
    ) -> Result<(), PtxError> {
        if self.symbols.names.insert(name, symbol).is_some() {
            return position.name(format!("`{name}` is declared twice"));
        }
        Ok(())
    }

    fn add_variable<'a>(
        &mut self,
        variable: &'a ParsedVariable<'t>,
        initials: &mut Vec<(usize, &'a ParsedVariable<'t>)>,
    ) -> Result<lower::Symbol, PtxError> {
        match variable.space {
            StateSpace::Shared => {
                let dynamic = variable.elements.is_none();
                self.shared.push(SharedVariable { align: variable.alignment(), bytes: variable.bytes(), dynamic });
                Ok(lower::Symbol::Shared(self.shared.len() as u32 - 1))
            }
            StateSpace::Global | StateSpace::Const => {
                self.variables.push(blank_variable(variable));
                initials.push((self.variables.len() - 1, variable));
                Ok(lower::Symbol::Variable(self.variables.len() as u32 - 1))
            }
            StateSpace::Local | StateSpace::Param => {
                variable.position.unsupported("a local variable outside of a function")
            }
        }
    }

    fn initialise(&mut self, index: usize, declared: &ParsedVariable<'t>, budget: &mut u64) -> Result<(), PtxError> {
        let size = declared.ty.bytes() as usize;
        let length = (declared.initial.len() * size) as u64;
        *budget = match budget.checked_sub(length) {
            Some(left) => left,
            None => return declared.position.limit("the bytes of initial values", limits::INITIAL_BYTES_MAX),
        };
        let mut bytes = Vec::with_capacity(length as usize);
        let mut relocations = Vec::new();
        for initial in &declared.initial {
            let value = match *initial {
                Initial::Int(value) if declared.ty == Type::F32 => u64::from((value as i64 as f32).to_bits()),
                Initial::Int(value) if declared.ty == Type::F64 => (value as i64 as f64).to_bits(),
                Initial::Int(value) => value,
                Initial::F32(bits) if size == 8 => f64::from(f32::from_bits(bits)).to_bits(),
                Initial::F32(bits) => u64::from(bits),
                Initial::F64(bits) if size == 4 => u64::from((f64::from_bits(bits) as f32).to_bits()),
                Initial::F64(bits) => bits,
                Initial::Address { name, addend, .. } => {
                    let (variable, addend) = match self.symbols.names.get(name) {
                        Some(lower::Symbol::Variable(index)) => (Some(*index as usize), addend),
                        Some(lower::Symbol::Function(index)) => {
                            let value = crate::program::FUNCTION_BASE + u64::from(*index);
                            (None, (value as i64).wrapping_add(addend))
                        }
                        _ => return declared.position.error_name(name),
                    };
                    relocations.push(Relocation { offset: bytes.len() as u64, bytes: size as u32, variable, addend });
                    if variable.is_none() { addend as u64 } else { 0 }
                }
            };
            bytes.extend_from_slice(&u128::from(value).to_le_bytes()[..size]);
        }
        let variable = &mut self.variables[index];
        variable.initial = bytes;
        variable.relocations = relocations;
        Ok(())
    }
}

impl crate::error::TextPosition {
    fn error_name<T>(self, name: &str) -> Result<T, PtxError> {
        Err(self.error(PtxErrorKind::Name(format!("`{name}` has no address for an initial value"))))
    }
}

fn blank_variable(variable: &ParsedVariable<'_>) -> ModuleVariable {
    ModuleVariable {
        name: variable.name.to_owned(),
        space: if variable.space == StateSpace::Const { VariableSpace::Const } else { VariableSpace::Global },
        align: variable.alignment(),
        bytes: variable.bytes(),
        initial: Vec::new(),
        relocations: Vec::new(),
        external: variable.external,
        managed: variable.managed,
    }
}

/// Computes what each kernel needs of shared and local memory.
struct KernelLayout<'a, 't> {
    functions: &'a [&'a ParsedFunction<'t>],
    uses: &'a [FunctionUses],
    shared: &'a [SharedVariable],
    program: &'a LoweredProgram,
}

impl KernelLayout<'_, '_> {
    fn kernel(&self, index: usize) -> Result<Kernel, PtxError> {
        let function = self.functions[index];
        let reached = self.reachable_functions(index);
        let (shared_bytes, shared_offsets) = self.shared_memory(&reached, function)?;
        let shape = CallLayout::of(&function.signature)?;
        let params = function.signature.inputs.iter().zip(&shape.inputs).map(|(formal, &(offset, bytes))| Param {
            name: formal.variable.name.to_owned(),
            offset,
            bytes,
            align: formal.variable.alignment(),
        });
        let params: Vec<Param> = params.collect();
        let param_bytes = params.last().map_or(0, |param| param.offset + param.bytes);
        let (local_bytes, local_bytes_reserved) = self.local_memory(index, &reached);
        Ok(Kernel {
            name: function.name.to_owned(),
            params,
            param_bytes,
            function: index as u32,
            shared_bytes,
            shared_offsets,
            local_bytes,
            local_bytes_reserved,
            registers: self.uses[index].registers.clamp(1, 255),
            max_block: function.tuning.max_threads,
            required_block: function.tuning.required_threads,
            min_blocks: function.tuning.min_blocks,
            max_registers: function.tuning.max_registers,
        })
    }

    /// Every function that a kernel can call, directly or not.
    fn reachable_functions(&self, index: usize) -> BTreeSet<usize> {
        let mut reached = BTreeSet::from([index]);
        let mut left = vec![index];
        while let Some(index) = left.pop() {
            let uses = &self.uses[index];
            let mut next: Vec<usize> = uses.calls.iter().map(|&call| call as usize).collect();
            if uses.calls_unknown {
                next.extend((0..self.functions.len()).filter(|&other| !self.functions[other].is_kernel));
            }
            left.extend(next.into_iter().filter(|&next| reached.insert(next)));
        }
        reached
    }

    fn shared_memory(
        &self,
        reached: &BTreeSet<usize>,
        function: &ParsedFunction<'_>,
    ) -> Result<(u32, Vec<(u32, u32)>), PtxError> {
        let used: BTreeSet<u32> = reached.iter().flat_map(|&index| self.uses[index].shared.iter().copied()).collect();
        let mut offsets = Vec::new();
        let mut end = 0_u64;
        let mut dynamic_align = 1;
        for &index in &used {
            let variable = &self.shared[index as usize];
            if variable.dynamic {
                dynamic_align = dynamic_align.max(variable.align);
                continue;
            }
            let at = end.next_multiple_of(u64::from(variable.align));
            end = at.saturating_add(variable.bytes);
            if end > u64::from(limits::SHARED_BYTES_MAX) {
                return function.position.limit("the shared bytes of a block", u64::from(limits::SHARED_BYTES_MAX));
            }
            offsets.push((index, at as u32));
        }
        let has_dynamic = used.iter().any(|&index| self.shared[index as usize].dynamic);
        if has_dynamic {
            end = end.next_multiple_of(u64::from(dynamic_align));
        }
        for &index in used.iter().filter(|&&index| self.shared[index as usize].dynamic) {
            offsets.push((index, end as u32));
        }
        offsets.sort_unstable();
        Ok((end as u32, offsets))
    }

    /// Local bytes that the kernel uses at least, and those to allocate.
    fn local_memory(&self, index: usize, reached: &BTreeSet<usize>) -> (u32, u32) {
        let own = self.program.functions[index].local_bytes;
        let external = reached.iter().map(|&index| self.uses[index].external_bytes).max().unwrap_or(0);
        let calls: u32 = reached
            .iter()
            .filter(|&&other| other != index)
            .map(|&other| self.program.functions[other].local_bytes)
            .fold(0, u32::saturating_add);
        let recursive = self.is_recursive(reached);
        let needed = own.saturating_add(calls).saturating_add(external);
        let reserved = if recursive { needed.saturating_add(limits::STACK_BYTES) } else { needed };
        (own, reserved.min(2 * limits::LOCAL_BYTES_MAX).next_multiple_of(16))
    }

    /// True if one of these functions can call itself, directly or not.
    fn is_recursive(&self, reached: &BTreeSet<usize>) -> bool {
        let mut indegree: HashMap<usize, usize> = reached.iter().map(|&index| (index, 0)).collect();
        for &index in reached {
            if self.uses[index].calls_unknown {
                return true;
            }
            for &call in &self.uses[index].calls {
                *indegree.entry(call as usize).or_default() += 1;
            }
        }
        let mut ready: Vec<usize> = reached.iter().copied().filter(|index| indegree[index] == 0).collect();
        let mut left = reached.len();
        while let Some(index) = ready.pop() {
            left -= 1;
            for &call in &self.uses[index].calls {
                let count = indegree.entry(call as usize).or_default();
                *count -= 1;
                if *count == 0 {
                    ready.push(call as usize);
                }
            }
        }
        left != 0
    }
}
