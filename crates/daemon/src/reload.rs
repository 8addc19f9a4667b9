//! The configuration while the daemon runs: read again at SIGHUP, and settled again when other hours begin.
//!
//! ```text
//!   SIGHUP ──► read the file ──► settle ──► rules, operators, rates, certificate
//!   other hours ──► settle what was read last ──► rules
//! ```
//! An edited file means nothing before the signal, and a wrong one changes nothing: the last good one goes on at other
//! hours, too. Looking up users can take long (LDAP), so all of this has a thread of its own.

use crate::access::Access;
use crate::calendar::{Hours, WeekMinute};
use crate::config::{Config, ConfigError, LoadedConfig, Tcp, TcpConfig, check};
use crate::http::gate::Gate;
use crate::http::local_rate::LocalRate;
use crate::http::tcp::Tls;
use crate::http::{self, HttpSettings};
use crate::inbox::InboxSender;
use crate::looper::LoopInput;
use crate::notices;
use crate::writer;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// How often the hours are compared.
const LOOK: Duration = Duration::from_secs(15);

/// What a reload changes.
pub struct Reload {
    /// The file.
    pub path: Option<PathBuf>,
    /// What the command line says about TCP.
    pub flags: TcpConfig,
    /// What was read last.
    pub running: RunningConfig,
    /// The loop.
    pub inbox: InboxSender,
    /// The rules about rights.
    pub access: Access,
    /// The settings of the HTTP API.
    pub settings: Arc<RwLock<HttpSettings>>,
    /// Where notices go.
    pub notices: Arc<RwLock<notices::Settings>>,
    /// Why the last reload was refused; operators see it.
    pub trouble: Arc<RwLock<Option<String>>>,
    /// How often local users may call.
    pub local_rate: Arc<LocalRate>,
    /// The service over TCP, if there is one.
    pub remote: Option<(Tcp, Tls, Arc<Gate>)>,
}

/// The last good configuration, and which of its hours it was settled for.
#[derive(Clone, Debug)]
pub struct RunningConfig {
    config: Config,
    hours: Vec<Hours>,
    held: Vec<bool>,
}

impl RunningConfig {
    /// Reads and settles a configuration.
    pub fn of(config: Config) -> Result<(RunningConfig, LoadedConfig), ConfigError> {
        let now = WeekMinute::now();
        RunningConfig::under(config, |hours| hours.hold(now))
    }

    fn under(config: Config, holds: impl Fn(&Hours) -> bool) -> Result<(RunningConfig, LoadedConfig), ConfigError> {
        let settled = config.settle_at(&holds)?;
        let hours = settled.hours.clone();
        let held = hours.iter().map(holds).collect();
        Ok((RunningConfig { config, hours, held }, settled))
    }

    /// What follows if other hours hold than it was settled for. If that fails the hours are not noted, so that it is
    /// tried again.
    fn settle_hours(&mut self, holds: impl Fn(&Hours) -> bool) -> Option<Result<LoadedConfig, ConfigError>> {
        let now: Vec<bool> = self.hours.iter().map(&holds).collect();
        if now == self.held {
            return None;
        }
        let settled = self.config.settle_at(holds);
        if settled.is_ok() {
            self.held = now;
        }
        Some(settled)
    }
}

