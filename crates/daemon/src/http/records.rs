//! Usage and the audit trail over HTTP.

use super::body;
use super::shared::{Nothing, OnCall, OnRead, Repeat};
use super::{App, Refused};
use crate::looper::Reply;
use crate::messages;
use crate::view::{self, Visibility};
use axum::Json;
use axum::extract::{Request, State};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use sublet_core::action::Action;
use sublet_core::event::{Caller, Event};
use sublet_core::facts::{DaemonEvent, LeaseAction, TokenAction, UnleasedAction};
use sublet_core::ids::{LeaseId, TenantId};
use sublet_core::unleased::UnleasedId;
use sublet_journal::{JournalReader, LogLine, OpenError};
use sublet_wire as wire;
use sublet_wire::Problem;

/// Ended leases listed by `usage?by=lease`.
const USAGE_MAX: usize = 1_000;
/// Lines in one page of the trail.
pub const PAGE_MAX: usize = 1_000;
/// Leases remembered as the caller's own or not; beyond it they are looked up again.
const MINE_MAX: usize = 100_000;
/// Lines read for one page: a tenant's own may be few among many, and other callers wait.
const SCAN_MAX: usize = 5_000;

/// Reads history for a caller, when it has a permit.
pub async fn history<T: Send + 'static>(
    app: &App,
    by: &Caller,
    read: impl FnOnce(&JournalReader) -> Result<T, OpenError> + Send + 'static,
) -> Result<T, Refused> {
    let found = app.history.read(&by.tenant, read).await;
    Ok(found.ok_or(crate::inbox::LoopGone::Stopping)??)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UsageQuery {
    #[serde(default)]
    by: wire::UsageBy,
}

/// Shows what was charged: granted time, and VRAM times time.
#[utoipa::path(get, operation_id = "usage", path = "/v1/usage", tag = "records",
    params(("by" = Option<wire::UsageBy>, Query, description = "one row for each")), responses(
    (status = 200, description = "the caller's usage, or that of all users for an operator", body = wire::Usage),
    OnRead,
))]
pub async fn usage(State(app): State<App>, request: Request) -> Result<Json<wire::Usage>, Refused> {
    let by = body::peer(&request)?.caller.clone();
    let query: UsageQuery = body::query(&request)?;
    let (mut rows, more) = match query.by {
        wire::UsageBy::Tenant => (app.loop_client.read(move |view| view.usage(&by)).await?, false),
        wire::UsageBy::Lease => usage_by_lease(&app, by).await?,
    };
    if query.by == wire::UsageBy::Tenant {
        rows.iter_mut().for_each(|row| row.refused = app.refusals.of(&row.tenant));
    }
    Ok(Json(wire::Usage { by: query.by, rows, more }))
}

/// Accepts that lines of the journal are missing (operators): leases are granted again. The audit trail records it.
#[utoipa::path(post, operation_id = "accept_journal_loss", path = "/v1/journal/accept-loss", tag = "records",
    request_body(content = Option<Nothing>, description = "none is needed"), params(Repeat), responses(
    (status = 200, description = "what was accepted", body = wire::JournalLoss),
    OnCall,
))]
pub async fn accept_loss(State(app): State<App>, request: Request) -> Result<Reply, Refused> {
    let heard = body::empty(request).await?;
    let by = heard.peer.caller.clone();
    Ok(app.loop_client.call(by.clone(), Event::Daemon(DaemonEvent::LossAccepted { by }), heard.key).await?)
}

/// The leases that are live and the last that ended, and whether more did.
async fn usage_by_lease(app: &App, by: Caller) -> Result<(Vec<wire::UsageRow>, bool), Refused> {
    let caller = by.clone();
    let (mut rows, tenant, tenants) = app
        .loop_client
        .read(move |view| {
            let tenant = view.state.tenant(&caller.tenant);
            (view.usage_of_leases(&caller), tenant, view.state.rows().tenants.clone())
        })
        .await?;
    let whose = match (by.operator, tenant) {
        (true, _) => None,
        (false, Some(tenant)) => Some(tenant),
        (false, None) => return Ok((rows, false)),
    };
    let past = history(app, &by, move |reader| reader.ended_of(whose, None, USAGE_MAX + 1)).await?;
    rows.extend(past.iter().take(USAGE_MAX).filter_map(|ended| view::past_usage(ended, &tenants, &app.names)));
    Ok((rows, past.len() > USAGE_MAX))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    #[serde(default)]
    after: u64,
    limit: Option<usize>,
    lease: Option<String>,
    process: Option<String>,
}

