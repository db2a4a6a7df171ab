//! HTTP calls that wait for their answer.

use reqwest::{Client, RequestBuilder, Response};
use serde_json::Value;
use std::time::Duration;
use tokio::runtime::Runtime;

/// A client of its own, with the threads that it needs.
pub struct Http {
    client: Client,
    runtime: Runtime,
}

/// An answer that has begun. Dropping it hangs up.
pub struct Answer(Response);

impl Answer {
    /// Its status.
    pub fn status(&self) -> u16 {
        self.0.status().as_u16()
    }
}

impl Http {
    /// A new one.
    pub fn new() -> Self {
        let client = Client::builder().no_proxy().timeout(Duration::from_secs(120)).build().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Http { client, runtime }
    }

    /// The JSON that a GET gives.
    pub fn get(&self, url: &str) -> Value {
        self.json(self.client.get(url))
    }

    /// The JSON that a POST gives.
    pub fn post(&self, url: &str, body: &Value) -> Value {
        self.json(self.client.post(url).json(body))
    }

    /// A POST whose answer nobody reads.
    pub fn begin(&self, url: &str, body: &Value) -> Answer {
        Answer(self.runtime.block_on(async { self.client.post(url).json(body).send().await.unwrap() }))
    }

    /// Whether anybody answers.
    pub fn answers(&self, url: &str) -> bool {
        self.runtime.block_on(async { self.client.get(url).send().await.is_ok() })
    }

    fn json(&self, request: RequestBuilder) -> Value {
        self.runtime.block_on(async { request.send().await.unwrap().json().await.unwrap() })
    }
}
