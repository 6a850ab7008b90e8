//! A bounded pool of return instances for any number of threads.
