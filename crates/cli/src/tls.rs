//! Connections to a server: plain, or TLS with certificates that the user names.

use bristlecone_command::failure::{Failure, Outcome};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Both directions of a connection.
pub trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

/// Begins TLS on a connection to `address`, whose certificate must rest on one of those in `file`
/// (PEM).
///
/// # Errors
/// The file has no certificate, or the server has another, or is no server of TLS.
pub fn encrypted(tcp: TcpStream, address: &str, file: &Path) -> Outcome<impl Stream + use<>> {
    let of_file = |e: &dyn std::fmt::Display| Failure::new(format!("{}: {e}", file.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|e| of_file(&e))? {
        let certificate = certificate.map_err(|e| of_file(&e))?;
        roots.add(certificate).map_err(|e| of_file(&e))?;
    }
    if roots.is_empty() {
        return Err(of_file(&"there is no certificate in it"));
    }
    let of_tls = |e: &dyn std::fmt::Display| Failure::new(format!("{address}: TLS: {e}"));
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| of_tls(&e))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(host).map_err(|e| of_tls(&e))?;
    let session = ClientConnection::new(Arc::new(config), name).map_err(|e| of_tls(&e))?;
    let mut stream = StreamOwned::new(session, tcp);
    // The handshake, so that what is wrong with it is told as such.
    while stream.conn.is_handshaking() {
        stream
            .conn
            .complete_io(&mut stream.sock)
            .map_err(|e| of_tls(&e))?;
    }
    Ok(stream)
}
