//! x86-64: windows, tactics and generated code.

pub(crate) mod action;
mod body;
pub(crate) mod branch_map;
mod code_region;
mod emit;
pub(crate) mod env;
mod function;
mod jump;
mod kernel;
pub(crate) mod lay;
pub(crate) mod module;
mod padding;
mod pun;
mod return_address;
mod room;
pub(crate) mod site;
pub(crate) mod speculate;
pub mod stub;
pub(crate) mod system_calls;
mod window;

pub use code_region::find_code_region;
pub use room::room_for_calls;
