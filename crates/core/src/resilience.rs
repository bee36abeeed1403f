//! State machines that decide when to try again and whom to leave alone.
