//! The configuration file. Unknown keys are errors: a misspelt cap is no cap.

use crate::day::{Hours, Moment};
use crate::http::House;
use crate::http::rate::Rate;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use sublet_core::policy::{Caps, Policy, Renewal};
use sublet_core::units::{Bytes, Span};
use sublet_host::gpu::GpuSpec;
use sublet_wire::{size, span};
use thiserror::Error;

/// Everything that can be set. All of it has a default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// From a renewal to the expiry, for asks that name none (`"5m"`).
    ttl: Option<String>,
    /// When a used lease is renewed: `"70%"`, `"below 25%"` or `"every 1m"`.
    renewal: Option<String>,
    /// A lease is not renewed past this while somebody waits (`"30m"`).
    hold_cap: Option<String>,
    /// How long an ask waits that names no limit (`"1d"`).
    wait: Option<String>,
    /// After the daemon was away, nothing expires for this long (`"60s"`).
    grace: Option<String>,
    /// Memory left alone on every card (`"256M"`).
    margin: Option<String>,
    /// The same where a screen hangs on the card (`"1536M"`).
    margin_display: Option<String>,
    /// Waiters in all.
    queue_max: Option<usize>,
    /// A Unix group whose members are operators, beside root and the daemon's own user.
    operators: Option<String>,
    /// `"all"`: local users see who is on a card. `"own"`: each sees only itself.
    visibility: Option<String>,
    /// The longest that a call may wait for a change (`"60s"`).
    poll_max: Option<String>,
    /// Measure what a CUDA context takes on each card at the first start.
    measure_context: Option<bool>,
    /// Lines of the audit trail, and ended leases, that are kept; read by a start only.
    history: Option<u64>,
    /// Cards on which nothing is leased, by number or UUID; read by a start only.
    unmanaged: Vec<String>,
    /// Which cards (`"real"`, `"soft:2x24GiB"`); read by a start only.
    gpu: Option<String>,
    /// Who used more than its share lately queues as if it came later, by this at most (`"4h"`).
    debt_max: Option<String>,
    /// The share of a tenant for whom nothing else is said.
    share: Option<u32>,
    /// Who comes earlier, and by how much.
    head_start: HeadStartConfig,
    /// What each tenant may have.
    caps: CapsConfig,
    /// What certain users may have, by user id or name.
    users: BTreeMap<String, CapsConfig>,
    /// What certain Unix groups may have together, and each of their members.
    groups: BTreeMap<String, CapsConfig>,
    /// What is different at certain hours; the last that holds counts.
    windows: Vec<WindowConfig>,
    /// The service beyond this host, for whoever has a token.
    tcp: TcpConfig,
    /// Host memory for bytes that have to leave a card.
    parking: ParkingConfig,
    /// Who leaves its cards for whom, and when.
    preemption: PreemptionConfig,
    /// Processes on cards without a lease.
    enforcement: EnforcementConfig,
    /// `"off"`: programs are started without the library that caps and parks them; read by a start only.
    shim: Option<String>,
}

/// Host memory for bytes that have to leave a card.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ParkingConfig {
    /// How much (`"48G"`), how much of all of it (`"50%"`), or `"off"`.
    ram: Option<String>,
    /// So much stays available to others whenever somebody is parked (`"8G"`).
    leave: Option<String>,
    /// How long anything may be parked (`"12h"`).
    term: Option<String>,
    /// So much is kept ready, so that a first park is fast (`"4G"`), or `"off"`; read by a start only.
    stock: Option<String>,
    /// Not even contexts stay on the cards after so long (`"10m"`), or `"off"`.
    deep: Option<String>,
}

/// Who leaves its cards for whom, and when.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PreemptionConfig {
    /// Room is made for whoever waits; otherwise only leases that come to their end are parked.
    make_room: Option<bool>,
    /// Whoever came back to its cards has them for so long at least (`"10s"`).
    turn: Option<String>,
    /// No more of the time goes into moving (`"5%"`).
    switching: Option<String>,
    /// Whoever stands lower has the cards of somebody idle after this (`"30s"`).
    idle: Option<String>,
    /// Whoever could not be moved is left alone for so long, unless somebody asks for it by hand (`"1m"`).
    rest: Option<String>,
    /// `"off"`: the driver's own way of parking is not used; read by a start only.
    driver: Option<String>,
    /// Those who chose to be ended for others have so long between SIGTERM and SIGKILL (`"30s"`).
    end_grace: Option<String>,
}