/// Lists decisions, oldest first: those about the caller's own leases, or all of them for an operator.
#[utoipa::path(get, operation_id = "audit", path = "/v1/audit", tag = "records", params(
    ("after" = Option<u64>, Query, description = "lines after this number", maximum = 9_223_372_036_854_775_807_u64),
    ("limit" = Option<usize>, Query, description = "the most lines that are returned [default: 100]", minimum = 1, maximum = 1000),
    ("lease" = Option<String>, Query, description = "only about this lease", pattern = "^[Ll][1-9][0-9]*$"),
    ("process" = Option<String>, Query, description = "only about this unleased process (`X3`)", pattern = "^[Xx][1-9][0-9]*$"),
), responses(
    (status = 200, description = "a page of the trail", body = wire::AuditPage),
    OnRead,
))]
pub async fn audit(State(app): State<App>, request: Request) -> Result<Json<wire::AuditPage>, Refused> {
    let by = body::peer(&request)?.caller.clone();
    let query: AuditQuery = body::query(&request)?;
    let lease = query.lease.as_deref().map(body::lease_id).transpose()?;
    let limit = query.limit.unwrap_or(100);
    if limit == 0 || limit > PAGE_MAX {
        let detail = format!("`limit` must be 1 to {PAGE_MAX}");
        return Err(Problem::new(wire::Code::BadRequest, detail).into());
    }
    if i64::try_from(query.after).is_err() {
        return Err(Problem::new(wire::Code::BadRequest, "`after` must be the number of a line").into());
    }
    let stranger = query.process.as_deref().map(read_unleased_id).transpose()?;
    let sieve = AuditFilter { stranger, ..AuditFilter::of(&app, by.clone(), lease).await? };
    Ok(Json(history(&app, &by, move |reader| sieve.page(reader, query.after, limit)).await?))
}

/// Which lines of the log a caller may see.
pub struct AuditFilter {
    by: Caller,
    tenant: Option<TenantId>,
    lease: Option<LeaseId>,
    stranger: Option<UnleasedId>,
    mine: BTreeMap<LeaseId, bool>,
    /// Unleased processes that are the caller's own.
    own: BTreeSet<UnleasedId>,
    /// Whether the caller learns which other users acted.
    others: Visibility,
}

fn read_unleased_id(text: &str) -> Result<UnleasedId, Problem> {
    let digits = text.strip_prefix(['X', 'x']).filter(|digits| !digits.starts_with(['0', '+']));
    let found = digits.and_then(|digits| digits.parse().ok()).map(UnleasedId);
    found.ok_or_else(|| Problem::new(wire::Code::BadRequest, "`stranger` must be X and a number"))
}

impl AuditFilter {
    /// Returns a filter for one caller.
    pub async fn of(app: &App, by: Caller, lease: Option<LeaseId>) -> Result<AuditFilter, Refused> {
        let (name, operator) = (by.tenant.clone(), by.operator);
        let (tenant, mine, own) = app
            .loop_client
            .read(move |view| {
                let tenant = view.state.tenant(&name);
                let own = view.state.rows().leases.values().filter(|lease| Some(lease.tenant) == tenant);
                let mine = if operator { BTreeMap::new() } else { own.map(|lease| (lease.id, true)).collect() };
                let strangers = view.state.rows().unleased.values();
                let own = strangers.filter(|stranger| stranger.audit.tenant_name() == name);
                (tenant, mine, own.map(|stranger| stranger.id).collect())
            })
            .await?;
        let others = match (by.operator, &by.token) {
            (true, _) => Visibility::All,
            (false, Some(_)) => Visibility::Own,
            (false, None) => app.settings().visibility,
        };
        Ok(AuditFilter { by, tenant, lease, stranger: None, mine, own, others })
    }

    fn page(mut self, reader: &JournalReader, mut after: u64, limit: usize) -> Result<wire::AuditPage, OpenError> {
        let mut lines = Vec::new();
        let mut scanned = 0;
        loop {
            let found = reader.log(after, PAGE_MAX)?;
            let end = found.len() < PAGE_MAX;
            for line in found {
                scanned += 1;
                after = line.seq;
                if self.may_see(&line, reader)? {
                    lines.push(self.shown(&line, reader)?);
                }
                if lines.len() == limit || scanned == SCAN_MAX {
                    return Ok(wire::AuditPage { lines, next: Some(after) });
                }
            }
            if end {
                return Ok(wire::AuditPage { lines, next: None });
            }
        }
    }

