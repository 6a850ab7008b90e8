//! Who is called at a hit.
