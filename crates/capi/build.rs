//! The name by which programs ask the loader for the library; its number changes with what breaks programs.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtrapline.so.0");
}
