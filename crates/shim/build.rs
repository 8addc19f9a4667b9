//! Writes an exported function for every name of the driver API, so that programs that are linked
//! with it find the shim first.

use std::fmt::Write;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/driver_names.txt");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsublet-shim.so");
    let names = std::fs::read_to_string("src/driver_names.txt").expect("the names are in the source tree");
    let names: Vec<&str> = names.lines().collect();
    let mut text = format!("names! {{ {};\n", names.len());
    for (number, name) in names.iter().enumerate() {
        writeln!(text, "    {number} {name}").expect("a text can be written to");
    }
    text.push_str("}\n");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo says where to write"));
    std::fs::write(out.join("names.rs"), text).expect("the build directory can be written to");
}
