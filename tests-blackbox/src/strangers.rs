//! What tests of strangers share: a service that is quick with them, and how they are looked for.

use crate::job::{Alone, succeeds};
use crate::{Gpu, LONG, MIB, Service, Setup, until};
use sublet_wire::{Stranger, Strangers};

/// Nobody is parked, and two seconds are long.
pub const CONFIG: &str = r#"
ttl = "5m"
[enforcement]
warned = "2s"
park = false
grace = "2s"
"#;

/// The same where whoever can be is parked before anybody is ended.
pub const PARKS: &str = r#"
ttl = "5m"
[enforcement]
warned = "2s"
grace = "2s"
[parking]
ram = "4G"
leave = "256M"
stock = "off"
"#;

/// A service with one soft card, where nobody is parked.
pub fn serve() -> Service {
    serve_with(CONFIG)
}

/// The same with another configuration.
pub fn serve_with(config: &str) -> Service {
    let config = Some(config.to_owned());
    Service::start_with(Setup { gpu: Gpu::Named("soft:1x4GiB"), config, ..Setup::default() })
}

/// All strangers.
pub fn strangers(service: &Service) -> Strangers {
    service.client().get("/v1/strangers").read()
}

/// The one stranger that is this program, once it is known with all that it takes: it is looked at meanwhile.
pub fn found(service: &Service, alone: &Alone) -> Stranger {
    let all = Some(alone.mib * MIB);
    await_stranger(service, alone.pid(), "it is found", |stranger| stranger.vram_bytes >= all)
}

/// A stranger, once it is so.
pub fn await_stranger(service: &Service, pid: u32, what: &str, is_so: impl Fn(&Stranger) -> bool) -> Stranger {
    until(what, LONG, || {
        let all = strangers(service).strangers;
        all.iter().find(|stranger| stranger.pid == pid && is_so(stranger)).cloned().ok_or(all)
    })
}

/// Its story, once it is over.
pub fn await_closed(service: &Service, id: &str) -> String {
    until(&format!("{id} is no stranger any more"), LONG, || {
        let all = strangers(service).strangers;
        if all.iter().all(|stranger| stranger.id != id) { Ok(()) } else { Err(all) }
    });
    succeeds(service, &["audit", "show", id])
}

/// Sets the mode of the card.
pub fn mode(service: &Service, mode: &str) {
    succeeds(service, &["enforce", "mode", "0", mode, "--yes"]);
}

/// The sentences of a story, in order.
pub fn in_order(story: &str, sentences: &[&str]) {
    let mut rest = story;
    for sentence in sentences {
        let at = rest.find(sentence).unwrap_or_else(|| panic!("`{sentence}` is not in its place:\n{story}"));
        rest = &rest[at + sentence.len()..];
    }
}

/// Whether a process is there, and is more than what its parent has not asked for.
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}
