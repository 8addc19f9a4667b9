//! From statements to ops: one function at a time.
//!
//! Constants become pooled registers, so every operand is a register; a register
//! is an offset in the function's frame. Handlers are chosen here, once, for the
//! host at hand. What an instruction means is in the modules below; this one
//! knows names, registers, labels and blocks.

mod bits;
mod calls;
mod compare;
mod control;
mod convert;
mod float;
mod integer;
mod memory;
pub(crate) mod modifiers;
mod symbols;
mod warp;

pub(crate) use symbols::{CallLayout, ModuleSymbols, Symbol};

use crate::ast::{Instruction, Operand, ParsedFunction, Statement, Type};
use crate::error::{PtxError, TextPosition};
use crate::exec::control as run;
use crate::limits;
use crate::op::{Handler, Isa, NONE, Op};
use crate::program::{Frame, LoweredProgram, PooledConstant, Value};
use crate::reconvergence;
use calls::FrameEndFixup;
use modifiers::Modifiers;
use std::collections::HashMap;
use symbols::{FrameRegister, NameScope};

/// Where control goes after an op, in local indices.
#[derive(Debug, Clone, PartialEq)]
enum Flow {
    /// To the next op.
    Next,
    /// To the next op; lanes may meet here.
    Join,
    /// To the next op, which is a join where the lanes of the call meet.
    CallRegister,
    /// Nowhere: the function ends.
    End,
    Jump(usize),
    Branch(usize),
    Table(Vec<usize>),
}

/// A function on its way to ops.
pub(crate) struct FunctionLowering<'a, 't> {
    isa: Isa,
    symbols: &'a ModuleSymbols<'t>,
    function: &'a ParsedFunction<'t>,
    scopes: Vec<NameScope<'t>>,
    /// Labels of all scopes, with the scope that has them.
    labels: HashMap<(usize, &'t str), usize>,
    scope_count: usize,
    ops: Vec<Op>,
    flow: Vec<Flow>,
    /// What each label's number is in ops.
    label_at: Vec<usize>,
    frame: Frame,
    pool: HashMap<(Value, bool), u32>,
    predicates_left: (u32, u32),
    carry: Option<u32>,
    /// Targets of all branch tables so far.
    targets: usize,
    /// When each wide register was last written, in ops.
    last_writes: HashMap<u32, u32>,
    guard: (u32, u32),
    position: TextPosition,
    externals: &'a mut Vec<String>,
    /// Registers that hold results, with their offset and size in the local frame.
    register_returns: Vec<(u32, u32, u32)>,
    frame_end_fixups: Vec<(FrameEndFixup, bool)>,
    frame_end_moves: Vec<FrameEndFixup>,
    /// What this function uses, for the layout of shared memory and the stack.
    uses: FunctionUses,
}

/// What a function refers to.
#[derive(Debug, Clone, Default)]
pub(crate) struct FunctionUses {
    pub shared: Vec<u32>,
    pub calls: Vec<u32>,
    /// Calls through a register, which may reach any function with a taken address.
    pub calls_unknown: bool,
    pub addresses_taken: Vec<u32>,
    pub registers: u32,
    /// Room for the arguments of functions that the host provides.
    pub external_bytes: u32,
}

/// Lowers one function into `program` and fills its frame.
pub(crate) fn lower<'t>(
    isa: Isa,
    symbols: &ModuleSymbols<'t>,
    index: usize,
    function: &ParsedFunction<'t>,
    program: &mut LoweredProgram,
) -> Result<FunctionUses, PtxError> {
    let Some(body) = &function.body else { return Ok(FunctionUses::default()) };
    let base = program.code.len();
    let mut lower = FunctionLowering {
        isa,
        symbols,
        function,
        scopes: vec![NameScope::new(0)],
        labels: HashMap::new(),
        scope_count: 1,
        ops: Vec::new(),
        flow: Vec::new(),
        label_at: Vec::new(),
        frame: Frame::default(),
        pool: HashMap::new(),
        predicates_left: (0, 0),
        carry: None,
        targets: 0,
        last_writes: HashMap::new(),
        guard: (NONE, 0),
        position: function.position,
        externals: &mut program.externals,
        register_returns: Vec::new(),
        frame_end_fixups: Vec::new(),
        frame_end_moves: Vec::new(),
        uses: FunctionUses::default(),
    };
    lower.body(body)?;
    let blocks = lower.flow.iter().filter(|flow| !matches!(flow, Flow::Next)).count();
    if blocks > limits::BLOCKS_MAX {
        return function.position.limit("the branches and labels of a function", limits::BLOCKS_MAX as u64);
    }
    let (code, tables) = lower.resolve_flow(base, program.tables.len());
    let (mut frame, uses) = (lower.frame, lower.uses);
    frame.entry = base as u32;
    frame.abi_bytes = symbols.call_layouts[index].bytes;
    program.tables.extend(tables);
    program.code.extend(code);
    if program.code.len() > u32::MAX as usize / 2 {
        return function.position.limit("the module's instructions", u64::from(u32::MAX / 2));
    }
    program.functions[index] = frame;
    Ok(uses)
}

