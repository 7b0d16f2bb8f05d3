//! The address for monitoring, over HTTP: metrics for Prometheus, health, and a status page.
//!
//! | path | answer |
//! | --- | --- |
//! | `/` | the status page, which asks for `/status.json` |
//! | `/metrics` | metrics, as Prometheus reads them |
//! | `/health` | 200, or 503 once the pool takes no more writes because the disk has failed |
//! | `/ready` | 200, or 503 while writes are refused, for whatever cause |
//! | `/status.json` | the state of the server |

mod prometheus;
mod status;

use crate::config::{Allowed, Settings};
use crate::server::Server;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::json;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// The longest head of a request in bytes, and how long request and answer may take.
const MAX_REQUEST: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an answer is good.
const FRESH: Duration = Duration::from_millis(100);
/// The status page.
const PAGE: &str = include_str!("page.html");
/// The page's Content-Security-Policy: its script asks this address, and no other.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'";

/// Answers monitors, and keeps its last answers.
#[derive(Debug)]
pub struct Monitor {
    server: Arc<Server>,
    metrics: Kept,
    status: Kept,
}

/// An answer that stays good for [`FRESH`]: it is made once, however many ask meanwhile.
#[derive(Debug, Default)]
struct Kept(Mutex<Option<(Instant, Bytes)>>);

impl Kept {
    fn get(&self, make: impl FnOnce() -> String) -> Bytes {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((made, answer)) if made.elapsed() < FRESH => answer.clone(),
            _ => {
                let answer = Bytes::from(make());
                *kept = Some((Instant::now(), answer.clone()));
                answer
            }
        }
    }
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The address that it was sent to is this machine's own.
    to_loopback: bool,
    /// It was sent by this machine.
    from_loopback: bool,
}

impl Monitor {
    /// Watches a server.
    pub fn new(server: Arc<Server>) -> Self {
        Self {
            server,
            metrics: Kept::default(),
            status: Kept::default(),
        }
    }

    /// Answers one request.
    pub async fn answer(self: Arc<Self>, stream: TcpStream) {
        let is_loopback = |address: io::Result<SocketAddr>| {
            address.is_ok_and(|address| address.ip().to_canonical().is_loopback())
        };
        let place = Place {
            to_loopback: is_loopback(stream.local_addr()),
            from_loopback: is_loopback(stream.peer_addr()),
        };
        let service = service_fn(|request| {
            let monitor = Arc::clone(&self);
            async move { Ok::<_, Infallible>(respond(&monitor, place, &request).await) }
        });
        let served = http1::Builder::new()
            .keep_alive(false)
            .header_read_timeout(None)
            .max_buf_size(MAX_REQUEST)
            .serve_connection(TokioIo::new(stream), service);
        // A client that does not read the answer is disconnected.
        if let Ok(Err(e)) = tokio::time::timeout(PATIENCE, served).await {
            tracing::debug!(error = %e, "a monitor was not answered");
        }
    }

    /// Returns the answer that `make` makes on a blocking thread: those that serve clients go on.
    async fn made(
        self: &Arc<Self>,
        of: fn(&Self) -> &Kept,
        make: fn(&Server) -> String,
    ) -> Result<Bytes, tokio::task::JoinError> {
        let monitor = Arc::clone(self);
        tokio::task::spawn_blocking(move || of(&monitor).get(|| make(&monitor.server))).await
    }
}

type Answer = Response<Full<Bytes>>;

fn answer_of(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    let never = HeaderValue::from_static("no-store");
    headers.insert(header::CACHE_CONTROL, never);
    let as_told = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, as_told);
    answer
}

fn text(status: StatusCode, text: &'static str) -> Answer {
    answer_of(status, "text/plain; charset=utf-8", text)
}

/// The causes that make a server unfit, as JSON: 503 if there are any.
fn fitness(causes: &[String]) -> Answer {
    let (status, word) = if causes.is_empty() {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "failing")
    };
    let body = json!({ "status": word, "causes": causes });
    answer_of(status, "application/json", body.to_string())
}

