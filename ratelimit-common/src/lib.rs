//! Every decision of ratelimitd: pure, no clock, no maps, no logging.
#![cfg_attr(not(test), no_std)]
