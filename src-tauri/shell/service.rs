//! Hearth itself behind the menu: starts server and engine on the runtime's threads, keeps a picture of what they do for
//! the main thread, which never waits for either, and ends them in order.

use crate::shell::awake::Awake;
use crate::shell::control::{Control, ControlError};
use crate::shell::menu::View;
use crate::shell::plan::{FURTHER_PORTS, Own, Plan};
use crate::shell::status::Status;
use crate::shell::wake::Clocks;
use crate::shell::{login, updates};
use hearth_core::{Backend, EngineError, ServedModel};
use hearth_engine::EngineHandle;
use hearth_host::{Host, HostError, unclean};
use hearth_library::download::{Download, DownloadManager};
use hearth_library::home::{Holder, Home, HomeLock, Ownership, ServerRecord};
use hearth_library::marker;
use hearth_library::scan::{ModelEntry, resolve, scan};
use hearth_library::watch::{self as watching, Watcher};
use hearth_server::logs::LogRing;
use hearth_server::settings::Settings;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

/// The answer to a load, when it comes.
type Loaded = oneshot::Receiver<Result<Arc<ServedModel>, EngineError>>;

/// The setting for the login item.
const LOGIN: &str = "launch_at_login";
/// How often the engine's figures are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// Looks between two looks at the disk for new models, and at the login item.
const RARELY: u32 = 60;
/// After the end began, what is left of the prompt cache gets this long to reach the disk.
const SAVING: Duration = Duration::from_millis(1200);
/// And the engine this long to end.
const ENDING: Duration = Duration::from_millis(700);
/// A server of its own that does not answer within this is not well.
const ANSWERS: Duration = Duration::from_secs(5);

/// Something that the user should hear of although nothing is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// A few words.
    pub title: String,
    /// One or two sentences.
    pub body: String,
    /// What belongs on the clipboard with it.
    pub copy: Option<String>,
}

/// The way to Hearth; cheap to clone.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

struct Inner {
    view: watch::Sender<View>,
    notices: watch::Sender<Option<Notice>>,
    quit: watch::Sender<bool>,
    /// True once everything is ended, and whether the engine's thread is.
    ended: watch::Sender<Option<bool>>,
    live: Mutex<Live>,
}

/// What there is once the server runs.
#[derive(Default)]
struct Live {
    control: Option<Control>,
    engine: Option<EngineHandle>,
    settings: Option<Settings>,
    /// Models to load in this process.
    asked: Option<mpsc::UnboundedSender<String>>,
}

impl Service {
    /// Starts Hearth in this home; returns at once.
    pub fn start(home: Result<Home, String>, logs: LogRing) -> Self {
        let view = View {
            status: Status::starting(),
            address: None,
            models: Vec::new(),
            login: login::is_on(),
            updates: updates::are_configured(),
        };
        let service = Service(Arc::new(Inner {
            view: watch::Sender::new(view),
            notices: watch::Sender::new(None),
            quit: watch::Sender::new(false),
            ended: watch::Sender::new(None),
            live: Mutex::default(),
        }));
        let running = service.clone();
        tokio::spawn(async move {
            let engine_ended = match home {
                Ok(home) => running.run(&home, &logs).await,
                Err(why) => running.idle(&why).await,
            };
            running.0.ended.send_replace(Some(engine_ended));
        });
        service
    }

    /// What the menu is made from, and a signal for every change of it.
    pub fn view(&self) -> watch::Receiver<View> {
        self.0.view.subscribe()
    }

    /// What the user should hear of.
    pub fn notices(&self) -> watch::Receiver<Option<Notice>> {
        self.0.notices.subscribe()
    }

