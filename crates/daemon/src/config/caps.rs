//! `[caps]`, `[users]`, `[groups]` and `[[windows]]`: what each tenant may have, and when.

use super::error::{ConfigError, KeyPath};
use super::values::{at_least_one, read_size, read_span, set};
use serde::Deserialize;
use std::collections::BTreeMap;
use sublet_core::settings::{Caps, Policy};

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WindowConfig {
    pub(super) days: Option<String>,
    pub(super) from: String,
    pub(super) to: String,
    #[serde(default)]
    pub(super) caps: CapsConfig,
    #[serde(default)]
    pub(super) users: BTreeMap<String, CapsConfig>,
    #[serde(default)]
    pub(super) groups: BTreeMap<String, CapsConfig>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CapsConfig {
    vram: Option<String>,
    leases: Option<u32>,
    waiters: Option<u32>,
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

/// Puts what is said here over what was said before.
pub(super) fn lay_over(
    policy: &mut Policy,
    all: &CapsConfig,
    users: &BTreeMap<String, CapsConfig>,
    groups: &BTreeMap<String, CapsConfig>,
) -> Result<(), ConfigError> {
    let set_for_all = |policy: &mut Policy| {
        all.has_no("caps", &["share", "each"])?;
        policy.caps = all.over(&policy.caps)?;
        Ok(())
    };
    set_for_all(policy).map_err(|error: ConfigError| error.within(&["caps"]))?;
    for (user, over) in users {
        set_for_user(policy, user, over).map_err(|error| error.within(&["users", user]))?;
    }
    for (name, over) in groups {
        set_for_group(policy, name, over).map_err(|error| error.within(&["groups", name]))?;
        if let Some(each) = &over.each {
            set_for_members(policy, name, each).map_err(|error| error.within(&["groups", name, "each"]))?;
        }
    }
    Ok(())
}

fn set_for_user(policy: &mut Policy, user: &str, over: &CapsConfig) -> Result<(), ConfigError> {
    over.has_no("users", &["each"])?;
    let tenant = tenant(user)?;
    if let Some(share) = at_least_one("share", over.share)? {
        policy.shares.of.insert(tenant.clone(), share);
    }
    let before = policy.caps_of.remove(&tenant).unwrap_or_default();
    policy.caps_of.insert(tenant, over.over(&before)?);
    Ok(())
}

fn set_for_group(policy: &mut Policy, name: &str, over: &CapsConfig) -> Result<(), ConfigError> {
    over.has_no("groups", &["head_start_max"])?;
    if let Some(share) = at_least_one("share", over.share)? {
        policy.shares.of_groups.insert(name.to_owned(), share);
    }
    let together = policy.caps_of_groups.remove(name).unwrap_or_default();
    policy.caps_of_groups.insert(name.to_owned(), over.over(&together)?);
    Ok(())
}

fn set_for_members(policy: &mut Policy, name: &str, each: &CapsConfig) -> Result<(), ConfigError> {
    each.has_no("groups.….each", &["share", "each"])?;
    let before = policy.caps_of_members.remove(name).unwrap_or_default();
    policy.caps_of_members.insert(name.to_owned(), each.over(&before)?);
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
        caps.places = at_least_one("waiters", self.waiters)?.or(caps.places);
        Ok(caps)
    }

    /// Refuses keys that mean nothing in this table: they must not look as if they held.
    fn has_no(&self, table: &'static str, keys: &[&'static str]) -> Result<(), ConfigError> {
        let there = |key: &str| match key {
            "share" => self.share.is_some(),
            "each" => self.each.is_some(),
            _ => self.head_start_max.is_some(),
        };
        match keys.iter().copied().find(|key| there(key)) {
            Some(key) => Err(ConfigError::Misplaced { key: key.into(), table }),
            None => Ok(()),
        }
    }
}

/// A user of this host by name or uid, or a user that tokens act for (`user:ana`).
pub(super) fn tenant(user: &str) -> Result<String, ConfigError> {
    if sublet_core::token::is_subject(user) {
        return Ok(user.to_owned());
    }
    let known = || uzers::get_user_by_name(user).map(|user| user.uid());
    let uid = user.parse().ok().or_else(known);
    let none = || ConfigError::NoSuch { kind: "user", name: user.to_owned(), key: KeyPath::table() };
    uid.map(crate::user_directory::tenant_of).ok_or_else(none)
}

/// The id of a group that the value of this key names.
pub(super) fn gid(group: &str, key: KeyPath) -> Result<u32, ConfigError> {
    let known = || uzers::get_group_by_name(group).map(|group| group.gid());
    group.parse().ok().or_else(known).ok_or_else(|| ConfigError::NoSuch { kind: "group", name: group.to_owned(), key })
}
