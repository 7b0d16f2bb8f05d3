//! local driver
use bristlecone_crash::campaign::{Campaign, run};
use bristlecone_crash::workload::Kind;
use bristlecone_pmem::media::sim::Model;
use std::time::Duration;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let name = &a[1];
    let secs: u64 = a[2].parse().unwrap();
    let ops: usize = a.get(3).map_or(24, |s| s.parse().unwrap());
    let planted: Option<&'static str> = a.get(4).map(|s| &*Box::leak(s.clone().into_boxed_str()));
    let subject = bristlecone_crash::subjects::named(name).expect("subject");
    for model in [Model::X86Tso, Model::ArmV8, Model::Eadr] {
        let c = Campaign { model, kinds: Kind::ALL.to_vec(), ops, seed: 1, nested: true, workers: 1, budget: Some(Duration::from_secs(secs)), planted };
        let r = run(&*subject, &c, &|_| {});
        println!("{name} {planted:?} {model:?}: images {} nested {} violations {} leaks {} progress {} workloads {} findings {} live {:?}", r.totals.images, r.totals.nested_images, r.totals.violations, r.totals.leaks, r.totals.progress_failures, r.workloads, r.findings.len(), r.failed_live); if planted.is_some() { continue; }
        for f in r.findings.iter().take(2) { println!("{}", f.explain()); }
    }
}
