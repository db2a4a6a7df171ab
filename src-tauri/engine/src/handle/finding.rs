//! From the name in a request to a model in memory: an exact id, another name, or a part of one that fits only one model.

use super::{EngineHandle, Serving};
use crate::worker::{Command, Wanted};
use hearth_core::backend::ModelCard;
use hearth_core::model_settings::stands_for;
use hearth_core::stats::Health;
use hearth_core::{CoreError, EngineError, ServedModel};
use hearth_library::LibraryError;
use hearth_library::scan::{self, ModelEntry};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::oneshot;

impl Serving {
    /// What a name stands for.
    pub(super) fn meant<'a>(&'a self, name: &'a str) -> &'a str {
        stands_for(&self.aliases, name)
    }
}

impl EngineHandle {
    /// The model that a request means; loads it where it is not in memory.
    pub(super) async fn find(&self, name: Option<&str>) -> Result<Arc<ServedModel>, EngineError> {
        match (name, self.options.serving.places.is_some()) {
            // One model is served, and it answers to any name; its real id is in the response.
            (_, false) | (None, _) => self.current(name).await,
            (Some(name), true) => self.named(name).await,
        }
    }

    /// The model that was used last.
    async fn current(&self, name: Option<&str>) -> Result<Arc<ServedModel>, EngineError> {
        let several = self.options.serving.places.is_some();
        let wanted = self.shared.update(|state| match (&state.served, &state.health, &state.wanted) {
            (Some(model), _, _) => Ok(Ok(model.clone())),
            (None, Health::Failed { message }, _) if !several => {
                Err(EngineError::ModelUnusable(CoreError::Folder(message.clone())))
            }
            (None, _, wanted) => Ok(Err(wanted.clone())),
        })?;
        let wanted = match wanted {
            Ok(model) => return Ok(model),
            // It may have been removed since.
            Err(wanted) => wanted.filter(|(_, dir)| !several || dir.join("config.json").is_file()),
        };
        match wanted {
            Some((id, dir)) => self.ask_for(id, dir, true).await,
            None => {
                let mut there = self.complete().await;
                match there.pop() {
                    // With one model there is no doubt who is meant.
                    Some(only) if there.is_empty() => self.ask_for(only.id, only.path, true).await,
                    last => {
                        let available = there.into_iter().chain(last).map(|entry| entry.id).collect();
                        Err(EngineError::ModelNotFound { name: name.unwrap_or("").to_owned(), available })
                    }
                }
            }
        }
    }

    /// The complete models on disk, sorted by id.
    async fn complete(&self) -> Vec<ModelEntry> {
        let Some(places) = self.options.serving.places.clone() else { return Vec::new() };
        let found = tokio::task::spawn_blocking(move || scan::scan(&places).models).await.unwrap_or_default();
        found.into_iter().filter(ModelEntry::is_complete).collect()
    }

    /// The model of this name.
    async fn named(&self, name: &str) -> Result<Arc<ServedModel>, EngineError> {
        let name = self.options.serving.meant(name);
        let resident = |fits: &dyn Fn(&str) -> bool| {
            self.shared.update(|state| {
                let mut all = state.models.iter().filter(|m| fits(&m.served.id)).map(|m| m.served.clone());
                all.next().filter(|_| all.next().is_none())
            })
        };
        if let Some(model) = resident(&|id| id == name) {
            return Ok(model);
        }
        match self.on_disk(name).await {
            Ok(entry) => match resident(&|id| id == entry.id) {
                Some(model) => Ok(model),
                None => self.ask_for(entry.id, entry.path, true).await,
            },
            Err(LibraryError::NotFound { name, available }) => {
                // A model that was loaded by its folder is in no place that is searched.
                let meant = self.resident_named(&name)?;
                match resident(&|id| id == meant) {
                    Some(model) => Ok(model),
                    // With one model there is no doubt who is meant.
                    None if available.len() <= 1 => self.current(Some(&name)).await,
                    None => Err(EngineError::ModelNotFound { name, available }),
                }
            }
            Err(error) => Err(self.refused(error)),
        }
    }

    /// Loads a model by the name that somebody gave it.
    pub(super) async fn load_by_name(&self, name: &str) -> Result<Arc<ServedModel>, EngineError> {
        let name = self.options.serving.meant(name);
        let here = self.shared.update(|state| {
            let exact = state.models.iter().find(|model| model.served.id == name);
            exact.map(|model| model.served.clone())
        });
        match here {
            Some(model) => Ok(model),
            None => {
                let entry = self.on_disk(name).await.map_err(|error| self.refused(error))?;
                self.ask_for(entry.id, entry.path, false).await
            }
        }
    }

