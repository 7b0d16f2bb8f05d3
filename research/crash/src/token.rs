//! Replay tokens: one line that exactly names an image or a schedule.
//!
//! ```text
//! 1~lbtree-256-u64~x86-tso~mixed.60.17~-~-~1234.0~1a2f:1_1a30:0~-
//! | |              |       |           | | |      |            crash in recovery (events ~ decisions)
//! | |              |       |           | | |      word:stores kept, for each word that was read; or kill
//! | |              |       |           | | events before the crash . operation completed
//! | |              |       |           | sites switched off, planted fault
//! | |              |       |           operations kept by shrinking (hexadecimal bits)
//! | |              |       workload . operations . seed
//! | subject        model
//! version
//!
//! 1t~lbtree-256-u64~x86-tso~3.4.1.1234~-
//!                           | | | |    planted fault
//!                           threads . operations of each . seed . schedule
//! ```
//!
//! A token that parses can be replayed, since its numbers are in the ranges of the command line.
//! Whether the crash exists is known only after the workload has run again.

use crate::record::Mutation;
use crate::subject::Subject;
use crate::subjects::planted::PLANTED;
use crate::violation::Point;
use crate::workload::{Kind, Workload};
use bristlecone_pmem::media::sim::{Decision, Model, Site, SiteKind};
use std::fmt;
use std::str::FromStr;

/// Largest number of simulated threads of a schedule.
pub const MAX_THREADS: usize = 8;
/// Largest number of operations of all threads of a schedule together.
pub const MAX_OPERATIONS: usize = 64;
/// Largest number of operations of a workload.
pub const MAX_OPS: usize = 100_000;

/// A workload, by the arguments of its generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadId {
    /// Its kind.
    pub kind: Kind,
    /// Requested number of operations.
    pub ops: usize,
    /// Its seed.
    pub seed: u64,
    /// The operations, of set-up and workload together, that are kept; `None` for all.
    pub kept: Option<Vec<bool>>,
}

impl WorkloadId {
    /// Returns the workload.
    #[must_use]
    pub fn generate(&self, subject: &dyn Subject) -> Workload {
        let whole = Workload::generate(self.kind, self.ops, self.seed, subject);
        let Some(kept) = &self.kept else {
            return whole;
        };
        let keep = |i: usize| kept.get(i).copied().unwrap_or(false);
        let setup = whole.setup.len();
        let of = |ops: &[crate::subject::Op], from: usize| {
            let kept = ops.iter().enumerate().filter(|(i, _)| keep(from + i));
            kept.map(|(_, op)| *op).collect()
        };
        Workload {
            setup: of(&whole.setup, 0),
            ops: of(&whole.ops, setup),
            creation: whole.creation,
            dirty: whole.dirty,
        }
    }
}

/// One image of one workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The subject's name.
    pub subject: String,
    /// The persistency model.
    pub model: Model,
    /// The workload.
    pub workload: WorkloadId,
    /// The mutation.
    pub mutation: Mutation,
    /// The crash.
    pub point: Point,
    /// The second crash, in the recovery from the first.
    pub nested: Option<Point>,
}

/// What stands for the decisions of a kill.
const KILL: &str = "kill";

fn dash(text: String) -> String {
    if text.is_empty() { "-".into() } else { text }
}

fn bits(kept: &[bool]) -> String {
    kept.chunks(4)
        .map(|four| {
            let nibble = four.iter().rev().fold(0, |n, bit| n << 1 | u32::from(*bit));
            char::from_digit(nibble, 16).unwrap_or('0')
        })
        .collect()
}