impl Reload {
    /// Reads the file at each signal, until no signal can come any more.
    pub fn run(mut self, told: &Receiver<()>) {
        loop {
            match told.recv_timeout(LOOK) {
                Ok(()) => self.read(),
                Err(RecvTimeoutError::Timeout) => self.look(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Reads the file; a wrong configuration changes nothing.
    fn read(&mut self) {
        let read = Config::read(self.path.as_deref()).map(|config| config.over(&self.flags));
        match read.and_then(RunningConfig::of) {
            Ok((running, settled)) => {
                if running.config.gpu() != self.running.config.gpu() {
                    tracing::error!("`gpu` was changed: the change takes effect at the next restart");
                }
                self.running = running;
                let refused = self.set(settled);
                tracing::info!("the configuration was reloaded; leases continue");
                self.say(refused);
            }
            Err(error) => {
                tracing::error!(error = %writer::chain(&error), "the configuration was not changed");
                self.say(Some(self.located(&error)));
            }
        }
    }

    /// The first error with its line; the file may be better by now, and then it has none.
    fn located(&self, error: &ConfigError) -> String {
        let path = self.path.as_deref();
        let found = check(path, &self.flags).err().and_then(|findings| findings.into_iter().next());
        found.map_or_else(|| writer::chain(error), |finding| finding.located(path))
    }

    fn say(&self, refused: Option<String>) {
        *self.trouble.write().unwrap_or_else(PoisonError::into_inner) = refused;
    }

    fn look(&mut self) {
        let now = WeekMinute::now();
        match self.running.settle_hours(|hours| hours.hold(now)) {
            None => {}
            Some(Ok(settled)) => {
                self.configure_loop(settled);
                tracing::info!("the rules of another window (`[[windows]]`) are in effect; leases continue");
            }
            Some(Err(error)) => {
                tracing::error!(error = %writer::chain(&error), "the rules of another window (`[[windows]]`) could not be read; retrying");
            }
        }
    }

    /// What was refused, if anything was.
    fn set(&self, settled: LoadedConfig) -> Option<String> {
        let refused = self.set_tcp(settled.tcp.as_ref());
        self.local_rate.set(settled.socket_rate);
        self.access.set(settled.operators_gid, settled.groups.clone());
        if let Ok(mut settings) = self.settings.write() {
            *settings = settled.http_settings();
        }
        if let Ok(mut notices) = self.notices.write() {
            notices.clone_from(&settled.notices);
        }
        self.configure_loop(settled);
        refused
    }

    fn configure_loop(&self, settled: LoadedConfig) {
        let visibility = settled.http_settings().visibility;
        drop(self.inbox.send(LoopInput::Configured { policy: Box::new(settled.policy), visibility }));
    }

    /// Reads rates and the certificate again. Addresses change by a start only, and TLS stays on or off. Returns why
    /// the certificate was not changed, if it was not.
    fn set_tcp(&self, settled: Option<&Tcp>) -> Option<String> {
        let (settled, (old, tls, gate)) = match (settled, &self.remote) {
            (None, None) => return None,
            (Some(settled), Some(remote)) if settled.listen == remote.0.listen => (settled, remote),
            _ => {
                tracing::error!("`listen` was changed: the change takes effect at the next restart");
                return None;
            }
        };
        gate.set_rate(settled.rate);
        let Some((cert, key)) = &settled.tls else {
            if old.tls.is_some() {
                tracing::error!("the certificate is kept: it can be removed only by a restart");
            }
            return None;
        };
        match http::tls::read(cert, key) {
            Ok(config) => {
                *tls.write().unwrap_or_else(PoisonError::into_inner) = Some(config);
                None
            }
            Err(error) => {
                let why = writer::chain(&error);
                tracing::error!(error = %why, "the certificate was not changed");
                Some(format!("the certificate was not changed: {why}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(groups: &str) -> Config {
        let text = format!("{groups}\n[[windows]]\nfrom = \"09:00\"\nto = \"18:00\"\ncaps.leases = 2");
        toml::from_str(&text).unwrap()
    }

    #[test]
    fn other_hours_apply_the_last_read_rules_once() {
        let (mut running, settled) = RunningConfig::under(config(""), |_| false).unwrap();
        assert_eq!(settled.policy.caps.leases, None);
        assert!(running.settle_hours(|_| false).is_none(), "nothing has begun");
        let begun = running.settle_hours(|_| true).expect("work has begun").unwrap();
        assert_eq!(begun.policy.caps.leases, Some(2));
        assert!(running.settle_hours(|_| true).is_none(), "it is said once");
        let over = running.settle_hours(|_| false).expect("work is over").unwrap();
        assert_eq!(over.policy.caps.leases, None);
    }

    #[test]
    fn rules_of_other_hours_are_retried_after_a_failure() {
        let (mut running, _) = RunningConfig::under(config(""), |_| false).unwrap();
        // The directory is away, for example, and does not know a group that it knew.
        running.config = config("[groups.no-such-group-here]\nvram = \"1G\"");
        for _ in 0..2 {
            assert!(running.settle_hours(|_| true).expect("work has begun").is_err());
        }
        running.config = config("");
        assert_eq!(running.settle_hours(|_| true).expect("it is tried again").unwrap().policy.caps.leases, Some(2));
    }
}
