//! A server's databases without the server: commands executed by the program that has the store
//! open.
//!
//! The parts of a collection, the expiry of keys and the keyspace of a database are the server's
//! own business, so a program that changes a server's data does it with the server's commands.

use crate::commands;
use crate::config::Settings;
use crate::data::Data;
use crate::server::{PrepareError, Server};
use crate::session::Session;
use bristlecone_pmem::media::Auto;
use bristlecone_store::{CloseError, Store, WriteError};
use std::sync::Arc;

/// The databases of a store, which are made if there are none.
///
/// # Examples
/// ```
/// # use bristlecone_pmem::{Pool, PoolOptions, media::Auto};
/// # use bristlecone_store::{Store, StoreOptions};
/// use bristlecone_server::Local;
///
/// # let dir = tempfile::tempdir()?;
/// # let pool = Pool::<Auto>::create(&dir.path().join("shop.pool"), &PoolOptions::default())?;
/// # let store = Store::create(&pool, "store", &StoreOptions::default())?;
/// let mut local = Local::open(store)?;
/// assert_eq!(local.execute(&[b"SELECT", b"3"]), b"+OK\r\n");
/// assert_eq!(local.execute(&[b"SET", b"greeting", b"hello"]), b"+OK\r\n");
/// local.settle()?; // durable from here on
/// assert_eq!(local.execute(&[b"GET", b"greeting"]), b"$5\r\nhello\r\n");
/// local.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Local {
    server: Server,
    session: Session,
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").finish_non_exhaustive()
    }
}

impl Local {
    /// Opens the databases of a store.
    ///
    /// # Errors
    /// [`PrepareError`]: the keyspaces of the databases cannot be made, or a thread cannot be
    /// started.
    pub fn open(store: Store<Auto>) -> Result<Self, PrepareError> {
        let data = Data::open(store).map_err(PrepareError::Data)?;
        let settings = Settings::default();
        let most = settings.maxclients;
        let server = Server::new(Arc::new(data), commands::table(), settings)?;
        let client = server
            .clients
            .enter(most, "local".into(), "local".into(), true)
            .unwrap_or_else(|| unreachable!("a server without clients has room for one"));
        // This is the only client, and its replies stay here: evicting it would free nothing.
        client.account.set_exempt(true);
        let session = Session::new(&server, client);
        Ok(Self { server, session })
    }

    /// Executes a command, and returns the reply in RESP2. Its changes are durable after the
    /// next [`settle`](Self::settle).
    ///
    /// Commands that wait, as `BLPOP` does, or that concern connections, as `SUBSCRIBE`, are not
    /// for this.
    pub fn execute(&mut self, args: &[&[u8]]) -> Vec<u8> {
        let mut reply = Vec::new();
        self.session.begin_batch(&self.server);
        let _flow = self.session.execute(&self.server, args, &mut reply);
        self.session.end_batch();
        reply
    }

    /// Waits until all that was executed is durable.
    ///
    /// # Errors
    /// [`WriteError::Commit`]: it may not be there after a crash.
    pub fn settle(&self) -> Result<(), WriteError> {
        let data = &self.server.data;
        data.settle(data.applied())
    }

    /// Closes the store, with all of it durable.
    ///
    /// # Errors
    /// [`CloseError`]; [`InUse`](CloseError::InUse) if the store is open elsewhere in this process.
    pub fn close(self) -> Result<(), CloseError> {
        let Self {
            server,
            mut session,
        } = self;
        session.leave(&server);
        drop(session);
        let data = Arc::clone(&server.data);
        drop(server);
        data.close()
    }
}