fn point(f: &mut fmt::Formatter<'_>, point: &Point) -> fmt::Result {
    write!(f, "{}.{}~", point.events, u8::from(point.completed))?;
    if point.killed {
        return f.write_str(KILL);
    }
    let decisions = point
        .decisions
        .iter()
        .map(|d| format!("{:x}:{}", d.word, d.kept));
    f.write_str(&dash(decisions.collect::<Vec<_>>().join("_")))
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let w = &self.workload;
        let kept = w.kept.as_deref().map_or(String::new(), bits);
        write!(
            f,
            "1~{}~{}~{}.{}.{}~{}~",
            self.subject,
            self.model.name(),
            w.kind,
            w.ops,
            w.seed,
            dash(kept)
        )?;
        let off = self.mutation.off.iter().map(|site| {
            let kind = site.kind.name().replace(' ', "-");
            format!("{}:{}:{}:{kind}", site.file, site.line, site.column)
        });
        let mut mutations: Vec<String> = off.collect();
        mutations.extend(
            self.mutation
                .planted
                .map(|fault| format!("plant:{}", plain(fault))),
        );
        write!(f, "{}~", dash(mutations.join(",")))?;
        point(f, &self.point)?;
        f.write_str("~")?;
        match &self.nested {
            Some(nested) => point(f, nested),
            None => f.write_str("-"),
        }
    }
}

/// One schedule of threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleToken {
    /// The subject's name.
    pub subject: String,
    /// The persistency model.
    pub model: Model,
    /// Simulated threads.
    pub threads: usize,
    /// Operations of each.
    pub ops: usize,
    /// The exploration's seed.
    pub seed: u64,
    /// The schedule's number.
    pub schedule: u64,
    /// The planted fault.
    pub planted: Option<&'static str>,
}

impl ScheduleToken {
    /// Prefix that tells these tokens from those of images.
    pub const PREFIX: &str = "1t~";
}

impl fmt::Display for ScheduleToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let planted = self.planted.map_or(String::new(), plain);
        write!(
            f,
            "{}{}~{}~{}.{}.{}.{}~{}",
            Self::PREFIX,
            self.subject,
            self.model.name(),
            self.threads,
            self.ops,
            self.seed,
            self.schedule,
            dash(planted)
        )
    }
}

impl FromStr for ScheduleToken {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let bad = |part, value: &str| BadToken {
            part,
            value: value.into(),
        };
        let parts: Vec<&str> = text.trim().split('~').collect();
        let &["1t", subject, model, numbers, fault] = parts.as_slice() else {
            return Err(bad("form", text));
        };
        let all: Option<Vec<u64>> = numbers.split('.').map(|n| n.parse().ok()).collect();
        let size = |threads: u64, ops: u64| {
            let (threads, ops) = (usize::try_from(threads).ok()?, usize::try_from(ops).ok()?);
            let few = (1..=MAX_THREADS).contains(&threads)
                && (1..=MAX_OPERATIONS / threads).contains(&ops);
            few.then_some((threads, ops))
        };
        let parsed = match all.as_deref() {
            Some(&[threads, ops, seed, schedule]) => {
                size(threads, ops).map(|size| (size, seed, schedule))
            }
            _ => None,
        };
        let Some(((threads, ops), seed, schedule)) = parsed else {
            return Err(bad("threads.operations.seed.schedule", numbers));
        };
        Ok(Self {
            subject: subject.into(),
            model: Model::named(model).ok_or_else(|| bad("model", model))?,
            threads,
            ops,
            seed,
            schedule,
            planted: match fault {
                "-" => None,
                name => Some(planted(name).ok_or_else(|| bad("planted fault", name))?),
            },
        })
    }
}

/// Returns a fault's name without characters that need quoting or that separate the parts of a
/// token.
fn plain(fault: &str) -> String {
    fault.replace([' ', ':', ',', '~'], "-")
}

fn planted(name: &str) -> Option<&'static str> {
    let mut all = PLANTED.iter().map(|fault| fault.name);
    all.find(|fault| plain(fault) == name)
}

/// A token that does not parse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadToken {
    /// The part that is wrong.
    pub part: &'static str,
    /// Its text.
    pub value: String,
}

impl fmt::Display for BadToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "replay token: its {} is {:?}; pass the whole line that a violation printed, in quotes",
            self.part, self.value
        )
    }
}

