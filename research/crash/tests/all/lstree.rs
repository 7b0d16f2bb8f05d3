//! The log-structured B+-tree: recovery durably clears the remains of a crash behind the end of a
//! log.

use bristlecone_crash::explore::{Options, explore};
use bristlecone_crash::record::{Mutation, record};
use bristlecone_crash::subject::FaultKind;
use bristlecone_crash::subjects::named;
use bristlecone_crash::workload::{Kind, Workload};
use bristlecone_pmem::media::sim::{Model, Site, SiteKind};
use std::collections::BTreeSet;

/// Number of workloads, and of images of each.
const SEEDS: u64 = 20;
const MAX_IMAGES: u64 = 20_000;

/// Returns the flush or fence in `log.rs` that only the recovery of `workload` executes.
fn in_recovery(workload: &Workload, subject: &str, kind: SiteKind) -> BTreeSet<Site> {
    let subject = named(subject).expect("a subject");
    let recording = record(subject.as_ref(), workload, &Mutation::default()).expect("a recording");
    let survey = Options {
        survey: true,
        bound: 24,
        samples: 0,
        thorough_every: 1,
        max_images: 2_000,
        ..Options::new(Model::X86Tso)
    };
    let operated = recording.events.iter().map(|event| event.site);
    let operated: BTreeSet<(&str, u32)> = operated.map(|at| (at.file(), at.line())).collect();
    let found = explore(subject.as_ref(), &recording, &survey, &|_| ()).recovery_sites;
    let wanted = |site: &Site| {
        let own = site.kind == kind && site.file.ends_with("lstree/log.rs");
        own && !operated.contains(&(site.file, site.line))
    };
    found.into_keys().filter(wanted).collect()
}

/// Record R is torn: its first line is durable, its last is not, so recovery drops it. The next
/// operation overwrites it with record S, which differs in the first line only. A second crash
/// keeps only the last line of S. If recovery had not durably cleared R's checksum, R would now be
/// whole.
#[test]
fn a_torn_record_is_not_completed_by_the_next_one() {
    for kind in [SiteKind::Flush, SiteKind::Fence] {
        let mut found = None;
        for (name, seed) in ["lstree-256-u64-short", "lstree-256-u64"]
            .into_iter()
            .flat_map(|name| (1..SEEDS).step_by(2).map(move |seed| (name, seed)))
        {
            let subject = named(name).expect("a subject");
            let workload = Workload::generate(Kind::Few, 20, seed, subject.as_ref());
            let sites = in_recovery(&workload, name, kind);
            assert!(sites.len() < 2, "{sites:?}");
            let explored = |off: Vec<Site>| {
                let mutation = Mutation { off, planted: None };
                let recording =
                    record(subject.as_ref(), &workload, &mutation).expect("a recording");
                let options = Options {
                    nested: true,
                    bound: 400,
                    samples: 0,
                    thorough_every: 1,
                    max_images: MAX_IMAGES,
                    stop_at_first: true,
                    mutation,
                    ..Options::new(Model::X86Tso)
                };
                explore(subject.as_ref(), &recording, &options, &|_| ()).found
            };
            assert!(explored(Vec::new()).is_empty());
            found = explored(sites.into_iter().collect()).into_iter().next();
            if found.is_some() {
                break;
            }
        }
        let found = found.unwrap_or_else(|| panic!("nothing missed the {kind:?}"));
        assert!(found.nested.is_some(), "{found:?}");
        assert!(
            [FaultKind::Lost, FaultKind::Torn].contains(&found.fault.kind),
            "{found:?}"
        );
    }
}
