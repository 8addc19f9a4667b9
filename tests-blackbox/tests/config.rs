//! The configuration from an operator's side: checked before it is used, and visible when it was refused.

use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Output;
use sublet_blackbox::binary::sublet;
use sublet_blackbox::programs::{successful_output, text};
use sublet_blackbox::service::bare_command;
use sublet_blackbox::user::is_root;
use sublet_blackbox::{LONG, ServiceSetup, TestService, until};
use sublet_wire::{Gpus, exit};

fn check(file: &Path, flags: &[&str]) -> Output {
    let home = file.parent().expect("a directory");
    let mut command = bare_command(sublet(), home);
    command.env("SUBLET_SOCKET", home.join("none")).args(["config", "check"]).arg(file).args(flags);
    command.output().expect("the command line starts")
}

#[test]
fn a_configuration_is_checked_without_a_daemon() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("sublet.toml");
    fs::write(&file, "ttl = \"2m\"\n[caps]\nleases = 3\n").expect("a file");
    let good = check(&file, &[]);
    assert_eq!(good.status.code(), Some(0), "{good:?}");
    assert!(text(&good).contains(&format!("{}: ok\n", file.display())) && text(&good).contains("TCP"), "{good:?}");

    fs::write(&file, "ttl = \"2m\"\nrenewal_cop = \"1h\"\n\n[caps]\nvram = \"lots\"\n").expect("a file");
    let wrong = check(&file, &[]);
    assert_eq!(wrong.status.code(), Some(exit::CONFIG.into()), "{wrong:?}");
    let said = text(&wrong);
    assert!(said.contains(&format!("{}:2: there is no key `renewal_cop` here", file.display())), "{said}");
    assert!(said.contains("is `renewal_cap` meant?"), "{said}");
    assert!(said.contains(&format!("{}:5: `caps.vram = \"lots\"` makes no sense", file.display())), "{said}");
    let json: Value = serde_json::from_slice(&check(&file, &["--json"]).stdout).expect("JSON");
    assert_eq!((json["ok"].as_bool(), json["errors"][1]["line"].as_u64()), (Some(false), Some(5)), "{json}");
    let missing = check(&dir.path().join("none.toml"), &[]);
    assert_eq!(missing.status.code(), Some(exit::CONFIG.into()), "{missing:?}");
    // A daemon refuses the same file with the same code.
    let serve =
        bare_command(sublet(), dir.path()).args(["serve", "--gpu", "scripted:1x24GiB", "--config"]).arg(&file).output();
    let serve = serve.expect("the command line starts");
    assert_eq!(serve.status.code(), Some(exit::CONFIG.into()), "{serve:?}");
}

#[test]
fn a_refused_reload_is_shown_to_operators_until_a_good_one() {
    let service =
        TestService::start_with(ServiceSetup { config: Some("ttl = \"2m\"\n".to_owned()), ..ServiceSetup::default() });
    let file = service.dir().join("sublet.toml");
    let trouble = || service.client().get("/v1/gpus").read::<Gpus>().config_trouble;
    assert_eq!(trouble(), None);
    fs::write(&file, "ttl = \"2m\"\nwait = \"soon\"\n").expect("a file");
    service.reload();
    let told = until("the refused reload is told", LONG, || trouble().ok_or(()));
    assert!(told.starts_with(&format!("{}:2: `wait = \"soon\"` makes no sense", file.display())), "{told}");
    for words in [&[][..], &["doctor"]] {
        let said = successful_output(&service, words);
        assert!(said.contains("last reload") && said.contains("sublet.toml:2:"), "{words:?}: {said}");
    }
    if is_root() {
        // What is in the file is not for every user.
        let mut command = service.command(&[]);
        let output = command.uid(12347).gid(12347).current_dir("/").output();
        match output {
            Ok(output) => assert!(output.status.success() && !text(&output).contains("last reload"), "{output:?}"),
            Err(error) => eprintln!("skipped: another user cannot start the binary here: {error}"),
        }
    }
    // The file is good now, and the daemon does not know it yet.
    fs::write(&file, "ttl = \"3m\"\n").expect("a file");
    let said = successful_output(&service, &["config", "check", file.to_str().expect("a plain path")]);
    assert!(said.contains(": ok") && said.contains("still uses an older configuration"), "{said}");
    service.reload();
    until("the good reload is told", LONG, || trouble().map_or(Ok(()), Err));
    let said = successful_output(&service, &["config", "check", file.to_str().expect("a plain path")]);
    assert!(!said.contains("older configuration"), "{said}");
}

#[test]
fn a_socket_for_a_group_is_closed_to_other_users() {
    if !is_root() {
        return eprintln!("skipped: giving a socket to a group takes root");
    }
    let config = Some("socket_group = \"daemon\"\n".to_owned());
    let service = TestService::start_with(ServiceSetup { config, ..ServiceSetup::default() });
    let gid = fs::metadata(service.dir().join("s")).expect("the socket is there");
    assert_eq!(gid.permissions().mode() & 0o777, 0o660);
    let as_user = |gid: u32| {
        let mut command = service.command(&["ps"]);
        command.uid(12347).gid(gid).current_dir("/").output()
    };
    let (Ok(member), Ok(other)) = (as_user(gid.gid()), as_user(12347)) else {
        return eprintln!("skipped: another user cannot start the binary here");
    };
    assert!(member.status.success(), "{member:?}");
    assert_eq!(other.status.code(), Some(exit::DENIED.into()), "{other:?}");
}
