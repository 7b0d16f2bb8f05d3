//! An example: orders over HTTP, with axum. It is a crate of its own, so that a build of the
//! library does not compile a web server.
//!
//! ```text
//! cargo run -p bristlecone-service                          # asks itself a few questions, and ends
//! cargo run -p bristlecone-service -- 127.0.0.1:8080        # serves until Ctrl-C
//! curl -X PUT -d packed http://127.0.0.1:8080/orders/17
//! curl http://127.0.0.1:8080/orders
//! ```
//!
//! A commit waits for the disk, so each request uses the database on a thread that may block.
//! Simultaneous requests share a sync.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bristlecone::{Database, Keyspace};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// An error of the database, as a response.
struct Failed(String);

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.0).into_response()
    }
}

/// Runs `f` on a thread that may wait for the disk.
async fn with<R: Send + 'static>(
    orders: Keyspace,
    f: impl FnOnce(&Keyspace) -> bristlecone::Result<R> + Send + 'static,
) -> Result<R, Failed> {
    match spawn_blocking(move || f(&orders)).await {
        Ok(done) => done.map_err(|e| Failed(e.to_string())),
        Err(e) => Err(Failed(e.to_string())),
    }
}

/// Returns every order, one a line.
async fn list(State(orders): State<Keyspace>) -> Result<String, Failed> {
    with(orders, |orders| {
        let mut lines = String::new();
        for entry in orders {
            let (id, state) = entry?;
            lines += &format!("{} {}\n", id.escape_ascii(), state.escape_ascii());
        }
        Ok(lines)
    })
    .await
}

async fn read(State(orders): State<Keyspace>, Path(id): Path<String>) -> Result<Response, Failed> {
    let found = with(orders, move |orders| Ok(orders.get(&id)?.map(Vec::from))).await?;
    Ok(match found {
        Some(state) => state.into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    })
}

/// The order is durable when the response is sent.
async fn write(
    State(orders): State<Keyspace>,
    Path(id): Path<String>,
    state: Bytes,
) -> Result<StatusCode, Failed> {
    with(orders, move |orders| orders.insert(&id, &state)).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn remove(
    State(orders): State<Keyspace>,
    Path(id): Path<String>,
) -> Result<StatusCode, Failed> {
    Ok(
        match with(orders, move |orders| orders.remove(&id)).await? {
            true => StatusCode::NO_CONTENT,
            false => StatusCode::NOT_FOUND,
        },
    )
}

fn service(orders: Keyspace) -> Router {
    Router::new()
        .route("/orders", get(list))
        .route("/orders/{id}", get(read).put(write).delete(remove))
        .with_state(orders)
}

/// Sends one request, and returns the response.
fn ask(at: SocketAddr, method: &str, path: &str, body: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(at)?;
    let len = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Asks the service a few questions.
fn try_out(at: SocketAddr) -> io::Result<()> {
    for (method, path, body, expected) in [
        ("PUT", "/orders/17", "packed", "204"),
        ("PUT", "/orders/18", "new", "204"),
        ("DELETE", "/orders/18", "", "204"),
        ("GET", "/orders/18", "", "404"),
        ("GET", "/orders", "", "17 packed"),
    ] {
        let answer = ask(at, method, path, body)?;
        let status = answer.lines().next().unwrap_or_default();
        println!("{method} {path}: {status}");
        assert!(answer.contains(expected), "{answer}");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let folder = tempfile::tempdir()?;
    let db = Database::open(folder.path().join("orders.db"))?;
    let service = service(db.keyspace("orders")?);
    match std::env::args().nth(1) {
        Some(address) => {
            let listener = TcpListener::bind(address).await?;
            println!("http://{}/orders, until Ctrl-C", listener.local_addr()?);
            let stop = async { drop(tokio::signal::ctrl_c().await) };
            axum::serve(listener, service)
                .with_graceful_shutdown(stop)
                .await?;
        }
        None => {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let at = listener.local_addr()?;
            let (done, stop) = tokio::sync::oneshot::channel();
            let asking = spawn_blocking(move || {
                let tried = try_out(at);
                // If the service has failed, the receiver is gone.
                let _ = done.send(());
                tried
            });
            let stop = async { drop(stop.await) };
            axum::serve(listener, service)
                .with_graceful_shutdown(stop)
                .await?;
            asking.await??;
        }
    }
    db.flush()?;
    Ok(())
}
