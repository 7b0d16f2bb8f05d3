//! scratch
use bristlecone_crash::{
    explore::*, mutants::*, record::*, subject::Subject, subjects, workload::*,
};
use bristlecone_pmem::media::sim::Model;
use std::sync::Arc;
use std::time::{Duration, Instant};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let model = Model::named(&a[2]).unwrap();
    if a[3] == "mutants" {
        let all: Vec<Arc<dyn Subject>> = subjects::all().into_iter().map(Arc::from).collect();
        for s in subjects::matching(&a[1]) {
            let o = MutantOptions {
                model,
                ops: 60,
                kinds: Kind::ALL.to_vec(),
                seeds: vec![1, 2, 3],
                workers: 2,
                patience: Duration::from_secs_f64(a[4].parse().unwrap()),
            };
            let t = Instant::now();
            match mutants(&*s, &all, &o, &|d, n| {
                if d % 10 == 0 {
                    eprintln!("{d}/{n}")
                }
            }) {
                Err(e) => println!("{}: {e}", s.name()),
                Ok(r) => {
                    println!(
                        "{} {:?}: sites {} orderings {} killed {} live {} elsewhere {} survivors {} independent {} images {}",
                        s.name(),
                        t.elapsed(),
                        r.sites,
                        r.orderings,
                        r.killed.len(),
                        r.failed_live.len(),
                        r.killed_elsewhere.len(),
                        r.survivors.len(),
                        r.independent.len(),
                        r.images
                    );
                    for (m, b) in &r.killed_elsewhere {
                        println!("  elsewhere {m} by {b}");
                    }
                    for m in &r.survivors {
                        println!("  SURVIVED {m}");
                    }
                    for m in &r.independent {
                        println!("  independent {m}");
                    }
                    for w in &r.waste {
                        println!("  waste {} {}/{}", w.site, w.wasted, w.executed);
                    }
                }
            }
        }
        return;
    }
    for s in subjects::matching(&a[1]) {
        for seed in 1..=a[3].parse::<u64>().unwrap() {
            for kind in Kind::ALL {
                let w = Workload::generate(kind, 60, seed, &*s);
                let t = Instant::now();
                let r = match record(&*s, &w, &Mutation::default()) {
                    Ok(r) => r,
                    Err(e) => {
                        println!("{} {kind}: {e}", s.name());
                        continue;
                    }
                };
                let rec = t.elapsed();
                let mut o = Options::new(model);
                o.nested = a.len() > 4;
                o.workers = 2;
                let t = Instant::now();
                let tot = explore(&*s, &r, &o, &|_| {});
                let el = t.elapsed();
                println!(
                    "{} {kind} {seed}: rec {rec:?} events {} points {} exh {} images {} nested {} viol {} us/img {:.1}",
                    s.name(),
                    r.events.len(),
                    tot.crash_points,
                    tot.exhaustive_points,
                    tot.images,
                    tot.nested_images,
                    tot.violations,
                    el.as_secs_f64() * 1e6 / tot.images as f64
                );
                for v in tot.found.iter().take(1) {
                    println!(
                        "{:.250} step {} {:?} last {} lost {:.0?}",
                        v.fault.to_string(),
                        v.step,
                        v.action,
                        v.last_site,
                        v.lost
                    );
                }
            }
        }
    }
}
