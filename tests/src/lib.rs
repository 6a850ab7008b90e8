//! What the end-to-end tests share. It builds victims, runs processes that speak the victims' protocol, and
//! runs the trapline command as a user does. It uses the kernel's uprobes as an oracle, and compares code
//! with the file that it came from.
//!
//! Does not: test anything itself. A test that cannot run on the present machine calls [`skip!`], which
//! `cargo xtask test` counts.

mod alone;
mod apart;
pub mod arriving;
pub mod bpf;
pub mod counted;
pub mod debugger;
pub mod examples;
pub mod fetched;
pub mod groups;
pub mod histograms;
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
pub mod native;
pub mod oracle;
pub mod programs;
pub mod recordings;
pub mod running;
pub mod script;
pub mod scripts;
pub mod servers;
pub mod stacks;
pub mod text;
pub mod tracing;
pub mod twins;
pub mod victims;

pub use alone::alone;

/// Prints why this test does not run here, and leaves the test. `cargo xtask test` moves it from the passed
/// to the skipped.
#[macro_export]
macro_rules! skip {
    ($($why:tt)*) => {{
        println!("SKIP: {}", format_args!($($why)*));
        return;
    }};
}

/// The value; or a skip with the error as its reason.
#[macro_export]
macro_rules! or_skip {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(why) => $crate::skip!("{why}"),
        }
    };
}

/// Cargo's target folder, which holds `release/`.
///
/// # Panics
/// If a test binary runs from a place that cargo did not choose.
#[must_use]
pub fn target_dir() -> std::path::PathBuf {
    let exe = std::env::current_exe().expect("own path");
    exe.ancestors().nth(3).expect("target/PROFILE/deps/TEST").to_path_buf()
}

/// A number from the environment, for tests that `cargo xtask stress` runs for longer.
#[must_use]
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