    /// Where it serves.
    pub fn address(&self) -> Option<String> {
        self.0.view.borrow().address.clone()
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.0.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn control(&self) -> Result<Control, ControlError> {
        self.live().control.clone().ok_or(ControlError::NotServing)
    }

    /// A link to a page of the dashboard that lets its browser in, good once.
    ///
    /// # Errors
    /// When no server runs, or it does not answer.
    pub async fn link(&self, page: &str) -> Result<String, ControlError> {
        self.control()?.link(page).await
    }

    /// Loads a model.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn load(&self, model: &str) -> Result<(), ControlError> {
        match self.control()?.load(model).await {
            // A server that serves one model has no route for it; in this process there is a way all the same.
            Err(ControlError::Missing) => {
                let asked = self.live().asked.clone().ok_or(ControlError::Missing)?;
                asked.send(model.to_owned()).map_err(|_| ControlError::NotServing)
            }
            other => other,
        }
    }

    /// Takes a model out of memory.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn unload(&self, model: &str) -> Result<(), ControlError> {
        self.control()?.unload(model).await
    }

    /// Ends all running answers.
    pub fn stop_answers(&self) {
        let rows = self.0.view.borrow().status.rows.clone();
        if let Some(engine) = self.live().engine.clone() {
            for row in rows {
                engine.cancel(row);
            }
        }
    }

    /// Turns the login item on or off; the opposite of what it is when nobody says which.
    pub fn set_login(&self, on: Option<bool>) {
        let wanted = on.unwrap_or(self.0.view.borrow().login != Some(true));
        if let Err(error) = login::set(wanted) {
            self.tell("Launch at login", &error.to_string(), None);
        }
        let now = login::is_on();
        self.change(|view| view.login = now);
        if let Some(on) = now {
            self.note_login(on);
        }
    }

    /// The setting says what the system says.
    fn note_login(&self, on: bool) {
        let Some(settings) = self.live().settings.clone() else { return };
        if settings.switch(LOGIN, false) != on
            && let Err(error) = settings.set(&BTreeMap::from([(LOGIN.to_owned(), json!(on))]))
        {
            tracing::warn!(%error, "the settings cannot be written");
        }
    }

    /// Ends everything in order, and waits for it. False: the engine's thread is still in a long computation, and the
    /// process must end without its exit handlers.
    pub async fn quit(&self) -> bool {
        self.0.quit.send_replace(true);
        let mut ended = self.0.ended.subscribe();
        let ended = ended.wait_for(Option::is_some).await;
        ended.is_ok_and(|ended| *ended == Some(true))
    }

    fn change(&self, change: impl FnOnce(&mut View)) {
        self.0.view.send_if_modified(|view| {
            let before = view.clone();
            change(view);
            *view != before
        });
    }

    /// Tells the user something.
    pub fn tell(&self, title: &str, body: &str, copy: Option<String>) {
        let notice = Notice { title: title.to_owned(), body: body.to_owned(), copy };
        self.0.notices.send_replace(Some(notice));
    }

    /// Nothing can be served: says why, until the end.
    async fn idle(&self, why: &str) -> bool {
        tracing::error!("{why}");
        self.change(|view| view.status = Status::failed(why));
        self.tell("Hearth cannot serve", why, None);
        let _ = self.0.quit.subscribe().wait_for(|quit| *quit).await;
        true
    }

    async fn run(&self, home: &Home, logs: &LogRing) -> bool {
        let owner = match home.acquire() {
            Ok(owner) => owner,
            Err(error) => return self.idle(&error.to_string()).await,
        };
        // What was in memory when Hearth went down is not loaded again by itself: it may go down again.
        let left = marker::left_behind(home, &owner, unclean::boot().as_deref());
        let notice = left.map(|left| format!("{}. Start a model when you want to.", unclean::what_happened(&left)));
        let lock = match owner {
            Ownership::Owned(lock) => lock,
            Ownership::Held(Holder { record: Some(record), .. }) if Control::of(&record).is_some() => {
                return self.attend(&record).await;
            }
            Ownership::Held(holder) => {
                return self.idle(&format!("{holder}; end it, or open Hearth again in a moment")).await;
            }
        };
        match self.begin(home, lock, logs, notice.clone()).await {
            Ok((host, own)) => {
                if let Some(why) = &notice {
                    self.tell("Nothing is loaded", why, None);
                }
                self.serve(host, own).await
            }
            Err(why) => self.idle(&why).await,
        }
    }

    /// Binds and starts the engine.
    async fn begin(
        &self,
        home: &Home,
        lock: HomeLock,
        logs: &LogRing,
        notice: Option<String>,
    ) -> Result<(Host, Own), String> {
        let said = |error: HostError| error.to_string();
        let settings = Settings::open(&home.settings()).map_err(|e| e.to_string())?;
        let plan = Plan::of(home, settings, logs, notice).map_err(said)?;
        let wanted = plan.config.port;
        let listening = hearth_host::listen(home, lock, plan.config, FURTHER_PORTS).await.map_err(said)?;
        let (address, port) = (listening.url(), listening.port());
        let engine = plan.engine;
        let started = tokio::task::spawn_blocking(move || listening.start(engine)).await;
        let host = started.map_err(|e| e.to_string())?.map_err(said)?;
        let control = Control::new(&address, host.token().unwrap_or_default()).map_err(|e| e.to_string())?;
        *self.live() = Live {
            control: Some(control),
            engine: Some(host.engine().clone()),
            settings: Some(plan.own.settings.clone()),
            asked: None,
        };
        if port != wanted {
            let body = format!("Port {wanted} is taken. The address is {address}, and it is on the clipboard.");
            self.tell("Hearth serves on another port", &body, Some(address.clone()));
        }
        self.change(|view| view.address = Some(address));
        Ok((host, plan.own))
    }

    /// Serves until it is told to quit, and ends in order.
    async fn serve(&self, mut host: Host, own: Own) -> bool {
        let mut quit = self.0.quit.subscribe();
        let mut stop = quit.clone();
        let mut server = host.serve(async move { drop(stop.wait_for(|quit| *quit).await) });
        let mut looks = Looks::new(self.clone(), &own);
        let mut loading = self.first_model(&host, &own).await;
        let (asked, mut names) = mpsc::unbounded_channel();
        self.live().asked = Some(asked);
        loop {
            tokio::select! {
                _ = quit.wait_for(|quit| *quit) => break,
                // `hearth stop`, or the dashboard, ends the server: then there is no reason for an app.
                _ = &mut server => break,
                Some(name) = names.recv() => match resolve(&name, &own.places) {
                    Ok(entry) => loading = Some(begin_load(&host, &own, entry)),
                    Err(error) => self.tell("The model is not started", &error.to_string(), None),
                },
                () = tokio::time::sleep(LOOK) => {}
            }
            if let Some((answer, entry)) = &mut loading
                && let Ok(done) = answer.try_recv()
            {
                match done {
                    Ok(model) => {
                        let noted = host.loaded(entry, &model);
                        drop(noted.inspect_err(|error| tracing::warn!(%error, "the home cannot be written")));
                    }
                    Err(error) => self.tell("The model cannot be loaded", &error.to_string(), None),
                }
                loading = None;
            }
            looks.look(host.engine()).await;
        }
        drop(looks);
        self.change(|view| view.status = Status::ending());
        // The app ends with its server.
        self.0.quit.send_replace(true);
        if !server.is_finished() {
            drop((&mut server).await);
        }
        *self.live() = Live::default();
        if let Some(why) = host.save(SAVING).await.lost() {
            tracing::warn!("{why}");
        }
        host.close(ENDING).await
    }

    /// Another process serves from this home: its dashboard can be opened from here, and that is all.
    async fn attend(&self, record: &ServerRecord) -> bool {
        let Some(control) = Control::of(record) else { return true };
        let address = control.base().to_owned();
        self.live().control = Some(control);
        self.change(|view| {
            view.address = Some(address);
            view.status = Status::elsewhere(record.pid);
        });
        let _ = self.0.quit.subscribe().wait_for(|quit| *quit).await;
        true
    }

    /// The model to begin with: the last used one, or the only one, unless the user does not want that.
    async fn first_model(&self, host: &Host, own: &Own) -> Option<(Loaded, ModelEntry)> {
        if !own.auto_load {
            return None;
        }
        let (places, last) = (own.places.clone(), host.last_model());
        let found = tokio::task::spawn_blocking(move || {
            if let Some(last) = last.and_then(|last| resolve(&last, &places).ok()) {
                return Some(last);
            }
            let mut complete = scan(&places).models.into_iter().filter(ModelEntry::is_complete);
            match (complete.next(), complete.next()) {
                (Some(only), None) => Some(only),
                _ => None,
            }
        });
        let entry = found.await.ok().flatten()?;
        Some(begin_load(host, own, entry))
    }

    /// The machine woke up: a server that does not answer any more is told of.
    fn woke(&self, slept: Duration) {
        tracing::info!(slept_s = slept.as_secs(), "the machine slept");
        let service = self.clone();
        tokio::spawn(async move {
            let Ok(control) = service.control() else { return };
            if !control.answers(ANSWERS).await && !control.answers(ANSWERS).await {
                let body = format!("{} does not answer after sleep. Quit Hearth and open it again.", control.base());
                service.tell("Hearth does not answer", &body, None);
            }
        });
    }
}

