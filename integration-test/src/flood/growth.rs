//! Growth.
