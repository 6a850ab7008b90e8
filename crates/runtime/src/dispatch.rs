//! A hit, from registers to consumers: where the jump's stub and the trap's handler meet.