/// How long processes without a lease have, on cards where they are ended.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EnforcementConfig {
    /// From the warning to what follows (`"5m"`).
    warned: Option<String>,
    /// `false`: nobody is parked by the driver, and SIGTERM follows at once.
    park: Option<bool>,
    /// From SIGTERM to SIGKILL (`"5m"`).
    grace: Option<String>,
    /// Who has more than its lease may be made to leave after so long, should somebody wait (`"1m"`).
    over: Option<String>,
}

impl EnforcementConfig {
    fn settle(&self, policy: &mut Policy) -> Result<(), ConfigError> {
        set(&mut policy.over, "enforcement.over", &self.over, read_span)?;
        set(&mut policy.patience.warned, "enforcement.warned", &self.warned, read_span)?;
        policy.patience.parks = self.park.unwrap_or(policy.patience.parks);
        set(&mut policy.patience.grace, "enforcement.grace", &self.grace, read_span)
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WindowConfig {
    days: Option<String>,
    from: String,
    to: String,
    #[serde(default)]
    caps: CapsConfig,
    #[serde(default)]
    users: BTreeMap<String, CapsConfig>,
    #[serde(default)]
    groups: BTreeMap<String, CapsConfig>,
}

/// The service over TCP, as the file or the command line says; off without an address.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TcpConfig {
    /// Where it listens (`"127.0.0.1:7474"`).
    pub listen: Option<String>,
    /// Its certificate, PEM, with those that vouch for it.
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM.
    pub tls_key: Option<PathBuf>,
    /// Calls a second that each tenant may make in the long run.
    pub requests_per_s: Option<f64>,
    /// Calls that each tenant may make at once.
    pub burst: Option<f64>,
}

/// The service over TCP.
#[derive(Clone, Debug, PartialEq)]
pub struct Tcp {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Its certificate and the key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// How often each tenant may call.
    pub rate: Rate,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct HeadStartConfig {
    interactive: Option<String>,
    batch: Option<String>,
    spot: Option<String>,
    priority: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CapsConfig {
    vram: Option<String>,
    leases: Option<u32>,
    places: Option<u32>,
    gpu_day: Option<String>,
    never_preempt: Option<String>,
    head_start_max: Option<String>,
    /// Host memory for parked bytes.
    parked: Option<String>,
    /// Of one user, or of each member of a group.
    share: Option<u32>,
    /// For each member of a group alone.
    each: Option<Box<CapsConfig>>,
}

/// Why the configuration cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration `{}`", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is no TOML, or has a key that does not exist.
    #[error("the configuration `{}` is wrong", path.display())]
    Wrong {
        /// Which.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// A value makes no sense.
    #[error("`{key} = \"{value}\"` makes no sense: {why}")]
    Value {
        /// Which key.
        key: &'static str,
        /// What it was set to.
        value: String,
        /// What would do.
        why: String,
    },
    /// There is no such user or group on this host.
    #[error("there is no {kind} `{name}` on this host")]
    NoSuch {
        /// `user` or `group`.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A key that says nothing where it stands.
    #[error("`{key}` says nothing in `[{table}]`")]
    Misplaced {
        /// The key.
        key: &'static str,
        /// Where it was.
        table: &'static str,
    },
    /// Tokens would go over the network for all to read.
    #[error("without a certificate the service listens on this host only, and {listen} is reached from others")]
    PlainTcp {
        /// Where it should have listened.
        listen: SocketAddr,
    },
    /// Half of what TLS needs, or all of it and no address.
    #[error("`{given}` is given, and `{missing}` is not")]
    HalfTcp {
        /// What there is.
        given: &'static str,
        /// What is not.
        missing: &'static str,
    },
}

impl ConfigError {
    /// The next step.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ConfigError::Wrong { .. } | ConfigError::Misplaced { .. } => Some("docs/configuration.md lists every key"),
            ConfigError::PlainTcp { .. } => Some(
                "give a certificate with `tls_cert` and `tls_key` (`--tls-cert`, `--tls-key`), or listen on 127.0.0.1",
            ),
            ConfigError::Unreadable { .. } => {
                Some("name a file with `--config` that is there, and that its user can read")
            }
            ConfigError::HalfTcp { .. } => Some("give both, and the address to listen on, or none of the three"),
            _ => None,
        }
    }
}

/// What follows from a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Settled {
    /// For core.
    pub policy: Policy,
    /// Members of this group are operators.
    pub operators_gid: Option<u32>,
    /// Groups that have shares or caps.
    pub groups: Vec<(u32, String)>,
    /// Hours at which something is different.
    pub hours: Vec<Hours>,
    /// Local users see who is on a card.
    pub see_all: bool,
    /// The longest that a call may wait for a change.
    pub poll_max: Span,
    /// Measure contexts.
    pub measure_context: bool,
    /// Lines of the audit trail, and ended leases, that are kept.
    pub history: u64,
    /// Cards on which nothing is leased.
    pub unmanaged: Vec<String>,
    /// Which cards, if it says so.
    pub gpu: Option<GpuSpec>,
    /// The service over TCP, if there is to be one.
    pub tcp: Option<Tcp>,
    /// Host memory that is kept ready for parked bytes.
    pub stock: Bytes,
    /// Programs are started with the library that caps and parks them.
    pub shim: bool,
    /// The driver's own way of parking may be used.
    pub driver: bool,
}

impl Settled {
    /// What it says to the face.
    pub fn house(&self) -> House {
        let poll_max = Duration::from_micros(self.poll_max.0);
        House { ttl: self.policy.ttl, see_all: self.see_all, poll_max }
    }
}

impl Config {
    /// Reads a file; without one, everything is at its default.
    pub fn read(path: Option<&Path>) -> Result<Config, ConfigError> {
        let Some(path) = path else { return Ok(Config::default()) };
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        toml::from_str(&text).map_err(|source| ConfigError::Wrong { path: path.to_owned(), source: Box::new(source) })
    }

