//! When data that readers may still look at can be freed.
