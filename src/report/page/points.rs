//! A log as the few points that a page draws, however long the log is and becomes.

use crate::report::export::number;
use serde_json::{Map, Value};

/// What a point of several rows has of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The mean of their values and of their places, so that a curve stays where it is.
    Mean,
    /// The last of them.
    Last,
}

/// Points of the rows of a log. Each stands for as many rows as [`stride`](Self::stride) says, the last one perhaps for
/// fewer.
#[derive(Debug)]
pub struct Points {
    columns: Vec<String>,
    /// How many of the columns, the first ones, are places along an axis.
    places: usize,
    kept: Kept,
    /// Points at most; an even number.
    most: usize,
    stride: usize,
    rows: usize,
    /// For each point and column.
    cells: Vec<Cell>,
    /// Whether a column has had a finite value.
    known: Vec<bool>,
    generation: u64,
}

/// The sum of the finite values of a point and their number; of the last one, itself and 1.
type Cell = (f64, u32);

impl Kept {
    fn of(self, a: Cell, b: Cell) -> Cell {
        match self {
            Self::Mean => (a.0 + b.0, a.1 + b.1),
            Self::Last if b.1 == 0 => a,
            Self::Last => b,
        }
    }
}

/// How much of some points a reader has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    generation: u64,
    rows: usize,
}

impl Points {
    /// No points yet, of rows with these columns, of which the first `places` are places along an axis.
    #[must_use]
    pub fn new(columns: Vec<String>, places: usize, kept: Kept, most: usize) -> Self {
        let known = vec![false; columns.len()];
        let most = most.max(2).next_multiple_of(2);
        Self { columns, places, kept, most, stride: 1, rows: 0, cells: Vec::new(), known, generation: 1 }
    }

    /// The columns of the rows.
    #[must_use]
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Rows that a point stands for.
    #[must_use]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        (self.stride, self.rows) = (1, 0);
        self.cells.clear();
        self.known.fill(false);
        self.generation += 1;
    }

    /// Forgets all rows, and takes rows with other columns from now on; the places come first as before.
    pub fn restart(&mut self, columns: Vec<String>) {
        self.clear();
        self.known = vec![false; columns.len()];
        self.columns = columns;
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Takes one more row, with a value for each column.
    pub fn push(&mut self, row: &[f64]) {
        let width = self.columns.len();
        if self.rows == self.most * self.stride {
            self.halve();
        }
        if self.rows.is_multiple_of(self.stride) {
            self.cells.resize(self.cells.len() + width, (0.0, 0));
        }
        let last = self.cells.len() - width;
        for (column, (cell, &value)) in self.cells[last..].iter_mut().zip(row).enumerate() {
            if !value.is_finite() {
                continue;
            }
            *cell = self.kept.of(*cell, (value, 1));
            if !std::mem::replace(&mut self.known[column], true) && self.rows > 0 {
                // readers of the points so far lack the column
                self.generation += 1;
            }
        }
        self.rows += 1;
    }

    /// Makes one point of every two.
    fn halve(&mut self) {
        let width = self.columns.len();
        let mut halved = Vec::with_capacity(self.cells.len() / 2);
        for pair in self.cells.chunks(2 * width) {
            let (first, second) = pair.split_at(width);
            halved.extend(first.iter().zip(second).map(|(&a, &b)| self.kept.of(a, b)));
        }
        self.cells = halved;
        self.stride *= 2;
        self.generation += 1;
    }

    /// Where a reader stands that has everything.
    #[must_use]
    pub fn position(&self) -> Position {
        Position { generation: self.generation, rows: self.rows }
    }

    /// The first point that a reader lacks or has of fewer rows; `None` if it has everything.
    #[must_use]
    pub fn first_new(&self, reader: Position) -> Option<usize> {
        match reader.generation == self.generation {
            true => (reader.rows < self.rows).then(|| reader.rows / self.stride),
            false => Some(0),
        }
    }

    /// The values of each column that has some, from a point on: a place in 12 digits, a value in 6, and null where no
    /// row has one.
    #[must_use]
    pub fn from(&self, first: usize) -> Map<String, Value> {
        let width = self.columns.len();
        let cells = |column: usize| self.cells.iter().skip(first * width + column).step_by(width);
        let shown = |column: usize, &(sum, count): &Cell| {
            rounded(sum / f64::from(count), if column < self.places { 12 } else { 6 })
        };
        let values = |column: usize| cells(column).map(|cell| shown(column, cell)).collect::<Vec<_>>();
        let names = self.columns.iter().enumerate().filter(|(column, _)| self.known[*column]);
        names.map(|(column, name)| (name.clone(), values(column).into())).collect()
    }
}

/// A number in so many digits; null for what is none.
fn rounded(value: f64, digits: usize) -> Value {
    let text = format!("{value:.*e}", digits - 1);
    text.parse().ok().filter(|value: &f64| value.is_finite()).map_or(Value::Null, number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn points(most: usize, rows: usize) -> Points {
        filled(Kept::Mean, most, rows)
    }

    fn filled(kept: Kept, most: usize, rows: usize) -> Points {
        let mut points = Points::new(vec!["step".into(), "loss".into(), "mfu".into()], 1, kept, most);
        (0..rows).for_each(|i| points.push(&[i as f64, 10.0 * i as f64, f64::NAN]));
        points
    }

    #[test]
    fn a_point_is_the_mean_of_its_rows_or_the_last_of_them() {
        let all = Value::from(points(4, 4).from(0));
        assert_eq!(
            all,
            json!({"step": [0, 1, 2, 3], "loss": [0, 10, 20, 30]}),
            "a column without values is left out"
        );
        let halved = points(4, 5);
        assert_eq!(halved.stride(), 2);
        assert_eq!(Value::from(halved.from(0)), json!({"step": [0.5, 2.5, 4], "loss": [5, 25, 40]}));
        let last = filled(Kept::Last, 4, 5);
        assert_eq!(Value::from(last.from(0)), json!({"step": [1, 3, 4], "loss": [10, 30, 40]}));
        let long = points(4, 1000);
        assert_eq!((long.stride(), long.from(0)["step"].as_array().map(Vec::len)), (256, Some(4)));
        assert_eq!(long.from(3), *json!({"step": [883.5], "loss": [8835]}).as_object().expect("an object"));
    }

    #[test]
    fn a_reader_is_told_what_it_lacks() {
        let mut points = points(4, 3);
        let all = points.position();
        assert_eq!((points.first_new(Position::default()), points.first_new(all)), (Some(0), None));
        points.push(&[3.0, 1.0, f64::NAN]);
        assert_eq!(points.first_new(all), Some(3));
        let all = points.position();
        points.push(&[4.0, 1.0, f64::NAN]);
        assert_eq!(points.first_new(all), Some(0), "other points stand for the rows now");
        let all = points.position();
        points.push(&[5.0, 1.0, f64::NAN]);
        assert_eq!(points.first_new(all), Some(2), "the last point stands for one more row");
        let all = points.position();
        points.push(&[6.0, 1.0, 0.5]);
        assert_eq!(points.first_new(all), Some(0), "a column has its first value");
        points.clear();
        assert_eq!((points.first_new(all), points.from(0).len()), (Some(0), 0));
    }
}
