//! scratch
use bristlecone_crash::{explore::*, record::*, subjects, workload::*};
use bristlecone_pmem::media::sim::Model;
use std::time::Instant;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let s = subjects::named(&a[1]).unwrap();
    let model = Model::named(&a[2]).unwrap();
    for kind in Kind::ALL {
        let w = Workload::generate(kind, 60, 1, &*s);
        let t = Instant::now();
        let r = match record(&*s, &w, &Mutation::default()) {
            Ok(r) => r,
            Err(e) => {
                println!("{kind}: {e}");
                continue;
            }
        };
        let rec = t.elapsed();
        let mut o = Options::new(model);
        o.nested = a.len() > 3;
        o.workers = 1;
        let t = Instant::now();
        let tot = explore(&*s, &r, &o, &|_| {});
        let el = t.elapsed();
        println!(
            "{kind}: rec {rec:?} events {} points {} exh {} images {} nested {} viol {} us/img {:.1}",
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
                "{} step {} {:?} last {} lost {:?}",
                v.fault, v.step, v.action, v.last_site, v.lost
            );
        }
    }
}