    /// The id of the model in memory that a name means: an exact one, or a part that fits only one of them. A name that
    /// fits none stays as it is.
    ///
    /// # Errors
    /// [`EngineError::ModelAmbiguous`] where it fits several.
    pub(super) fn resident_named(&self, name: &str) -> Result<String, EngineError> {
        let name = self.options.serving.meant(name);
        let ids: Vec<String> =
            self.shared.update(|state| state.models.iter().map(|model| model.served.id.clone()).collect());
        let mut candidates: Vec<String> = scan::fitting(name, ids.iter().map(String::as_str))
            .into_iter()
            .filter_map(|n| ids.get(n).cloned())
            .collect();
        match candidates.len() {
            0 => Ok(name.to_owned()),
            1 => Ok(candidates.remove(0)),
            _ => Err(EngineError::ModelAmbiguous { name: name.to_owned(), candidates }),
        }
    }

    /// Waits for a model to be in memory.
    async fn ask_for(&self, id: String, dir: PathBuf, for_request: bool) -> Result<Arc<ServedModel>, EngineError> {
        // Whoever loads a model has been asked; a request has not.
        let held = self.shared.update(|state| {
            state.held &= for_request;
            state.held
        });
        if held {
            return Err(EngineError::ModelHeld { model: id });
        }
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Load(Wanted { id, dir, for_request }, reply));
        answer.await.map_err(|_| EngineError::EngineLost)?
    }

    async fn on_disk(&self, name: &str) -> Result<ModelEntry, LibraryError> {
        let places = self.options.serving.places.clone().unwrap_or_default();
        let wanted = name.to_owned();
        let found = tokio::task::spawn_blocking(move || scan::resolve_id(&wanted, &places)).await;
        found.unwrap_or_else(|e| Err(LibraryError::Defect { what: e.to_string() }))
    }

    /// What the library says of a name, to whoever sent it.
    fn refused(&self, error: LibraryError) -> EngineError {
        match error {
            LibraryError::NotFound { name, mut available } => {
                if available.is_empty() {
                    // One that serves a single model does not look at others.
                    available = self.shared.update(|state| state.models.iter().map(|m| m.served.id.clone()).collect());
                }
                EngineError::ModelNotFound { name, available }
            }
            LibraryError::Ambiguous { name, candidates } => EngineError::ModelAmbiguous { name, candidates },
            other => EngineError::ModelUnusable(CoreError::Folder(other.to_string())),
        }
    }

    /// Every model that a request may name.
    pub(super) async fn cards(&self) -> Vec<ModelCard> {
        let (mut cards, pins, loading, wanted, limit) = self.shared.update(|state| {
            let card = |m: &super::Resident| ModelCard {
                id: m.served.id.clone(),
                created: m.served.created,
                loaded: true,
                state: "loaded",
                pinned: m.stats.pinned,
                context: m.served.context,
            };
            let loading = match &state.health {
                Health::Loading { model, .. } => Some(model.clone()),
                _ => None,
            };
            let cards: Vec<_> = state.models.iter().map(card).collect();
            (cards, state.pins.clone(), loading, state.wanted.clone(), state.limits.context)
        });
        let mut others: Vec<_> = self.complete().await.into_iter().map(|e| (e.id, e.path, e.context)).collect();
        // The only one that is served comes back when it is asked for.
        let alone = wanted.filter(|_| self.options.serving.places.is_none() && loading.is_none());
        others.extend(alone.map(|(id, path)| (id, path, None)));
        for (id, path, context) in others {
            if cards.iter().any(|card| card.id == id) {
                continue;
            }
            // What the budget leaves of it shows when it is loaded.
            let asked = limit.or(self.options.serving.of(&id).context).filter(|&n| n > 0);
            let own = context.unwrap_or(0) as usize;
            cards.push(ModelCard {
                created: created(&path),
                loaded: false,
                state: if loading.as_ref() == Some(&id) { "loading" } else { "on_disk" },
                pinned: pins.contains(&id),
                context: asked.map_or(own, |asked| if own > 0 { asked.min(own) } else { asked }),
                id,
            });
        }
        cards
    }
}

/// Seconds since the epoch at which its config was written.
fn created(folder: &Path) -> u64 {
    let written = std::fs::metadata(folder.join("config.json")).and_then(|meta| meta.modified());
    written.ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok()).map_or(0, |since| since.as_secs())
}
