//! Sets the name by which programs ask the loader for the library. Its number changes when a change breaks
//! programs.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtrapline.so.0");
}
