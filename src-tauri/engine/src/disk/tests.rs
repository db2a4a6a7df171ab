//! Tests of the tier through its handle, on a file system that can be told to fail.

mod basics;
mod crashes;
mod damage;
mod limits;
mod search;
mod support;
