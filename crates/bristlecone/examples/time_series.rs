//! Measurements by station and time, which are gone after a while: typed keys in the order of time,
//! and an expiry.
//!
//! `cargo run --example time_series`

use bristlecone::Database;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let db = Database::open(folder.path().join("weather.db"))?;
    // (station, seconds since 1970) to hundredths of a degree.
    let readings = db.typed::<(String, u64), i32>("readings")?;
    let keep = Duration::from_secs(30 * 24 * 3600);
    let start = 1_790_000_000;
    for hour in 0..48u32 {
        for (station, base) in [("bergen", 400), ("oslo", -200)] {
            let at = start + u64::from(hour) * 3600;
            let degrees = base + 10 * hour.cast_signed();
            let (key, value) = (
                readings.key(&(station.into(), at)),
                readings.value(&degrees)?,
            );
            readings.bytes().insert_expiring(key, value, keep)?;
        }
    }

    // The last three hours of one station, newest first.
    let all = ("oslo".into(), 0)..=("oslo".into(), u64::MAX);
    for entry in readings.range(all).rev().take(3) {
        let ((station, at), degrees) = entry?;
        println!("{station} {at}: {:.2} degrees", f64::from(degrees) / 100.0);
    }

    // The mean of a day.
    let day = ("bergen".into(), start)..("bergen".into(), start + 24 * 3600);
    let day: Vec<i32> = readings
        .range(day)
        .map(|e| e.map(|(_, v)| v))
        .collect::<Result<_, _>>()?;
    println!(
        "bergen, first day: mean {} hundredths",
        day.iter().sum::<i32>() / 24
    );
    assert_eq!((day.len(), day[23]), (24, 630));
    Ok(())
}
