//! What the privileged tests share.
