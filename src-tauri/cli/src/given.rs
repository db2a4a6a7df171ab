//! Which options of `hearth serve` were given, and how: a flag goes before a variable, a variable before the settings,
//! and the dashboard shows which of them it was.

use clap::ArgMatches;
use clap::parser::ValueSource;
use hearth_server::settings::Origin;
use std::collections::BTreeMap;

/// The options that are settings as well, by their names as settings.
const OPTIONS: &[(&str, &str)] = &[
    ("memory_budget", "memory_budget"),
    ("reserve", "reserve"),
    ("cache_ram", "cache_ram"),
    ("cache_ssd", "cache_ssd"),
    ("context", "context"),
    ("max_rows", "max_rows"),
    ("host", "lan"),
    ("api_keys", "api_key_required"),
];

/// Where each given option comes from, by its name as a setting. Options that nobody gave are not in it.
#[derive(Debug, Clone, Default)]
pub struct Given(BTreeMap<&'static str, Origin>);

impl Given {
    /// Reads it from the parsed command line.
    pub fn of(matches: &ArgMatches) -> Self {
        let Some((_, command)) = matches.subcommand() else { return Given::default() };
        let origin = |id: &str| match command.try_contains_id(id).ok().and_then(|_| command.value_source(id))? {
            ValueSource::CommandLine => Some(Origin::Flag),
            ValueSource::EnvVariable => Some(Origin::Environment),
            _ => None,
        };
        Given(OPTIONS.iter().filter_map(|(id, name)| Some((*name, origin(id)?))).collect())
    }

    /// How a setting was given; `None`: it was not.
    pub fn origin(&self, name: &str) -> Option<Origin> {
        self.0.get(name).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    #[test]
    fn only_what_was_given_counts() {
        let matches = Cli::command().get_matches_from(["hearth", "serve", "--max-rows", "4", "--cache-ram", "1GB"]);
        let given = Given::of(&matches);
        assert_eq!(given.origin("max_rows"), Some(Origin::Flag));
        assert_eq!(given.origin("cache_ram"), Some(Origin::Flag));
        assert_eq!((given.origin("context"), given.origin("lan")), (None, None));
        let other = Cli::command().get_matches_from(["hearth", "ls"]);
        assert_eq!(Given::of(&other).origin("max_rows"), None);
    }
}
