//! Floods against receivers: the cost of a packet for this limiter and others, in namespaces, with live frames.
//!
//! A generator in the kernel sends over a veth pair, and the receiver's end drops. Sender and receiver share one CPU,
//! so the inverse of the rate is a packet's cost for both. The cost of a bare `XDP_DROP` in the same round is
//! subtracted. Every run checks that each receiver did what it must do with the frames.

pub mod connections;
pub mod growth;
pub mod measure;
pub mod outside;
pub mod peers;
pub mod reading;
pub mod receiver;
pub mod rows;
pub mod servers;
pub mod stopwatch;
pub mod wire;