    /// What the command line says about TCP goes before what the file says.
    pub fn over(mut self, flags: &TcpConfig) -> Config {
        let set = |place: &mut Option<PathBuf>, flag: &Option<PathBuf>| {
            if flag.is_some() {
                place.clone_from(flag);
            }
        };
        set(&mut self.tcp.tls_cert, &flags.tls_cert);
        set(&mut self.tcp.tls_key, &flags.tls_key);
        if flags.listen.is_some() {
            self.tcp.listen.clone_from(&flags.listen);
        }
        self
    }

    /// Which cards it names.
    pub fn gpu(&self) -> Option<&str> {
        self.gpu.as_deref()
    }

    /// Checks every value and says what follows now.
    pub fn settle(&self) -> Result<Settled, ConfigError> {
        let now = Moment::now();
        self.settle_at(|hours| hours.hold(now))
    }

    /// The same where these hours hold.
    pub fn settle_at(&self, holds: impl Fn(&Hours) -> bool) -> Result<Settled, ConfigError> {
        let mut policy = Policy::default();
        set(&mut policy.ttl, "ttl", &self.ttl, read_span)?;
        set(&mut policy.renewal, "renewal", &self.renewal, read_renewal)?;
        set(&mut policy.hold_cap, "hold_cap", &self.hold_cap, read_span)?;
        set(&mut policy.wait, "wait", &self.wait, read_span)?;
        set(&mut policy.grace, "grace", &self.grace, read_span)?;
        set(&mut policy.margin, "margin", &self.margin, read_size)?;
        set(&mut policy.margin_display, "margin_display", &self.margin_display, read_size)?;
        policy.queue_max = at_least_one("queue_max", self.queue_max)?.unwrap_or(policy.queue_max);
        if policy.ttl > policy.hold_cap {
            let why = format!("a term may not be longer than `hold_cap`, which is {}; set both", policy.hold_cap);
            return Err(ConfigError::Value { key: "ttl", value: policy.ttl.to_string(), why });
        }
        let head = &mut policy.head_start;
        set(&mut head.interactive, "head_start.interactive", &self.head_start.interactive, read_span)?;
        set(&mut head.batch, "head_start.batch", &self.head_start.batch, read_span)?;
        set(&mut head.spot, "head_start.spot", &self.head_start.spot, read_span)?;
        set(&mut head.priority, "head_start.priority", &self.head_start.priority, read_span)?;
        set(&mut policy.debt_max, "debt_max", &self.debt_max, read_span)?;
        policy.shares.default = at_least_one("share", self.share)?.unwrap_or(policy.shares.default);
        let stock = self.parking.settle(&mut policy)?;
        self.preemption.settle(&mut policy)?;
        self.enforcement.settle(&mut policy)?;
        let driver = on("preemption.driver", self.preemption.driver.as_deref())?;
        policy.patience.parks &= driver;
        policy.parking.deep = policy.parking.deep.filter(|_| driver);
        lay_over(&mut policy, &self.caps, &self.users, &self.groups)?;
        let mut hours = Vec::new();
        for window in &self.windows {
            let read = Hours::read(window.days.as_deref(), &window.from, &window.to).map_err(|why| {
                ConfigError::Value { key: "windows", value: format!("{} to {}", window.from, window.to), why }
            })?;
            // A window that does not hold now must make sense too.
            let mut then = policy.clone();
            lay_over(&mut then, &window.caps, &window.users, &window.groups)?;
            if holds(&read) {
                policy = then;
            }
            hours.push(read);
        }
        let mut groups = BTreeMap::new();
        for name in self.groups.keys().chain(self.windows.iter().flat_map(|window| window.groups.keys())) {
            groups.insert(name.clone(), gid(name)?);
        }
        Ok(Settled {
            policy,
            groups: groups.into_iter().map(|(name, gid)| (gid, name)).collect(),
            hours,
            operators_gid: self.operators.as_deref().map(gid).transpose()?,
            poll_max: {
                let mut poll_max = Span::secs(60);
                set(&mut poll_max, "poll_max", &self.poll_max, read_span)?;
                poll_max
            },
            see_all: read_visibility(self.visibility.as_deref().unwrap_or("all"))?,
            measure_context: self.measure_context.unwrap_or(true),
            history: read_history(self.history.unwrap_or(HISTORY))?,
            unmanaged: self.unmanaged.iter().map(|name| read_card(name)).collect::<Result<_, _>>()?,
            gpu: self.gpu.as_deref().map(read_gpu).transpose()?,
            tcp: self.tcp.settle()?,
            stock,
            shim: on("shim", self.shim.as_deref())?,
            driver,
        })
    }
}

/// Some 300 MB, months of a busy card.
const HISTORY: u64 = 1_000_000;

/// Fewer would not tell what happened an hour ago.
fn read_history(lines: u64) -> Result<u64, ConfigError> {
    match lines {
        1_000.. => Ok(lines),
        _ => {
            let why = "keep 1000 lines at least".to_owned();
            Err(ConfigError::Value { key: "history", value: lines.to_string(), why })
        }
    }
}

/// A card as `nvidia-smi -L` names it: its number or its UUID.
fn read_card(name: &str) -> Result<String, ConfigError> {
    if name.starts_with("GPU-") || name.parse::<u32>().is_ok() {
        return Ok(name.to_owned());
    }
    let why = "name cards by number (\"1\") or UUID (\"GPU-…\"), as `nvidia-smi -L` lists them".to_owned();
    Err(ConfigError::Value { key: "unmanaged", value: name.to_owned(), why })
}

/// Whether something is on, which it is unless it is said to be off.
fn on(key: &'static str, said: Option<&str>) -> Result<bool, ConfigError> {
    match said {
        None | Some("on") => Ok(true),
        Some("off") => Ok(false),
        Some(other) => {
            let why = "write \"on\" or \"off\"".to_owned();
            Err(ConfigError::Value { key, value: other.to_owned(), why })
        }
    }
}

impl ParkingConfig {
    /// Half of the host's memory, where nothing else is said. Returns what is kept ready.
    fn settle(&self, policy: &mut Policy) -> Result<Bytes, ConfigError> {
        let all = Bytes(sublet_host::shims::total().unwrap_or(0));
        let parking = &mut policy.parking;
        parking.ram = Bytes(all.0 / 2);
        set(&mut parking.ram, "parking.ram", &self.ram, |text| match text {
            "off" => Ok(Bytes::ZERO),
            _ => match text.strip_suffix('%').map(|number| number.trim().parse::<u64>()) {
                Some(Ok(percent)) if percent <= 90 => Ok(Bytes((u128::from(all.0) * u128::from(percent) / 100) as u64)),
                Some(_) => Err("write a share up to \"90%\"".to_owned()),
                None => read_size(text),
            },
        })?;
        set(&mut parking.leave, "parking.leave", &self.leave, read_size)?;
        set(&mut parking.term, "parking.term", &self.term, read_span)?;
        parking.deep = Some(Span::secs(600));
        set(&mut parking.deep, "parking.deep", &self.deep, |text| match text {
            "off" => Ok(None),
            text => read_span(text).map(Some),
        })?;
        // Enough for a small holder at once; who has more to spare says so.
        let mut stock = Bytes((parking.ram.0 / 8).min(4 << 30));
        set(&mut stock, "parking.stock", &self.stock, |text| match text {
            "off" => Ok(Bytes::ZERO),
            _ => read_size(text),
        })?;
        Ok(stock.min(parking.ram))
    }
}

impl PreemptionConfig {
    fn settle(&self, policy: &mut Policy) -> Result<(), ConfigError> {
        let parking = &mut policy.parking;
        parking.preempt = self.make_room.unwrap_or(parking.preempt);
        set(&mut parking.turn, "preemption.turn", &self.turn, read_span)?;
        set(&mut parking.worth, "preemption.switching", &self.switching, |text| {
            match text.strip_suffix('%').map(|number| number.trim().parse::<u32>()) {
                Some(Ok(percent @ 1..=50)) => Ok((100 - percent) / percent),
                _ => Err("write a share from \"1%\" to \"50%\"".to_owned()),
            }
        })?;
        set(&mut parking.idle, "preemption.idle", &self.idle, read_span)?;
        set(&mut parking.rest, "preemption.rest", &self.rest, read_span)?;
        set(&mut parking.grace, "preemption.end_grace", &self.end_grace, read_span)
    }
}

impl TcpConfig {
    fn settle(&self) -> Result<Option<Tcp>, ConfigError> {
        let half = |given, missing| Err(ConfigError::HalfTcp { given, missing });
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => Some((cert.clone(), key.clone())),
            (Some(_), None) => return half("tls_cert", "tls_key"),
            (None, Some(_)) => return half("tls_key", "tls_cert"),
            (None, None) => None,
        };
        let per_s = positive("tcp.requests_per_s", self.requests_per_s, 50.0)?;
        let burst = positive("tcp.burst", self.burst, 200.0)?;
        let Some(text) = &self.listen else {
            return if tls.is_some() { half("tls_cert", "listen") } else { Ok(None) };
        };
        let wrong = || ConfigError::Value {
            key: "tcp.listen",
            value: text.clone(),
            why: "write an address and a port, such as \"127.0.0.1:7474\" or \"[::]:7474\"".to_owned(),
        };
        let listen: SocketAddr = text.parse().map_err(|_| wrong())?;
        if tls.is_none() && !listen.ip().to_canonical().is_loopback() {
            return Err(ConfigError::PlainTcp { listen });
        }
        Ok(Some(Tcp { listen, tls, rate: Rate { per_s, burst } }))
    }
}

