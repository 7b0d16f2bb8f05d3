//! Panels: the numbers of a figure, as a text table, as rows for CSV, and for drawing.
//!
//! A panel with a numeric horizontal axis is drawn as lines, and one with words as groups of bars.

use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// The places along the horizontal axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Places {
    /// Numbers: the panel is drawn as lines over them.
    Numbers(Vec<f64>),
    /// Words: the panel is drawn as a group of bars for each.
    Words(Vec<String>),
}

impl Places {
    /// Returns the number of places.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len(),
            Self::Words(words) => words.len(),
        }
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the label of each place.
    #[must_use]
    pub fn labels(&self) -> Vec<String> {
        match self {
            Self::Numbers(numbers) => numbers.iter().map(f64::to_string).collect(),
            Self::Words(words) => words.clone(),
        }
    }
}

/// The measurements of one contender, at each place of its panel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The contender's name.
    pub name: String,
    /// One number for each place; not a number where nothing was measured, which is null in JSON.
    #[serde(deserialize_with = "numbers")]
    pub values: Vec<f64>,
}

/// Returns numbers of which JSON has null for those that are none.
fn numbers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
    let numbers = Vec::<Option<f64>>::deserialize(from)?;
    Ok(numbers.into_iter().map(|n| n.unwrap_or(f64::NAN)).collect())
}

/// One diagram of a figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Panel {
    /// Its title.
    pub title: String,
    /// Name of the horizontal axis.
    pub x: String,
    /// Name and unit of the numbers.
    pub y: String,
    /// The places along the horizontal axis.
    pub places: Places,
    /// The compared contenders.
    pub series: Vec<Series>,
}

impl Panel {
    /// Returns an empty panel of lines over `numbers`.
    pub fn lines(title: &str, x: &str, y: &str, numbers: impl IntoIterator<Item = f64>) -> Self {
        Self::new(title, x, y, Places::Numbers(numbers.into_iter().collect()))
    }

    /// Returns an empty panel with a group of bars for each of `words`.
    pub fn bars<'a>(
        title: &str,
        x: &str,
        y: &str,
        words: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let words = words.into_iter().map(str::to_owned).collect();
        Self::new(title, x, y, Places::Words(words))
    }

    fn new(title: &str, x: &str, y: &str, places: Places) -> Self {
        Self {
            title: title.to_owned(),
            x: x.to_owned(),
            y: y.to_owned(),
            places,
            series: Vec::new(),
        }
    }

    /// Returns the panel with one more series.
    #[must_use]
    pub fn with(mut self, name: &str, values: Vec<f64>) -> Self {
        debug_assert_eq!(values.len(), self.places.len(), "{name} in {}", self.title);
        self.series.push(Series {
            name: name.to_owned(),
            values,
        });
        self
    }

    /// Returns one row `panel, x, series, value` for each number.
    pub(crate) fn rows(&self) -> impl Iterator<Item = [String; 4]> {
        self.series.iter().flat_map(move |series| {
            self.places
                .labels()
                .into_iter()
                .zip(&series.values)
                .map(|(place, value)| {
                    [
                        self.title.clone(),
                        place,
                        series.name.clone(),
                        value.to_string(),
                    ]
                })
        })
    }
}

impl fmt::Display for Panel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({})", self.title, self.y)?;
        let mut table = vec![
            std::iter::once(self.x.clone())
                .chain(self.series.iter().map(|s| s.name.clone()))
                .collect::<Vec<_>>(),
        ];
        for (i, place) in self.places.labels().into_iter().enumerate() {
            let value = |s: &Series| s.values.get(i).copied().map_or(String::new(), digits);
            table.push(
                std::iter::once(place)
                    .chain(self.series.iter().map(value))
                    .collect(),
            );
        }
        write_table(f, &table, [])
    }
}

/// Writes rows in columns: the first aligned left, the others aligned right, and behind each row
/// its text of `last`.
pub(crate) fn write_table<R: AsRef<[String]>>(
    f: &mut fmt::Formatter<'_>,
    rows: &[R],
    last: impl IntoIterator<Item = String>,
) -> fmt::Result {
    let letters = |cell: &String| cell.chars().count();
    let columns = rows.iter().map(|row| row.as_ref().len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|i| {
            rows.iter()
                .filter_map(|row| row.as_ref().get(i))
                .map(letters)
                .max()
        })
        .map(Option::unwrap_or_default)
        .collect();
    let mut last = last.into_iter();
    for row in rows {
        let mut line = String::new();
        for (i, (cell, width)) in row.as_ref().iter().zip(&widths).enumerate() {
            if i == 0 {
                line.push_str(&format!("  {cell:<width$}"));
            } else {
                line.push_str(&format!("  {cell:>width$}"));
            }
        }
        if let Some(last) = last.next() {
            line.push_str("  ");
            line.push_str(&last);
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Formats a number with four significant digits.
pub(crate) fn digits(number: f64) -> String {
    if !number.is_finite() {
        return number.to_string();
    }
    if number == 0.0 {
        return "0".to_owned();
    }
    let whole = number.abs().log10().floor() as i32 + 1;
    let decimals = usize::try_from(4 - whole).unwrap_or(0).min(9);
    format!("{number:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_digits_count() {
        let shown = [0.0, 12_345.6, 1234.5, 123.45, 1.234_56, 0.012_345].map(digits);
        assert_eq!(shown, ["0", "12346", "1234", "123.5", "1.235", "0.01235"]);
        assert_eq!(digits(f64::NAN), "NaN");
    }

    #[test]
    fn a_panel_is_a_table_and_rows() {
        let panel = Panel::lines("dense", "insertions", "ms", [50.0, 100.0])
            .with("lbtree", vec![1.5, 3.0])
            .with("other", vec![2.0, 4.25]);
        assert_eq!(
            panel.to_string(),
            "dense (ms)\n  insertions  lbtree  other\n  50           1.500  2.000\n  100          3.000  4.250\n"
        );
        let rows: Vec<_> = panel.rows().collect();
        assert_eq!(rows.len(), 4);
        assert_eq!(rows[3], ["dense", "100", "other", "4.25"]);
    }
}
