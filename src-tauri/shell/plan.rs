//! What the app starts with: the settings of this home, as `hearth serve` without flags has them.

use hearth_engine::{CacheOptions, EngineOptions, MemoryOptions, Serving};
use hearth_host::{DEFAULT_CACHE_SSD, HostError, common, default_cache_ram, new_token};
use hearth_library::download::DownloadManager;
use hearth_library::home::Home;
use hearth_library::learned::Log;
use hearth_library::scan::Places;
use hearth_server::ServerConfig;
use hearth_server::logs::LogRing;
use hearth_server::settings::Settings;
use std::time::Duration;

/// Ports after the usual one that are tried when it is taken.
pub const FURTHER_PORTS: u16 = 50;
/// Answers that still run at the end get this long.
const GRACE: Duration = Duration::from_millis(500);
/// The address that other machines reach.
const EVERYWHERE: &str = "0.0.0.0";

/// Everything that a start needs.
pub struct Plan {
    /// The server's settings.
    pub config: ServerConfig,
    /// The engine's settings.
    pub engine: EngineOptions,
    /// What the app itself needs of both.
    pub own: Own,
}

/// What the app itself needs while server and engine run.
#[derive(Clone)]
pub struct Own {
    /// The user's settings.
    pub settings: Settings,
    /// Where models are.
    pub places: Places,
    /// Downloads, where there can be any.
    pub downloads: Option<DownloadManager>,
    /// Whether the model of the last time is loaded by itself.
    pub auto_load: bool,
}

impl Plan {
    /// The plan for this home. `notice` is why nothing is loaded by itself.
    ///
    /// # Errors
    /// When the settings cannot be read, or the system has no random bytes.
    pub fn of(home: &Home, settings: Settings, logs: &LogRing, notice: Option<String>) -> Result<Self, HostError> {
        let token = new_token()?;
        let common = common::server(home, &settings, logs, token.clone());
        let own = Own {
            auto_load: settings.switch("auto_load", true) && notice.is_none(),
            places: common.places.clone(),
            downloads: common.downloads.clone(),
            settings: settings.clone(),
        };
        let lan = settings.switch("lan", false);
        let keys = settings.required_key()?;
        for ignored in settings.ignored() {
            tracing::warn!("{ignored}");
        }
        // The app and `hearth ps` have the admin token, and no API key.
        let api_keys = keys.into_iter().flat_map(|key| [key, token.clone()]).collect();
        let held = notice.is_some();
        let config = ServerConfig {
            host: if lan { EVERYWHERE.to_owned() } else { common.host },
            port: std::env::var("HEARTH_PORT").ok().and_then(|port| port.parse().ok()).unwrap_or(common.port),
            api_keys,
            notice,
            shutdown_grace: GRACE,
            ..common
        };
        // What was in memory when Hearth went down may bring it down again: a person decides.
        let serving = Serving { held, ..common::serving(home, Some(own.places.clone())) };
        let engine = EngineOptions { serving, ..engine(home, &settings) };
        Ok(Plan { config, engine, own })
    }
}

fn engine(home: &Home, settings: &Settings) -> EngineOptions {
    let count = |name: &str| settings.number(name).and_then(|n| usize::try_from(n).ok());
    let budget = settings.number("memory_budget");
    let defaults = EngineOptions::default();
    EngineOptions {
        max_rows: count("max_rows").unwrap_or(defaults.max_rows),
        context: count("context"),
        memory: MemoryOptions {
            budget,
            budget_from: if budget.is_some() { "settings" } else { "default" }.to_owned(),
            reserve: settings.number("reserve"),
            learned: Some(Log::of(home)),
            ..MemoryOptions::default()
        },
        cache: CacheOptions {
            ram: settings.number("cache_ram").unwrap_or_else(default_cache_ram),
            ssd: settings.number("cache_ssd").unwrap_or(DEFAULT_CACHE_SSD),
            dir: Some(home.cache()),
            ..CacheOptions::default()
        },
        ..EngineOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(settings: &str, notice: Option<String>) -> Plan {
        planned(settings, notice).unwrap()
    }

    fn planned(settings: &str, notice: Option<String>) -> Result<Plan, HostError> {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        std::fs::write(home.settings(), settings).unwrap();
        let settings = Settings::open(&home.settings()).unwrap();
        Plan::of(&home, settings, &LogRing::default(), notice)
    }

    #[test]
    fn without_settings_it_is_loopback_without_keys() {
        let plan = plan("", None);
        assert!(plan.config.is_loopback() && plan.config.api_keys.is_empty());
        assert_eq!(plan.engine.memory.budget_from, "default");
        assert!(plan.own.auto_load);
    }

    #[test]
    fn the_settings_reach_server_and_engine() {
        let text = "lan = true\napi_key = \"sk-0123456789\"\nmemory_budget = \"3GB\"\nmax_rows = 2\ncache_ram = 0\n\
                    auto_load = false\n";
        let plan = plan(text, None);
        let token = plan.config.admin_token.clone().unwrap();
        assert_eq!(plan.config.host, EVERYWHERE);
        assert_eq!(plan.config.api_keys, ["sk-0123456789".to_owned(), token]);
        assert_eq!((plan.engine.memory.budget, plan.engine.max_rows), (Some(3_000_000_000), 2));
        assert_eq!((plan.engine.memory.budget_from.as_str(), plan.engine.cache.ram), ("settings", 0));
        assert!(!plan.own.auto_load);
    }

    #[test]
    fn a_switch_that_asks_for_keys_without_a_key_is_refused() {
        for switch in ["lan", "api_key_required"] {
            let refusal = planned(&format!("{switch} = true\n"), None).err().unwrap().to_string();
            assert!(refusal.contains(&format!("{switch} = true needs an api_key")), "{refusal}");
        }
    }

    #[test]
    fn after_a_crash_nothing_is_loaded() {
        let plan = plan("", Some("it crashed".into()));
        assert!(!plan.own.auto_load && plan.engine.serving.held);
    }
}
