//! TLS: certificates of the server, which can be reloaded, and of clients.

use crate::live::{Client, Live, connect, same, settings};
use bristlecone_pmem::MediumKind;
use bristlecone_server::Running;
use bristlecone_server::config::{ClientCertificates, Settings};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Makes a key and a self-signed certificate for `localhost`. Returns false without openssl.
fn make_certificate(key: &Path, cert: &Path) -> bool {
    let mut openssl = Command::new("openssl");
    openssl
        .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"])
        .args(["-pkeyopt", "ec_paramgen_curve:P-256"])
        .args(["-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(key)
        .arg("-out")
        .arg(cert)
        .stderr(Stdio::null());
    openssl.status().is_ok_and(|status| status.success())
}

/// Makes a key and a certificate of that common name, which the authority in `folder` has signed,
/// and that authority, if it is not there.
fn make_client_certificate(folder: &Path, authority: &str, name: &str) {
    let run = |words: &str| {
        let status = Command::new("openssl")
            .current_dir(folder)
            .args(words.split(' '))
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success(), "openssl {words}");
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    if !folder.join(format!("{authority}.pem")).exists() {
        run(&format!(
            "req -x509 {key} -days 2 -subj /CN={authority} -keyout {authority}.key -out {authority}.pem"
        ));
    }
    std::fs::write(folder.join("ext"), "basicConstraints=critical,CA:FALSE\n").unwrap();
    run(&format!(
        "req -new {key} -subj /CN={name} -keyout {name}.key -out {name}.csr"
    ));
    run(&format!(
        "x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -days 2 -extfile ext -out {name}.pem"
    ));
}

/// Connects a client that trusts that certificate and no other.
fn trusting(cert: &Path, address: SocketAddr) -> Client<StreamOwned<ClientConnection, TcpStream>> {
    showing(cert, None, address)
}

/// As [`trusting`], with a certificate of its own: its folder and name.
fn showing(
    cert: &Path,
    own: Option<(&Path, &str)>,
    address: SocketAddr,
) -> Client<StreamOwned<ClientConnection, TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(cert).unwrap())
        .unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => config.with_no_client_auth(),
        Some((folder, name)) => {
            let chain = CertificateDer::from_pem_file(folder.join(format!("{name}.pem")));
            let key = PrivateKeyDer::from_pem_file(folder.join(format!("{name}.key")));
            let shown = config.with_client_auth_cert(vec![chain.unwrap()], key.unwrap());
            shown.unwrap()
        }
    };
    let name = "localhost".try_into().unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    Client::new(StreamOwned::new(session, connect(address)))
}

/// A new certificate took a restart.
#[test]
fn a_certificate_is_read_again_and_a_wrong_one_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let (key, cert) = (dir.path().join("key"), dir.path().join("cert"));
    if !make_certificate(&key, &cert) {
        eprintln!("SKIPPED: no openssl here that makes a certificate");
        return;
    }
    let live = Live::with(
        Settings {
            tls_listen: Some("127.0.0.1:0".into()),
            tls_cert: Some(cert.clone()),
            tls_key: Some(key.clone()),
            ..settings()
        },
        MediumKind::Mapped,
    );
    let address = live.running().tls_address().unwrap();
    let mut before = trusting(&cert, address);
    same(&before.call("PING"), "+PONG\n");
    let first = dir.path().join("first");
    std::fs::rename(&cert, &first).unwrap();
    std::fs::write(&cert, "no certificate").unwrap();
    live.running().reload();
    same(&trusting(&first, address).call("PING"), "+PONG\n");
    // A key that is another certificate's.
    let other = dir.path().join("other");
    assert!(make_certificate(&other, &cert));
    live.running().reload();
    same(&trusting(&first, address).call("PING"), "+PONG\n");
    std::fs::rename(&other, &key).unwrap();
    live.running().reload();
    same(&trusting(&cert, address).call("PING"), "+PONG\n");
    let mut outdated = trusting(&first, address);
    assert!(outdated.stream.write_all(b"PING\r\n").is_err() || outdated.try_reply().is_err());
    same(&before.call("PING"), "+PONG\n");
}

