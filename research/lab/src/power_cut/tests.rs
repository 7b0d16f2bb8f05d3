//! Tests of the model: which images a trace of a few lines allows.

use super::{Cutter, Draw, Image, Model, NamesLast, Plant, Timeline, parse};
use std::collections::BTreeSet;

const MODEL: Model = Model {
    sector: 512,
    names: NamesLast::WithFile,
    plant: None,
};

/// Returns the images that a cut at the end of a trace may leave, in words: of each file its name
/// and, of each sector, the first byte.
fn images(trace: &str, model: Model) -> BTreeSet<String> {
    images_at(trace, usize::MAX, model)
}

fn images_at(trace: &str, moment: usize, model: Model) -> BTreeSet<String> {
    let trace = format!("1 write(1, \"root /d\\n\", 8) = 8\n{trace}");
    let timeline = Timeline::of(&parse(trace.as_bytes()).unwrap(), &Image::default()).unwrap();
    (0..400)
        .map(|i| {
            let mut cutter = Cutter::new(&timeline, model);
            let moment = moment.min(timeline.end);
            in_words(&cutter.cut(moment, &mut Draw::of(1, 2, i)).image)
        })
        .collect()
}

fn in_words(image: &Image) -> String {
    let files = image.files.iter().map(|(name, bytes)| {
        let sectors = 0..bytes.len().div_ceil(512);
        let firsts = sectors.map(|sector| match bytes.byte(sector * 512) {
            0 => '.',
            byte => char::from(byte),
        });
        format!("{name}={}", firsts.collect::<String>())
    });
    let folders = image.folders.iter().map(|name| format!("{name}/"));
    folders.chain(files).collect::<Vec<_>>().join(" ")
}

fn set(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|one| (*one).to_owned()).collect()
}

/// A call that writes sectors of one letter each.
fn write(fd: u32, at: usize, sectors: &str) -> String {
    let bytes: String = sectors
        .chars()
        .flat_map(|c| std::iter::repeat_n(c, 512))
        .collect();
    format!("pwrite64({fd}, \"{bytes}\", {}, {at})", bytes.len())
}

/// A file with a durable name and durable sectors.
fn start() -> String {
    let content = write(3, 0, "aaa");
    format!(
        "1 openat(AT_FDCWD, \"/d/f\", O_RDWR|O_CREAT, 0644) = 3\n\
         1 {content} = 1536\n\
         1 fdatasync(3) = 0\n"
    )
}

#[test]
fn sectors_of_a_write_are_lost_until_a_sync_that_began_after_it() {
    let (b, c) = (write(3, 512, "b"), write(3, 0, "cc"));
    let both = format!("{}1 {b} = 512\n1 {c} = 1024\n", start());
    // The second sector has the states of the page cache, in any combination with the first.
    let all = set(&["f=aaa", "f=aba", "f=aca", "f=caa", "f=cba", "f=cca"]);
    assert_eq!(images(&both, MODEL), all);
    let synced = format!("{both}1 fdatasync(3) = 0\n");
    assert_eq!(images(&synced, MODEL), set(&["f=cca"]));
    // The sync began before the write had ended.
    let overlaps = format!(
        "{}1 {b} = 512\n2 {c} <unfinished ...>\n1 fdatasync(3) = 0\n2 <... pwrite64 resumed>) = 1024\n",
        start()
    )
    .replace("0) <unfinished", "0 <unfinished");
    let all = set(&["f=aba", "f=aca", "f=cba", "f=cca"]);
    assert_eq!(images(&overlaps, MODEL), all);
    // With long sectors, all is one sector.
    let long = Model {
        sector: 4096,
        ..MODEL
    };
    assert_eq!(images(&both, long), set(&["f=aaa", "f=aba", "f=cca"]));
}

