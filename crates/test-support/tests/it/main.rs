//! The servers this crate starts, started.

mod mariadb;
