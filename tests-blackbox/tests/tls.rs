//! Certificates as people make them, and what is said where one does not work.

use serde_json::json;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use sublet_blackbox::binary::sublet;
use sublet_blackbox::programs::text;
use sublet_blackbox::service::bare_command;
use sublet_blackbox::token::Certificate;
use sublet_blackbox::{ServiceSetup, TestService};
use sublet_wire::exit;

fn serve(certificate: &Certificate) -> TestService {
    let config = format!("[tcp]\nlisten = \"127.0.0.1:0\"\n{}", certificate.config());
    TestService::start_with(ServiceSetup { config: Some(config), ..ServiceSetup::default() })
}

/// `sublet ps` against an address, with a good token.
fn ps(service: &TestService, home: &Path, url: &str, ca: Option<&Path>) -> Output {
    let (secret, _) = service.client().make_token(json!({ "tenant": "user:ana" }));
    let mut command = bare_command(sublet(), home);
    if let Some(ca) = ca {
        command.env("SUBLET_CA", ca);
    }
    command.env("SUBLET_TOKEN", secret).args(["--url", url, "ps"]).stdin(Stdio::null());
    command.output().expect("the command line starts")
}

fn made(dir: &Path) -> Certificate {
    Certificate { cert: dir.join("cert.pem"), key: dir.join("key.pem") }
}

#[test]
fn a_certificate_of_tls_make_is_served_and_trusted() {
    let home = tempfile::tempdir().expect("a directory");
    let make = |words: &[&str]| {
        let mut command = bare_command(sublet(), home.path());
        command.args(["tls", "make"]).args(words).output().expect("the command line starts")
    };
    let output = make(&["localhost", "127.0.0.1"]);
    assert!(output.status.success() && text(&output).contains("SUBLET_CA"), "{output:?}");
    let certificate = made(home.path());
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&certificate.key).expect("the key is there"));
    assert_eq!(mode & 0o777, 0o600, "only its owner reads the key");
    let before = fs::read(&certificate.cert).expect("a certificate");
    let again = make(&["localhost"]);
    assert!(!again.status.success() && text(&again).contains("--force"), "{again:?}");
    assert_eq!(fs::read(&certificate.cert).expect("a certificate"), before, "nothing was replaced");
    assert_eq!(make(&["https://gpu1"]).status.code(), Some(exit::USAGE.into()));

    let service = serve(&certificate);
    let port = service.address().port();
    for host in ["localhost", "127.0.0.1"] {
        let url = format!("https://{host}:{port}");
        let trusted = ps(&service, home.path(), &url, Some(&certificate.cert));
        assert!(trusted.status.success(), "{host}: {trusted:?}");
        let untrusted = ps(&service, home.path(), &url, None);
        assert_eq!(untrusted.status.code(), Some(exit::NO_DAEMON.into()), "{untrusted:?}");
        assert!(text(&untrusted).contains("SUBLET_CA"), "{untrusted:?}");
    }
    // The same file does for the rest of the world's clients.
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--cacert"]).arg(&certificate.cert);
    let curl = curl.arg(format!("https://localhost:{port}/healthz")).output();
    match curl {
        Ok(output) => assert!(output.status.success() && text(&output).contains("\"ok\""), "{output:?}"),
        Err(_) => eprintln!("skipped: there is no curl here"),
    }
    // A name that the certificate does not have.
    assert!(make(&["gpu1.example", "--force"]).status.success());
    service.reload();
    let url = format!("https://localhost:{port}");
    sublet_blackbox::until("the new certificate is served", sublet_blackbox::LONG, || {
        let output = ps(&service, home.path(), &url, Some(&certificate.cert));
        if text(&output).contains("is not for `localhost`") { Ok(()) } else { Err(text(&output)) }
    });
}

#[test]
fn a_certificate_of_openssl_is_refused_with_words_and_a_recipe() {
    let home = tempfile::tempdir().expect("a directory");
    let certificate = made(home.path());
    let request = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost";
    let mut openssl = Command::new("openssl");
    openssl.args(request.split(' ')).current_dir(home.path());
    let Ok(output) = openssl.args(["-keyout", "key.pem", "-out", "cert.pem"]).output() else {
        return eprintln!("skipped: there is no openssl here");
    };
    assert!(output.status.success(), "{output:?}");
    let service = serve(&certificate);
    let url = format!("https://localhost:{}", service.address().port());
    let output = ps(&service, home.path(), &url, Some(&certificate.cert));
    let said = text(&output);
    assert_eq!(output.status.code(), Some(exit::NO_DAEMON.into()), "{said}");
    assert!(said.contains("CA:TRUE") && said.contains("sublet tls make localhost"), "{said}");
    assert!(!said.contains("OtherError") && !said.contains("CaUsedAsEndEntity"), "no words of the library: {said}");
}

#[test]
fn plain_http_to_a_tls_port_gets_a_hint_to_use_https() {
    let home = tempfile::tempdir().expect("a directory");
    let service = serve(&Certificate::create(home.path()));
    let url = format!("http://localhost:{}", service.address().port());
    let output = ps(&service, home.path(), &url, None);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(exit::USAGE.into()), "{said}");
    assert!(said.contains("this port speaks TLS") && said.contains("https://"), "{said}");
    // Also a request that is longer than what the answer waits for.
    let long = vec![b'x'; 60 << 10];
    let answer = service.remote().send("POST", "/v1/leases", &[], &long);
    assert_eq!(answer.code(), "bad_request");
}
