//! The HTTP API from outside: real sockets, real requests, a backend that plays scripts.

mod chat;
mod checks;
mod completions;
mod hangups;
mod http;
mod mutations;
mod rules;
mod safety;
mod streams;
mod support;
