//! The walk over a copied text: its bytes go into a hash, and zeros are written behind its end.
//!
//! In: where the bytes are, and what ends the text before all of them. Out: operations, and the hash.
//!
//! ```text
//!   hash = FNV.0;  for each byte before the end:  hash = (hash ^ byte) · FNV.1         modulo 2^64
//!   then every byte from the end on = 0
//! ```
//!
//! Does not: look beyond `TEXT_BYTES`; know who else may see the bytes (`text_key`, `texts`).

use trapline_code::{Builder, Compute, Label, Place, Target, Value, Var};
use trapline_record::tally::{FNV, TEXT_BYTES};

/// Appends the walk. `ends` is asked for each byte, before that byte is taken, and jumps to the label if the text has ended.
pub(super) fn hash(
    builder: &mut Builder,
    bytes: Place,
    mut ends: impl FnMut(&mut Builder, Value, Label),
) -> Var {
    let [ended, end] = [(); 2].map(|()| builder.label());
    let (hash, at) = (builder.var(), builder.var());
    builder.set(hash, Value::Number(FNV.0));
    builder.set_address(at, bytes);
    let walk = builder.walk(at, 1, TEXT_BYTES as u16);
    builder.begin(walk);
    let byte = builder.load_byte(Place::at(at, 0));
    ends(builder, byte, ended);
    fold(builder, hash, byte);
    builder.next(walk);
    builder.jump(Target::Label(end));
    builder.bind(ended);
    builder.begin(walk);
    builder.store_byte(Place::at(at, 0), 0);
    builder.next(walk);
    builder.bind(end);
    hash
}

/// hash = (hash ^ value) · FNV.1
pub(super) fn fold(builder: &mut Builder, hash: Var, value: Value) {
    let times = builder.number(FNV.1);
    builder.set_computed(hash, Compute::Xor, Value::Var(hash), value);
    builder.set_computed(hash, Compute::Multiply, Value::Var(hash), times);
}