/// Puts a model on record and loads it.
fn begin_load(host: &Host, own: &Own, entry: ModelEntry) -> (Loaded, ModelEntry) {
    host.loading(&entry, own.settings.number("context"));
    (host.engine().load(entry.path.clone(), entry.id.clone()), entry)
}

/// What the regular look at the engine compares with.
struct Looks {
    service: Service,
    own: Own,
    clocks: Clocks,
    awake: Awake,
    downloads: Option<broadcast::Receiver<Download>>,
    /// Downloads that run.
    active: BTreeSet<String>,
    /// Set where models are added or removed.
    moved: Arc<AtomicBool>,
    _watcher: Option<Watcher>,
    login_wanted: bool,
    count: u32,
}

impl Looks {
    fn new(service: Service, own: &Own) -> Self {
        let moved = Arc::new(AtomicBool::new(true));
        let changed = moved.clone();
        let watcher = watching::watch(&own.places, move || changed.store(true, Ordering::Relaxed));
        if let Err(error) = &watcher {
            tracing::warn!(%error, "new models are only seen every half minute");
        }
        Looks {
            service,
            own: own.clone(),
            clocks: Clocks::now(),
            awake: Awake::default(),
            downloads: own.downloads.as_ref().map(DownloadManager::subscribe),
            active: BTreeSet::new(),
            moved,
            _watcher: watcher.ok(),
            login_wanted: own.settings.switch(LOGIN, false),
            count: 0,
        }
    }

