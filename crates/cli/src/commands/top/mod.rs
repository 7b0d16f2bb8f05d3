//! `top`: what a server is doing, once or again and again.

mod client;
mod sample;
mod view;

use crate::args::Top;
use bristlecone_command::failure::{Failure, Outcome};
use client::Client;
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::style::Print;
use crossterm::terminal::{self, Clear, ClearType};
use crossterm::{cursor, execute, queue};
use sample::{Sample, Span};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Shows what the server is doing.
pub fn run(args: &Top) -> Outcome {
    let mut client = Client::connect(args)?;
    if args.once || !io::stdout().is_terminal() {
        return print(args, &mut client);
    }
    let screen = Screen::open().map_err(|e| Failure::output(&e))?;
    live(args, &mut client, &screen.told_to_end)
}

/// Prints views as plain text.
fn print(args: &Top, client: &mut Client) -> Outcome {
    let most = if args.once { Some(1) } else { args.count };
    let mut before: Option<Sample> = None;
    let mut shown = 0;
    loop {
        let now = Sample::take(client)?;
        let span = Span {
            before: before.as_ref(),
            now: &now,
        };
        let mut text = view::lines(&args.address, &span, None).join("\n");
        text.push('\n');
        if shown > 0 {
            text.insert(0, '\n');
        }
        let mut out = io::stdout().lock();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        written.map_err(|e| Failure::output(&e))?;
        shown += 1;
        if most == Some(shown) {
            return Ok(());
        }
        before = Some(now);
        std::thread::sleep(args.interval);
    }
}

/// How long a signal may have to wait.
const HEARD_WITHIN: Duration = Duration::from_millis(100);

/// The terminal while it shows views. It is as it was when this is dropped, also if a signal ends
/// that.
struct Screen {
    told_to_end: Arc<AtomicBool>,
}

impl Screen {
    fn open() -> io::Result<Self> {
        let told_to_end = Arc::default();
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&told_to_end))?;
        }
        terminal::enable_raw_mode()?;
        let screen = Self { told_to_end };
        execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // There is nobody to tell.
        let _ = execute!(io::stdout(), cursor::Show, terminal::LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

/// Draws views until somebody has seen enough.
fn live(args: &Top, client: &mut Client, told_to_end: &AtomicBool) -> Outcome {
    let failed = |e: io::Error| Failure::output(&e);
    let mut before: Option<Sample> = None;
    let mut shown = 0;
    loop {
        let now = Sample::take(client)?;
        let next = Instant::now() + args.interval;
        let span = Span {
            before: before.as_ref(),
            now: &now,
        };
        draw(args, &span).map_err(failed)?;
        shown += 1;
        if args.count == Some(shown) {
            return Ok(());
        }
        while let Some(left) = next.checked_duration_since(Instant::now()) {
            // ORDERING: Relaxed; nothing else is handed over.
            if told_to_end.load(Ordering::Relaxed) {
                return Ok(());
            }
            match told(left.min(HEARD_WITHIN)).map_err(failed)? {
                Told::Nothing => {}
                Told::Redraw => draw(args, &span).map_err(failed)?,
                Told::Quit => return Ok(()),
            }
        }
        before = Some(now);
    }
}

enum Told {
    Nothing,
    Redraw,
    Quit,
}

/// The input of the person at the terminal, within that time.
fn told(within: Duration) -> io::Result<Told> {
    if !event::poll(within)? {
        return Ok(Told::Nothing);
    }
    Ok(match event::read()? {
        Event::Resize(..) => Told::Redraw,
        Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
            KeyCode::Char('q' | 'Q') | KeyCode::Esc => Told::Quit,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Told::Quit,
            _ => Told::Nothing,
        },
        _ => Told::Nothing,
    })
}

fn draw(args: &Top, span: &Span<'_>) -> io::Result<()> {
    let (width, height) = terminal::size()?;
    let mut out = io::stdout().lock();
    queue!(out, terminal::BeginSynchronizedUpdate)?;
    let mut rows = 0;
    for (row, line) in (0..).zip(view::lines(&args.address, span, Some(height.into()))) {
        let line: String = line.chars().take(width.into()).collect();
        queue!(
            out,
            cursor::MoveTo(0, row),
            Print(line),
            Clear(ClearType::UntilNewLine)
        )?;
        rows = row + 1;
    }
    if rows < height {
        queue!(
            out,
            cursor::MoveTo(0, rows),
            Clear(ClearType::FromCursorDown)
        )?;
    }
    queue!(out, terminal::EndSynchronizedUpdate)?;
    out.flush()
}