impl std::error::Error for BadToken {}

fn parse_point(events: &str, decisions: &str) -> Result<Point, BadToken> {
    let bad = |part| {
        move |value: &str| BadToken {
            part,
            value: value.into(),
        }
    };
    let (at, completed) = events
        .split_once('.')
        .ok_or_else(|| bad("crash point")(events))?;
    let completed = match completed {
        "0" => false,
        "1" => true,
        _ => return Err(bad("crash point")(events)),
    };
    let mut point = Point {
        events: at.parse().map_err(|_| bad("crash point")(events))?,
        completed,
        killed: decisions == KILL,
        decisions: Vec::new(),
    };
    let listed = !point.killed && decisions != "-";
    for one in decisions.split('_').filter(|_| listed) {
        let parsed = one.split_once(':').and_then(|(word, kept)| {
            Some(Decision {
                word: u32::from_str_radix(word, 16).ok()?,
                kept: kept.parse().ok()?,
                of: 0,
            })
        });
        point
            .decisions
            .push(parsed.ok_or_else(|| bad("list of decisions")(one))?);
    }
    Ok(point)
}

impl FromStr for Token {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let parts: Vec<&str> = text.trim().split('~').collect();
        let bad = |part, value: &str| BadToken {
            part,
            value: value.into(),
        };
        let &[
            version,
            subject,
            model,
            workload,
            kept,
            mutations,
            events,
            decisions,
            ref nested @ ..,
        ] = parts.as_slice()
        else {
            return Err(bad("form", text));
        };
        if version != "1" {
            return Err(bad("version", version));
        }
        let model = Model::named(model).ok_or_else(|| bad("model", model))?;
        let mut of = workload.split('.');
        let id = (|| {
            let id = WorkloadId {
                kind: Kind::named(of.next()?)?,
                ops: of.next()?.parse().ok()?,
                seed: of.next()?.parse().ok()?,
                kept: None,
            };
            (of.next().is_none() && (1..=MAX_OPS).contains(&id.ops)).then_some(id)
        })();
        let mut workload = id.ok_or_else(|| bad("workload", workload))?;
        if kept != "-" {
            let mut bits = Vec::new();
            for digit in kept.chars() {
                let nibble = digit.to_digit(16).ok_or_else(|| bad("kept bits", kept))?;
                bits.extend((0..4).map(|i| nibble >> i & 1 == 1));
            }
            workload.kept = Some(bits);
        }
        let mut mutation = Mutation::default();
        for one in mutations.split(',').filter(|_| mutations != "-") {
            if let Some(name) = one.strip_prefix("plant:") {
                let fault = planted(name).ok_or_else(|| bad("planted fault", name))?;
                mutation.planted = Some(fault);
                continue;
            }
            let mut of = one.rsplitn(4, ':');
            let site = (|| {
                let kind = match of.next()? {
                    "flush" => SiteKind::Flush,
                    "fence" => SiteKind::Fence,
                    "store-fence" => SiteKind::StoreFence,
                    _ => return None,
                };
                let column = of.next()?.parse().ok()?;
                let line = of.next()?.parse().ok()?;
                // A `Site` names a file with static lifetime, so a token leaks one name a site.
                let file = String::from(of.next()?).leak();
                Some(Site {
                    file,
                    line,
                    column,
                    kind,
                })
            })();
            mutation
                .off
                .push(site.ok_or_else(|| bad("switched-off site", one))?);
        }
        let nested = match nested {
            ["-"] => None,
            [_, decisions @ KILL] => return Err(bad("list of decisions", decisions)),
            [events, decisions] => Some(parse_point(events, decisions)?),
            _ => return Err(bad("crash in recovery", &nested.join("~"))),
        };
        Ok(Self {
            subject: subject.into(),
            model,
            workload,
            mutation,
            point: parse_point(events, decisions)?,
            nested,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_round_trip_too() {
        let token = ScheduleToken {
            subject: "pool".into(),
            model: Model::Eadr,
            threads: 3,
            ops: 4,
            seed: 9,
            schedule: 1234,
            planted: Some("unlock before fence"),
        };
        let text = token.to_string();
        assert_eq!(text.parse::<ScheduleToken>(), Ok(token));
        for broken in [
            text.replace("3.4.9", "9.4.9"),
            text.replace("3.4.9", "0.4.9"),
            text.replace("3.4.9", "3.22.9"),
            text.replace("3.4.9", "3.0.9"),
            text.replace("3.4.9", "3.x.4.9"),
            text.replace("3.4.9", "3.4.9.9"),
            text.replace("unlock", "lock"),
            text.replace("eadr", "x"),
            "1t~".into(),
        ] {
            assert!(broken.parse::<ScheduleToken>().is_err(), "{broken}");
        }
    }

    #[test]
    fn tokens_round_trip_and_bad_ones_say_where() {
        let decision = |word, kept| Decision { word, kept, of: 0 };
        let token = Token {
            subject: "lbtree-256-u64".into(),
            model: Model::ArmV8,
            workload: WorkloadId {
                kind: Kind::Split,
                ops: 60,
                seed: u64::MAX,
                kept: Some(vec![true, false, true, true, false, false, false, true]),
            },
            mutation: Mutation {
                off: vec![Site {
                    file: "crates/index/src/version_lock.rs",
                    line: 90,
                    column: 12,
                    kind: SiteKind::StoreFence,
                }],
                planted: Some("lbtree-header-first"),
            },
            point: Point {
                events: 1234,
                completed: false,
                killed: false,
                decisions: vec![decision(0x1a2f, 1), decision(3, 0)],
            },
            nested: Some(Point {
                events: 7,
                completed: false,
                killed: false,
                decisions: vec![],
            }),
        };
        let text = token.to_string();
        assert_eq!(text.parse::<Token>(), Ok(token.clone()), "{text}");
        let killed = Token {
            point: Point {
                killed: true,
                decisions: vec![],
                ..token.point.clone()
            },
            ..token.clone()
        };
        assert!(
            killed.to_string().ends_with("~1234.0~kill~7.0~-"),
            "{killed}"
        );
        assert_eq!(killed.to_string().parse::<Token>(), Ok(killed.clone()));
        let plain = Token {
            nested: None,
            mutation: Mutation::default(),
            ..token
        };
        assert_eq!(plain.to_string().parse::<Token>(), Ok(plain.clone()));
        for (part, broken) in [
            ("form", "nonsense".to_string()),
            ("form", String::new()),
            ("version", text.replacen('1', "9", 1)),
            ("model", text.replace("armv8", "z80")),
            ("workload", text.replace("split.60", "split.x")),
            ("workload", text.replace("split.60", "split.0")),
            ("workload", text.replace("split.60", "split.100001")),
            ("workload", text.replace("split.60", "split.60.60")),
            ("kept bits", text.replace("~d8~", "~zz~")),
            ("crash point", text.replace("1234.0", "1234")),
            ("crash point", text.replace("1234.0", "1234.2")),
            ("crash point", text.replace("1234.0", "-1.0")),
            ("list of decisions", text.replace("1a2f:1", "1a2f")),
            ("list of decisions", text.replace("1a2f:1", "1a2f1a2f1:1")),
            ("list of decisions", text.replace("1a2f:1", "1a2f:65536")),
            ("list of decisions", text.replace("1a2f:1", "-")),
            ("list of decisions", text.replace("7.0~-", "7.0~kill")),
            ("planted fault", text.replace("plant:lbtree", "plant:x")),
            ("crash in recovery", format!("{text}~-")),
            (
                "switched-off site",
                text.replace(":store-fence", ":fencing"),
            ),
        ] {
            let error = broken.parse::<Token>().expect_err(part);
            assert_eq!(error.part, part, "{broken}");
        }
    }
}
