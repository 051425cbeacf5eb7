//! The read model: the one shape in which statistics are shown, exported and sent over the socket. Pure.
