//! The checks that hold for every backend, against the scripted one.

use crate::checks;
use crate::support::start;
use hearth_server::testing::ScriptedBackend;

#[tokio::test]
async fn cases_21_and_25_bad_fields_are_named() {
    checks::bad_fields_are_named(&start(ScriptedBackend::saying("Hello")).await.url).await;
}

#[tokio::test]
async fn fields_of_all_clients_are_accepted() {
    checks::good_fields_are_accepted(&start(ScriptedBackend::saying("Hello")).await.url).await;
}

#[tokio::test]
async fn case_21_broken_bodies_on_every_route() {
    checks::broken_bodies(&start(ScriptedBackend::saying("Hello")).await.url).await;
}

#[tokio::test]
async fn json_by_its_several_names() {
    checks::content_types(&start(ScriptedBackend::saying("Hello")).await.url).await;
}

#[tokio::test]
async fn unknown_routes_and_wrong_methods() {
    checks::routes_and_methods(&start(ScriptedBackend::saying("Hello")).await.url).await;
}

#[tokio::test]
async fn model_ids_with_slashes() {
    checks::models(&start(ScriptedBackend::saying("Hello")).await.url).await;
}

#[tokio::test]
async fn cases_19_and_20_the_shape_of_a_stream() {
    let server = start(ScriptedBackend::saying("Hello")).await;
    checks::stream_shape(&server.url).await;
    checks::streamed_equals_whole(&server.url).await;
}