fn positive(key: &'static str, value: Option<f64>, default: f64) -> Result<f64, ConfigError> {
    let value = value.unwrap_or(default);
    if (1.0..=1e6).contains(&value) {
        return Ok(value);
    }
    Err(ConfigError::Value { key, value: value.to_string(), why: "write a number from 1 to 1000000".to_owned() })
}

/// With none of it nobody could be served at all; whoever means no bound leaves the key out.
fn at_least_one<T: Copy + Default + PartialEq>(key: &'static str, value: Option<T>) -> Result<Option<T>, ConfigError> {
    if value == Some(T::default()) {
        let why = "it must be at least 1; leave the key out for the default".to_owned();
        return Err(ConfigError::Value { key, value: "0".to_owned(), why });
    }
    Ok(value)
}

fn set<T>(
    place: &mut T,
    key: &'static str,
    text: &Option<String>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<(), ConfigError> {
    if let Some(text) = text {
        *place = read(text).map_err(|why| ConfigError::Value { key, value: text.clone(), why })?;
    }
    Ok(())
}

fn read_span(text: &str) -> Result<Span, String> {
    match span::parse(text) {
        Ok(0) => Err("it must be at least 1s".to_owned()),
        Ok(seconds) => Ok(Span::secs(seconds)),
        Err(error) => Err(error.hint().to_owned()),
    }
}

fn read_size(text: &str) -> Result<Bytes, String> {
    size::parse(text).map(Bytes).map_err(|error| error.hint().to_owned())
}

fn read_renewal(text: &str) -> Result<Renewal, String> {
    let percent =
        |text: &str| text.trim().strip_suffix('%').and_then(|n| n.parse::<u8>().ok()).filter(|n| (1..=95).contains(n));
    let read = if let Some(rest) = text.strip_prefix("below ") {
        percent(rest).map(|percent| Renewal::Below { percent })
    } else if let Some(rest) = text.strip_prefix("every ") {
        read_span(rest).ok().map(Renewal::Every)
    } else {
        percent(text).map(|percent| Renewal::At { percent, jitter: 10 })
    };
    read.ok_or_else(|| "write \"70%\", \"below 25%\" or \"every 1m\"".to_owned())
}

fn read_visibility(text: &str) -> Result<bool, ConfigError> {
    match text {
        "all" => Ok(true),
        "own" => Ok(false),
        _ => Err(ConfigError::Value {
            key: "visibility",
            value: text.to_owned(),
            why: "write \"all\" or \"own\"".to_owned(),
        }),
    }
}

fn read_gpu(text: &str) -> Result<GpuSpec, ConfigError> {
    text.parse().map_err(|_| ConfigError::Value {
        key: "gpu",
        value: text.to_owned(),
        why: "write \"real\", or for instance \"soft:2x24GiB\"".to_owned(),
    })
}

/// Puts what is said here over what was said before.
fn lay_over(
    policy: &mut Policy,
    everybody: &CapsConfig,
    users: &BTreeMap<String, CapsConfig>,
    groups: &BTreeMap<String, CapsConfig>,
) -> Result<(), ConfigError> {
    everybody.has_no("caps", &["share", "each"])?;
    policy.caps = everybody.over(&policy.caps)?;
    for (user, over) in users {
        over.has_no("users", &["each"])?;
        let tenant = tenant(user)?;
        if let Some(share) = at_least_one("share", over.share)? {
            policy.shares.of.insert(tenant.clone(), share);
        }
        let before = policy.caps_of.remove(&tenant).unwrap_or_default();
        policy.caps_of.insert(tenant, over.over(&before)?);
    }
    for (name, over) in groups {
        over.has_no("groups", &["head_start_max"])?;
        if let Some(share) = at_least_one("share", over.share)? {
            policy.shares.of_groups.insert(name.clone(), share);
        }
        let together = policy.caps_of_groups.remove(name).unwrap_or_default();
        policy.caps_of_groups.insert(name.clone(), over.over(&together)?);
        if let Some(each) = &over.each {
            each.has_no("groups.….each", &["share", "each"])?;
            let before = policy.caps_of_members.remove(name).unwrap_or_default();
            policy.caps_of_members.insert(name.clone(), each.over(&before)?);
        }
    }
    Ok(())
}

impl CapsConfig {
    fn over(&self, base: &Caps) -> Result<Caps, ConfigError> {
        let mut caps = base.clone();
        set(&mut caps.vram, "vram", &self.vram, |text| read_size(text).map(Some))?;
        set(&mut caps.gpu_day, "gpu_day", &self.gpu_day, |text| read_span(text).map(Some))?;
        set(&mut caps.never, "never_preempt", &self.never_preempt, |text| read_size(text).map(Some))?;
        set(&mut caps.parked, "parked", &self.parked, |text| read_size(text).map(Some))?;
        set(&mut caps.head_start, "head_start_max", &self.head_start_max, |text| read_span(text).map(Some))?;
        caps.leases = self.leases.or(caps.leases);
        caps.places = at_least_one("places", self.places)?.or(caps.places);
        Ok(caps)
    }

    /// Some keys mean nothing in some tables, and what means nothing must not look as if it held.
    fn has_no(&self, table: &'static str, keys: &[&'static str]) -> Result<(), ConfigError> {
        let there = |key: &str| match key {
            "share" => self.share.is_some(),
            "each" => self.each.is_some(),
            _ => self.head_start_max.is_some(),
        };
        match keys.iter().copied().find(|key| there(key)) {
            Some(key) => Err(ConfigError::Misplaced { key, table }),
            None => Ok(()),
        }
    }
}

