//! Hearth itself behind the menu: starts server and engine on the runtime's threads, keeps a picture of what they do for
//! the main thread, which never waits for either, and ends them in order.

use crate::shell::awake::Awake;
use crate::shell::control::{Control, ControlError};
use crate::shell::menu::View;
use crate::shell::plan::{FURTHER_PORTS, Own, Plan};
use crate::shell::status::{Picture, Status};
use crate::shell::wake::Clocks;
use crate::shell::{command, login, updates};
use hearth_core::{Backend, EngineError, ServedModel};
use hearth_engine::EngineHandle;
use hearth_host::{Host, HostError, unclean};
use hearth_library::download::{Download, DownloadManager};
use hearth_library::home::{Holder, Home, HomeLock, Ownership, ServerRecord};
use hearth_library::marker::{self, Unclean};
use hearth_library::scan::{ModelEntry, resolve, scan};
use hearth_library::watch::{self as watching, Watcher};
use hearth_server::logs::LogRing;
use hearth_server::settings::Settings;
use hearth_server::{Desktop, DesktopStatus, Sessions};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, broadcast, oneshot, watch};

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
/// Where everything starts anew there is more time: an engine that is left behind would keep its memory.
const ENDING_TO_RESTART: Duration = Duration::from_secs(30);
/// Between two looks whether another process that serves from this home has ended.
const ANOTHER_ENDS: Duration = Duration::from_secs(2);
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
    /// Somebody wants server and engine to start anew.
    restart: Notify,
    /// Browsers that were let in stay so over a start.
    sessions: Sessions,
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
}

/// How serving ended.
enum End {
    /// For good; whether the engine's thread is over.
    Quit(bool),
    /// To begin anew.
    Restart(Again),
}

/// What a new start takes over.
struct Again {
    /// The port in use.
    port: u16,
    /// Whether there was a model in memory, so that the last one is loaded again.
    load: bool,
}

/// What an editor wants to be told of a server's address.
pub fn base_url(address: &str) -> String {
    format!("{address}/v1")
}

