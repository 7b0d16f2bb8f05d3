//! The report's page, made from the data in `docs/results` and looked at in a browser.
//!
//! ```text
//! docs/results/data --bristlecone-lab report --page--> index.html --chromium--> wide and dark, a phone
//! ```

use crate::browser::{self, Size};
use crate::tools::{self, Outcome, say};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of the chore.
#[derive(Args)]
pub struct Options {
    /// The folder of `bristlecone-lab` [default: builds it].
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// The report to look at.
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    of: PathBuf,
    /// Writes the pictures beside the report, for documents to show.
    #[arg(long)]
    keep: bool,
}

/// The pages to look at: their names, windows, and whether they are dark.
const LOOKS: [(&str, Size, bool); 3] = [
    ("light", (1280, 1900), false),
    ("dark", (1280, 1900), true),
    ("phone", (390, 1900), false),
];

/// Parts that every page has.
const PARTS: [&str; 8] = [
    "id=\"summary\"",
    "id=\"explorer\"",
    "id=\"limits\"",
    "id=\"peers\"",
    "class=\"chip holds\"",
    "class=\"chip exceeds\"",
    "class=\"chip fails\"",
    "class=\"reason\"",
];

/// Says how wide a page's content is, to the page around it.
const TELL: &str = "<script>parent.postMessage(document.documentElement.scrollWidth, '*')</script>";

/// Makes the page and looks at it.
pub fn run(options: &Options) -> Outcome {
    if tools::which("chromium").is_none() {
        tools::apt_install(&["chromium"], None)?;
    }
    let programs = match &options.programs {
        Some(programs) => programs.clone(),
        None => {
            let build = ["build", "--quiet", "--package", "bristlecone-lab-cli"];
            tools::run(tools::cargo().args(build))?;
            tools::target_dir()?.join("debug")
        }
    };
    let folder = tempfile::tempdir().map_err(|e| format!("a temporary folder: {e}"))?;
    let of = tools::root().join(&options.of);
    let data = folder.path().join("data");
    copy(&of.join("data"), &data)?;
    tools::run(
        Command::new(programs.join("bristlecone-lab"))
            .args(["report", "--page", "--out"])
            .arg(folder.path()),
    )?;
    let path = folder.path().join("index.html");
    let page = read(&path)?;
    for part in PARTS {
        if !page.contains(part) {
            return Err(format!("{}: the page lacks {part}", options.of.display()));
        }
    }
    let figures = page.matches("<article class=\"figure\" id=").count();
    let made = figures_in(&data)?;
    if figures != made || made == 0 {
        let of = options.of.display();
        return Err(format!(
            "{of}: {figures} figures on the page, {made} in its data"
        ));
    }
    let pictures = if options.keep {
        of
    } else {
        tools::target_dir()?.join("xtask")
    };
    std::fs::create_dir_all(&pictures).map_err(|e| format!("{}: {e}", pictures.display()))?;
    LOOKS
        .iter()
        .try_for_each(|look| see(folder.path(), &page, &pictures, look))
}

fn read(path: &Path) -> Outcome<String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Counts the figures in a report's data: all files but those beside figures, by what they have.
fn figures_in(data: &Path) -> Outcome<usize> {
    let failed = |e: std::io::Error| format!("{}: {e}", data.display());
    let mut figures = 0;
    for file in std::fs::read_dir(data).map_err(failed)? {
        figures += usize::from(read(&file.map_err(failed)?.path())?.contains("\"claims\":"));
    }
    Ok(figures)
}

fn copy(from: &Path, to: &Path) -> Outcome {
    let failed = |e: std::io::Error| format!("{}: {e}", from.display());
    std::fs::create_dir_all(to).map_err(failed)?;
    for file in std::fs::read_dir(from).map_err(failed)? {
        let path = file.map_err(failed)?.path();
        let Some(name) = path.file_name() else {
            continue;
        };
        std::fs::copy(&path, to.join(name)).map_err(failed)?;
    }
    Ok(())
}

/// Takes a picture of the page, in a frame as wide as the window: a browser's own window may have a
/// least width. Nothing of the page may be wider than that.
fn see(folder: &Path, page: &str, pictures: &Path, look: &(&str, Size, bool)) -> Outcome {
    let (name, (width, height), dark) = *look;
    let write = |file: &str, text: &str| {
        let path = folder.join(file);
        std::fs::write(&path, text)
            .map(|()| path.clone())
            .map_err(|e| format!("{}: {e}", path.display()))
    };
    write(
        "told.html",
        &page.replace("</body>", &format!("{TELL}</body>")),
    )?;
    let frame = write(
        "frame.html",
        &format!(
            "<!DOCTYPE html><body style='margin:0'><iframe src='told.html' width='{width}' \
             height='{height}' style='border:0'></iframe><script>addEventListener('message', \
             (told) => document.body.dataset.width = told.data)</script>"
        ),
    )?;
    let address = format!("file://{}", frame.display());
    let profile = folder.join(format!("profile-{name}"));
    let window = (width.max(500), height);
    let seen = browser::browse(&profile, dark, window, "--dump-dom", &address)?;
    if !seen.contains(&format!("data-width=\"{width}\"")) {
        let told = seen.split("data-width=\"").nth(1);
        let told = told.and_then(|rest| rest.split('"').next());
        return Err(format!(
            "{name}: the page is {} pixels wide in a window of {width}",
            told.unwrap_or("unknown")
        ));
    }
    let picture = pictures.join(format!("report-{name}.png"));
    let shot = format!("--screenshot={}", picture.display());
    browser::browse(&profile, dark, window, &shot, &address)?;
    say(format!("the report, {name}: {}", picture.display()));
    Ok(())
}
