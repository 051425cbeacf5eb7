//! Stack depth of calls in the BPF objects, as Linux 6.1 counts it. That is the oldest kernel that must accept them for
//! XDP, and counts most. Linux 6.6, the oldest one for TCX, counts the same.
#![expect(clippy::unwrap_used, reason = "test code: where it cannot go on, the test fails")]

use std::collections::{BTreeMap, BTreeSet};

use object::read::{Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget};
use object::{SectionIndex, SectionKind, SymbolKind};
use ratelimit_common::layout::{CHARGE_PROGRAM, PROGRAM};

/// Maximum stack of a program in bytes (`MAX_BPF_STACK`, include/linux/filter.h).
const STACK_MAX: u64 = 512;
/// Maximum number of frames in one chain of calls (`MAX_CALL_FRAMES`, include/linux/bpf_verifier.h).
const FRAMES_MAX: usize = 8;
/// Multiple to which each frame is rounded up (`check_max_stack_depth`, kernel/bpf/verifier.c, Linux 6.1). Later
/// kernels round to 16 if they compile programs.
const FRAME_ROUNDED_TO: u64 = 32;

const INSTRUCTION_BYTES: usize = 8;
const CALL: u8 = 0x85;
/// Source register of a call to a function of the object. A helper's call has 0.
const PSEUDO_CALL: u8 = 1;
const FRAME_POINTER: u8 = 10;
const MOVE_REGISTER: u8 = 0xbf;
const ADD_IMMEDIATE: u8 = 0x07;
/// Opcode of a 64-bit load, which takes two slots. The second slot is no instruction.
const LOAD_WIDE: u8 = 0x18;

/// Start of a function: its section, and the offset there.
type Place = (SectionIndex, u64);

#[derive(Debug, Default)]
struct Function {
    name: String,
    /// Number of bytes of the function's frame.
    frame: u64,
    calls: BTreeSet<(usize, u64)>,
}

/// A decoded instruction.
struct Instruction {
    code: u8,
    destination: u8,
    source: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    fn of(bytes: [u8; INSTRUCTION_BYTES]) -> Self {
        Self {
            code: bytes[0],
            destination: bytes[1] & 0xf,
            source: bytes[1] >> 4,
            offset: i16::from_le_bytes([bytes[2], bytes[3]]),
            immediate: i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        }
    }

    /// Returns how far below the frame's end the instruction itself reads or writes.
    fn reaches(&self) -> u64 {
        // LDX is class 1, ST 2, STX 3.
        let base = match self.code & 7 {
            1 => self.source,
            2 | 3 => self.destination,
            _ => return 0,
        };
        if base == FRAME_POINTER { u64::from(self.offset.min(0).unsigned_abs()) } else { 0 }
    }

    /// Returns whether the instruction writes its destination register.
    fn writes(&self) -> bool {
        matches!(self.code & 7, 0 | 1 | 4 | 7)
    }
}

/// Returns the deepest part of a frame that some instruction uses, or takes the address of.
fn frame(instructions: &[Instruction]) -> u64 {
    let (mut deepest, mut is_copy, mut skip) = (0, [false; 16], false);
    for instruction in instructions {
        if std::mem::take(&mut skip) {
            continue;
        }
        skip = instruction.code == LOAD_WIDE;
        deepest = deepest.max(instruction.reaches());
        let register = usize::from(instruction.destination);
        if instruction.code == ADD_IMMEDIATE && is_copy[register] {
            deepest = deepest.max(u64::from(instruction.immediate.min(0).unsigned_abs()));
        }
        if instruction.writes() {
            is_copy[register] = instruction.code == MOVE_REGISTER && instruction.source == FRAME_POINTER;
        }
    }
    deepest
}

