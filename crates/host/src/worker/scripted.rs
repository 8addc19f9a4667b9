//! GPUs that a file describes, for machines without a GPU and for faults on demand.
//!
//! The file is read again at each reading; without a file the GPUs are empty and idle. Replace it by rename, so that
//! no reading sees half of it. Everything but `index` and `pid` may be left out:
//!
//! ```json
//! {"cards": [{"index": 0,
//!             "processes": [{"pid": 123, "bytes": 1073741824, "graphics": false, "busy": true}],
//!             "other_bytes": 0,
//!             "fault": null}]}
//! ```
//! * `bytes` null: the driver does not say; such a process takes nothing from `free`.
//! * `busy`: it used the GPU's engines since the last reading.
//! * `other_bytes`: memory that belongs to no process.
//! * `fault`: `"hang"` never answers, `"crash"` ends the worker, `"error"` and `"lost"` are the
//!   driver's answers, `"coarse"` hides the bytes of each process.
//!
//! Free is the total less all of these. A pid that is not running is left out, as by a real driver. Nothing here
//! measures anything.

use super::{Cards, List};
use crate::Unlisted;
use crate::process;
use crate::protocol::{Look, OnCard, Seen};
use serde::Deserialize;
use std::io;
use std::path::PathBuf;
use sublet_core::reading::CardFacts;
use sublet_core::units::Bytes;

/// The size of a context on a scripted GPU: like a plain CUDA context on a small real one.
const CONTEXT: Bytes = Bytes::mib(300);
/// The exit code of a worker that the script crashes.
const CRASHED: i32 = 70;

pub(super) struct ScriptedCards {
    count: u32,
    total: Bytes,
    script: PathBuf,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Script {
    #[serde(default)]
    cards: Vec<Card>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Card {
    index: u32,
    #[serde(default)]
    processes: Vec<Process>,
    #[serde(default)]
    other_bytes: u64,
    #[serde(default)]
    fault: Option<Fault>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Process {
    pid: u32,
    #[serde(default)]
    bytes: Option<u64>,
    #[serde(default)]
    graphics: bool,
    #[serde(default)]
    busy: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Fault {
    Hang,
    Crash,
    Error,
    Lost,
    Coarse,
}

impl Cards for ScriptedCards {
    fn list(&mut self) -> Result<List, Unlisted> {
        Ok(List { cards: (0..self.count).map(|index| self.facts(index)).collect(), unread: false })
    }

    fn look(&mut self, _busy: bool) -> Result<Vec<Look>, Unlisted> {
        let script = self.read();
        let seen = |index| match &script {
            Ok(script) => self.seen(script.cards.iter().find(|card| card.index == index)),
            Err(why) => Seen::Failed(why.clone()),
        };
        Ok((0..self.count).map(|index| Look { uuid: uuid(index), seen: seen(index) }).collect())
    }
}

impl ScriptedCards {
    pub(super) fn new(count: u32, total: Bytes, script: PathBuf) -> ScriptedCards {
        ScriptedCards { count, total, script }
    }

    fn facts(&self, index: u32) -> CardFacts {
        CardFacts {
            uuid: uuid(index),
            index,
            name: format!("Scripted {}", self.total.to_string().replace(' ', "")),
            total: self.total,
            display: false,
            context: Some(CONTEXT),
            board: None,
            node: None,
            unusable: None,
        }
    }

    fn read(&self) -> Result<Script, String> {
        let path = self.script.display();
        let text = match std::fs::read(&self.script) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Script::default()),
            Err(error) => return Err(format!("script `{path}` cannot be read: {error}")),
        };
        let script: Script = serde_json::from_slice(&text).map_err(|e| format!("script `{path}`: {e}"))?;
        match script.cards.iter().find(|card| card.index >= self.count) {
            Some(card) => Err(format!("script `{path}` has a GPU {}, but there are {}", card.index, self.count)),
            None => Ok(script),
        }
    }

    fn seen(&self, card: Option<&Card>) -> Seen {
        let Some(card) = card else {
            return Seen::Used { free: self.total, processes: Vec::new(), coarse: false };
        };
        match card.fault {
            Some(Fault::Hang) => loop {
                std::thread::park();
            },
            Some(Fault::Crash) => std::process::exit(CRASHED),
            Some(Fault::Error) => Seen::Failed("the script says so".to_owned()),
            Some(Fault::Lost) => Seen::Lost,
            Some(Fault::Coarse) => self.used(card, true),
            None => self.used(card, false),
        }
    }

    fn used(&self, card: &Card, hide_bytes: bool) -> Seen {
        let mut processes: Vec<OnCard> = card.processes.iter().filter_map(on_card).collect();
        let taken: Bytes = processes.iter().filter_map(|p| p.bytes).sum();
        if hide_bytes {
            processes.iter_mut().for_each(|p| p.bytes = None);
        }
        let coarse = hide_bytes || super::nvml::tells_no_bytes(&processes);
        Seen::Used { free: self.total.less(taken + Bytes(card.other_bytes)), processes, coarse }
    }
}

/// The process as a driver lists it; `None` if it is not running.
fn on_card(process: &Process) -> Option<OnCard> {
    let stat = process::stat(process.pid).ok().filter(|stat| !stat.has_ended())?;
    Some(OnCard {
        process: stat.key(process.pid),
        bytes: process.bytes.map(Bytes),
        graphics: process.graphics,
        busy: process.busy,
    })
}

fn uuid(index: u32) -> String {
    format!("{}{index:012x}", crate::gpu::SCRIPTED_UUID)
}
