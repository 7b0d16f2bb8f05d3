//! TLS, by rustls: the certificate, which can be reloaded while the server runs.

use crate::config::Settings;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The certificate that clients are shown, and its files.
pub struct Certificate {
    cert: PathBuf,
    key: PathBuf,
    acceptor: RwLock<TlsAcceptor>,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("cert", &self.cert)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Certificate {
    /// Loads the certificate that the settings name; `None` if they do not mention TLS.
    ///
    /// # Errors
    /// A setting is missing, or a file is not usable; the text names it and the cause.
    pub fn of(settings: &Settings) -> Result<Option<Self>, String> {
        let (listen, cert, key) = (&settings.tls_listen, &settings.tls_cert, &settings.tls_key);
        match (listen, cert, key) {
            (None, None, None) => Ok(None),
            (Some(_), Some(cert), Some(key)) => Ok(Some(Self {
                acceptor: RwLock::new(acceptor(cert, key)?),
                cert: cert.clone(),
                key: key.clone(),
            })),
            (Some(_), ..) => Err("tls-listen needs tls-cert and tls-key".into()),
            (None, Some(_), Some(_)) => {
                Err("tls-cert and tls-key are set without tls-listen: nobody would see them".into())
            }
            (None, Some(_), None) => Err("tls-cert needs tls-key and tls-listen".into()),
            (None, None, Some(_)) => Err("tls-key needs tls-cert and tls-listen".into()),
        }
    }

    /// Reads the files again. Clients that connect later are shown the new certificate.
    ///
    /// # Errors
    /// A file is not usable; the text names it and the cause. The previous certificate stays.
    pub fn reload(&self) -> Result<(), String> {
        let new = acceptor(&self.cert, &self.key)?;
        let acceptor = self.acceptor.write();
        *acceptor.unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Returns the acceptor of connections with the current certificate.
    pub fn acceptor(&self) -> TlsAcceptor {
        let acceptor = self.acceptor.read();
        acceptor.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns the acceptor of TLS connections with this certificate. The error names the file.
fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let of = |file: &Path, e: &dyn fmt::Display| format!("{}: {e}", file.display());
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
