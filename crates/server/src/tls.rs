//! TLS, by rustls: the certificate, which can be reloaded while the server runs.

use crate::config::{ClientCertificates, Settings};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// The files of TLS.
#[derive(Clone, Debug)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
    /// Those of the authorities of clients, and which clients have to show a certificate.
    clients: Option<(PathBuf, ClientCertificates)>,
}

/// The certificate that clients are shown, and those that they show.
pub struct Certificate {
    files: Files,
    acceptor: RwLock<TlsAcceptor>,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("files", &self.files)
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
        if listen.is_none() && settings.tls_ca_cert.is_some() {
            return Err("tls-ca-cert is set without tls-listen: nobody would be asked".into());
        }
        if settings.tls_user_of_certificate && settings.tls_ca_cert.is_none() {
            return Err("tls-auth-clients-user needs tls-ca-cert".into());
        }
        match (listen, cert, key) {
            (None, None, None) => Ok(None),
            (Some(_), Some(cert), Some(key)) => {
                let authorities = settings.tls_ca_cert.clone();
                let files = Files {
                    cert: cert.clone(),
                    key: key.clone(),
                    clients: authorities.map(|file| (file, settings.tls_auth_clients)),
                };
                Ok(Some(Self {
                    acceptor: RwLock::new(acceptor(&files)?),
                    files,
                }))
            }
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
        let new = acceptor(&self.files)?;
        let acceptor = self.acceptor.write();
        *acceptor.unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Returns true if every client has to show a certificate.
    pub fn is_required_of_clients(&self) -> bool {
        matches!(self.files.clients, Some((_, ClientCertificates::Required)))
    }

    /// Returns the acceptor of connections with the current certificate.
    pub fn acceptor(&self) -> TlsAcceptor {
        let acceptor = self.acceptor.read();
        acceptor.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns the acceptor of TLS connections with these certificates. The error names the file.
fn acceptor(files: &Files) -> Result<TlsAcceptor, String> {
    let of = |file: &Path, e: &dyn fmt::Display| format!("{}: {e}", file.display());
    let read = |file: &Path| -> Result<Vec<_>, String> {
        let all = CertificateDer::pem_file_iter(file).map_err(|e| of(file, &e))?;
        all.collect::<Result<_, _>>().map_err(|e| of(file, &e))
    };
    let Files { cert, key, clients } = files;
    let certs = read(cert)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| of(key, &e))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some((file, which)) => {
            let mut roots = RootCertStore::empty();
            for authority in read(file)? {
                roots.add(authority).map_err(|e| of(file, &e))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = match which {
                ClientCertificates::Required => verifier,
                ClientCertificates::Optional => verifier.allow_unauthenticated(),
            };
            builder.with_client_cert_verifier(verifier.build().map_err(|e| of(file, &e))?)
        }
    };
    let config = builder
        .with_single_cert(certs, private)
        .map_err(|e| of(cert, &e))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Returns the common name in the certificate that a client has shown.
pub(crate) fn common_name(shown: Option<&[CertificateDer<'_>]>) -> Option<String> {
    let (_, certificate) = x509_parser::parse_x509_certificate(shown?.first()?).ok()?;
    let name = certificate.subject().iter_common_name().next()?;
    Some(name.as_str().ok()?.to_owned())
}
