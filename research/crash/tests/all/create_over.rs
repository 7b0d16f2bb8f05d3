//! The explorer of pools made over others finds no fault, and it notices the loss of the flush and
//! the fence that end the old pool.

use bristlecone_crash::over::explore;
use bristlecone_pmem::media::sim::{Model, Site, SiteKind};

#[test]
fn a_crash_leaves_the_old_pool_or_none_or_the_new_one() {
    for model in Model::ALL {
        for clean in [true, false] {
            let (seen, _) = explore(model, clean, &[]).unwrap_or_else(|what| panic!("{what}"));
            assert!(
                ["old", "none", "new"]
                    .iter()
                    .all(|kind| seen.get(kind) > Some(&0)),
                "{model:?}: {seen:?}"
            );
        }
    }
}

#[test]
fn what_ends_the_old_pool_is_missed() {
    for model in [Model::X86Tso, Model::ArmV8] {
        let (_, events) = explore(model, true, &[]).unwrap_or_else(|what| panic!("{what}"));
        // The first flush and the first fence end the old pool.
        for kind in [SiteKind::Flush, SiteKind::Fence] {
            let first = events
                .iter()
                .find(|event| SiteKind::of(&event.kind) == Some(kind));
            let site = Site::new(first.expect("creation flushes and fences").site, kind);
            let found = explore(model, true, &[site]);
            assert!(found.is_err(), "{model:?} without {site}: nothing noticed");
        }
    }
}
