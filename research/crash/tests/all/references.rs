//! The explorer on structures that are known to be right, and on variants that are each wrong in
//! one way. It raises no false alarm, and reports each flaw exactly as the table of flaws says.

use crate::common::SHARE;
use bristlecone_crash::concurrent::{self, ConcurrentOptions};
use bristlecone_crash::explore::{Options, explore};
use bristlecone_crash::record::{Mutation, record};
use bristlecone_crash::subject::{FaultKind, Subject};
use bristlecone_crash::subjects::named;
use bristlecone_crash::subjects::reference::{FLAWS, Reference};
use bristlecone_crash::workload::{Kind, Workload};
use bristlecone_pmem::media::sim::Model;
use std::collections::BTreeMap;

/// Returns the kinds of fault reported over one short workload of each kind, with their number and
/// first violation.
fn reports(
    subject: &dyn Subject,
    model: Model,
    nested: bool,
    thorough_every: u64,
) -> BTreeMap<FaultKind, String> {
    let (mut found, mut images) = (BTreeMap::new(), 0);
    for kind in Kind::ALL {
        for seed in 0..2 / SHARE {
            let workload = Workload::generate(kind, 12, seed, subject);
            let recording = record(subject, &workload, &Mutation::default())
                .unwrap_or_else(|fault| panic!("{}: {fault}", subject.name()));
            let options = Options {
                nested,
                thorough_every,
                bound: 300,
                samples: 16,
                ..Options::new(model)
            };
            let totals = explore(subject, &recording, &options, &|_| ());
            images += totals.images;
            for violation in totals.found {
                let what = format!(
                    "{kind}/{seed}: {} ({})",
                    violation.fault, violation.last_site
                );
                found.entry(violation.fault.kind).or_insert(what);
            }
        }
    }
    assert!(images > 100, "{}: {images} images", subject.name());
    found
}

#[test]
fn structures_that_are_right_pass_under_all_models() {
    for subject in [Reference::array(), Reference::blocks()] {
        for model in Model::ALL {
            let found = reports(&subject, model, true, 10);
            assert!(
                found.is_empty(),
                "{}, {}: {found:?}",
                subject.name(),
                model.name()
            );
        }
    }
}

fn each_flaw_is_reported_as_what_it_is(model: Model) {
    let mut wrong = Vec::new();
    for known in FLAWS.iter().filter(|known| known.threads == 1) {
        let subject = named(&known.subject()).unwrap_or_else(|| panic!("{known:?}"));
        // Faults that only later operations show need such operations on every image.
        let every = if known.kind == FaultKind::Progress {
            1
        } else {
            4
        };
        let found = reports(subject.as_ref(), model, known.nested, every);
        let kinds: Vec<FaultKind> = found.keys().copied().collect();
        let expected: &[FaultKind] = if known.shows_on(model) {
            &[known.kind]
        } else {
            &[]
        };
        if kinds != expected {
            let subject = known.subject();
            wrong.push(format!("{subject}: {found:?}, not {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn flaws_under_total_store_order() {
    each_flaw_is_reported_as_what_it_is(Model::X86Tso);
}

#[test]
fn flaws_where_stores_to_a_line_reorder() {
    each_flaw_is_reported_as_what_it_is(Model::ArmV8);
}

#[test]
fn flaws_where_caches_are_durable() {
    each_flaw_is_reported_as_what_it_is(Model::Eadr);
}

/// Returns the kinds of fault reported of a structure that two threads operate on.
fn reports_of_two(subject: &dyn Subject, model: Model) -> Vec<(FaultKind, String)> {
    let options = ConcurrentOptions {
        model,
        threads: 2,
        schedules: 300,
        ..ConcurrentOptions::default()
    };
    let report = concurrent::explore(subject, &options, &mut |_| ());
    assert!(report.crash_points > 100, "{}: {report:?}", subject.name());
    let found = report.violations.iter();
    found.map(|v| (v.fault.kind, v.to_string())).collect()
}

#[test]
fn what_is_shown_before_it_is_durable_takes_two_threads() {
    for model in Model::ALL {
        let found = reports_of_two(&Reference::array(), model);
        assert!(found.is_empty(), "{}: {found:?}", model.name());
        for known in FLAWS.iter().filter(|known| known.threads == 2) {
            let found = reports_of_two(&Reference::flawed(known.flaw), model);
            assert_eq!(known.shows_on(model), !found.is_empty(), "{}", model.name());
            for (kind, what) in found {
                assert_eq!(kind, known.kind, "{}: {what}", model.name());
            }
        }
    }
}
