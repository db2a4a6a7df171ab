//! The HTTP API from outside: real sockets, real requests, a backend that plays scripts.

// Helpers of tests are tests: what they do not expect fails the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cache;
mod chat;
mod checks;
mod completions;
mod dashboard;
mod fit;
mod hangups;
mod http;
mod limits;
mod models;
mod mutations;
mod preflight;
mod rules;
mod safety;
mod streams;
mod support;
mod types;
