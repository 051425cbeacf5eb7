//! x
pub mod acts;
pub mod clock;
pub mod core;
pub mod hosts;
pub mod limit;
pub mod names;
pub mod run;
pub mod store;
pub mod tracked;
pub mod wire;