impl Service {
    /// Starts Hearth in this home; returns at once.
    pub fn start(home: Result<Home, String>, logs: LogRing) -> Self {
        let view = View {
            status: Status::starting(),
            address: None,
            models: Some(Vec::new()),
            login: login::is_on(),
            updates: updates::are_configured(),
        };
        let service = Service(Arc::new(Inner {
            view: watch::Sender::new(view),
            notices: watch::Sender::new(None),
            quit: watch::Sender::new(false),
            restart: Notify::new(),
            sessions: Sessions::default(),
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

    /// Whether it could not start, and will not.
    pub fn has_failed(&self) -> bool {
        let view = self.0.view.borrow();
        view.address.is_none() && view.status.picture == Picture::Pressure
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

    fn engine(&self) -> Result<EngineHandle, String> {
        self.live().engine.clone().ok_or_else(|| ControlError::NotServing.to_string())
    }

    /// Loads a model, and waits for it.
    ///
    /// # Errors
    /// The engine's refusal.
    pub async fn load(&self, model: &str) -> Result<(), String> {
        self.engine()?.load_model(model).await.map(drop).map_err(|error| error.to_string())
    }

    /// Takes a model out of memory.
    ///
    /// # Errors
    /// The engine's refusal.
    pub async fn unload(&self, model: &str) -> Result<(), String> {
        self.engine()?.unload_model(model).await.map(drop).map_err(|error| error.to_string())
    }

    /// Ends all answers of a model that run.
    pub fn stop_answers(&self, model: &str) {
        let rows = self.0.view.borrow().status.rows_of(model);
        if let Ok(engine) = self.engine() {
            for row in rows {
                engine.cancel(row);
            }
        }
    }

    /// Turns the login item on where it is off, and the other way round.
    pub fn toggle_login(&self) {
        let wanted = self.0.view.borrow().login != Some(true);
        if let Err(why) = self.set_launch_at_login(wanted) {
            self.tell("Launch at login", &why, None);
        }
    }

    /// The menu and the setting say what the system says.
    fn note_login(&self, on: Option<bool>) {
        self.change(|view| view.login = on);
        let (Some(on), Some(settings)) = (on, self.live().settings.clone()) else { return };
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
        let mut again = None;
        loop {
            let owner = match home.acquire() {
                Ok(owner) => owner,
                Err(error) => return self.idle(&error.to_string()).await,
            };
            // What was in memory when Hearth went down is not loaded again by itself: it may go down again.
            let left = marker::left_behind(home, &owner, unclean::boot().as_deref());
            let lock = match owner {
                Ownership::Owned(lock) => lock,
                Ownership::Held(Holder { record: Some(record), .. }) if Control::of(&record).is_some() => {
                    if self.attend(home, &record).await {
                        return true;
                    }
                    // Who ended the other one wants no model in memory before it is asked for.
                    again = Some(Again { port: record.port, load: false });
                    continue;
                }
                Ownership::Held(holder) => {
                    return self.idle(&format!("{holder}; end it, or open Hearth again in a moment")).await;
                }
            };
            let (host, own) = match self.begin(home, lock, logs, left.as_ref(), again).await {
                Ok(begun) => begun,
                Err(why) => return self.idle(&format!("{why}. Then quit Hearth and open it again")).await,
            };
            match self.serve(host, own).await {
                End::Quit(ended) => return ended,
                End::Restart(over) => again = Some(over),
            }
        }
    }

    /// Binds and starts the engine.
    async fn begin(
        &self,
        home: &Home,
        lock: HomeLock,
        logs: &LogRing,
        left: Option<&Unclean>,
        again: Option<Again>,
    ) -> Result<(Host, Own), String> {
        let said = |error: HostError| error.to_string();
        let notice = left.map(|left| format!("{}. Start a model when you want to.", unclean::what_happened(left)));
        let settings = Settings::open(&home.settings()).map_err(|e| e.to_string())?;
        let Plan { mut config, engine, mut own } = Plan::of(home, settings, logs, notice.clone()).map_err(said)?;
        config.last_model = left.and_then(unclean::model);
        config.sessions = self.0.sessions.clone();
        config.desktop = Some(Arc::new(self.clone()));
        if let Some(again) = again {
            config.port = again.port;
            own.auto_load = again.load;
        }
        let wanted = config.port;
        let listening = hearth_host::listen(home, lock, config, FURTHER_PORTS).await.map_err(said)?;
        let (address, port) = (listening.url(), listening.port());
        let started = tokio::task::spawn_blocking(move || listening.start(engine)).await;
        let host = started.map_err(|e| e.to_string())?.map_err(said)?;
        let control = Control::new(&address, host.token().unwrap_or_default()).map_err(|e| e.to_string())?;
        *self.live() =
            Live { control: Some(control), engine: Some(host.engine().clone()), settings: Some(own.settings.clone()) };
        if port != wanted {
            let base = base_url(&address);
            let body = format!("Port {wanted} is taken. The address is {base}, and it is on the clipboard.");
            self.tell("Hearth serves on another port", &body, Some(base));
        }
        if let Some(why) = &notice {
            self.tell("Nothing is loaded", why, None);
        }
        self.change(|view| view.address = Some(address));
        Ok((host, own))
    }

    /// Serves until it is told to quit or to begin anew, and ends in order.
    async fn serve(&self, mut host: Host, own: Own) -> End {
        let mut quit = self.0.quit.subscribe();
        let (stop, stopped) = oneshot::channel::<()>();
        let mut server = host.serve(async move { drop(stopped.await) });
        let mut looks = Looks::new(self.clone(), &own);
        let mut loading = self.first_model(&host, &own).await;
        let restart = loop {
            tokio::select! {
                _ = quit.wait_for(|quit| *quit) => break false,
                () = self.0.restart.notified() => break true,
                // `hearth stop`, or the dashboard, ends the server: then there is no reason for an app.
                _ = &mut server => break false,
                () = tokio::time::sleep(LOOK) => {}
            }
            if let Some((answer, entry)) = &mut loading
                && let Ok(done) = answer.try_recv()
            {
                match done {
                    Ok(model) => {
                        if let Err(error) = host.loaded(entry, &model) {
                            tracing::warn!(%error, "the home cannot be written");
                        }
                    }
                    Err(error) => self.tell("The model cannot be loaded", &error.to_string(), None),
                }
                loading = None;
            }
            looks.look(host.engine()).await;
        };
        drop(looks);
        let again = Again { port: host.port(), load: !host.engine().stats().models.is_empty() };
        self.change(|view| view.status = if restart { Status::restarting() } else { Status::ending() });
        if !restart {
            // The app ends with its server.
            self.0.quit.send_replace(true);
        }
        drop(stop);
        if !server.is_finished() {
            drop((&mut server).await);
        }
        *self.live() = Live::default();
        if let Some(why) = host.save(SAVING).await.lost() {
            tracing::warn!("{why}");
        }
        let ended = tokio::select! {
            ended = host.close(if restart { ENDING_TO_RESTART } else { ENDING }) => ended,
            _ = quit.wait_for(|quit| *quit), if restart => false,
        };
        match restart && !*quit.borrow() {
            true if ended => End::Restart(again),
            true => {
                self.idle("Hearth cannot start anew while a long computation goes on. Quit it and open it again").await;
                End::Quit(false)
            }
            false => End::Quit(ended),
        }
    }

    /// Another process serves from this home: its dashboard can be opened from here, and that is all, until it ends
    /// (false) or this is to (true).
    async fn attend(&self, home: &Home, record: &ServerRecord) -> bool {
        let Some(control) = Control::of(record) else { return true };
        let address = control.base().to_owned();
        self.live().control = Some(control);
        self.change(|view| {
            view.address = Some(address);
            view.status = Status::elsewhere(record.pid);
            view.models = None;
        });
        let mut quit = self.0.quit.subscribe();
        loop {
            tokio::select! {
                _ = quit.wait_for(|quit| *quit) => return true,
                () = tokio::time::sleep(ANOTHER_ENDS) => {}
            }
            if matches!(home.inspect(), Ok(None)) {
                *self.live() = Live::default();
                self.change(|view| {
                    (view.address, view.status, view.models) = (None, Status::starting(), Some(Vec::new()));
                });
                return false;
            }
        }
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
        host.loading(&entry, own.settings.number("context"));
        Some((host.engine().load(entry.path.clone(), entry.id.clone()), entry))
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

impl Desktop for Service {
    fn status(&self) -> DesktopStatus {
        DesktopStatus { login_item: self.0.view.borrow().login.is_some(), command: command::status() }
    }

    fn set_launch_at_login(&self, on: bool) -> Result<(), String> {
        let done = login::set(on).map_err(|error| error.to_string());
        self.note_login(login::is_on());
        done
    }

    fn install_command(&self) -> Result<(), String> {
        command::install()
    }

    fn restart(&self) {
        self.0.restart.notify_one();
    }
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
        self.service.change(|view| view.models = Some(models));
        // The user may turn the item off in the system's settings.
        self.service.note_login(login);
    }
}
