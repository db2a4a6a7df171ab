//! What `hearth serve` takes from `settings.toml`: everything that no flag and no variable says; and what all commands do:
//! where models are.

use crate::args::{KvArgs, ServeArgs};
use crate::failure::Failure;
use crate::output::say;
use crate::sizes;
use hearth_core::fit::{Allowance, Machine};
use hearth_core::kv_policy::{Asked, LayerList};
use hearth_core::model_settings::ModelSettings;
use hearth_library::home::Home;
use hearth_library::scan::Places;
use hearth_machine::chips;
use hearth_server::settings::{ModelsFile, Settings};
use serde_json::{Value, json};
use std::sync::{Arc, Once};

/// The address that other machines reach.
const EVERYWHERE: &str = "0.0.0.0";

/// Opens the settings, and fills in the options that nobody gave.
///
/// # Errors
/// Exit code 3 when the file cannot be read or says something that a setting does not take.
pub fn apply(args: &mut ServeArgs, home: &Home) -> Result<Settings, Failure> {
    let settings = Settings::open(&home.settings()).map_err(|e| Failure::unusable(e.to_string()))?;
    for (name, value) in options(args) {
        if let Some(origin) = args.given.origin(name) {
            settings.give(name, value, origin);
        }
    }
    let number = |name: &str| settings.number(name);
    let small = |name: &str| settings.number(name).and_then(|n| u32::try_from(n).ok());
    args.engine.budget_is_set = args.given.origin("memory_budget").is_none();
    args.engine.memory_budget = number("memory_budget");
    args.engine.reserve = number("reserve");
    args.engine.context = small("context");
    args.cache.cache_ram = number("cache_ram");
    args.cache.cache_ssd = number("cache_ssd");
    args.max_rows = small("max_rows").unwrap_or(args.max_rows);
    if args.given.origin("lan").is_none() && settings.switch("lan", false) {
        args.host = EVERYWHERE.to_owned();
    }
    if args.api_keys.is_empty() {
        args.api_keys.extend(settings.required_key().map_err(|e| Failure::unusable(e.to_string()))?);
    }
    for ignored in settings.ignored() {
        tracing::warn!("{ignored}");
    }
    Ok(settings)
}

/// This computer, with the memory that variables and `settings.toml` leave to Hearth.
pub fn machine(home: &Home) -> Machine {
    let settings = Settings::open(&home.settings()).ok();
    let size = |variable: &str, name: &str| {
        let given = std::env::var(variable).ok().and_then(|text| sizes::parse(&text).ok());
        given.or_else(|| settings.as_ref()?.number(name))
    };
    let budget = size("HEARTH_MEMORY_BUDGET", "memory_budget").filter(|&bytes| bytes > 0);
    Machine { allowance: Allowance { budget, reserve: size("HEARTH_RESERVE", "reserve") }, ..chips::here() }
}

/// What a command line asks of keys and values.
///
/// # Errors
/// Exit code 3 when its file cannot be read or says something else.
pub fn kv(args: &KvArgs) -> Result<Asked, Failure> {
    let list = args.kv_config.as_deref().map(LayerList::read).transpose()?;
    Ok(Asked { bits: args.kv_bits.as_deref().and_then(|bits| bits.parse().ok()), list: list.map(Arc::new) })
}

/// What a person set for a model in `models.toml`.
pub fn settings_of(id: &str, home: &Home) -> ModelSettings {
    ModelsFile::open(&home.models_toml()).models.remove(id).unwrap_or_default()
}

/// Where models are on this computer, the folders of `settings.toml` included. Settings that cannot be read are named
/// once, and the usual places are looked into all the same.
pub fn places(home: &Home) -> Places {
    static TOLD: Once = Once::new();
    let folders = match Settings::open(&home.settings()) {
        Ok(settings) => settings.model_folders(),
        Err(e) => {
            TOLD.call_once(|| say!("note: {e}; its model_folders are not looked into"));
            Vec::new()
        }
    };
    Places::standard(home, &folders)
}

/// The options by their names as settings.
fn options(args: &ServeArgs) -> [(&'static str, Value); 8] {
    let local = args.host == "localhost" || args.host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    [
        ("memory_budget", json!(args.engine.memory_budget)),
        ("reserve", json!(args.engine.reserve)),
        ("context", json!(args.engine.context)),
        ("cache_ram", json!(args.cache.cache_ram)),
        ("cache_ssd", json!(args.cache.cache_ssd)),
        ("max_rows", json!(args.max_rows)),
        ("lan", json!(!local)),
        ("api_key_required", json!(!args.api_keys.is_empty())),
    ]
}