impl<'a, 't> FunctionLowering<'a, 't> {
    fn body(&mut self, body: &'a [Statement<'t>]) -> Result<(), PtxError> {
        self.collect_labels(body)?;
        self.declare_formals()?;
        for statement in body {
            self.statement(statement)?;
        }
        self.position = self.function.position;
        self.guard = (NONE, 0);
        self.emit_return()?;
        self.frame.local_bytes = self.frame.local_bytes.next_multiple_of(16);
        self.apply_frame_end_fixups();
        Ok(())
    }

    /// Labels may be used before they are defined, so they are collected first.
    fn collect_labels(&mut self, body: &[Statement<'t>]) -> Result<(), PtxError> {
        let mut open = vec![0];
        let mut scopes = 0;
        for statement in body {
            match statement {
                Statement::Open => {
                    scopes += 1;
                    open.push(scopes);
                }
                Statement::Close => {
                    open.pop();
                }
                Statement::Label(name, position) => {
                    let scope = open.last().copied().unwrap_or(0);
                    let number = self.label_at.len();
                    self.label_at.push(usize::MAX);
                    if self.labels.insert((scope, name), number).is_some() {
                        return position.name(format!("label `{name}` stands twice"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn statement(&mut self, statement: &'a Statement<'t>) -> Result<(), PtxError> {
        match statement {
            Statement::Open => {
                self.scopes.push(NameScope::new(self.scope_count));
                self.scope_count += 1;
            }
            Statement::Close => {
                self.scopes.pop();
            }
            Statement::Label(name, position) => {
                self.position = *position;
                let scope = self.scopes.last().map_or(0, |scope| scope.id);
                self.place_label(self.labels[&(scope, *name)]);
            }
            Statement::Registers(registers) => self.declare_registers(registers)?,
            Statement::Variable(variable) => self.declare_variable(variable)?,
            Statement::BranchTargets(name, targets) => {
                self.scope().tables.insert(name, targets.clone());
            }
            Statement::Prototype(name, signature) => {
                let shape = CallLayout::of(signature)?;
                self.scope().prototypes.insert(name, shape);
            }
            Statement::Instruction(instruction) => self.instruction(instruction)?,
        }
        Ok(())
    }

    fn instruction(&mut self, instruction: &Instruction<'t>) -> Result<(), PtxError> {
        self.position = instruction.position;
        self.guard = match instruction.guard {
            None => (NONE, 0),
            Some((name, negated)) => (self.predicate_named(name)?, if negated { u32::MAX } else { 0 }),
        };
        let modifiers = &mut Modifiers::of(instruction);
        let operands = &instruction.operands;
        match instruction.name {
            "bra" | "brx" | "ret" | "exit" | "trap" | "brkpt" | "bar" | "barrier" | "membar" | "fence"
            | "nanosleep" | "prefetch" | "prefetchu" | "applypriority" | "discard" | "griddepcontrol" | "pmevent"
            | "setmaxnreg" => self.control(instruction.name, modifiers, operands),
            "call" => self.call(modifiers, operands),
            "mov" => self.mov(modifiers, operands),
            "ld" | "ldu" => self.load(modifiers, operands),
            "st" => self.store(modifiers, operands),
            "atom" | "red" => self.atomic(instruction.name == "red", modifiers, operands),
            "cp" => self.copy(modifiers, operands),
            "cvta" | "isspacep" => self.spaces(instruction.name, modifiers, operands),
            "cvt" => self.convert(modifiers, operands),
            "set" | "setp" | "selp" | "slct" | "testp" => self.comparison(instruction.name, modifiers, operands),
            "shfl" | "vote" | "match" | "redux" | "activemask" | "elect" => {
                self.warp_instruction(instruction.name, modifiers, operands)
            }
            "and" | "or" | "xor" | "not" | "cnot" | "lop3" | "shl" | "shr" | "shf" | "prmt" | "popc" | "clz"
            | "bfind" | "brev" | "bfe" | "bfi" | "szext" | "bmsk" | "fns" | "dp4a" | "dp2a" => {
                self.bit_instruction(instruction.name, modifiers, operands)
            }
            "add" | "sub" | "mul" | "mad" | "fma" | "div" | "rem" | "abs" | "neg" | "min" | "max" | "sad" | "mul24"
            | "mad24" | "addc" | "subc" | "madc" | "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2"
            | "tanh" | "copysign" => {
                let is_float = instruction.modifiers.iter().any(|word| matches!(*word, "f32" | "f64"));
                if is_float {
                    self.float(instruction.name, modifiers, operands)
                } else {
                    self.integer(instruction.name, modifiers, operands)
                }
            }
            "mma"
            | "wmma"
            | "ldmatrix"
            | "stmatrix"
            | "movmatrix"
            | "wgmma"
            | "tcgen05"
            | "mbarrier"
            | "tex"
            | "tld4"
            | "txq"
            | "suld"
            | "sust"
            | "sured"
            | "suq"
            | "istypep"
            | "multimem"
            | "mapa"
            | "getctarank"
            | "alloca"
            | "stacksave"
            | "stackrestore"
            | "vadd"
            | "vsub"
            | "vabsdiff"
            | "vmin"
            | "vmax"
            | "vshl"
            | "vshr"
            | "vmad"
            | "vset"
            | "vadd2"
            | "vsub2"
            | "vadd4"
            | "vsub4"
            | "createpolicy"
            | "tensormap"
            | "clusterlaunchcontrol"
            | "st_async"
            | "tensor" => modifiers.unsupported(),
            _ => modifiers.unknown(),
        }
    }

    /// An op with nothing filled in.
    fn blank_op(&self, run: Handler) -> Op {
        let (guard, guard_flip) = self.guard;
        let line = self.position.line;
        Op { run, imm: 0, d: NONE, a: NONE, b: NONE, c: NONE, e: NONE, guard, guard_flip, line }
    }

    fn emit(&mut self, op: Op) {
        self.ops.push(op);
        self.flow.push(Flow::Next);
    }

    fn emit_flow(&mut self, op: Op, flow: Flow) {
        self.ops.push(op);
        self.flow.push(flow);
    }

    /// A place where lanes may meet.
    fn emit_join(&mut self) {
        let mut op = self.blank_op(run::join);
        (op.guard, op.guard_flip) = (NONE, 0);
        self.emit_flow(op, Flow::Join);
    }

    fn place_label(&mut self, label: usize) {
        self.label_at[label] = self.ops.len();
        self.emit_join();
    }

    fn emit_return(&mut self) -> Result<(), PtxError> {
        self.store_returns()?;
        let op = self.blank_op(if self.function.is_kernel { run::exit } else { run::ret });
        let flow = if self.guard.0 == NONE { Flow::End } else { Flow::Next };
        self.emit_flow(op, flow);
        Ok(())
    }

    /// `d = f(a)` for rows that are already resolved.
    fn emit1(&mut self, run: Handler, d: u32, a: u32) {
        let op = Op { d, a, ..self.blank_op(run) };
        self.emit(op);
    }

    fn emit2(&mut self, run: Handler, d: u32, a: u32, b: u32) {
        let op = Op { d, a, b, ..self.blank_op(run) };
        self.emit(op);
    }

    fn emit3(&mut self, run: Handler, d: u32, a: u32, b: u32, c: u32) {
        let op = Op { d, a, b, c, ..self.blank_op(run) };
        self.emit(op);
    }

    /// Room for a row of 4 or 8 bytes a lane.
    fn allocate(&mut self, wide: bool) -> Result<u32, PtxError> {
        let at = self.frame.bytes;
        self.frame.bytes += if wide { 256 } else { 128 };
        if self.frame.bytes > limits::FRAME_BYTES_MAX {
            return self.position.limit("the bytes of a function's registers", u64::from(limits::FRAME_BYTES_MAX));
        }
        Ok(at)
    }

    fn allocate_predicate(&mut self) -> Result<u32, PtxError> {
        if self.predicates_left.1 == 0 {
            self.predicates_left = (self.allocate(false)?, 32);
        }
        let (at, left) = self.predicates_left;
        self.predicates_left = (at + 4, left - 1);
        Ok(at)
    }

    fn allocate_for(&mut self, ty: Type) -> Result<FrameRegister, PtxError> {
        let at = match ty {
            Type::Pred => self.allocate_predicate()?,
            Type::B128 => {
                let low = self.allocate(true)?;
                self.allocate(true)?;
                low
            }
            _ => self.allocate(ty.bytes() == 8)?,
        };
        Ok(FrameRegister { ty, at })
    }

    /// A register that always holds `value`.
    fn pooled(&mut self, value: Value, wide: bool) -> Result<u32, PtxError> {
        if let Some(&at) = self.pool.get(&(value, wide)) {
            return Ok(at);
        }
        let at = self.allocate(wide)?;
        self.frame.pool.push(PooledConstant { at, wide, value });
        self.pool.insert((value, wide), at);
        Ok(at)
    }

    fn constant(&mut self, bits: u64, wide: bool) -> Result<u32, PtxError> {
        self.pooled(Value::Bits(if wide { bits } else { bits & 0xFFFF_FFFF }), wide)
    }

    /// The predicate that holds the carry of `.cc`.
    fn carry(&mut self) -> Result<u32, PtxError> {
        if let Some(at) = self.carry {
            return Ok(at);
        }
        let at = self.allocate_predicate()?;
        self.carry = Some(at);
        Ok(at)
    }

    /// Exactly `N` operands.
    fn expect_operands<'o, const N: usize>(
        &self,
        operands: &'o [Operand<'t>],
    ) -> Result<&'o [Operand<'t>; N], PtxError> {
        match operands.try_into() {
            Ok(operands) => Ok(operands),
            Err(_) => self.position.operands(format!("{} operands given, {N} needed", operands.len())),
        }
    }

    /// The handler, or a refusal of the instruction with these words.
    fn require_handler(&self, modifiers: &Modifiers<'t>, run: Option<Handler>) -> Result<Handler, PtxError> {
        run.map_or_else(|| modifiers.unsupported(), Ok)
    }

    /// Resolves branches, drops joins at which no lanes meet, and gives absolute
    /// indices.
    fn resolve_flow(&self, base: usize, first_table: usize) -> (Vec<Op>, Vec<Vec<u32>>) {
        let (block_of, starts, successors) = self.blocks();
        let meets = reconvergence::reconvergence_points(&successors);
        let meet_of = |op: usize| meets[block_of[op]].map(|block| starts[block]);
        let mut needed = vec![false; self.ops.len()];
        for (index, flow) in self.flow.iter().enumerate() {
            if matches!(flow, Flow::Branch(_) | Flow::Table(_))
                && let Some(meet) = meet_of(index)
            {
                needed[meet] = true;
            }
        }
        // An indirect call meets at the join right after it.
        for (before, needed) in self.flow.iter().zip(needed.iter_mut().skip(1)) {
            *needed |= *before == Flow::CallRegister;
        }
        let dropped = |index: usize| self.flow[index] == Flow::Join && !needed[index];
        let mut moved = Vec::with_capacity(self.ops.len());
        let mut next = base as u32;
        for index in 0..self.ops.len() {
            moved.push(next);
            next += u32::from(!dropped(index));
        }
        let mut code = Vec::with_capacity(self.ops.len());
        let mut tables = Vec::new();
        for (index, mut op) in self.ops.iter().copied().enumerate() {
            if dropped(index) {
                continue;
            }
            let meet = meet_of(index).map_or(NONE, |meet| moved[meet]);
            match &self.flow[index] {
                Flow::Jump(label) => op.imm = u64::from(moved[self.label_at[*label]]),
                Flow::Branch(label) => {
                    op.imm = u64::from(moved[self.label_at[*label]]);
                    op.c = meet;
                }
                Flow::Table(labels) => {
                    op.imm = (first_table + tables.len()) as u64;
                    op.c = meet;
                    tables.push(labels.iter().map(|label| moved[self.label_at[*label]]).collect());
                }
                _ => {}
            }
            code.push(op);
        }
        (code, tables)
    }

    /// Blocks begin at joins and after whatever does not go on to the next op.
    fn blocks(&self) -> (Vec<usize>, Vec<usize>, Vec<Vec<usize>>) {
        let mut starts = Vec::new();
        let mut block_of = Vec::with_capacity(self.ops.len());
        let goes_on = |flow: &Flow| matches!(flow, Flow::Next | Flow::Join | Flow::CallRegister);
        for index in 0..self.ops.len() {
            if index == 0 || self.flow[index] == Flow::Join || !goes_on(&self.flow[index - 1]) {
                starts.push(index);
            }
            block_of.push(starts.len() - 1);
        }
        let mut successors = vec![Vec::new(); starts.len()];
        for (block, next) in successors.iter_mut().enumerate() {
            let end = starts.get(block + 1).copied().unwrap_or(self.ops.len());
            let target = |label: &usize| block_of[self.label_at[*label]];
            let falls = (end < self.ops.len()).then(|| block_of[end]);
            match &self.flow[end - 1] {
                Flow::End => {}
                Flow::Next | Flow::Join | Flow::CallRegister => next.extend(falls),
                Flow::Jump(label) => next.push(target(label)),
                Flow::Branch(label) => {
                    next.push(target(label));
                    next.extend(falls);
                }
                Flow::Table(labels) => {
                    next.extend(labels.iter().map(target));
                    if self.ops[end - 1].guard != NONE {
                        next.extend(falls);
                    }
                    next.sort_unstable();
                    next.dedup();
                }
            }
        }
        (block_of, starts, successors)
    }
}
