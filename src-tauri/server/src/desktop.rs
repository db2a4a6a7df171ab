//! The app around the server, where there is one: what only it can do for the dashboard.

use crate::error::ServerError;
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// What the app does for the dashboard of the server in it. The calls may wait, and are made where that is no harm.
pub trait Desktop: Send + Sync {
    /// What can be had from this app.
    fn status(&self) -> DesktopStatus;

    /// Turns the login item on or off.
    ///
    /// # Errors
    /// What the system says, with what to do about it.
    fn set_launch_at_login(&self, on: bool) -> Result<(), String>;

    /// Makes the `hearth` command known to terminals.
    ///
    /// # Errors
    /// What the system says, with what to do about it.
    fn install_command(&self) -> Result<(), String>;

    /// Starts server and engine anew, with the settings as they are then; returns at once.
    fn restart(&self);
}

/// What can be had from the app.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct DesktopStatus {
    /// Whether it can be started at login; whether it is, the setting says.
    pub login_item: bool,
    /// The `hearth` command, where the app brings one along.
    pub command: Option<CommandStatus>,
}

/// The `hearth` command and the link by which terminals find it.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct CommandStatus {
    /// Whether terminals find it.
    pub installed: bool,
    /// Where the link is, or would be.
    pub link: String,
}

/// The app, or a 409 that says where to find it.
fn app(state: &AppState) -> Result<Arc<dyn Desktop>, ServerError> {
    state.config().desktop.clone().ok_or_else(|| ServerError::Refused {
        status: StatusCode::CONFLICT,
        code: "no_app",
        message: "this server runs without the app, which alone can do that; open Hearth".into(),
    })
}

/// Lets the app do something that may take its time.
async fn ask(
    state: &AppState,
    work: impl FnOnce(&dyn Desktop) -> Result<(), String> + Send + 'static,
) -> Result<DesktopStatus, ServerError> {
    let app = app(state)?;
    let done = tokio::task::spawn_blocking(move || work(&*app).map(|()| app.status())).await;
    let done = done.map_err(|e| ServerError::Internal(e.to_string()))?;
    done.map_err(|message| ServerError::Refused { status: StatusCode::CONFLICT, code: "refused_by_system", message })
}

/// The login item, for the setting of that name.
pub(crate) async fn launch_at_login(state: &AppState, on: bool) -> Result<(), ServerError> {
    ask(state, move |app| app.set_launch_at_login(on)).await.map(drop)
}

/// `POST /api/hearth/desktop/command`: links the `hearth` command to where terminals look.
pub(crate) async fn command(State(state): State<AppState>) -> Result<Json<DesktopStatus>, ServerError> {
    ask(&state, |app| app.install_command()).await.map(Json)
}

/// `POST /api/hearth/desktop/restart`: server and engine start anew once this is answered.
pub(crate) async fn restart(State(state): State<AppState>) -> Result<(StatusCode, Json<Value>), ServerError> {
    app(&state)?.restart();
    Ok((StatusCode::ACCEPTED, Json(json!({"status": "restarting"}))))
}
