//! Runs in which a sync fails. Nothing that was acknowledged is lost, by a cut then, or by a cut
//! after another process has gone on from what the page cache has.

use super::DiskSubject;
use super::explore::caught;
use super::history::{Allowed, History, Recovered};
use crate::rng::Rng;
use crate::subject::{Fault, FaultKind};
use bristlecone_pmem::media::journal::fault::FaultDisk;

/// A run that lost something.
#[derive(Clone, Debug)]
pub struct FailingFinding {
    /// The seed of the run.
    pub seed: u64,
    /// The number of the sync that failed.
    pub sync: u64,
    /// What came after it.
    pub then: String,
    /// What is wrong.
    pub fault: Fault,
}

/// Lets the `sync`-th sync of a run fail, that one or all from it on. Returns false if the run has
/// fewer.
///
/// # Errors
/// Something was lost, or did not work.
pub fn fail_sync(subject: &dyn DiskSubject, seed: u64, sync: u64) -> Result<bool, FailingFinding> {
    let mut then = String::new();
    let found = |fault, then: &str| FailingFinding {
        seed,
        sync,
        then: then.to_owned(),
        fault,
    };
    let mut rng = Rng::of(seed, 0xfa11, sync);
    let mut disk = FaultDisk::new(rng.next_u64());
    match rng.below(2) {
        0 => disk.fail_one_sync(sync),
        _ => {
            then.push_str("all later ones fail; ");
            disk.fail_sync(sync);
        }
    }
    let history = History::default();
    let worked = caught(|| subject.work(&disk, seed, &history));
    worked.map_err(|fault| found(fault, ""))?;
    if disk.syncs() < sync {
        return Ok(false);
    }
    let mut allowed = history.allowed(disk.events());
    disk.cut_now();
    // Processes die and others go on, from what the page cache has; now and then the power is cut.
    for _ in 0..3 {
        let kill = rng.below(2) == 0;
        let after = match kill {
            true => disk.after_kill(rng.next_u64()),
            false => disk.restart(rng.next_u64()),
        };
        disk = after;
        then.push_str(if kill { "kill; " } else { "cut; " });
        // A disk that fails once more, while it is recovered.
        if rng.below(3) == 0 {
            disk.fail_one_sync(1 + rng.below(6));
            then.push_str("one more fails; ");
            let recovered = caught(|| subject.recover(&disk, seed, &allowed));
            allowed = grown(recovered, &disk, &allowed).map_err(|fault| found(fault, &then))?;
        } else {
            let recovered = caught(|| subject.recover(&disk, seed, &allowed))
                .map_err(|fault| found(fault, &then))?;
            allowed = recovered.allowed(&allowed, disk.events());
        }
        disk.cut_now();
    }
    let last = disk.restart(rng.next_u64());
    then.push_str("cut");
    caught(|| subject.recover(&last, seed, &allowed)).map_err(|fault| found(fault, &then))?;
    Ok(true)
}

/// What may be found after a recovery that may have failed because of the disk.
fn grown(
    recovered: Result<Recovered, Fault>,
    disk: &FaultDisk,
    before: &Allowed,
) -> Result<Allowed, Fault> {
    match recovered {
        Ok(recovered) => Ok(recovered.allowed(before, disk.events())),
        // What was found is judged all the same.
        Err(fault)
            if disk.has_failed()
                && matches!(fault.kind, FaultKind::Recovery | FaultKind::Progress) =>
        {
            let mut allowed = before.clone();
            // Steps may have been begun.
            for most in &mut allowed.most {
                *most += super::store::MORE;
            }
            Ok(allowed)
        }
        Err(fault) => Err(fault),
    }
}
