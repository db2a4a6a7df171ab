//! Updates: only in a build that knows where they are and by whose key they are signed.

use tauri::{AppHandle, Runtime};
use tauri_plugin_updater::UpdaterExt;

/// Where updates are announced; set when the app is built for distribution.
const ENDPOINT: Option<&str> = option_env!("HEARTH_UPDATE_ENDPOINT");
/// The public key that they are signed with.
const KEY: Option<&str> = option_env!("HEARTH_UPDATE_KEY");

/// Whether this build can look for updates.
pub fn are_configured() -> bool {
    configured(ENDPOINT, KEY).is_some()
}

fn configured<'a>(endpoint: Option<&'a str>, key: Option<&'a str>) -> Option<(&'a str, &'a str)> {
    let there = |text: &&str| !text.trim().is_empty();
    endpoint.filter(there).zip(key.filter(there))
}

/// Looks for a newer version and installs it. What to tell the user: nothing newer, or that the next start has it.
///
/// # Errors
/// A sentence: what did not work.
pub async fn install<R: Runtime>(app: &AppHandle<R>) -> Result<String, String> {
    let (endpoint, key) = configured(ENDPOINT, KEY).ok_or("this build of Hearth has no updates")?;
    let endpoint = endpoint.parse().map_err(|e| format!("the address of updates, {endpoint}, is not one: {e}"))?;
    let failed = |e: tauri_plugin_updater::Error| format!("updates cannot be had: {e}");
    let builder = app.updater_builder().pubkey(key).endpoints(vec![endpoint]).map_err(failed)?;
    let found = builder.build().map_err(failed)?.check().await.map_err(failed)?;
    let Some(update) = found else {
        return Ok(format!("Hearth {} is the newest version.", app.package_info().version));
    };
    update.download_and_install(|_, _| {}, || {}).await.map_err(failed)?;
    Ok(format!("Hearth {} is installed. It is used when Hearth is opened the next time.", update.version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_address_and_key_are_needed() {
        assert_eq!(configured(Some("https://a"), Some("k")), Some(("https://a", "k")));
        for (endpoint, key) in [(None, Some("k")), (Some("https://a"), None), (Some(" "), Some("k")), (None, None)] {
            assert_eq!(configured(endpoint, key), None);
        }
    }
}
