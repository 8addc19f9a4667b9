//! The configuration file. Unknown keys are errors: a misspelt cap is no cap.

mod aside;
mod caps;
mod check;
mod enforcement;
mod error;
mod notices;
mod parking;
mod preemption;
mod registers;
mod socket;
mod tcp;
mod values;

pub use check::{CheckedConfig, Finding, check};
pub use error::ConfigError;
use socket::SocketConfig;
pub use tcp::{Tcp, TcpConfig};

use self::aside::AsideConfig;
use self::caps::{CapsConfig, WindowConfig, gid, lay_over};
use self::enforcement::EnforcementConfig;
use self::error::KeyPath;
use self::notices::NoticesConfig;
use self::parking::ParkingConfig;
use self::preemption::PreemptionConfig;
use self::registers::RegistersConfig;
use self::values::{
    HISTORY, at_least_one, is_on, read_gpu, read_gpu_name, read_history, read_margin, read_renewal, read_span,
    read_span_or_none, read_visibility, set,
};
use crate::calendar::{Hours, WeekMinute};
use crate::http::HttpSettings;
use crate::http::rate::Rate;
use crate::notices::Settings;
use crate::registers::RegisterLimits;
use crate::view::Visibility;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use sublet_core::settings::{Policy, Renewal};
use sublet_core::units::{Bytes, Span};
use sublet_host::gpu::GpuSpec;

/// Everything that can be set. All of it has a default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// From a renewal to the expiry, for requests without a term (`"5m"`).
    ttl: Option<String>,
    /// When a used lease is renewed: `"70%"`, `"below 25%"` or `"every 1m"`.
    renewal: Option<String>,
    /// A lease is not renewed past this while another request waits (`"30m"`).
    renewal_cap: Option<String>,
    /// How long a request waits that names no limit (`"1d"`).
    wait: Option<String>,
    /// After an absence of the daemon nothing expires for this long (`"60s"`).
    grace: Option<String>,
    /// Memory that is not leased on every GPU (`"256M"`).
    margin: Option<String>,
    /// The same for a GPU with a display (`"1536M"`).
    margin_display: Option<String>,
    /// Waiters in all.
    queue_max: Option<usize>,
    /// A Unix group whose members are operators, beside root and the daemon's own user.
    operators: Option<String>,
    /// A Unix group: its members alone, and root, may use the socket; read by a start only.
    socket_group: Option<String>,
    /// `"all"`: local users see which users are on a GPU. `"own"`: each sees only itself.
    visibility: Option<String>,
    /// The longest that a call may wait for a change (`"60s"`).
    poll_max: Option<String>,
    /// Measure what a CUDA context takes on each GPU at the first start.
    measure_context: Option<bool>,
    /// Lines of the audit trail, and ended leases, that are kept; read by a start only.
    history: Option<u64>,
    /// GPUs on which nothing is leased, by number or UUID; read by a start only.
    unmanaged: Vec<String>,
    /// Which GPUs (`"real"`, `"soft:2x24GiB"`); read by a start only.
    gpu: Option<String>,
    /// A tenant that used more than its share lately queues later, by at most this (`"4h"`).
    debt_max: Option<String>,
    /// The share of a tenant without a share of its own.
    share: Option<u32>,
    /// Which requests queue earlier, and by how much.
    head_start: HeadStartConfig,
    /// What each tenant may have.
    caps: CapsConfig,
    /// What certain users may have, by user id or name.
    users: BTreeMap<String, CapsConfig>,
    /// What certain Unix groups may have together, and each of their members.
    groups: BTreeMap<String, CapsConfig>,
    /// What is different at certain hours; the last that holds counts.
    windows: Vec<WindowConfig>,
    /// The service beyond this host, for callers with a token.
    tcp: TcpConfig,
    /// How often local users may call.
    socket: SocketConfig,
    /// Host memory for bytes that have to leave a GPU.
    parking: ParkingConfig,
    /// Which leases are preempted, and when.
    preemption: PreemptionConfig,
    /// Processes on GPUs without a lease.
    enforcement: EnforcementConfig,
    /// Where notices go besides the terminals of those concerned.
    notices: NoticesConfig,
    /// Which users may put GPUs aside.
    aside: AsideConfig,
    /// How much each user may keep in registers of checkpoints.
    registers: RegistersConfig,
    /// `"off"`: programs are started without the shim that caps and parks them; read by a start only.
    shim: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct HeadStartConfig {
    interactive: Option<String>,
    batch: Option<String>,
    spot: Option<String>,
    priority: Option<String>,
}

