//! The library calls itself what programs look for.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Its own table is of its own functions, whoever else exports the same names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo::rerun-if-changed=build.rs");
}
