//! The network block device protocol, of which a server needs little: QEMU attaches a disk of
//! this process by it.
//!
//! The handshake is "fixed newstyle"; replies are simple ones. Numbers are big-endian.

use super::disk::{Disk, Flush, SECTOR};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

const OPTION: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
/// The largest request: that of QEMU.
const LARGEST: u32 = 32 << 20;

/// Options of the handshake.
mod option {
    pub const ABORT: u32 = 2;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    /// Replies to them.
    pub const ACK: u32 = 1;
    pub const INFORMATION: u32 = 3;
    pub const UNSUPPORTED: u32 = 1 << 31 | 1;
}

/// Requests.
mod kind {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISCONNECT: u16 = 2;
    pub const FLUSH: u16 = 3;
}

/// Flags of the export: there are flags, FLUSH and FUA are known.
const EXPORT_FLAGS: u16 = 1 | 4 | 8;
/// The flag of a request that asks for durability.
const FUA: u16 = 1;
const INVALID: u32 = 22;

/// Powers `disk` on and serves it until the client has gone. After its power is off, requests are
/// not answered.
///
/// # Errors
/// The client does not speak the protocol.
pub fn serve(stream: UnixStream, disk: &Mutex<Disk>) -> Result<(), String> {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    locked(disk).power_on();
    let done = connection(stream, disk);
    locked(disk).power_off_after(0);
    match done {
        Err(e) if matches!(e.kind(), UnexpectedEof | BrokenPipe | ConnectionReset) => Ok(()),
        done => done.map_err(|e| format!("the disk's connection: {e}")),
    }
}

