//! The routes and the layers around them, outermost first: caught panics, Host and Origin, CORS, keys.

use crate::body::drain;
use crate::error::ServerError;
use crate::state::AppState;
use crate::{
    admin, connect, desktop, downloads, events, fit, health, inspector, limits, logs, models_admin, openai, safety,
    session, settings, ui,
};
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use std::any::Any;
use tower_http::catch_panic::CatchPanicLayer;

/// The whole API as a service.
pub fn router(state: AppState) -> Router {
    routes()
        .layer(from_fn_with_state(state.clone(), safety::require_key))
        .layer(safety::cors(state.config()))
        .layer(from_fn_with_state(state.clone(), safety::guard))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(log))
        .with_state(state)
}

/// The routes without what guards them.
pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{*id}", get(openai::models::one))
        .route("/v1/chat/completions", post(openai::chat::create))
        .route("/v1/completions", post(openai::completions::create))
        .route("/health", get(health::health))
        .route("/stats", get(health::stats))
        .route("/api/hearth/shutdown", post(admin::shutdown))
        .route("/api/hearth/cache", get(admin::cache))
        .route("/api/hearth/cache/flush", post(admin::flush_cache))
        .route("/api/hearth/cache/clear", post(admin::clear_cache))
        .route("/api/hearth/limits", get(limits::show).put(limits::change))
        .route("/api/hearth/limits/preview", post(limits::preview))
        .route("/api/hearth/requests/{id}/cancel", post(limits::cancel))
        .route("/api/hearth/preflight", get(admin::preflight))
        .route("/api/hearth/fit", get(fit::fit))
        .route("/api/hearth/events", get(events::events))
        .route("/api/hearth/session", delete(session::end))
        .route("/api/hearth/session/ticket", post(session::ticket))
        .route("/api/hearth/settings", get(settings::read).put(settings::write))
        .route("/api/hearth/requests", get(inspector::list))
        .route("/api/hearth/requests/{id}", get(inspector::one))
        .route("/api/hearth/logs", get(logs::logs))
        .route("/api/hearth/connect", get(connect::overview))
        .route("/api/hearth/connect/test", post(connect::test))
        .route("/api/hearth/desktop/command", post(desktop::command))
        .route("/api/hearth/desktop/restart", post(desktop::restart))
        .route("/", get(ui::page))
        .route("/popover", get(ui::page))
        .route("/favicon.ico", get(ui::favicon))
        .route("/assets/{name}", get(ui::asset))
        .route("/api/hearth/downloads", get(downloads::list).post(downloads::start))
        .route("/api/hearth/downloads/{id}", get(downloads::one))
        .route("/api/hearth/downloads/{id}/{verb}", post(downloads::act))
        .route("/api/hearth/search", get(downloads::search))
        .route("/api/hearth/catalogue", get(models_admin::catalogue))
        .route("/api/hearth/catalogue/preview", get(models_admin::preview))
        .route("/api/hearth/models", get(models_admin::list).delete(models_admin::delete))
        .route("/api/hearth/models/load", post(models_admin::load))
        .route("/api/hearth/models/unload", post(models_admin::unload))
        .route("/api/hearth/models/pin", post(models_admin::pin))
        .route("/api/hearth/models/removal", get(models_admin::removal))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
}

async fn not_found(State(state): State<AppState>, request: Request) -> ServerError {
    let error =
        ServerError::RouteNotFound { method: request.method().to_string(), path: request.uri().path().to_owned() };
    drain(request.into_body(), state.config().body_limit).await;
    error
}

async fn method_not_allowed(State(state): State<AppState>, request: Request) -> ServerError {
    let error =
        ServerError::MethodNotAllowed { method: request.method().to_string(), path: request.uri().path().to_owned() };
    drain(request.into_body(), state.config().body_limit).await;
    error
}

fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let message = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a panic without a message".to_owned(),
    };
    ServerError::Internal(message).into_response()
}

async fn log(request: Request, next: axum::middleware::Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = next.run(request).await;
    let status = response.status().as_u16();
    if ui::is_public(&path) {
        // A page is a dozen files, and nobody looks for them in a log.
        tracing::debug!(%method, path, status, "answered");
    } else {
        tracing::info!(%method, path, status, "answered");
    }
    response
}
