//! TLS, by rustls.

use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// What accepts TLS connections with this certificate. The error names the file.
pub fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let of = |file: &Path, e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
    let certs: Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert)
        .map_err(|e| of(cert, &e))?
        .collect();
    let certs = certs.map_err(|e| of(cert, &e))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| of(key, &e))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_no_client_auth()
        .with_single_cert(certs, private)
        .map_err(|e| of(cert, &e))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
