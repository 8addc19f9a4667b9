//! `sublet usage`: the leased amounts, added up.

use crate::args::Globals;
use crate::client::Client;
use crate::failure::Failure;
use crate::output;
use crate::table::{Table, TextFormat};
use crate::text;
use clap::{Args, ValueEnum};
use sublet_wire::{Usage, UsageBy, exit, span};

/// Add up what was leased
#[derive(Args, Clone, Debug)]
pub struct UsageArgs {
    /// One row for each
    #[arg(long, value_enum, default_value_t = ByArg::Tenant)]
    by: ByArg,
}

/// `--by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ByArg {
    /// Each user
    Tenant,
    /// Each lease, the newest first
    Lease,
}

/// Runs `sublet usage`.
pub fn run(globals: &Globals, args: &UsageArgs) -> Result<u8, Failure> {
    let client = Client::open(globals)?;
    let usage: Usage = client.get(match args.by {
        ByArg::Tenant => "/v1/usage?by=tenant",
        ByArg::Lease => "/v1/usage?by=lease",
    })?;
    if globals.json {
        output::json(&usage)?;
    } else if usage.rows.is_empty() {
        eprintln!("nothing was leased yet");
    } else {
        output::print(&render(&usage, TextFormat::of_stdout()))?;
    }
    if usage.more {
        eprintln!("earlier leases are not listed here; `--by tenant` counts them too");
    }
    Ok(exit::OK)
}

fn render(usage: &Usage, format: TextFormat) -> String {
    match usage.by {
        UsageBy::Tenant => by_tenant(usage, format),
        UsageBy::Lease => by_lease(usage, format),
    }
}

fn by_tenant(usage: &Usage, format: TextFormat) -> String {
    let headers = ["~USER", ">LEASES", ">GPU TIME", ">GIB HOURS", ">PARKED GIB HOURS", ">REFUSED"];
    let mut table = Table::new(&headers).drops(&["REFUSED", "PARKED GIB HOURS"]);
    for row in &usage.rows {
        let time = span::show(row.gpu_seconds);
        let parked = row.parked_gib_seconds.map_or_else(|| text::NONE.to_owned(), gib_hours);
        let refused = row.refused.values().sum::<u64>().to_string();
        table.row([row.user.clone(), row.leases.to_string(), time, gib_hours(row.gib_seconds), parked, refused]);
    }
    table.show("", format)
}

fn by_lease(usage: &Usage, format: TextFormat) -> String {
    let mut table = Table::new(&["LEASE", "~NAME", "~USER", ">GPU TIME", ">GIB HOURS", ">PEAK"]).drops(&["PEAK"]);
    for row in &usage.rows {
        table.row([
            text::or_none(row.lease.as_deref()),
            text::or_none(row.name.as_deref()),
            row.user.clone(),
            span::show(row.gpu_seconds),
            gib_hours(row.gib_seconds),
            text::bytes(row.peak_bytes),
        ]);
    }
    table.show("", format)
}

fn gib_hours(gib_seconds: f64) -> String {
    format!("{:.2}", gib_seconds / 3600.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use sublet_wire::UsageRow;

    fn rows() -> Vec<UsageRow> {
        let ana = UsageRow {
            tenant: "uid:1000".into(),
            user: "ana".into(),
            lease: Some("L7".into()),
            name: Some("train".into()),
            leases: 12,
            gpu_seconds: 9000.0,
            gib_seconds: 90_000.0,
            parked_gib_seconds: Some(7_200.0),
            peak_bytes: Some(8 << 30),
            refused: [("no_room".to_owned(), 4_312)].into(),
        };
        let ben = UsageRow {
            user: "ben".into(),
            lease: Some("L8".into()),
            name: None,
            leases: 1,
            gpu_seconds: 42.0,
            gib_seconds: 3.0,
            parked_gib_seconds: Some(0.0),
            peak_bytes: None,
            refused: [].into(),
            ..ana.clone()
        };
        vec![ana, ben]
    }

    #[test]
    fn usage_adds_up_by_user_or_lease() {
        expect![[r#"
            USER  LEASES    GPU TIME  GIB HOURS  PARKED GIB HOURS  REFUSED
            ana       12  2 h 30 min      25.00              2.00     4312
            ben        1        42 s       0.00              0.00        0
        "#]]
        .assert_eq(&render(&Usage { by: UsageBy::Tenant, rows: rows(), more: false }, TextFormat::default()));
        expect![[r#"
            LEASE  NAME   USER    GPU TIME  GIB HOURS   PEAK
            L7     train  ana   2 h 30 min      25.00  8 GiB
            L8     -      ben         42 s       0.00      -
        "#]]
        .assert_eq(&render(&Usage { by: UsageBy::Lease, rows: rows(), more: false }, TextFormat::default()));
    }
}
