//! Which model a command means, and loading it with something to look at.

use crate::commands::preferences::places;
use crate::failure::Failure;
use hearth_core::model_settings::stands_for;
use hearth_core::stats::Health;
use hearth_core::{Backend, ServedModel};
use hearth_engine::EngineHandle;
use hearth_library::home::Home;
use hearth_library::scan::{ModelEntry, resolve, scan};
use hearth_server::settings::ModelsFile;
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::Arc;
use std::time::Duration;

/// The model that the user named; without a name, the last used one or the only one. `None` when that is not clear.
///
/// # Errors
/// When the name fits no model, or several.
pub fn pick(name: Option<&str>, home: &Home) -> Result<Option<ModelEntry>, Failure> {
    let places = places(home);
    if let Some(name) = name {
        return Ok(Some(resolve(&meant(name, home), &places)?));
    }
    // The last used model may be gone by now, which is no error.
    if let Some(last) = home.last_model().and_then(|last| resolve(&last.model, &places).ok()) {
        return Ok(Some(last));
    }
    let mut complete = scan(&places).models.into_iter().filter(ModelEntry::is_complete);
    match (complete.next(), complete.next()) {
        (Some(only), None) => Ok(Some(only)),
        _ => Ok(None),
    }
}

/// What a name stands for, which may be another name of the user's in `models.toml`.
pub fn meant(name: &str, home: &Home) -> String {
    stands_for(&ModelsFile::open(&home.models_toml()).aliases, name).to_owned()
}

/// What to say where [`pick`] finds nothing: name a model for `hearth COMMAND`, or get one first.
pub fn unclear(command: &str, home: &Home) -> Failure {
    if scan(&places(home)).models.is_empty() {
        return Failure::unusable(format!(
            "there is no model on this computer; get one with `hearth pull ORG/NAME` or `hearth import FILE.gguf`, or put a \
             model folder into {}; then `hearth {command} MODEL`",
            home.models().display()
        ));
    }
    Failure::usage(format!("which one is not clear; use `hearth {command} MODEL`, with one that `hearth ls` lists"))
}

/// Loads a model and shows the progress on a terminal.
///
/// # Errors
/// Exit code 3 when the model cannot be used.
pub async fn load(engine: &EngineHandle, entry: &ModelEntry) -> Result<Arc<ServedModel>, Failure> {
    let mut loaded = engine.load(entry.path.clone(), entry.id.clone());
    let bar = ProgressBar::new(100);
    if let Ok(style) = ProgressStyle::with_template("loading {msg} {bar:30} {percent} %") {
        bar.set_style(style);
    }
    bar.set_message(entry.id.clone());
    let result = loop {
        match tokio::time::timeout(Duration::from_millis(100), &mut loaded).await {
            Ok(result) => break result,
            Err(_) => {
                if let Health::Loading { percent, .. } = engine.health() {
                    bar.set_position(u64::from(percent));
                }
            }
        }
    };
    bar.finish_and_clear();
    match result {
        Ok(model) => Ok(model?),
        Err(_) => Err(Failure::no("the engine ended while it loaded the model")),
    }
}
