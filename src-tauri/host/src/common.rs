//! What every start has in common, whoever starts Hearth: the records and files of a home, as server and engine take them.

use hearth_engine::Serving;
use hearth_library::download::DownloadManager;
use hearth_library::home::Home;
use hearth_library::learned::Log;
use hearth_library::scan::Places;
use hearth_server::logs::LogRing;
use hearth_server::settings::{ModelsFile, Settings};
use hearth_server::{Learning, ServerConfig};

/// The server's part: where models are, what was learned, downloads, settings and the log. Who may reach it is for the
/// caller to say.
pub fn server(home: &Home, settings: &Settings, logs: &LogRing, token: String) -> ServerConfig {
    ServerConfig {
        admin_token: Some(token),
        places: Places::standard(home, &settings.model_folders()),
        learning: Some(Learning { log: Log::of(home), mlx: hearth_mlx::version() }),
        downloads: DownloadManager::standard(home).ok(),
        models_toml: Some(home.models_toml()),
        settings: settings.clone(),
        logs: logs.clone(),
        ..ServerConfig::default()
    }
}

/// The engine's part: which models are served, with what a person has written of each. What cannot be used of that is
/// said in the log.
pub fn serving(home: &Home, places: Option<Places>) -> Serving {
    let file = ModelsFile::open(&home.models_toml());
    for problem in &file.problems {
        tracing::warn!("{problem}");
    }
    Serving { places, aliases: file.aliases, models: file.models, ..Serving::default() }
}