fn strange(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn number<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn u16_of(from: &mut impl Read) -> io::Result<u16> {
    number(from).map(u16::from_be_bytes)
}

fn u32_of(from: &mut impl Read) -> io::Result<u32> {
    number(from).map(u32::from_be_bytes)
}

fn u64_of(from: &mut impl Read) -> io::Result<u64> {
    number(from).map(u64::from_be_bytes)
}

fn bytes_of(from: &mut impl Read, length: u32) -> io::Result<Vec<u8>> {
    if length > LARGEST {
        return Err(strange(format!("{length} bytes in one request")));
    }
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn connection(stream: UnixStream, disk: &Mutex<Disk>) -> io::Result<()> {
    let to = Mutex::new(stream.try_clone()?);
    let mut from = BufReader::new(stream);
    let size = locked(disk).len() as u64;
    if !handshake(&mut from, &mut *locked(&to), size)? {
        return Ok(());
    }
    std::thread::scope(|scope| {
        requests(&mut from, |request| {
            let Some(answer) = request.execute(disk) else {
                return Ok(());
            };
            let Some(flush) = answer.flush else {
                return request.reply(&mut *locked(&to), answer.error, &answer.data);
            };
            // Other requests go on meanwhile.
            let to = &to;
            scope.spawn(move || {
                std::thread::sleep(flush.takes);
                let mut disk = locked(disk);
                if !disk.is_off() {
                    disk.end_flush(flush);
                    drop(disk);
                    // The client may have gone.
                    let _ = request.reply(&mut *locked(to), answer.error, &answer.data);
                }
            });
            Ok(())
        })
    })
}

/// A request.
struct Request {
    durably: bool,
    kind: u16,
    cookie: u64,
    offset: u64,
    length: u32,
    payload: Vec<u8>,
}

/// What a request comes to.
#[derive(Default)]
struct Answer {
    error: u32,
    data: Vec<u8>,
    /// To be ended before the reply.
    flush: Option<Flush>,
}

/// Passes each request on, until the client ends the connection.
fn requests(
    from: &mut impl Read,
    mut take: impl FnMut(Request) -> io::Result<()>,
) -> io::Result<()> {
    loop {
        let magic = u32_of(from)?;
        if magic != REQUEST {
            return Err(strange(format!("a request begins with {magic:#x}")));
        }
        let (flags, kind) = (u16_of(from)?, u16_of(from)?);
        let (cookie, offset, length) = (u64_of(from)?, u64_of(from)?, u32_of(from)?);
        let payload = match kind {
            kind::WRITE => bytes_of(from, length)?,
            kind::DISCONNECT => return Ok(()),
            _ => Vec::new(),
        };
        take(Request {
            durably: flags & FUA != 0,
            kind,
            cookie,
            offset,
            length,
            payload,
        })?;
    }
}

impl Request {
    /// Does what is asked; `None` if the power is off, or went off meanwhile.
    fn execute(&self, disk: &Mutex<Disk>) -> Option<Answer> {
        let mut disk = locked(disk);
        if disk.is_off() {
            return None;
        }
        let length = self.length.min(LARGEST) as usize;
        let mut answer = Answer::default();
        match (self.kind, disk.sectors(self.offset, length)) {
            (kind::READ, Some(sectors)) => answer.data = disk.read(sectors),
            (kind::WRITE, Some(sectors)) => {
                disk.write(sectors.clone(), &self.payload);
                answer.flush = self.durably.then(|| disk.begin_flush(sectors));
            }
            (kind::FLUSH, _) => answer.flush = Some(disk.begin_flush(0..u64::MAX)),
            _ => answer.error = INVALID,
        }
        (!disk.is_off()).then_some(answer)
    }

    fn reply(&self, to: &mut impl Write, error: u32, data: &[u8]) -> io::Result<()> {
        let mut reply = Vec::with_capacity(16 + data.len());
        reply.extend_from_slice(&REPLY.to_be_bytes());
        reply.extend_from_slice(&error.to_be_bytes());
        reply.extend_from_slice(&self.cookie.to_be_bytes());
        reply.extend_from_slice(data);
        to.write_all(&reply)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns true when requests follow, and false if the client wants nothing more.
fn handshake(from: &mut impl Read, to: &mut impl Write, size: u64) -> io::Result<bool> {
    // Fixed newstyle, and no padding after the old option for exports.
    to.write_all(b"NBDMAGIC")?;
    to.write_all(&OPTION.to_be_bytes())?;
    to.write_all(&3_u16.to_be_bytes())?;
    u32_of(from)?;
    loop {
        let magic = u64_of(from)?;
        if magic != OPTION {
            return Err(strange(format!("an option begins with {magic:#x}")));
        }
        let (option, length) = (u32_of(from)?, u32_of(from)?);
        bytes_of(from, length)?;
        let mut reply = |kind: u32, data: &[u8]| {
            let mut bytes = OPTION_REPLY.to_be_bytes().to_vec();
            for number in [option, kind, data.len() as u32] {
                bytes.extend_from_slice(&number.to_be_bytes());
            }
            bytes.extend_from_slice(data);
            to.write_all(&bytes)
        };
        match option {
            option::INFO | option::GO => {
                let mut export = 0_u16.to_be_bytes().to_vec();
                export.extend_from_slice(&size.to_be_bytes());
                export.extend_from_slice(&EXPORT_FLAGS.to_be_bytes());
                reply(option::INFORMATION, &export)?;
                // Smallest, preferred and largest block.
                let mut blocks = 3_u16.to_be_bytes().to_vec();
                for bytes in [SECTOR as u32, 4096, LARGEST] {
                    blocks.extend_from_slice(&bytes.to_be_bytes());
                }
                reply(option::INFORMATION, &blocks)?;
                reply(option::ACK, &[])?;
                if option == option::GO {
                    return Ok(true);
                }
            }
            option::ABORT => {
                reply(option::ACK, &[])?;
                return Ok(false);
            }
            _ => reply(option::UNSUPPORTED, &[])?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resets::draw::Draw;
    use std::time::Duration;

    /// The client's side of a connection.
    struct Client(UnixStream);

    impl Client {
        fn send(&mut self, parts: &[&[u8]]) {
            self.0.write_all(&parts.concat()).unwrap();
        }

        fn option(&mut self, option: u32) {
            let (option, none) = (option.to_be_bytes(), 0_u32.to_be_bytes());
            self.send(&[&OPTION.to_be_bytes(), &option, &none]);
        }

        /// Returns kind and data of a reply to an option.
        fn replied(&mut self, option: u32) -> (u32, Vec<u8>) {
            assert_eq!(u64_of(&mut self.0).unwrap(), OPTION_REPLY);
            assert_eq!(u32_of(&mut self.0).unwrap(), option);
            let kind = u32_of(&mut self.0).unwrap();
            let length = u32_of(&mut self.0).unwrap();
            (kind, bytes_of(&mut self.0, length).unwrap())
        }

        fn request(&mut self, flags: u16, kind: u16, offset: u64, length: u32, payload: &[u8]) {
            self.send(&[
                &REQUEST.to_be_bytes(),
                &flags.to_be_bytes(),
                &kind.to_be_bytes(),
                &offset.to_be_bytes(), // the cookie as well
                &offset.to_be_bytes(),
                &length.to_be_bytes(),
                payload,
            ]);
        }

        /// Returns error, cookie and data of a reply.
        fn answer(&mut self, length: usize) -> (u32, u64, Vec<u8>) {
            assert_eq!(u32_of(&mut self.0).unwrap(), REPLY);
            let (error, cookie) = (u32_of(&mut self.0).unwrap(), u64_of(&mut self.0).unwrap());
            let mut data = vec![0; length];
            self.0.read_exact(&mut data).unwrap();
            (error, cookie, data)
        }
    }

    #[test]
    fn a_client_writes_flushes_reads_and_loses_the_power() {
        let disk = Mutex::new(Disk::new(64 * SECTOR, false, Draw::of(1, 1)));
        let (here, there) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| serve(here, &disk));
            let mut client = Client(there);
            assert_eq!(&number::<8>(&mut client.0).unwrap(), b"NBDMAGIC");
            assert_eq!(u64_of(&mut client.0).unwrap(), OPTION);
            assert_eq!(u16_of(&mut client.0).unwrap(), 3);
            client.send(&[&3_u32.to_be_bytes()]);
            // Structured replies: there are none.
            client.option(8);
            assert_eq!(client.replied(8).0, option::UNSUPPORTED);
            client.option(option::GO);
            let (kind, export) = client.replied(option::GO);
            assert_eq!(kind, option::INFORMATION);
            assert_eq!(export[2..10], (64 * 512_u64).to_be_bytes());
            assert_eq!(client.replied(option::GO).0, option::INFORMATION);
            assert_eq!(client.replied(option::GO), (option::ACK, Vec::new()));

            client.request(0, kind::WRITE, 512, 1024, &[7; 1024]);
            assert_eq!(client.answer(0), (0, 512, Vec::new()));
            assert_eq!(locked(&disk).contents()[512..1536], [0; 1024]);
            client.request(0, kind::FLUSH, 0, 0, &[]);
            assert_eq!(client.answer(0), (0, 0, Vec::new()));
            assert_eq!(locked(&disk).contents()[512..1536], [7; 1024]);
            client.request(FUA, kind::WRITE, 512, 512, &[8; 512]);
            assert_eq!(client.answer(0), (0, 512, Vec::new()));
            assert_eq!(locked(&disk).contents()[512..1024], [8; 512]);
            client.request(0, kind::READ, 1024, 1024, &[]);
            assert_eq!(client.answer(1024).2, [[7; 512], [0; 512]].concat());
            client.request(0, kind::READ, 63 * 512, 1024, &[]);
            assert_eq!(client.answer(0).0, INVALID);

            locked(&disk).power_off_after(1);
            client.request(0, kind::WRITE, 2048, 512, &[9; 512]);
            client.request(0, kind::FLUSH, 0, 0, &[]);
            client
                .0
                .set_read_timeout(Some(Duration::from_millis(100)))
                .unwrap();
            assert!(u32_of(&mut client.0).is_err(), "an answer without power");
            drop(client);
            assert_eq!(serving.join().unwrap(), Ok(()));
        });
        let mut disk = locked(&disk);
        assert_eq!(disk.contents()[2048..2560], [0; 512]);
        assert_eq!(disk.cut(&mut Draw::of(1, 0)).unflushed, 1);
    }

    #[test]
    fn nonsense_ends_the_connection_with_an_error() {
        let disk = Mutex::new(Disk::new(8 * SECTOR, false, Draw::of(1, 1)));
        let (here, mut there) = UnixStream::pair().unwrap();
        there.write_all(&[0xff; 64]).unwrap();
        let failed = serve(here, &disk).unwrap_err();
        assert!(failed.contains("an option begins with"), "{failed}");
    }
}