#[test]
fn tls_is_spoken_where_it_is_listened_for() {
    let dir = tempfile::tempdir().unwrap();
    let (key, cert) = (dir.path().join("key"), dir.path().join("cert"));
    if !make_certificate(&key, &cert) {
        eprintln!("SKIPPED: no openssl here that makes a certificate");
        return;
    }
    let live = Live::with(
        Settings {
            tls_listen: Some("127.0.0.1:0".into()),
            tls_cert: Some(cert.clone()),
            tls_key: Some(key),
            ..settings()
        },
        MediumKind::Mapped,
    );
    let address = live.running().tls_address().unwrap();
    let mut client = trusting(&cert, address);
    same(&client.call("PING"), "+PONG\n");
    let value = "x".repeat(100_000);
    same(&client.call(&format!("SET k {value}")), "+OK\n");
    same(&client.call("GET k"), &format!("$100000\n{value}\n"));
    // Without TLS nothing is answered there.
    let mut plain = Client::new(connect(address));
    plain.send(b"PING\r\n");
    assert!(plain.is_closed());
    same(&live.client().call("STRLEN k"), ":100000\n");
}

/// Whether a client is let in: a refused certificate ends the connection at its first use.
fn is_let_in(client: &mut Client<StreamOwned<ClientConnection, TcpStream>>) -> bool {
    let asked = client.stream.write_all(b"PING\r\n");
    asked.is_ok() && client.stream.read(&mut [0; 7]).is_ok_and(|read| read > 0)
}

#[test]
fn clients_show_certificates_that_name_their_users() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let (key, cert) = (folder.join("key"), folder.join("cert"));
    if !make_certificate(&key, &cert) {
        eprintln!("SKIPPED: no openssl here that makes a certificate");
        return;
    }
    for name in ["bob", "nobody"] {
        make_client_certificate(folder, "ours", name);
    }
    make_client_certificate(folder, "theirs", "eve");
    let with = |which, by_name| Settings {
        tls_listen: Some("127.0.0.1:0".into()),
        tls_cert: Some(cert.clone()),
        tls_key: Some(key.clone()),
        tls_ca_cert: Some(folder.join("ours.pem")),
        tls_auth_clients: which,
        tls_user_of_certificate: by_name,
        users: vec!["bob on >pw ~* +@all".into(), "eve on >pw ~* +@all".into()],
        ..settings()
    };
    let live = Live::with(with(ClientCertificates::Required, true), MediumKind::Mapped);
    let address = live.running().tls_address().unwrap();
    let mut bob = showing(&cert, Some((folder, "bob")), address);
    same(&bob.call("ACL WHOAMI"), "$3\nbob\n");
    same(&bob.call("SET a 1"), "+OK\n");
    // Of our authority, but no user: that client has to log in.
    let mut nobody = showing(&cert, Some((folder, "nobody")), address);
    assert!(nobody.call("GET a").starts_with("-NOAUTH"));
    same(&nobody.call("AUTH bob pw"), "+OK\n");
    same(&nobody.call("GET a"), "$1\n1\n");
    assert!(!is_let_in(&mut showing(
        &cert,
        Some((folder, "eve")),
        address
    )));
    assert!(!is_let_in(&mut trusting(&cert, address)));
    drop(live);
    let live = Live::with(
        with(ClientCertificates::Optional, false),
        MediumKind::Mapped,
    );
    let address = live.running().tls_address().unwrap();
    for own in [None, Some((folder, "bob"))] {
        let mut client = showing(&cert, own, address);
        same(&client.call("ACL WHOAMI"), "$7\ndefault\n");
    }
    assert!(!is_let_in(&mut showing(
        &cert,
        Some((folder, "eve")),
        address
    )));
    // Wrong settings are told before anything is served.
    let nowhere = folder.join("none.pem");
    for (settings, told) in [
        (
            Settings {
                tls_listen: None,
                ..with(ClientCertificates::Required, false)
            },
            "tls-listen",
        ),
        (
            Settings {
                tls_ca_cert: None,
                ..with(ClientCertificates::Required, true)
            },
            "tls-ca-cert",
        ),
        (
            Settings {
                tls_ca_cert: Some(nowhere),
                ..with(ClientCertificates::Required, true)
            },
            "none.pem",
        ),
    ] {
        let error = Running::check(&settings).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
    }
}
