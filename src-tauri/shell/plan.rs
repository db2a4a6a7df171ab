//! What the app starts with: the settings of this home, as `hearth serve` without flags has them.

use hearth_engine::{CacheOptions, EngineOptions};
use hearth_host::{HostError, new_token};
use hearth_library::home::Home;
use hearth_library::scan::{ModelEntry, Places, Source};
use hearth_server::ServerConfig;
use std::time::Duration;

/// Ports after the usual one that are tried when it is taken.
pub const FURTHER_PORTS: u16 = 50;
/// Answers that still run at the end get this long.
const GRACE: Duration = Duration::from_millis(500);

/// Everything that a start needs.
pub struct Plan {
    /// The server's settings.
    pub config: ServerConfig,
    /// The engine's settings.
    pub engine: EngineOptions,
    /// What to do once both run.
    pub begun: Begun,
}

/// What to do once server and engine run.
#[derive(Debug, Clone, Default)]
pub struct Begun {
    /// Why nothing is loaded by itself.
    pub notice: Option<String>,
}

impl Plan {
    /// The plan for this home.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn of(home: &Home) -> Result<Self, HostError> {
        let cache = CacheOptions { ssd: 32 << 30, dir: Some(home.cache()), ..CacheOptions::default() };
        Ok(Plan {
            config: ServerConfig {
                admin_token: Some(new_token()?),
                places: Places::standard(home, &[]),
                shutdown_grace: GRACE,
                ..ServerConfig::default()
            },
            engine: EngineOptions { cache, ..EngineOptions::default() },
            begun: Begun::default(),
        })
    }
}

/// What finds this model again. A folder outside the usual places is found only by its path.
pub fn name_of(entry: &ModelEntry) -> String {
    match entry.source {
        Source::Folder => entry.path.display().to_string(),
        _ => entry.id.clone(),
    }
}
