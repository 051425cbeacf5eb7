//! A datapath without a kernel, for tests of what drives it.
