//! `sublet tls`: makes a certificate for the TCP listener, for hosts without a certificate authority.
//!
//! The certificate is self-signed and cannot sign others: a client that trusts it (SUBLET_CA) trusts this one daemon
//! and nothing else.

use crate::args::Globals;
use crate::failure::{Failure, tell_hint};
use crate::output;
use crate::place;
use crate::table::plain;
use clap::{Args, Subcommand};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose};
use serde::Serialize;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use sublet_wire::exit;

/// Make a certificate for serving over TCP
#[derive(Args, Clone, Debug)]
pub struct TlsArgs {
    #[command(subcommand)]
    what: TlsAction,
}

/// What to do about certificates.
#[derive(Subcommand, Clone, Debug)]
enum TlsAction {
    Make(MakeArgs),
}

/// Write a certificate and its private key: cert.pem and key.pem
#[derive(Args, Clone, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub struct MakeArgs {
    /// Names and addresses by which clients reach this host
    #[arg(required = true, value_name = "HOST")]
    hosts: Vec<String>,
    /// The directory for both files
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// The certificate is valid for this many days
    #[arg(long, value_name = "N", default_value_t = 730, value_parser = clap::value_parser!(u16).range(1..=3650))]
    days: u16,
    /// Replace files that are there
    #[arg(long)]
    force: bool,
}

const AFTER_HELP: &str = "\
The daemon needs both files (`tls_cert` and `tls_key` in [tcp], or `sublet serve
--tls-cert --tls-key`); `kill -HUP` makes a running daemon read new ones.
Clients need a copy of cert.pem, which is no secret, and SUBLET_CA with its
path. curl takes it with --cacert.

Examples:
  sublet tls make gpu1 gpu1.example.org 192.0.2.7 --dir /etc/sublet
  SUBLET_CA=~/gpu1.pem SUBLET_TOKEN_FILE=~/.sublet-token \\
    sublet --url https://gpu1:7474";

/// What `--json` prints.
#[derive(Serialize)]
struct NewCertificateJson<'a> {
    cert: &'a Path,
    key: &'a Path,
    hosts: &'a [String],
    valid_until: String,
}

/// Runs `sublet tls`.
pub fn run(globals: &Globals, args: &TlsArgs) -> Result<u8, Failure> {
    match &args.what {
        TlsAction::Make(args) => make(globals, args),
    }
}

fn make(globals: &Globals, args: &MakeArgs) -> Result<u8, Failure> {
    if let Some(host) = args.hosts.iter().find(|host| !is_host(host)) {
        return Err(Failure::usage(format!("`{}` is not the name or address of a host", plain(host)))
            .hint("write it as in an address, without https:// and without a port"));
    }
    let dir = place::absolute(&args.dir);
    let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    if let Some(there) = [&cert, &key].into_iter().find(|path| path.exists() && !args.force) {
        return Err(Failure::new(exit::FAILURE, format!("{} is there already", there.display()))
            .hint("`--force` replaces it; clients then need the new cert.pem"));
    }
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let until = today.saturating_add(jiff::Span::new().days(i64::from(args.days)));
    let (cert_pem, key_pem) = certificate(&args.hosts, today, until)
        .map_err(|error| Failure::new(exit::FAILURE, format!("no certificate can be made: {error}")))?;
    write(&key, &key_pem, 0o600)?;
    write(&cert, &cert_pem, 0o644)?;
    if globals.json {
        output::json(&NewCertificateJson {
            cert: &cert,
            key: &key,
            hosts: &args.hosts,
            valid_until: until.to_string(),
        })?;
        return Ok(exit::OK);
    }
    output::print(&format!(
        "wrote {} (for {}, valid until {until})\nwrote {} (private: only its owner can read it)\n",
        cert.display(),
        args.hosts.join(", "),
        key.display()
    ))?;
    tell_hint(&format!(
        "`sublet serve --listen 0.0.0.0:7474 --tls-cert {} --tls-key {}` serves with it",
        cert.display(),
        key.display()
    ));
    tell_hint("clients need a copy of cert.pem, and SUBLET_CA with its path");
    Ok(exit::OK)
}

fn is_host(text: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    text.parse::<std::net::IpAddr>().is_ok() || (!text.is_empty() && text.len() <= 253 && text.chars().all(is_name))
}

/// A certificate for these hosts and its key, both PEM.
fn certificate(
    hosts: &[String],
    today: jiff::civil::Date,
    until: jiff::civil::Date,
) -> Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::new(hosts.to_vec())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Sublet on {}", hosts[0]));
    // So that a client with a clock that is a day behind accepts it too.
    let before = today.yesterday().unwrap_or(today);
    let midnight = |date: jiff::civil::Date| {
        rcgen::date_time_ymd(i32::from(date.year()), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    params.not_before = midnight(before);
    params.not_after = midnight(until);
    // With CA:TRUE it could sign for other hosts, and rustls would refuse it from a server.
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// Writes a file under a temporary name, and renames it to its place.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let beside = path.with_extension("pem.new");
    let written = || -> io::Result<()> {
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    written().map_err(|error| {
        let exit = if error.kind() == io::ErrorKind::PermissionDenied { exit::DENIED } else { exit::FAILURE };
        Failure::new(exit, format!("{} cannot be written: {error}", path.display()))
            .hint("`--dir` names a directory that is there, and that you may write to")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_and_addresses_and_nothing_else() {
        for good in ["gpu1", "gpu1.example.org", "192.0.2.7", "2001:db8::1", "a_b-c"] {
            assert!(is_host(good), "{good}");
        }
        for bad in ["", "https://gpu1", "gpu1:7474", "a b", "gpu1/"] {
            assert!(!is_host(bad), "{bad}");
        }
    }
}