/// Why the status page is not for who asks.
fn hidden<B>(settings: &Settings, place: Place, request: &Request<B>) -> Option<Answer> {
    let is_shown = match settings.status_page {
        Allowed::Yes => true,
        Allowed::Local => place.from_loopback,
        Allowed::No => false,
    };
    if !is_shown {
        return Some(text(
            StatusCode::FORBIDDEN,
            "the setting status-page does not let you see commands and clients here: it is local unless set to yes or no\n",
        ));
    }
    let host = request.headers().get(header::HOST);
    if place.to_loopback && !host.is_none_or(names_loopback) {
        return Some(text(
            StatusCode::MISDIRECTED_REQUEST,
            "this address is this machine's own: ask for localhost or 127.0.0.1\n",
        ));
    }
    None
}

async fn respond<B>(monitor: &Arc<Monitor>, place: Place, request: &Request<B>) -> Answer {
    let server = &monitor.server;
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut answer = text(
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET and HEAD are answered\n",
        );
        let allowed = HeaderValue::from_static("GET, HEAD");
        answer.headers_mut().insert(header::ALLOW, allowed);
        return answer;
    }
    let path = request.uri().path();
    if matches!(path, "/" | "/status.json")
        && let Some(hidden) = hidden(&server.settings(), place, request)
    {
        return hidden;
    }
    let (kind, made) = match path {
        "/" => {
            let mut answer = answer_of(StatusCode::OK, "text/html; charset=utf-8", PAGE);
            let policy = HeaderValue::from_static(PAGE_POLICY);
            let headers = answer.headers_mut();
            headers.insert(header::CONTENT_SECURITY_POLICY, policy);
            return answer;
        }
        "/health" => return fitness(&server.broken()),
        "/ready" => return fitness(&server.unready()),
        "/metrics" => (
            "text/plain; version=0.0.4; charset=utf-8",
            monitor.made(|all| &all.metrics, prometheus::text).await,
        ),
        "/status.json" => {
            let make = |server: &Server| status::of(server).to_string();
            (
                "application/json",
                monitor.made(|all| &all.status, make).await,
            )
        }
        _ => {
            return text(
                StatusCode::NOT_FOUND,
                "here are /, /metrics, /health, /ready and /status.json\n",
            );
        }
    };
    match made {
        Ok(body) => answer_of(StatusCode::OK, kind, body),
        Err(_) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the answer could not be made; the log says why\n",
        ),
    }
}