/// A user of this host by name or uid, or whom tokens act for (`user:ana`).
fn tenant(user: &str) -> Result<String, ConfigError> {
    if sublet_core::token::is_subject(user) {
        return Ok(user.to_owned());
    }
    let known = || uzers::get_user_by_name(user).map(|user| user.uid());
    let uid = user.parse().ok().or_else(known);
    let none = || ConfigError::NoSuch { kind: "user", name: user.to_owned() };
    uid.map(crate::names::tenant_of).ok_or_else(none)
}

fn gid(group: &str) -> Result<u32, ConfigError> {
    let known = || uzers::get_group_by_name(group).map(|group| group.gid());
    group.parse().ok().or_else(known).ok_or_else(|| ConfigError::NoSuch { kind: "group", name: group.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(text: &str) -> Result<Settled, String> {
        let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
        config.settle().map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_is_the_default() {
        let mut settled = settle("").unwrap();
        assert!(settled.policy.parking.ram > Bytes::ZERO && settled.stock <= settled.policy.parking.ram);
        settled.policy.parking.ram = Bytes::ZERO;
        assert_eq!(settled.policy.parking.deep.take(), Some(Span::secs(600)));
        assert_eq!(settled.policy, Policy::default());
        assert!(settled.shim);
        assert!(settled.see_all);
    }

    #[test]
    fn every_value_is_read() {
        let settled = settle(
            r#"
            ttl = "2m"
            renewal = "below 25%"
            hold_cap = "1h"
            margin = "512M"
            visibility = "own"
            gpu = "soft:1x80GiB"
            [caps]
            vram = "24G"
            [users.0]
            leases = 3
            [users."team:vision"]
            leases = 4
            "#,
        )
        .unwrap();
        assert_eq!(settled.policy.ttl, Span::secs(120));
        assert_eq!(settled.policy.renewal, Renewal::Below { percent: 25 });
        assert_eq!(settled.policy.hold_cap, Span::secs(3600));
        assert_eq!(settled.policy.margin, Bytes::mib(512));
        assert!(!settled.see_all);
        assert_eq!(settled.gpu, "soft:1x80GiB".parse().ok());
        let root = settled.policy.caps_for("uid:0", &[]);
        assert_eq!((root.vram, root.leases), (Some(Bytes::gib(24)), Some(3)));
        assert_eq!(settled.policy.caps_for("uid:5", &[]).leases, None);
        assert_eq!(settled.policy.caps_for("team:vision", &[]).leases, Some(4));
    }

    #[test]
    fn parking_is_read() {
        let settled = settle(
            r#"
            shim = "off"
            [parking]
            ram = "16G"
            leave = "2G"
            term = "1h"
            stock = "32G"
            deep = "1m"
            [caps]
            parked = "4G"
            "#,
        )
        .unwrap();
        let parking = &settled.policy.parking;
        assert_eq!((parking.ram, parking.leave, parking.term), (Bytes::gib(16), Bytes::gib(2), Span::secs(3600)));
        assert_eq!((settled.stock, settled.shim), (Bytes::gib(16), false));
        assert_eq!(parking.deep, Some(Span::secs(60)));
        for text in ["[parking]\ndeep = \"off\"", "[preemption]\ndriver = \"off\""] {
            assert_eq!(settle(text).unwrap().policy.parking.deep, None, "{text}");
        }
        assert_eq!(settled.policy.caps.parked, Some(Bytes::gib(4)));
        assert_eq!(settle("[parking]\nram = \"off\"").unwrap().policy.parking.ram, Bytes::ZERO);
        let all = settle("[parking]\nram = \"90%\"").unwrap().policy.parking.ram;
        assert!(all > settle("[parking]\nram = \"10%\"").unwrap().policy.parking.ram);
        let settled = settle(
            "[preemption]\nmake_room = false\nswitching = \"20%\"\nturn = \"1m\"\nidle = \"5m\"\nrest = \"90s\"\nend_grace = \"2s\"",
        )
        .unwrap();
        let parking = &settled.policy.parking;
        assert_eq!((parking.turn, parking.idle, parking.grace), (Span::secs(60), Span::secs(300), Span::secs(2)));
        assert_eq!(parking.rest, Span::secs(90));
        assert_eq!(parking.worth, 4);
        assert!(!parking.preempt && settle("").unwrap().policy.parking.preempt);
        let patience = settle("[enforcement]\nwarned = \"1m\"\ngrace = \"30s\"").unwrap().policy.patience;
        assert_eq!((patience.warned, patience.parks, patience.grace), (Span::secs(60), true, Span::secs(30)));
        assert!(!settle("[enforcement]\npark = false").unwrap().policy.patience.parks);
        // Where the driver parks nobody, nobody waits for it.
        assert!(!settle("[preemption]\ndriver = \"off\"").unwrap().policy.patience.parks);
        assert_eq!(settle("[enforcement]\nover = \"20s\"").unwrap().policy.over, Span::secs(20));
        for wrong in [
            "[parking]\nram = \"95%\"",
            "[preemption]\nturn = \"soon\"",
            "[enforcement]\ngrace = \"never\"",
            "[enforcement]\npark = \"never\"",
            "[parking]\nram = \"some\"",
            "shim = \"maybe\"",
        ] {
            settle(wrong).unwrap_err();
        }
    }

    #[test]
    fn shares_groups_and_hours_are_read() {
        let config: Config = toml::from_str(
            r#"
            debt_max = "1h"
            share = 10
            [users.0]
            share = 30
            [groups.root]
            share = 20
            vram = "80G"
            gpu_day = "40h"
            each.vram = "24G"
            each.never_preempt = "8G"
            [[windows]]
            days = "mon-fri"
            from = "09:00"
            to = "18:00"
            groups.root.vram = "40G"
            caps.leases = 2
            "#,
        )
        .unwrap();
        let night = config.settle_at(|_| false).unwrap();
        let work = config.settle_at(|_| true).unwrap();
        let lab = ["root".to_owned()];
        assert_eq!(night.groups, [(0, "root".to_owned())]);
        assert_eq!(night.hours.len(), 1);
        assert_eq!(night.policy.debt_max, Span::secs(3600));
        assert_eq!(night.policy.shares.default, 10);
        assert_eq!((night.policy.shares.of["uid:0"], night.policy.shares.of_groups["root"]), (30, 20));
        let member = night.policy.caps_for("uid:7", &lab);
        assert_eq!((member.vram, member.never, member.leases), (Some(Bytes::gib(24)), Some(Bytes::gib(8)), None));
        assert_eq!(night.policy.caps_of_groups["root"].gpu_day, Some(Span::secs(40 * 3600)));
        assert_eq!(night.policy.caps_of_groups["root"].vram, Some(Bytes::gib(80)));
        assert_eq!(work.policy.caps_of_groups["root"].vram, Some(Bytes::gib(40)));
        assert_eq!(work.policy.caps_for("uid:7", &lab).leases, Some(2));
    }

    #[test]
    fn tcp_is_off_until_asked_for_and_beyond_this_host_only_with_a_certificate() {
        assert_eq!(settle("").unwrap().tcp, None);
        assert_eq!(settle("[tcp]\nburst = 7").unwrap().tcp, None);
        let local = settle("[tcp]\nlisten = \"127.0.0.1:7474\"\nrequests_per_s = 2").unwrap().tcp.unwrap();
        assert_eq!((local.tls, local.rate), (None, Rate { per_s: 2.0, burst: 200.0 }));
        assert!(settle("[tcp]\nlisten = \"[::1]:7474\"").is_ok());
        for address in ["0.0.0.0:7474", "[::]:7474", "192.0.2.1:7474", "[::ffff:192.0.2.1]:7474"] {
            let refused = settle(&format!("[tcp]\nlisten = {address:?}")).unwrap_err();
            assert!(refused.contains("without a certificate"), "{address}: {refused}");
            let both = format!("[tcp]\nlisten = {address:?}\ntls_cert = \"c\"\ntls_key = \"k\"");
            assert_eq!(settle(&both).unwrap().tcp.unwrap().tls, Some(("c".into(), "k".into())));
        }
        for text in [
            "tls_cert = \"c\"\nlisten = \"127.0.0.1:1\"",
            "tls_key = \"c\"\nlisten = \"127.0.0.1:1\"",
            "tls_key = \"c\"\ntls_cert = \"k\"",
            "listen = \"localhost\"",
            "listen = \"7474\"",
            "requests_per_s = 0",
            "burst = nan",
        ] {
            assert!(settle(&format!("[tcp]\n{text}")).is_err(), "{text}");
        }
        let flags = TcpConfig { listen: Some("0.0.0.0:1".into()), ..TcpConfig::default() };
        let config: Config = toml::from_str("[tcp]\nlisten = \"127.0.0.1:1\"").unwrap();
        assert!(matches!(config.over(&flags).settle(), Err(ConfigError::PlainTcp { .. })));
    }

    #[test]
    fn a_misspelt_key_and_a_senseless_value_are_errors() {
        assert!(settle("hold_cop = \"1h\"").unwrap_err().contains("hold_cop"));
        assert!(settle("ttl = \"5\"").unwrap_err().contains("makes no sense"));
        assert!(settle("renewal = \"often\"").unwrap_err().contains("below 25%"));
        assert!(settle("margin = \"1\"").unwrap_err().contains("margin"));
        assert!(settle("visibility = \"some\"").is_err());
        for (text, key) in [
            ("queue_max = 0", "queue_max"),
            ("share = 0", "share"),
            ("users.0.share = 0", "share"),
            ("groups.root.share = 0", "share"),
            ("caps.places = 0", "places"),
            ("users.0.places = 0", "places"),
            ("groups.root.places = 0", "places"),
            ("groups.root.each.places = 0", "places"),
            ("[[windows]]\nfrom = \"09:00\"\nto = \"09:01\"\ncaps.places = 0", "places"),
        ] {
            let said = settle(text).unwrap_err();
            assert!(said.contains(&format!("`{key} = \"0\"` makes no sense")), "{text}: {said}");
        }
        for longer in ["ttl = \"31m\"", "hold_cap = \"1m\"", "ttl = \"2m\"\nhold_cap = \"1m\""] {
            assert!(settle(longer).unwrap_err().contains("longer than `hold_cap`"), "{longer}");
        }
        assert!(settle("ttl = \"1m\"\nhold_cap = \"1m\"").is_ok());
        assert!(settle("[[windows]]\nfrom = \"9\"\nto = \"18:00\"").unwrap_err().contains("09:00"));
        assert!(settle("[groups.no-such-group-here]\nshare = 1").unwrap_err().contains("no group"));
        assert!(settle("operators = \"no-such-group-here\"").unwrap_err().contains("no group"));
        for misplaced in [
            "caps.share = 1",
            "caps.each.vram = \"1G\"",
            "users.0.each.vram = \"1G\"",
            "groups.root.head_start_max = \"1m\"",
            "groups.root.each.share = 1",
        ] {
            assert!(settle(misplaced).unwrap_err().contains("says nothing in"), "{misplaced}");
        }
    }
}
