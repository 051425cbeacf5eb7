//! Repetition of measurements with an unsteady floor. Pure.
//!
//! The floor is a cost that does not depend on what is measured. If it differs between rounds, something else used the
//! machine. The floor alone decides which measurement is kept, never the result above it.

use anyhow::Result;

/// Maximum variation of a steady floor between rounds, as a fraction of its median.
pub const VARIED_MAX: f64 = 0.2;

/// Returns the variation of a floor between rounds, as a fraction of its median.
pub fn varied(floor: &[f64]) -> f64 {
    let mut floor = floor.to_vec();
    floor.sort_by(f64::total_cmp);
    match floor[..] {
        [] => 0.0,
        [least, .., most] => (most - least) / floor[(floor.len() - 1) / 2].midpoint(floor[floor.len() / 2]),
        [_] => 0.0,
    }
}

/// Measurement of a row, with its quality.
#[derive(Clone, Debug, PartialEq)]
pub struct Steadied<T> {
    /// The measurement with the least varied floor.
    pub of: T,
    /// Variation of that floor.
    pub floor_varied: f64,
    /// Number of repetitions of the measurement.
    pub measured_again: u32,
}

/// Repeats the measurement of rows with a floor that varied by more than [`VARIED_MAX`], up to `again_max` times.
/// `measure` receives the rows' positions and the number of the repetition.
pub fn steadied<T>(
    first: Vec<T>,
    again_max: u32,
    varied: impl Fn(&T) -> f64,
    mut measure: impl FnMut(&[usize], u32) -> Result<Vec<T>>,
) -> Result<Vec<Steadied<T>>> {
    let steadied = |of| Steadied { floor_varied: varied(&of), of, measured_again: 0 };
    let mut all: Vec<Steadied<T>> = first.into_iter().map(steadied).collect();
    for again in 1..=again_max {
        let is_unsteady = |(at, row): (usize, &Steadied<T>)| (row.floor_varied > VARIED_MAX).then_some(at);
        let unsteady: Vec<usize> = all.iter().enumerate().filter_map(is_unsteady).collect();
        if unsteady.is_empty() {
            break;
        }
        for (&at, newer) in unsteady.iter().zip(measure(&unsteady, again)?) {
            let (row, newer_varied) = (&mut all[at], varied(&newer));
            row.measured_again = again;
            if newer_varied < row.floor_varied {
                (row.of, row.floor_varied) = (newer, newer_varied);
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_varies_by_its_extremes_as_a_share_of_its_median() {
        assert_eq!([varied(&[]), varied(&[7.0]), varied(&[200.0; 3])], [0.0; 3]);
        assert!((varied(&[190.0, 230.0, 200.0]) - 0.2).abs() < 1e-9);
        assert!((varied(&[100.0, 300.0]) - 1.0).abs() < 1e-9);
    }

    /// A measurement: the floor in each round, and the result above it.
    type Of = (Vec<f64>, f64);

    fn run(first: Vec<Of>, again_max: u32, mut later: Vec<Of>) -> (Vec<Steadied<Of>>, Vec<Vec<usize>>) {
        let mut asked = Vec::new();
        let measure = |rows: &[usize], _| {
            asked.push(rows.to_vec());
            Ok(rows.iter().map(|_| later.remove(0)).collect())
        };
        let all = steadied(first, again_max, |(floor, _)| varied(floor), measure).unwrap();
        (all, asked)
    }

    #[test]
    fn only_rows_whose_floor_varied_by_more_than_a_fifth_are_measured_again() {
        let steady = (vec![190.0, 200.0, 230.0], 5.0);
        let unsteady = (vec![190.0, 200.0, 231.0], 5.0);
        let (all, asked) = run(vec![steady.clone(), unsteady], 2, vec![steady.clone()]);
        assert_eq!(asked, [[1]]);
        assert_eq!((all[0].measured_again, all[1].measured_again), (0, 1));
        assert_eq!(all[1].of, steady);
    }

    #[test]
    fn remeasurement_stops_at_its_bound_and_keeps_the_steadiest_result() {
        let of = |most: f64, above: f64| (vec![100.0, 100.0, most], above);
        let (all, asked) = run(vec![of(160.0, 1.0)], 2, vec![of(140.0, 90.0), of(150.0, 2.0)]);
        assert_eq!(asked.len(), 2);
        assert_eq!(all[0].of, of(140.0, 90.0));
        assert_eq!(all[0].measured_again, 2);
        assert!((all[0].floor_varied - 0.4).abs() < 1e-9);
        let (all, asked) = run(vec![of(160.0, 1.0)], 0, Vec::new());
        assert_eq!((all[0].measured_again, asked.len()), (0, 0));
    }
}