#[test]
fn durable_writes_settle_their_own_sectors_only() {
    let (b, c) = (write(3, 512, "b"), write(3, 0, "c"));
    let again = "1 openat(AT_FDCWD, \"/proc/self/fd/3\", O_WRONLY|O_DIRECT|O_DSYNC) = 4\n";
    let c = c.replace("pwrite64(3", "pwrite64(4");
    let trace = format!("{}{again}1 {b} = 512\n1 {c} = 512\n", start());
    assert_eq!(images(&trace, MODEL), set(&["f=caa", "f=cba"]));
    let lies = Model {
        plant: Some(Plant::SkipPool),
        ..MODEL
    };
    // Another file's syncs are not the planted ones.
    assert_eq!(images(&trace, lies), set(&["f=caa", "f=cba"]));
    let trace = trace.replace("/d/f", "/d/db");
    assert!(images(&trace, lies).contains("db=aaa"));
}

#[test]
fn lengths_and_holes_keep_their_order_and_take_their_sectors_with_them() {
    let b = write(3, 1024, "bb");
    let trace = format!(
        "{}1 ftruncate(3, 512) = 0\n1 ftruncate(3, 2048) = 0\n1 {b} = 1024\n",
        start()
    );
    let all = set(&["f=aaa", "f=a", "f=a...", "f=a.b.", "f=a..b", "f=a.bb"]);
    assert_eq!(images(&trace, MODEL), all);
    let punched = format!(
        "{}1 fallocate(3, FALLOC_FL_KEEP_SIZE|FALLOC_FL_PUNCH_HOLE, 0, 1024) = 0\n",
        start()
    );
    assert_eq!(images(&punched, MODEL), set(&["f=aaa", "f=..a"]));
    // A write behind the end extends the file as far as it is there.
    let appended = format!("{}1 {} = 1024\n", start(), write(3, 1536, "bb"));
    let all = set(&["f=aaa", "f=aaab", "f=aaa.b", "f=aaabb"]);
    assert_eq!(images(&appended, MODEL), all);
    // In the middle of the call, too.
    let moment = 2 * 4 + 1;
    assert_eq!(images_at(&appended, moment, MODEL), all);
}

#[test]
fn names_keep_their_order_until_the_directory_is_synced() {
    let trace = format!(
        "{}1 open(\"/d\", O_RDONLY|O_DIRECTORY) = 5\n\
         1 mkdir(\"/d/sub\", 0755) = 0\n\
         1 rename(\"/d/f\", \"/d/g\") = 0\n\
         1 unlink(\"/d/g\") = 0\n",
        start()
    );
    let all = set(&["f=aaa", "sub/ f=aaa", "sub/ g=aaa", "sub/"]);
    assert_eq!(images(&trace, MODEL), all);
    let strict = Model {
        names: NamesLast::WithFolder,
        ..MODEL
    };
    let mut more = all.clone();
    more.insert(String::new());
    assert_eq!(images(&trace, strict), more);
    let synced = format!("{trace}1 fsync(5) = 0\n");
    assert_eq!(images(&synced, strict), set(&["sub/"]));
    let lies = Model {
        plant: Some(Plant::SkipNames),
        ..strict
    };
    assert_eq!(images(&synced, lies), more);
}

#[test]
fn descriptors_are_followed_and_what_is_not_modelled_is_refused() {
    // A short write, a duplicate, a closed descriptor whose number is another file's, an error.
    let trace = format!(
        "{}1 fcntl(3, F_DUPFD_CLOEXEC, 3) = 4\n\
         1 close(3) = 0\n\
         1 openat(AT_FDCWD, \"/etc/hosts\", O_RDONLY) = 3\n\
         1 {} = -1 EBADF (Bad file descriptor)\n\
         1 {} = 512\n\
         1 fsync(4) = 0\n",
        start(),
        write(3, 0, "x"),
        write(4, 0, "bb"),
    );
    assert_eq!(images(&trace, MODEL), set(&["f=baa"]));
    for call in [
        "mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 3, 0) = 0x7f0000000000",
        "sync() = 0",
        "rename(\"/d/f\", \"/elsewhere\") = 0",
        "fallocate(3, FALLOC_FL_COLLAPSE_RANGE, 0, 4096) = 0",
    ] {
        let trace = format!("1 write(1, \"root /d\\n\", 8) = 8\n{}1 {call}\n", start());
        let calls = parse(trace.as_bytes()).unwrap();
        let error = Timeline::of(&calls, &Image::default()).unwrap_err();
        assert!(
            error.to_string().contains("is not modelled")
                || error.to_string().contains("is modelled"),
            "{error}"
        );
    }
}