/// What follows from a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedConfig {
    /// For core.
    pub policy: Policy,
    /// Members of this group are operators.
    pub operators_gid: Option<u32>,
    /// Only members of this group, and root, may use the socket.
    pub socket_gid: Option<u32>,
    /// Groups that have shares or caps.
    pub groups: Vec<(u32, String)>,
    /// Hours at which something is different.
    pub hours: Vec<Hours>,
    /// Which users local users see.
    pub visibility: Visibility,
    /// The longest that a call may wait for a change.
    pub poll_max: Span,
    /// Measure contexts.
    pub measure_context: bool,
    /// Lines of the audit trail, and ended leases, that are kept.
    pub history: u64,
    /// GPUs on which nothing is leased.
    pub unmanaged: Vec<String>,
    /// The GPUs that it names; `None` if it names none.
    pub gpu: Option<GpuSpec>,
    /// The service over TCP, if there is to be one.
    pub tcp: Option<Tcp>,
    /// How often each local user may call.
    pub socket_rate: Rate,
    /// Host memory that is kept ready for parked bytes.
    pub stock: Bytes,
    /// Programs are started with the shim that caps and parks them.
    pub shim: bool,
    /// The driver's own way of parking may be used.
    pub driver: bool,
    /// Where notices go.
    pub notices: Settings,
    /// How much each user may keep in registers of checkpoints.
    pub registers: RegisterLimits,
}

impl LoadedConfig {
    /// The settings of the HTTP API.
    pub fn http_settings(&self) -> HttpSettings {
        let poll_max = Duration::from_micros(self.poll_max.0);
        HttpSettings { ttl: self.policy.ttl, visibility: self.visibility, poll_max }
    }
}

impl Config {
    /// Reads a file; without one, everything is at its default.
    pub fn read(path: Option<&Path>) -> Result<Config, ConfigError> {
        let Some(path) = path else { return Ok(Config::default()) };
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        Config::parse(&text, path)
    }

