//! Files that the server writes itself: its settings (`CONFIG REWRITE`) and its users (`ACL SAVE`).

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, value};

/// Replaces a file, which appears whole or stays as it was. Its permissions stay; a new file is the
/// owner's alone. One caller at a time.
///
/// # Errors
/// The system's error.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    // What a link leads to is replaced, not the link.
    let target = path.canonicalize().unwrap_or_else(|_| path.into());
    let mut part = target.clone().into_os_string();
    part.push(".part");
    let part = PathBuf::from(part);
    let written = write(&part, &target, text).and_then(|()| put_in_place(&part, &target));
    if written.is_err() {
        // The first error is the one that is reported.
        let _ = std::fs::remove_file(&part);
    }
    written
}

/// Gives a file that is complete and synced the name of another one, which it replaces, durably.
///
/// # Errors
/// The system's error.
pub(crate) fn put_in_place(part: &Path, file: &Path) -> io::Result<()> {
    std::fs::rename(part, file)?;
    let folder = file.parent().filter(|at| !at.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn write(part: &Path, target: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(part)?;
    if let Ok(there) = std::fs::metadata(target) {
        file.set_permissions(there.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Returns a file of settings with these values. Comments, order and all else stay.
///
/// # Errors
/// The file is no TOML, because somebody has changed it meanwhile.
pub(crate) fn with_settings(text: &str, settings: &[(&str, String)]) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|e| format!("{e}"))?;
    for (name, text) in settings {
        // A password may look like a number, and is a text all the same.
        let plain = *name != "requirepass";
        let new = match (text.as_str(), text.parse::<i64>()) {
            ("yes" | "no", _) if plain => value(text == "yes"),
            (_, Ok(number)) if plain => value(number),
            _ => value(text.as_str()),
        };
        match document.get_mut(name) {
            // What stands around the value stays.
            Some(Item::Value(there)) => {
                let decor = there.decor().clone();
                if let Item::Value(mut new) = new {
                    *new.decor_mut() = decor;
                    *there = new;
                }
            }
            _ => {
                document.insert(name, new);
            }
        }
    }
    Ok(document.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn settings_are_changed_where_they_stand() {
        let text = "# ours\ntimeout = 5 # seconds\nusers = [\n  \"a on nopass\", # one\n]\n";
        let settings = [
            ("timeout", "7".to_owned()),
            ("protected-mode", "no".into()),
            ("requirepass", "123".into()),
        ];
        assert_eq!(
            with_settings(text, &settings).unwrap(),
            "# ours\ntimeout = 7 # seconds\nusers = [\n  \"a on nopass\", # one\n]\n\
             protected-mode = false\nrequirepass = \"123\"\n"
        );
        assert!(with_settings("timeout = ", &settings).is_err());
    }

    #[test]
    fn a_file_is_replaced_with_its_permissions_and_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("serve.toml"), dir.path().join("link"));
        std::fs::write(&file, "before").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        replace(&link, "after").unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "after");
        assert!(mode(&file) == 0o640 && link.is_symlink());
        let new = dir.path().join("users.acl");
        replace(&new, "x").unwrap();
        assert_eq!(mode(&new), 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
        assert!(replace(&dir.path().join("none/file"), "x").is_err());
    }
}
