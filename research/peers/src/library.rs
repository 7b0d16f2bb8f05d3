//! Shared libraries of the system, loaded when a peer is opened for the first time.
//!
//! RocksDB and SQLite are used as Debian builds them. Loading them at run time has three merits: no
//! build compiles them, a build without them works, and a run that misses one says which package
//! has it.
//!
//! ```text
//! functions! { fn sqlite3_step(statement: *mut Statement) -> c_int; ... }
//!     struct Functions { sqlite3_step: unsafe extern "C" fn(*mut Statement) -> c_int, ... }
//!     Functions::of(&Library) looks every symbol up; one that is missing is an error
//! ```

use std::ffi::{CStr, CString, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::NonNull;

/// A shared library. It stays loaded until the process ends.
pub(crate) struct Library {
    handle: NonNull<c_void>,
}

impl Library {
    /// Loads the first of `names` that the system has. `package` is the Debian package with it.
    ///
    /// # Errors
    /// None of them can be loaded. The message has the linker's reason and names the package.
    pub(crate) fn load(names: &[&str], package: &str) -> Result<Self, String> {
        let mut reason = String::new();
        for name in names {
            let name = CString::new(*name).map_err(|e| e.to_string())?;
            // SAFETY: 1. The name is a C string. 2. Loading runs the library's constructors, which
            // for the libraries of this crate, as the system has installed them, only set up
            // their own state.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if let Some(handle) = NonNull::new(handle) {
                return Ok(Self { handle });
            }
            reason = last_error();
        }
        Err(format!(
            "{reason}; install the library (Debian: apt-get install {package})"
        ))
    }

    /// Returns the address of `symbol`.
    ///
    /// # Errors
    /// The library has no such symbol.
    pub(crate) fn symbol(&self, symbol: &CStr) -> Result<NonNull<c_void>, String> {
        // SAFETY: The handle is one of `dlopen` that is never closed, and the name a C string.
        let address = unsafe { libc::dlsym(self.handle.as_ptr(), symbol.as_ptr()) };
        NonNull::new(address).ok_or_else(last_error)
    }

    /// Returns the file that has `symbol`, without symbolic links: its name ends in the version.
    #[cfg(feature = "rocksdb")]
    pub(crate) fn file_of(&self, symbol: &CStr) -> Option<PathBuf> {
        let address = self.symbol(symbol).ok()?;
        let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: 1. `dladdr` only compares the address with those of loaded libraries. 2. The
        // result is memory for one `Dl_info`, for which all zeros are a valid value.
        let (known, found) = unsafe {
            let known = libc::dladdr(address.as_ptr(), found.as_mut_ptr());
            (known, found.assume_init())
        };
        if known == 0 || found.dli_fname.is_null() {
            return None;
        }
        // SAFETY: `dladdr` has set the name to a C string that lives as long as the library.
        let name = unsafe { CStr::from_ptr(found.dli_fname) };
        PathBuf::from(OsStr::from_bytes(name.to_bytes()))
            .canonicalize()
            .ok()
    }
}

/// Returns the dynamic linker's message on this thread's last failure.
fn last_error() -> String {
    // SAFETY: `dlerror` takes nothing, and returns null or a C string that is valid until this
    // thread's next call of the linker, before which it is copied.
    let text = unsafe {
        let text = libc::dlerror();
        (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
    };
    text.unwrap_or_else(|| "the library cannot be loaded".to_owned())
}

/// Declares `Functions`, the functions of a C library by their names there.
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)+) => {
        /// The functions in use.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($type),*) $(-> $result)?,)+
        }

        impl Functions {
            /// Looks the functions up.
            ///
            /// # Errors
            /// The library lacks one of them.
            ///
            /// # Safety
            /// `library` is the one that the declarations were copied for, by its header.
            pub(super) unsafe fn of(
                library: &$crate::library::Library,
            ) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        let address = library.symbol($crate::library::c_name(concat!(
                            stringify!($name),
                            "\0"
                        ))?)?;
                        // SAFETY: 1. The caller vouches that the symbol is a C function of this
                        // type. 2. Addresses of functions and of data have one form here.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($type),*) $(-> $result)?,
                            >(address.as_ptr())
                        }
                    },)+
                })
            }
        }
    };
}
pub(crate) use functions;

/// Returns a literal that ends with a zero as a C string.
pub(crate) fn c_name(name: &'static str) -> Result<&'static CStr, String> {
    CStr::from_bytes_with_nul(name.as_bytes()).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_is_named_with_its_package() {
        let absent = Library::load(&["libabsent-of-bristlecone.so.7"], "libabsent7");
        let message = absent.err().unwrap();
        assert!(message.contains("libabsent-of-bristlecone"), "{message}");
        assert!(message.contains("apt-get install libabsent7"), "{message}");
    }

    #[test]
    fn a_symbol_that_is_missing_is_named() {
        let libc = Library::load(&["libc.so.6"], "libc6").unwrap();
        assert!(libc.symbol(c"strlen").is_ok());
        let message = libc.symbol(c"bristlecone_absent").unwrap_err();
        assert!(message.contains("bristlecone_absent"), "{message}");
    }
}