    /// Reads the text of a file.
    fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        toml::from_str(text).map_err(|source| ConfigError::Wrong { path: path.to_owned(), source: Box::new(source) })
    }

    /// The command line's TCP options take precedence over the file's.
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

    /// The GPUs that it names.
    pub fn gpu(&self) -> Option<&str> {
        self.gpu.as_deref()
    }

    /// Checks every value and returns what follows at this time.
    pub fn settle(&self) -> Result<LoadedConfig, ConfigError> {
        let now = WeekMinute::now();
        self.settle_at(|hours| hours.hold(now))
    }

    /// The same for these hours.
    pub fn settle_at(&self, holds: impl Fn(&Hours) -> bool) -> Result<LoadedConfig, ConfigError> {
        let mut policy = Policy::default();
        set(&mut policy.ttl, "ttl", &self.ttl, read_span)?;
        set(&mut policy.renewal, "renewal", &self.renewal, read_renewal)?;
        set(&mut policy.hold_max, "renewal_cap", &self.renewal_cap, read_span)?;
        set(&mut policy.wait, "wait", &self.wait, read_span)?;
        set(&mut policy.grace, "grace", &self.grace, read_span)?;
        set(&mut policy.margin, "margin", &self.margin, read_margin)?;
        set(&mut policy.margin_display, "margin_display", &self.margin_display, read_margin)?;
        policy.queue_max = at_least_one("queue_max", self.queue_max)?.unwrap_or(policy.queue_max);
        if policy.ttl > policy.hold_max {
            let why = format!("a term may not be longer than `renewal_cap`, which is {}; set both", policy.hold_max);
            return Err(ConfigError::value("ttl", policy.ttl, why));
        }
        if let Renewal::Every(every) = policy.renewal
            && every >= policy.ttl
        {
            let why = format!("a lease ends after `ttl`, which is {}: renew it more often", policy.ttl);
            return Err(ConfigError::value("renewal", format!("every {every}"), why));
        }
        let head = &mut policy.head_start;
        set(&mut head.interactive, "head_start.interactive", &self.head_start.interactive, read_span_or_none)?;
        set(&mut head.batch, "head_start.batch", &self.head_start.batch, read_span_or_none)?;
        set(&mut head.spot, "head_start.spot", &self.head_start.spot, read_span_or_none)?;
        set(&mut head.priority, "head_start.priority", &self.head_start.priority, read_span_or_none)?;
        set(&mut policy.debt_max, "debt_max", &self.debt_max, read_span)?;
        policy.shares.default = at_least_one("share", self.share)?.unwrap_or(policy.shares.default);
        let stock = self.parking.settle(&mut policy)?;
        self.preemption.settle(&mut policy)?;
        self.enforcement.settle(&mut policy)?;
        self.aside.settle(&mut policy)?;
        let driver = is_on("preemption.driver", self.preemption.driver.as_deref())?;
        policy.enforcement.parks_first &= driver;
        policy.parking.context_after = policy.parking.context_after.filter(|_| driver);
        lay_over(&mut policy, &self.caps, &self.users, &self.groups)?;
        let mut hours = Vec::new();
        for (index, window) in self.windows.iter().enumerate() {
            let tables = ["windows", &index.to_string()];
            let read = Hours::read(window.days.as_deref(), &window.from, &window.to).map_err(|why| {
                ConfigError::value("from", format!("{} to {}", window.from, window.to), why).within(&tables)
            })?;
            // A window that does not hold now must make sense, too.
            let mut then = policy.clone();
            lay_over(&mut then, &window.caps, &window.users, &window.groups).map_err(|error| error.within(&tables))?;
            if holds(&read) {
                policy = then;
            }
            hours.push(read);
        }
        let mut groups = BTreeMap::new();
        for name in self.groups.keys() {
            groups.insert(name.clone(), gid(name, KeyPath::table()).map_err(|error| error.within(&["groups", name]))?);
        }
        for (index, window) in self.windows.iter().enumerate() {
            for name in window.groups.keys() {
                let tables = ["windows", &index.to_string(), "groups", name];
                groups.insert(name.clone(), gid(name, KeyPath::table()).map_err(|error| error.within(&tables))?);
            }
        }
        Ok(LoadedConfig {
            policy,
            groups: groups.into_iter().map(|(name, gid)| (gid, name)).collect(),
            hours,
            operators_gid: self.operators.as_deref().map(|name| gid(name, "operators".into())).transpose()?,
            socket_gid: self.socket_group.as_deref().map(|name| gid(name, "socket_group".into())).transpose()?,
            poll_max: {
                let mut poll_max = Span::secs(60);
                set(&mut poll_max, "poll_max", &self.poll_max, read_span)?;
                poll_max
            },
            visibility: read_visibility(self.visibility.as_deref().unwrap_or("all"))?,
            measure_context: self.measure_context.unwrap_or(true),
            history: read_history(self.history.unwrap_or(HISTORY))?,
            unmanaged: self.unmanaged.iter().map(|name| read_gpu_name(name)).collect::<Result<_, _>>()?,
            gpu: self.gpu.as_deref().map(read_gpu).transpose()?,
            tcp: self.tcp.settle()?,
            socket_rate: self.socket.settle()?,
            stock,
            shim: is_on("shim", self.shim.as_deref())?,
            driver,
            notices: self.notices.settle()?,
            registers: self.registers.settle()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(text: &str) -> Result<LoadedConfig, String> {
        let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
        config.settle().map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_is_the_default() {
        let mut settled = settle("").unwrap();
        assert!(settled.policy.parking.space > Bytes::ZERO && settled.stock <= settled.policy.parking.space);
        settled.policy.parking.space = Bytes::ZERO;
        assert_eq!(settled.policy.parking.context_after.take(), Some(Span::secs(600)));
        assert_eq!(settled.policy, Policy::default());
        assert!(settled.shim);
        assert_eq!(settled.visibility, Visibility::All);
    }

    #[test]
    fn every_value_is_read() {
        let settled = settle(
            r#"
            ttl = "2m"
            renewal = "below 25%"
            renewal_cap = "1h"
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
        assert_eq!(settled.policy.hold_max, Span::secs(3600));
        assert_eq!(settled.policy.margin, Bytes::mib(512));
        assert_eq!(settled.visibility, Visibility::Own);
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
            keep_free = "2G"
            time_max = "1h"
            ready = "32G"
            context_after = "1m"
            [caps]
            parked = "4G"
            "#,
        )
        .unwrap();
        let parking = &settled.policy.parking;
        assert_eq!(
            (parking.space, parking.keep_available, parking.term),
            (Bytes::gib(16), Bytes::gib(2), Span::secs(3600))
        );
        assert_eq!((settled.stock, settled.shim), (Bytes::gib(16), false));
        assert_eq!(parking.context_after, Some(Span::secs(60)));
        for text in ["[parking]\ncontext_after = \"off\"", "[preemption]\ndriver = \"off\""] {
            assert_eq!(settle(text).unwrap().policy.parking.context_after, None, "{text}");
        }
        assert_eq!(settled.policy.caps.parked, Some(Bytes::gib(4)));
        assert_eq!(settle("[parking]\nram = \"off\"").unwrap().policy.parking.space, Bytes::ZERO);
        let all = settle("[parking]\nram = \"90%\"").unwrap().policy.parking.space;
        assert!(all > settle("[parking]\nram = \"10%\"").unwrap().policy.parking.space);
        let settled = settle(
            "[preemption]\nenabled = false\nfinish = false\nswitching_max = \"20%\"\ntime_slice = \"1m\"\nidle_after = \"5m\"\nretry_after = \"90s\"\nend_grace = \"2s\"",
        )
        .unwrap();
        let parking = &settled.policy.parking;
        assert_eq!(
            (parking.slice_min, parking.idle_after, parking.grace),
            (Span::secs(60), Span::secs(300), Span::secs(2))
        );
        assert_eq!(parking.retry_after, Span::secs(90));
        assert_eq!(parking.slice_per_move, 4);
        assert!(!parking.preempt && settle("").unwrap().policy.parking.preempt);
        assert!(!parking.stretches_slices && settle("").unwrap().policy.parking.stretches_slices);
        let patience = settle("[enforcement]\nwarning = \"1m\"\ngrace = \"30s\"").unwrap().policy.enforcement;
        assert_eq!(
            (patience.after_warning, patience.parks_first, patience.after_sigterm),
            (Span::secs(60), true, Span::secs(30))
        );
        assert!(!settle("[enforcement]\npark = false").unwrap().policy.enforcement.parks_first);
        // Where the driver parks no lease, no waiter waits for it.
        assert!(!settle("[preemption]\ndriver = \"off\"").unwrap().policy.enforcement.parks_first);
        assert_eq!(settle("[enforcement]\noveruse = \"20s\"").unwrap().policy.overuse_grace, Span::secs(20));
        for wrong in [
            "[parking]\nram = \"95%\"",
            "[preemption]\ntime_slice = \"soon\"",
            "[enforcement]\ngrace = \"never\"",
            "[enforcement]\npark = \"never\"",
            "[parking]\nram = \"some\"",
            "shim = \"maybe\"",
        ] {
            settle(wrong).unwrap_err();
        }
    }

    #[test]
    fn notices_are_read_and_a_command_or_an_address_that_cannot_work_is_refused() {
        assert_eq!(settle("").unwrap().notices, Settings::default());
        let text = "[notices]\ncommand = [\"/bin/tell\", \"-j\"]\nwebhook = \"http://[::1]:9/x\"\nterminals = \"off\"";
        let notices = settle(text).unwrap().notices;
        assert!(notices.no_terminals);
        assert_eq!(notices.hooks.command, Some(vec!["/bin/tell".to_owned(), "-j".to_owned()]));
        assert_eq!(notices.hooks.webhook, "http://[::1]:9/x".parse().ok());
        for (wrong, hint) in [
            ("command = []", "the whole path of a program"),
            ("command = [\"tell\"]", "the whole path of a program"),
            ("webhook = \"https://localhost/\"", "without TLS"),
            ("webhook = \"localhost:9000\"", "http://localhost:9000/sublet"),
            ("webhook = \"http:///x\"", "http://localhost:9000/sublet"),
            ("terminals = \"maybe\"", "on"),
        ] {
            let said = settle(&format!("[notices]\n{wrong}")).unwrap_err();
            assert!(said.contains(hint), "{wrong}: {said}");
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

    /// The sample that is installed, with the lines behind this prefix in use.
    fn sample(prefix: &str) -> String {
        let text = include_str!("../../../../dist/sublet.toml");
        let is_toml = |line: &&str| line.is_empty() || line.starts_with('[') || line.contains(" = ");
        text.lines()
            .filter_map(|line| line.strip_prefix(prefix))
            .filter(is_toml)
            .map(|line| format!("{line}\n"))
            .collect()
    }

    #[test]
    fn the_sample_configuration_shows_the_defaults() {
        let text = sample("# ");
        assert!(text.lines().count() > 30, "the sample lists every key that has a default:\n{text}");
        assert_eq!(settle(&text).unwrap(), settle("").unwrap());
        assert_eq!(
            settle(include_str!("../../../../dist/sublet.toml")).unwrap(),
            settle("").unwrap(),
            "all is commented"
        );
        let examples = sample("#: ").replace("\"sublet\"", "\"root\"");
        let settled = settle(&examples).unwrap();
        assert_eq!((settled.socket_gid, settled.hours.len(), settled.policy.caps.leases.is_some()), (Some(0), 1, true));
        assert!(settle("head_start.spot = \"0s\"").is_ok(), "none is a head start too");
    }

    /// The keys that a table may have, as the TOML reader lists them for an unknown one.
    fn keys_of(table: &str) -> Vec<String> {
        let header = match table {
            "" => String::new(),
            "windows" => "[[windows]]".to_owned(),
            table => format!("[{table}]"),
        };
        let error = toml::from_str::<Config>(&format!("{header}\nno-such-key = 1")).unwrap_err().to_string();
        let (_, known) = error.rsplit_once("expected ").expect("the keys that it may be");
        known.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_sample_and_the_reference_have_every_key() {
        const REFERENCE: &str = include_str!("../../../../docs/reference/configuration.md");
        let (mut table, mut shown) = (String::new(), Vec::new());
        // The examples begin outside of tables.
        for line in (sample("# ") + "[]\n" + &sample("#: ")).lines() {
            if line.starts_with('[') {
                let name = line.split(']').next().unwrap_or_default().trim_start_matches('[');
                // The limits of a user or a group are those of `[caps]`.
                table = name.split('.').next().unwrap_or_default().replace("users", "caps").replace("groups", "caps");
            } else {
                let key = line.split(['=', '.', ' ']).next().unwrap_or_default();
                shown.push(format!("{table}.{key}"));
            }
            shown.push(format!(".{table}"));
        }
        let tables = [
            "",
            "head_start",
            "caps",
            "windows",
            "tcp",
            "socket",
            "parking",
            "preemption",
            "enforcement",
            "aside",
            "registers",
            "notices",
        ];
        // An example of a table of users is shown as `[caps]`.
        let is_table_of_caps = |key: &str| ["users", "groups"].contains(&key);
        for table in tables {
            for key in keys_of(table).into_iter().filter(|key| !is_table_of_caps(key)) {
                assert!(
                    shown.contains(&format!("{table}.{key}")),
                    "dist/sublet.toml has no `{key}` in [{table}]: {shown:?}"
                );
                let is_explained = [format!("`{key}`"), format!("[{key}]"), format!(".{key}]")];
                assert!(
                    is_explained.iter().any(|word| REFERENCE.contains(word)),
                    "docs/reference/configuration.md: `{key}`"
                );
            }
        }
    }

    #[test]
    fn values_that_no_host_could_mean_are_errors() {
        for (text, why) in [
            ("parking.ram = \"999T\"", "of memory in all"),
            ("margin = \"999T\"", "at most 32 GiB"),
            ("margin_display = \"33G\"", "at most 32 GiB"),
            ("renewal = \"every 9h\"", "renew it more often"),
            ("ttl = \"1m\"\nrenewal = \"every 1m\"", "renew it more often"),
            ("unmanaged = [\"GPU-typo\"]", "nvidia-smi -L"),
            ("unmanaged = [\"GPU-8a0c5c1e-6d6b-4a5e-9d8e-00000000000\"]", "nvidia-smi -L"),
            ("unmanaged = [\"gpu1\"]", "nvidia-smi -L"),
        ] {
            let error = settle(text).map(drop).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
        settle("margin = \"2G\"\nrenewal = \"every 1m\"\nunmanaged = [\"GPU-8A0c5c1e-6d6b-4a5e-9d8e-000000000001\"]")
            .unwrap();
    }

    #[test]
    fn a_misspelt_key_and_a_senseless_value_are_errors() {
        assert!(settle("renewal_cop = \"1h\"").unwrap_err().contains("renewal_cop"));
        assert!(settle("ttl = \"5\"").unwrap_err().contains("makes no sense"));
        assert!(settle("renewal = \"often\"").unwrap_err().contains("below 25%"));
        assert!(settle("margin = \"1\"").unwrap_err().contains("margin"));
        assert!(settle("visibility = \"some\"").is_err());
        for (text, key) in [
            ("queue_max = 0", "queue_max"),
            ("share = 0", "share"),
            ("users.0.share = 0", "share"),
            ("groups.root.share = 0", "share"),
            ("caps.waiters = 0", "waiters"),
            ("users.0.waiters = 0", "waiters"),
            ("groups.root.waiters = 0", "waiters"),
            ("groups.root.each.waiters = 0", "waiters"),
            ("[[windows]]\nfrom = \"09:00\"\nto = \"09:01\"\ncaps.waiters = 0", "waiters"),
        ] {
            let said = settle(text).unwrap_err();
            assert!(said.contains(&format!("{key} = \"0\"` makes no sense")), "{text}: {said}");
        }
        for longer in ["ttl = \"31m\"", "renewal_cap = \"1m\"", "ttl = \"2m\"\nrenewal_cap = \"1m\""] {
            assert!(settle(longer).unwrap_err().contains("longer than `renewal_cap`"), "{longer}");
        }
        assert!(settle("ttl = \"1m\"\nrenewal_cap = \"1m\"").is_ok());
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
            assert!(settle(misplaced).unwrap_err().contains("means nothing in"), "{misplaced}");
        }
    }
}
