//! Programs that use the driver API, on soft GPUs: a script that was not written for them gives what a real GPU gave.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use sublet_softgpu::SoftGpuState;
use sublet_softgpu::state::{ENV, IDLE_BYTES};

fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../softgpu/kernels")
}

/// A folder with GPUs, and with the library under the name that programs look for.
fn soft(spec: &str) -> (tempfile::TempDir, SoftGpuState) {
    let dir = tempfile::tempdir().expect("a directory can be made");
    let here = std::env::current_exe().expect("a test has a path");
    let library = here.with_file_name("libcuda.so");
    assert!(library.exists(), "no library at {}", library.display());
    symlink(&library, dir.path().join("libcuda.so.1")).expect("a link can be made");
    let state =
        SoftGpuState::create(&dir.path().join("cards"), &spec.parse().expect("cards")).expect("GPUs can be made");
    (dir, state)
}

fn python(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.args(arguments).env("LD_LIBRARY_PATH", dir).env(ENV, dir.join("cards"));
    command
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("python3 is there");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stdout));
    output
}

/// Checks that two files of numbers are as near as the case says.
fn compare(rule: &Value, kind: &str, ours: &[u8], gpu: &[u8]) -> Result<(), String> {
    if rule["exact"] == true {
        return if ours == gpu { Ok(()) } else { Err("not bit for bit".to_owned()) };
    }
    assert_eq!(kind, "f32", "only these are compared by how near they are");
    let numbers = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four bytes"))).collect()
    };
    let (relative, absolute) = (rule["relative"].as_f64().unwrap_or(0.0), rule["absolute"].as_f64().unwrap_or(0.0));
    for (place, (ours, gpu)) in numbers(ours).into_iter().zip(numbers(gpu)).enumerate() {
        let (ours, gpu) = (f64::from(ours), f64::from(gpu));
        let near = (ours - gpu).abs() <= absolute + relative * gpu.abs();
        if !(near || ours == gpu || (ours.is_nan() && gpu.is_nan())) {
            return Err(format!("number {place} is {ours}, and {gpu} on the GPU"));
        }
    }
    Ok(())
}

#[test]
fn kernels_of_nvcc_compute_the_same_as_an_h200() {
    let (dir, state) = soft("1x4GiB");
    let script = kernels().join("run.py");
    run(&mut python(dir.path(), &[script.to_str().expect("a path"), dir.path().join("out").to_str().expect("a path")]));
    let cases: Value = serde_json::from_slice(&fs::read(kernels().join("cases.json")).expect("cases")).expect("JSON");
    let mut compared = 0;
    for case in cases["cases"].as_array().expect("cases") {
        for (buffer, rule) in case["outputs"].as_object().expect("outputs") {
            let name = format!("{}.{buffer}.bin", case["name"].as_str().expect("a name"));
            let ours = fs::read(dir.path().join("out").join(&name)).expect("an output");
            let gpu = fs::read(kernels().join("h200").join(&name)).expect("what the GPU gave");
            let kind = case["buffers"][buffer]["type"].as_str().expect("a type");
            compare(rule, kind, &ours, &gpu).unwrap_or_else(|why| panic!("{name}: {why}"));
            compared += 1;
        }
    }
    assert!(compared > 25, "{compared}");
    assert_eq!(state.used(0), IDLE_BYTES, "what the program had is free again");
}

const HOLD: &str = r#"
import ctypes as C, sys
cuda = C.CDLL("libcuda.so.1")
def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result: print(name, result, flush=True); sys.exit(3)
context, pointer = C.c_void_p(), C.c_uint64()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", C.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", C.byref(pointer), C.c_size_t(int(sys.argv[1]) << 20))
print("holds", flush=True)
sys.stdin.read()
"#;