/// Returns the functions of the object by their start.
fn functions(file: &object::File<'_>) -> BTreeMap<(usize, u64), Function> {
    let key = |(section, at): Place| (section.0, at);
    let mut functions = BTreeMap::new();
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() != 0) {
        let place: Place = (symbol.section_index().unwrap(), symbol.address());
        let section = file.section_by_index(place.0).unwrap();
        let data = section.data_range(symbol.address(), symbol.size()).unwrap().unwrap();
        let instructions: Vec<_> = data.as_chunks().0.iter().map(|bytes| Instruction::of(*bytes)).collect();
        let relocations: BTreeMap<u64, RelocationTarget> =
            section.relocations().map(|(at, relocation)| (at, relocation.target())).collect();
        let mut calls = BTreeSet::new();
        for (number, instruction) in instructions.iter().enumerate() {
            let at = symbol.address() + (number * INSTRUCTION_BYTES) as u64;
            // The address of a function that the kernel will call (`bpf_loop`).
            if instruction.code == LOAD_WIDE
                && let Some(RelocationTarget::Symbol(target)) = relocations.get(&at)
                && let target = file.symbol_by_index(*target).unwrap()
                && let Some(of) = target.section_index()
                && file.section_by_index(of).unwrap().kind() == SectionKind::Text
            {
                calls.insert((of.0, target.address() + u64::from(instruction.immediate.unsigned_abs())));
                continue;
            }
            if (instruction.code, instruction.source) != (CALL, PSEUDO_CALL) {
                continue;
            }
            let from = |base: u64| base.wrapping_add_signed((i64::from(instruction.immediate) + 1) * 8);
            calls.insert(key(match relocations.get(&at) {
                Some(RelocationTarget::Symbol(target)) => {
                    let target = file.symbol_by_index(*target).unwrap();
                    let section = target.section_index().unwrap();
                    // A function is referenced by its name, or by its offset in its section.
                    let is_function = target.kind() == SymbolKind::Text;
                    (section, if is_function { target.address() } else { from(0) })
                }
                Some(other) => panic!("a call to {other:?}"),
                None => (place.0, from(at)),
            }));
        }
        let name = symbol.name().unwrap().to_owned();
        functions.insert(key(place), Function { name, frame: frame(&instructions), calls });
    }
    functions
}

/// Returns the deepest stack below a function, the largest number of frames, and the chain of calls with the deepest
/// stack.
fn deepest(functions: &BTreeMap<(usize, u64), Function>, at: (usize, u64)) -> (u64, usize, Vec<String>) {
    let function = functions.get(&at).unwrap_or_else(|| panic!("no function begins at {at:?}"));
    let below: Vec<_> = function.calls.iter().map(|call| deepest(functions, *call)).collect();
    let frames = below.iter().map(|(_, frames, _)| *frames).max().unwrap_or(0);
    let (stack, _, chain) = below.into_iter().max_by_key(|(stack, ..)| *stack).unwrap_or_default();
    let own = function.frame.max(1).next_multiple_of(FRAME_ROUNDED_TO);
    (stack + own, frames + 1, [vec![format!("{} {own}", function.name)], chain].concat())
}

#[test]
fn the_deepest_chain_of_calls_fits_the_stack_of_linux_6_1() {
    for (object, name) in [
        (ratelimit_kernel::object(), PROGRAM),
        (ratelimit_kernel::object(), CHARGE_PROGRAM),
        (ratelimit_kernel::classifier_object(), PROGRAM),
    ] {
        // Included bytes are not aligned, but the headers must be.
        let bytes = object.to_vec();
        let file = object::File::parse(bytes.as_slice()).unwrap();
        let functions = functions(&file);
        let (at, _) = functions.iter().find(|(_, function)| function.name == name).unwrap();
        let (stack, frames, chain) = deepest(&functions, *at);
        println!("{name}: {stack} bytes, {frames} frames: {}", chain.join(", "));
        assert!(chain.len() > 2, "calls are not found: {chain:?}");
        assert!(stack <= STACK_MAX, "{stack} bytes of {STACK_MAX}: {chain:?}");
        assert!(frames <= FRAMES_MAX, "{frames} frames of {FRAMES_MAX}");
    }
}

#[test]
fn a_frame_is_as_deep_as_what_is_stored_in_it_and_what_has_its_address() {
    let of = |words: &[u64]| frame(&words.iter().map(|word| Instruction::of(word.to_be_bytes())).collect::<Vec<_>>());
    // *(u32 *)(r10 - 8) = r7; r2 = *(u64 *)(r10 - 40); *(u64 *)(r1 - 48) = r2, which accesses no frame.
    assert_eq!(of(&[0x637a_f8ff_0000_0000]), 8);
    assert_eq!(of(&[0x637a_f8ff_0000_0000, 0x79a2_d8ff_0000_0000]), 40);
    assert_eq!(of(&[0x7b21_d0ff_0000_0000]), 0);
    // r2 = r10; r2 += -64; an addition to another register gives no address.
    assert_eq!(of(&[0xbfa2_0000_0000_0000, 0x0702_0000_c0ff_ffff]), 64);
    assert_eq!(of(&[0xbfa2_0000_0000_0000, 0x0703_0000_c0ff_ffff]), 0);
}
