//! Floods against receivers: what a packet costs this limiter and others, in namespaces, with live frames.
//!
//! A generator in the kernel sends over a veth pair, and the receiver's end drops. Sender and receiver share one CPU,
//! so one over the rate is what a packet costs both; what a bare `XDP_DROP` costs in the same round is taken off. What
//! each receiver did with the frames is held against what it must do, in every single run.

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