#[test]
fn memory_is_limited_and_freed_when_a_process_dies() {
    let (dir, state) = soft("1x4GiB");
    for round in 0..20 {
        let mut holder = python(dir.path(), &["-c", HOLD, "3000"]);
        let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 is there");
        let mut said = [0; 6];
        std::io::Read::read_exact(holder.stdout.as_mut().expect("its output"), &mut said).expect("it says something");
        assert_eq!(&said, b"holds\n", "round {round}");
        assert_eq!(state.used(0), IDLE_BYTES + (3000 << 20) + (128 << 20));
        if round == 0 {
            let second = python(dir.path(), &["-c", HOLD, "1000"]).stdin(Stdio::null()).output().expect("python3");
            assert_eq!(String::from_utf8_lossy(&second.stdout), "cuMemAlloc_v2 2\n", "out of memory");
        }
        holder.kill().expect("an own child can be killed");
        holder.wait().expect("an own child can be waited for");
        assert_eq!(state.used(0), IDLE_BYTES, "round {round}: a killed process holds nothing");
    }
}

#[test]
fn a_wrong_address_is_a_sticky_error_that_names_the_place() {
    let (dir, _state) = soft("1x4GiB");
    let script = r#"
import ctypes as C, sys
cuda = C.CDLL("libcuda.so.1")
context, module, function = C.c_void_p(), C.c_void_p(), C.c_void_p()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(C.byref(context), 0)
cuda.cuCtxSetCurrent(context)
ptx = open(sys.argv[1], "rb").read() + b"\0"
print(cuda.cuModuleLoadData(C.byref(module), ptx))
print(cuda.cuModuleGetFunction(C.byref(function), module, b"count_calls"))
nowhere = C.c_uint64(64)
params = (C.c_void_p * 1)(C.addressof(nowhere))
print(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, params, None), cuda.cuCtxSynchronize())
print(cuda.cuModuleLoadData(C.byref(module), b".version 8.0\n.target sm_75\nnonsense\0"), cuda.cuArrayCreate_v2())
"#;
    let ptx = kernels().join("basic.ptx");
    let output = run(&mut python(dir.path(), &["-c", script, ptx.to_str().expect("a path")]));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n0\n0 700\n700 801\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("count_calls") && said.contains("0x40"), "{said}");
    assert!(said.contains("`cuArrayCreate_v2` is not supported"), "{said}");
}

#[test]
fn fat_binaries_of_nvcc_are_loaded_if_their_ptx_is_plain() {
    let (dir, _state) = soft("1x4GiB");
    let script = r#"
import ctypes as C, sys
cuda = C.CDLL("libcuda.so.1")
context, module, count = C.c_void_p(), C.c_void_p(), C.c_uint()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(C.byref(context), 0)
cuda.cuCtxSetCurrent(context)
for name in sys.argv[1:]:
    print(cuda.cuModuleLoad(C.byref(module), name.encode()))
    image = open(name, "rb").read()
    print(cuda.cuModuleLoadFatBinary(C.byref(module), image))
wrapper = (C.c_uint64 * 3)(0x1466243b1, C.cast(C.c_char_p(plain := open(sys.argv[1], "rb").read()), C.c_void_p).value, 0)
print(cuda.cuModuleLoadFatBinary(C.byref(module), wrapper), cuda.cuModuleGetFunctionCount(C.byref(count), module), count.value)
"#;
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/same_as_h200/h200");
    let (plain, compressed) = (made.join("basic.fatbin"), made.join("compressed.fatbin"));
    let cut = dir.path().join("cut.fatbin");
    fs::write(&cut, &fs::read(&plain).expect("the file is there")[..1000]).expect("a file can be made");
    let names = [&plain, &compressed].map(|path| path.to_str().expect("a path"));
    let output = run(&mut python(dir.path(), &["-c", script, names[0], names[1]]));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n0\n209\n209\n0 0 8\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("nvcc -no-compress"));
    let load = "import ctypes as C, sys; cuda = C.CDLL('libcuda.so.1'); cuda.cuInit(0); c = C.c_void_p();\
        cuda.cuDevicePrimaryCtxRetain(C.byref(c), 0); cuda.cuCtxSetCurrent(c);\
        print(cuda.cuModuleLoad(C.byref(c), sys.argv[1].encode()))";
    let output = run(&mut python(dir.path(), &["-c", load, cut.to_str().expect("a path")]));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "200\n", "an image that is cut off");
}

#[test]
fn without_gpus_a_program_gets_an_error() {
    let (dir, _state) = soft("1x4GiB");
    let mut command = python(dir.path(), &["-c", "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"]);
    let output = run(command.env(ENV, dir.path().join("nothing")));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "100\n", "no device");
}
