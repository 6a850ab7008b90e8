//! Address → region → (file, offset), without a lock and without a store.