/// Whether the header `Host` names this machine. A page of somebody else's, whose name was made to
/// lead to this machine after it was loaded, sends its own name.
fn names_loopback(host: &HeaderValue) -> bool {
    let Ok(host) = host.to_str() else {
        return false;
    };
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split_once(']').map_or(v6, |(address, _)| address),
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    let is_address = |address: IpAddr| address.to_canonical().is_loopback();
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands;
    use crate::data::Data;
    use crate::fixture::{Fixture, on_disk};
    use bristlecone_pmem::media::journal::fault::FaultDisk;

    fn monitor(data: Data) -> Arc<Monitor> {
        let server = Server::new(Arc::new(data), commands::table(), Settings::default());
        Arc::new(Monitor::new(Arc::new(server.unwrap())))
    }

    fn ask(monitor: &Arc<Monitor>, place: Place, method: &str, path: &str, host: &str) -> Answer {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("Host", host).body(()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(respond(monitor, place, &request))
    }

    const HERE: Place = Place {
        to_loopback: true,
        from_loopback: true,
    };

    #[test]
    fn paths_methods_and_hosts() {
        let fixture = Fixture::new();
        let monitor = monitor(fixture.open());
        for (method, path, host, status) in [
            ("GET", "/", "localhost:9121", 200),
            ("HEAD", "/", "LOCALHOST", 200),
            ("GET", "/metrics?x=1", "127.0.0.1:9121", 200),
            ("GET", "/health", "[::1]:9121", 200),
            ("GET", "/ready", "127.0.0.9", 200),
            ("GET", "/status.json", "[::ffff:127.0.0.1]:80", 200),
            ("GET", "/other", "localhost", 404),
            ("POST", "/metrics", "localhost", 405),
            ("GET", "/status.json", "evil.example:9121", 421),
            ("GET", "/", "localhost.evil.example", 421),
            ("GET", "/status.json", "", 421),
            // The machine may have a name for that address.
            ("GET", "/metrics", "db7:9121", 200),
        ] {
            let answer = ask(&monitor, HERE, method, path, host);
            assert_eq!(answer.status(), status, "{method} {path} {host}");
        }
    }

    #[test]
    fn other_machines_see_numbers_unless_they_may_see_more() {
        let fixture = Fixture::new();
        let monitor = monitor(fixture.open());
        let there = Place {
            to_loopback: false,
            from_loopback: false,
        };
        let status = |path| {
            ask(&monitor, there, "GET", path, "db7:9121")
                .status()
                .as_u16()
        };
        assert_eq!(["/metrics", "/health", "/ready"].map(status), [200; 3]);
        assert_eq!(["/", "/status.json"].map(status), [403; 2]);
        monitor.server.change(&[("status-page", "yes")]).unwrap();
        assert_eq!(["/", "/status.json"].map(status), [200; 2]);
        monitor.server.change(&[("status-page", "no")]).unwrap();
        let here = ask(&monitor, HERE, "GET", "/", "localhost");
        assert_eq!(here.status(), 403);
    }

    #[test]
    fn health_and_readiness_say_what_the_disk_does() {
        let (fixture, disk) = (Fixture::new(), FaultDisk::new(1));
        let monitor = monitor(on_disk(&disk, true));
        let server = &monitor.server;
        let fit = |path| {
            ask(&monitor, HERE, "GET", path, "localhost")
                .status()
                .as_u16()
        };
        let set = || {
            fixture.call(&server.data, "set key value");
            server.data.settle(server.data.applied())
        };
        set().unwrap();
        assert_eq!((fit("/health"), fit("/ready")), (200, 200));
        // A full disk may have room again.
        disk.set_full(true);
        set().unwrap_err();
        assert_eq!((fit("/health"), fit("/ready")), (200, 503));
        // Nobody need send a write to find that out.
        server.data.try_to_write().unwrap_err();
        assert_eq!((fit("/health"), fit("/ready")), (200, 503));
        disk.set_full(false);
        server.data.try_to_write().unwrap();
        assert_eq!((fit("/health"), fit("/ready")), (200, 200));
        disk.fail_sync(1);
        set().unwrap_err();
        assert_eq!((fit("/health"), fit("/ready")), (503, 503));
        let cause = server.data.io_error().unwrap().to_owned();
        assert!(cause.contains("takes no more writes"), "{cause}");
        assert_eq!(status::of(server)["health"]["broken"][0], cause);
    }

    #[test]
    fn metrics_have_the_form_that_prometheus_reads() {
        let fixture = Fixture::new();
        let monitor = monitor(fixture.open());
        let server = &monitor.server;
        let issued = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().parse::<u64>().unwrap()
        };
        let before = prometheus::text(server);
        fixture.call(&server.data, "set here x");
        fixture.call(&server.data, "mget here here gone");
        let text = prometheus::text(server);
        for name in ["lines", "fences"] {
            let name = format!("bristlecone_persist_{name}_total ");
            assert!(
                issued(&text, &name) > issued(&before, &name),
                "{name}\n{text}"
            );
        }
        for line in [
            "bristlecone_hits_total 2",
            "bristlecone_misses_total 1",
            "bristlecone_keys{db=\"0\"} 1",
            "bristlecone_ready 1",
            "bristlecone_sync_seconds_bucket{le=\"+Inf\"} 0",
        ] {
            assert!(text.lines().any(|there| there == line), "{line}\n{text}");
        }
        // Each metric is declared once, before its values.
        let mut declared = std::collections::BTreeSet::new();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("# TYPE ") {
                let name = name.split(' ').next().unwrap();
                assert!(declared.insert(name.to_owned()), "{name}");
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                let family = ["_bucket", "_sum", "_count"];
                let family = family.iter().find_map(|end| name.strip_suffix(end));
                assert!(
                    declared.contains(name) || declared.contains(family.unwrap_or("")),
                    "{line}"
                );
            }
        }
    }
}