    /// Looks once.
    async fn look(&mut self, engine: &EngineHandle) {
        let status = Status::of(&engine.health(), &engine.stats());
        while let Some(Ok(job)) = self.downloads.as_mut().map(broadcast::Receiver::try_recv) {
            match job.state.is_active() {
                true => self.active.insert(job.id),
                false => self.active.remove(&job.id),
            };
        }
        self.awake.set(status.is_working() || !self.active.is_empty());
        self.service.change(|view| view.status = status);
        let wanted = self.own.settings.switch(LOGIN, false);
        if wanted != self.login_wanted {
            self.login_wanted = wanted;
            let service = self.service.clone();
            let _ = tokio::task::spawn_blocking(move || service.set_login(Some(wanted))).await;
        }
        if self.moved.swap(false, Ordering::Relaxed) || self.count.is_multiple_of(RARELY) {
            self.look_at_the_disk().await;
        }
        self.count = self.count.wrapping_add(1);
        if let Some(slept) = self.clocks.slept(Clocks::now()) {
            self.service.woke(slept);
        }
    }

    async fn look_at_the_disk(&mut self) {
        let places = self.own.places.clone();
        let found = tokio::task::spawn_blocking(move || {
            let ids = scan(&places).models.into_iter().filter(ModelEntry::is_complete).map(|model| model.id);
            (ids.collect::<Vec<String>>(), login::is_on())
        });
        let Ok((models, login)) = found.await else { return };
        self.service.change(|view| (view.models, view.login) = (models, login));
        // The user may turn the item off in the system's settings.
        if let Some(on) = login
            && on != self.login_wanted
        {
            self.login_wanted = on;
            self.service.note_login(on);
        }
    }
}