    /// True if the caller may see this line: an operator all, other callers those of their own leases and tokens.
    pub fn may_see(&mut self, line: &LogLine, reader: &JournalReader) -> Result<bool, OpenError> {
        if self.lease.is_some() && self.lease != line.lease {
            return Ok(false);
        }
        if self.stranger.is_some() && self.stranger != unleased_of(line) {
            return Ok(false);
        }
        match line.lease {
            _ if self.by.operator => Ok(true),
            Some(lease) => self.is_own_lease(lease, line, reader),
            None => Ok(self.is_own_token(line) || self.is_own_process(line)),
        }
    }

    /// A local user sees what is done about its own processes.
    fn is_own_process(&mut self, line: &LogLine) -> bool {
        let Ok(action) = line.action() else { return false };
        if let Action::Unleased(UnleasedAction::Add { process: stranger }) = &action
            && stranger.audit.tenant_name() == self.by.tenant
        {
            self.own.insert(stranger.id);
        }
        self.by.token.is_none() && action.unleased().is_some_and(|stranger| self.own.contains(&stranger))
    }

    /// A tenant sees its tokens; a caller through one of them does not.
    fn is_own_token(&self, line: &LogLine) -> bool {
        match line.action() {
            Ok(Action::Token(TokenAction::Issue { token })) => {
                self.by.token.is_none() && token.tenant == self.by.tenant
            }
            Ok(Action::Token(TokenAction::Revoke { tenant, .. })) => {
                self.by.token.is_none() && tenant == self.by.tenant
            }
            _ => false,
        }
    }

    /// A lease is live, or history, or its first line (which names its tenant) is still to come.
    fn is_own_lease(&mut self, lease: LeaseId, line: &LogLine, reader: &JournalReader) -> Result<bool, OpenError> {
        if let Some(mine) = self.mine.get(&lease) {
            return Ok(*mine);
        }
        let tenant = match line.action() {
            Ok(Action::Lease(LeaseAction::Queue { tenant, .. })) => Some(tenant),
            _ => reader.ended(lease)?.map(|ended| ended.tenant),
        };
        let mine = match tenant {
            Some(_) => tenant == self.tenant,
            // The lease and its first line were trimmed; trimming noted the owner of what it left.
            None => reader.is_owned_by(&self.by.tenant, line.seq)?,
        };
        if self.mine.len() >= MINE_MAX {
            self.mine.clear();
        }
        self.mine.insert(lease, mine);
        Ok(mine)
    }
}

/// The unleased process of a line; `None` for lines about leases.
fn unleased_of(line: &LogLine) -> Option<UnleasedId> {
    line.lease.is_none().then(|| line.action().ok()?.unleased()).flatten()
}

/// The actor of lines that no user caused.
const DAEMON: &str = "sublet";

impl AuditFilter {
    /// A line as the caller may see it: without the leases of other users, and without their names where those are not
    /// shown.
    pub fn shown(&self, line: &LogLine, reader: &JournalReader) -> Result<wire::AuditLine, OpenError> {
        let action = line.action().ok();
        let mut sentence = action.as_ref().map_or_else(|| "written by another release".to_owned(), messages::action);
        let mut json = serde_json::from_str(&line.json).unwrap_or(serde_json::Value::Null);
        if let Some(other) = action.as_ref().and_then(Action::room_for)
            && !self.shows_users(other, reader)?
        {
            sentence = sentence.replace(&format!("for {other}"), "for another user's request");
            json.as_object_mut().map(|fields| fields.remove("room_for"));
        }
        let is_named = self.others == Visibility::All || line.actor == self.by.tenant || line.actor == DAEMON;
        Ok(wire::AuditLine {
            seq: line.seq,
            at_unix_s: (line.wall_us / 1000) as f64 / 1e3,
            actor: if is_named { line.actor.clone() } else { view::ANOTHER.to_owned() },
            lease: line.lease.map(|lease| lease.to_string()),
            kind: action.as_ref().map_or("unknown", |action| action.kind()).to_owned(),
            sentence,
            action: json,
            hash: line.hash.iter().map(|byte| format!("{byte:02x}")).collect(),
        })
    }

    fn shows_users(&self, lease: LeaseId, reader: &JournalReader) -> Result<bool, OpenError> {
        match self.mine.get(&lease) {
            _ if self.by.operator => Ok(true),
            Some(mine) => Ok(*mine),
            None => Ok(reader.ended(lease)?.is_some_and(|ended| Some(ended.tenant) == self.tenant)),
        }
    }
}
