//! The bytes of BzTree and the Bw-Tree, by inserted records (BzTree, section 7.8).

use super::bz::{BWTREE, BZTREE, Contender};
use super::trial::SEED;
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};

pub(super) const ENTRY: Entry = Entry {
    name: "bz-footprint",
    title: "memory, by records inserted",
    paper: papers::BZ,
    place: "section 7.8",
    on: &[On::Host],
    run,
};

const CONTENDERS: [Contender; 2] = [BZTREE, BWTREE];
/// Readings between one size and the next. The largest counts, like the paper's peak.
const READINGS: u64 = 10;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let sizes = [1, 10, 100].map(|n| setting.scale.amount(n * 10_000, n * 100_000));
    let most = sizes[sizes.len() - 1];
    let dir = super::tree::scratch()?;
    let mut peaks = Vec::new();
    for (number, contender) in CONTENDERS.iter().enumerate() {
        let tree = contender.load(&dir.path().join(number.to_string()), &[])?;
        let (mut inserted, mut peak) = (0, 0);
        let mut at_sizes = Vec::new();
        for size in sizes {
            let step = (size - inserted).div_ceil(READINGS);
            while inserted < size {
                let next = (inserted + step).min(size);
                tree.insert(SEED, inserted..next)?;
                inserted = next;
                peak = peak.max(tree.bytes());
                setting.step("inserting", number as u64 * most + inserted, 2 * most);
            }
            at_sizes.push(peak as f64 / f64::from(1 << 20));
        }
        peaks.push(at_sizes);
    }
    let ratio = peaks[1][sizes.len() - 1] / peaks[0][sizes.len() - 1];
    let panel = Panel::lines("Peak memory", "records", "MiB", sizes.map(|n| n as f64));
    let panel = CONTENDERS
        .iter()
        .zip(peaks)
        .fold(panel, |panel, (contender, peaks)| {
            panel.with(contender.name, peaks)
        });
    Ok(Findings {
        claims: vec![Claim::new(
            format!("{most} records: Bw-Tree over BzTree"),
            365.0 / 228.0,
            ratio,
            Expect::ratio(365.0 / 228.0),
        )],
        panels: vec![panel],
        notes: vec![
            "random keys of 8 bytes with 8-byte values, inserted one after the other into empty trees by one thread; pages, \
             deltas and tables of the trees, and what their allocators keep for them"
                .to_owned(),
        ],
    })
}
