//! `[notices]`: where notices go besides the terminals of those concerned.

use super::ConfigError;
use super::values::is_on;
use crate::notices::{Hooks, Settings};
use hyper::Uri;
use serde::Deserialize;

/// Where notices go.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NoticesConfig {
    /// `"off"`: no line is written to a terminal.
    terminals: Option<String>,
    /// A program by its whole path, and its arguments; a notice is its input, as JSON.
    command: Option<Vec<String>>,
    /// An address that takes each notice as the body of a POST.
    webhook: Option<String>,
}

impl NoticesConfig {
    pub(super) fn settle(&self) -> Result<Settings, ConfigError> {
        let hooks = Hooks {
            command: self.command.clone().map(read_command).transpose()?,
            webhook: self.webhook.as_deref().map(read_webhook).transpose()?,
        };
        let no_terminals = !is_on("notices.terminals", self.terminals.as_deref())?;
        Ok(Settings { no_terminals, hooks })
    }
}

/// The whole path: a search path is the environment's, and this may run as root.
fn read_command(command: Vec<String>) -> Result<Vec<String>, ConfigError> {
    match command.first() {
        Some(program) if program.starts_with('/') => Ok(command),
        first => {
            let why = "begin with the whole path of a program, such as [\"/usr/local/bin/notify\", \"--json\"]";
            let value = first.cloned().unwrap_or_default();
            Err(ConfigError::value("notices.command", value, why))
        }
    }
}

fn read_webhook(text: &str) -> Result<Uri, ConfigError> {
    let odd = |why: &str| ConfigError::value("notices.webhook", text, why);
    if text.starts_with("https://") {
        return Err(odd("a webhook is called without TLS: let `command` run a program such as curl"));
    }
    let uri: Option<Uri> = text.parse().ok();
    let named = |uri: &Uri| uri.scheme_str() == Some("http") && uri.authority().is_some_and(|it| !it.host().is_empty());
    uri.filter(named).ok_or_else(|| odd("write an address such as http://localhost:9000/sublet"))
}
