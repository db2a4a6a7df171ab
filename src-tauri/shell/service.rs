//! Hearth itself behind the menu: starts server and engine on the runtime's threads, keeps a picture of what they do for
//! the main thread, which never waits for either, and ends them in order.

use crate::shell::awake::Awake;
use crate::shell::control::{Control, ControlError};
use crate::shell::menu::View;
use crate::shell::plan;
use crate::shell::status::Status;
use crate::shell::wake::Clocks;
use crate::shell::{login, updates};
use hearth_core::Backend;
use hearth_core::stats::Health;
use hearth_engine::EngineHandle;
use hearth_host::{Host, HostError, Saved};
use hearth_library::home::{Home, Ownership};
use hearth_library::scan::{ModelEntry, Places, resolve, scan};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

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
}

impl Service {
    /// Starts Hearth in this home; returns at once.
    pub fn start(home: Result<Home, String>) -> Self {
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
                Ok(home) => running.run(&home).await,
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
        self.control()?.load(model).await
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

    async fn run(&self, home: &Home) -> bool {
        let lock = match home.acquire() {
            Ok(Ownership::Owned(lock)) => lock,
            Ok(Ownership::Held(holder)) => {
                if let Some(record) = &holder.record
                    && let Some(control) = Control::of(record)
                {
                    return self.attend(control, &format!("{holder}")).await;
                }
                return self.idle(&format!("{holder}; end it, or open Hearth again in a moment")).await;
            }
            Err(error) => return self.idle(&error.to_string()).await,
        };
        match self.begin(home, lock).await {
            Ok((host, begun)) => self.serve(home, host, begun).await,
            Err(error) => self.idle(&error.to_string()).await,
        }
    }

    /// Binds and starts the engine.
    async fn begin(&self, home: &Home, lock: hearth_library::home::HomeLock) -> Result<(Host, plan::Begun), HostError> {
        let plan = plan::Plan::of(home)?;
        let wanted = plan.config.port;
        let listening = hearth_host::listen(home, lock, plan.config, plan::FURTHER_PORTS).await?;
        let address = listening.url();
        if listening.port() != wanted {
            let body = format!("Port {wanted} is taken. The address is {address}, and it is on the clipboard.");
            self.tell("Hearth serves on another port", &body, Some(address.clone()));
        }
        let (options, begun) = (plan.engine, plan.begun);
        let started = tokio::task::spawn_blocking(move || listening.start(options)).await;
        let host = started.map_err(|e| std::io::Error::other(e.to_string()))??;
        let control = Control::new(&address, host.token().unwrap_or_default())?;
        *self.live() = Live { control: Some(control), engine: Some(host.engine().clone()) };
        self.change(|view| view.address = Some(address));
        Ok((host, begun))
    }

    /// Serves until it is told to quit, and ends in order.
    async fn serve(&self, home: &Home, mut host: Host, begun: plan::Begun) -> bool {
        let mut quit = self.0.quit.subscribe();
        let mut stop = quit.clone();
        let mut server = host.serve(async move { drop(stop.wait_for(|quit| *quit).await) });
        let mut clocks = Clocks::now();
        let mut awake = Awake::default();
        let mut looks = 0_u32;
        let mut last = None;
        if let Some(why) = &begun.notice {
            self.tell("Nothing is loaded", why, None);
        }
        let first = match begun.notice {
            None => self.first_model(&host, home).await,
            Some(_) => None,
        };
        let mut loading = first.map(|entry| (host.engine().load(entry.path.clone(), entry.id.clone()), entry));
        loop {
            tokio::select! {
                _ = quit.wait_for(|quit| *quit) => break,
                // `hearth stop`, or the dashboard, ends the server: then there is no reason for an app.
                _ = &mut server => break,
                () = tokio::time::sleep(LOOK) => {}
            }
            let (health, stats) = (host.engine().health(), host.engine().stats());
            let status = Status::of(&health, &stats);
            awake.set(status.is_working());
            if let Some((answer, entry)) = &mut loading
                && let Ok(done) = answer.try_recv()
            {
                match done {
                    Ok(model) => {
                        let noted = host.loaded(&plan::name_of(entry), &model);
                        drop(noted.inspect_err(|error| tracing::warn!(%error, "the home cannot be written")));
                    }
                    Err(error) => self.tell("The model cannot be loaded", &error.to_string(), None),
                }
                loading = None;
            }
            let kind = std::mem::discriminant(&health);
            if looks % RARELY == 0 || last != Some(kind) {
                self.look_rarely(home).await;
            }
            (looks, last) = (looks.wrapping_add(1), Some(kind));
            self.change(|view| view.status = status);
            if let Some(slept) = clocks.slept(Clocks::now()) {
                self.woke(slept, &health);
            }
        }
        drop(awake);
        self.change(|view| view.status = Status::ending());
        self.0.quit.send_replace(true);
        let began = tokio::time::Instant::now();
        if !server.is_finished() {
            drop((&mut server).await);
        }
        tracing::info!(took = ?began.elapsed(), "the server ended");
        *self.live() = Live::default();
        let (saved, ended) = host.finish(SAVING, ENDING).await;
        match saved {
            Saved::Nothing | Saved::All { .. } => {}
            Saved::Lost(why) => tracing::warn!("{why}"),
            Saved::Late { pending } => tracing::warn!(pending, "the prompt cache is not all saved"),
        }
        ended
    }

    /// Another process serves from this home: its dashboard can be opened from here, and that is all.
    async fn attend(&self, control: Control, holder: &str) -> bool {
        let address = control.base().to_owned();
        self.live().control = Some(control);
        self.change(|view| {
            view.address = Some(address);
            view.status = Status::of(&Health::Empty, &hearth_core::stats::Stats::default());
            view.status.words = format!("Another Hearth serves: {holder}");
        });
        let _ = self.0.quit.subscribe().wait_for(|quit| *quit).await;
        true
    }

    /// The model to begin with: the last used one, or the only one, unless the user does not want that.
    async fn first_model(&self, _host: &Host, home: &Home) -> Option<ModelEntry> {
        let home = home.clone();
        tokio::task::spawn_blocking(move || {
            let places = Places::standard(&home, &[]);
            if let Some(last) = home.last_model().and_then(|last| resolve(&last.model, &places).ok()) {
                return Some(last);
            }
            let mut complete = scan(&places).models.into_iter().filter(ModelEntry::is_complete);
            match (complete.next(), complete.next()) {
                (Some(only), None) => Some(only),
                _ => None,
            }
        })
        .await
        .ok()
        .flatten()
    }

    async fn look_rarely(&self, home: &Home) {
        let home = home.clone();
        let found = tokio::task::spawn_blocking(move || {
            let models = scan(&Places::standard(&home, &[])).models;
            let ids = models.into_iter().filter(ModelEntry::is_complete).map(|model| model.id);
            (ids.collect::<Vec<String>>(), login::is_on())
        });
        if let Ok((models, login)) = found.await {
            self.change(|view| (view.models, view.login) = (models, login));
        }
    }

    /// The machine woke up: connections may be gone, and a server that does not answer is told of.
    fn woke(&self, slept: Duration, health: &Health) {
        tracing::info!(slept_s = slept.as_secs(), ?health, "the machine slept");
        let service = self.clone();
        tokio::spawn(async move {
            let Ok(control) = service.control() else { return };
            let mut answered = control.answers(ANSWERS).await;
            if !answered {
                answered = control.answers(ANSWERS).await;
            }
            if !answered {
                let address = control.base();
                let body = format!("{address} does not answer after sleep. Quit Hearth and open it again.");
                service.tell("Hearth does not answer", &body, None);
            }
        });
    }
}
