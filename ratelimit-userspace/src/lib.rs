//! The daemon and command line of ratelimitd.
