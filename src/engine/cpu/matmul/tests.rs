//! Products of every kind of shape against sums in f64, and against themselves on other numbers of threads.

use super::*;
use crate::engine::cpu::gradcheck::random;
use crate::engine::cpu::scratch::panel_elements;
use crate::engine::cpu::simd::chosen;

/// The product of two matrices given as rows, and the sums of the second one's columns.
fn expected(a: Matrix, b: Matrix) -> (Vec<f64>, Vec<f64>) {
    let at = |x: &Matrix, r: usize, c: usize| f64::from(x.data[r * x.row_stride + c * x.col_stride]);
    let element = |i: usize| (0..a.cols).map(|k| at(&a, i / b.cols, k) * at(&b, k, i % b.cols)).sum();
    let sum = |col: usize| (0..b.rows).map(|k| at(&b, k, col)).sum();
    ((0..a.rows * b.cols).map(element).collect(), (0..b.cols).map(sum).collect())
}

fn close(what: &str, got: &[f32], want: &[f64], depth: usize) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error < 2e-7 * depth as f64 + 1e-6, "{what}: element {i} is {got}, not {want}");
    }
}

/// A matrix of random numbers, stored by rows or by columns, with a gap between them.
fn matrix(data: &[f32], rows: usize, cols: usize, transposed: bool) -> Matrix<'_> {
    if transposed {
        Matrix::new(data, cols, rows, rows + 3).transposed()
    } else {
        Matrix::new(data, rows, cols, cols + 3)
    }
}

#[test]
fn products_of_all_shapes() {
    // else the kernels of another level would be tested
    chosen().expect("a level that this processor has");
    let shapes: &[_] = if cfg!(miri) {
        // it is some thousand times slower: all ragged edges, several cuts of a sum, whole tiles that are read where
        // they are, and more columns than are finished together
        &[(1, 1, 1), (7, 31, 5), (9, 33, DEPTH + 5), (16, 40, 3)]
    } else {
        &[(1, 1, 1), (7, 31, 5), (9, 33, 17), (8, 32, 8), (24, 12, 3), (40, 500, 64), (100, 70, DEPTH + 9)]
    };
    for &(m, n, k) in shapes {
        let (x, y) = (random(1, (m + 3) * (k + 3)), random(2, (k + 3) * (n + 3)));
        for (flip_a, flip_b) in [(false, false), (false, true), (true, false), (true, true)] {
            let (a, b) = (matrix(&x, m, k, flip_a), matrix(&y, k, n, flip_b));
            let (want, want_sums) = expected(a, b);
            let mut first = None;
            // the third has room for a single panel
            for (threads, elements) in [
                (1, panel_elements(k.min(DEPTH), n)),
                (3, if cfg!(miri) { 1 << 13 } else { 1 << 20 }),
                (2, COLS * k.min(DEPTH)),
            ] {
                let what = format!("{m}x{n}x{k} {flip_a} {flip_b} {threads}");
                let worker = TASK_ROWS * k.min(DEPTH);
                let (mut panels, mut workers) = (vec![f32::NAN; elements], vec![f32::NAN; threads * worker]);
                let team = Team::new(threads).expect("a few threads can start");
                let mut scratch = Packing { panels: &mut panels, workers: &mut workers, worker, team: &team };
                let (stride, mut sums) = (n + 2, vec![0.0; n]);
                let mut out = vec![f32::NAN; m * stride];
                matmul_with_sums(&mut out, stride, a, b, SET, &mut sums, &mut scratch, |row, first, part| {
                    assert!(row < m && first + part.len() <= n);
                    part.iter_mut().for_each(|x| *x *= 2.0);
                });
                let scaled = Scaled { scale: -0.5, accumulate: true };
                matmul(&mut out, stride, a, b, scaled, &mut scratch, |_, _, part| {
                    part.iter_mut().for_each(|x| *x /= 1.5);
                });
                let got: Vec<f32> = out.chunks(stride).flat_map(|row| &row[..n]).copied().collect();
                close(&what, &got, &want, k);
                close(&what, &sums, &want_sums, k);
                assert!(
                    out.chunks(stride).all(|row| row[n..].iter().all(|x| x.is_nan())),
                    "{what}: gap written"
                );
                assert_eq!(*first.get_or_insert_with(|| got.clone()), got, "{what}");
            }
        }
    }
}

#[test]
fn parts_of_packed_operands() {
    let (m, n, k, size) = (13, 70, 96, 20);
    let (x, y) = (random(3, (m + 3) * (k + 3)), random(4, (k + 3) * (n + 3)));
    for (flip_a, flip_b) in [(false, false), (true, true)] {
        let (a, b) = (matrix(&x, m, size, flip_a), matrix(&y, k, n, flip_b));
        let mut scratch = vec![f32::NAN; panel_elements(k, n)];
        let (panels, rest) = Panels::pack(b, &mut scratch);
        assert!(rest.is_empty());
        let (rows, cols) = (30..30 + size, COLS..COLS + 38);
        let mut out = vec![f32::NAN; m * cols.len()];
        let mut spare = vec![f32::NAN; ROWS * size];
        multiply(&mut out, cols.len(), a, panels, rows.clone(), cols.clone(), SET, &mut spare);
        let (want, _) = expected(a, b.rows(rows.start, size).cols(cols.start, cols.len()));
        close("tile", &out, &want, size);
    }
}

#[test]
fn a_row_has_the_same_bits_whatever_is_multiplied_with_it() {
    chosen().expect("a level that this processor has");
    let shapes: &[_] = if cfg!(miri) {
        // the last task's columns are one group of rows to be read side by side, and some more
        &[(9, 43, DEPTH + 5)]
    } else {
        &[(9, 33, 17), (11, 500, 64), (16, 71, DEPTH + 9), (10, 2100, 7), (12, 40, 2 * DEPTH), (9, 7, 1)]
    };
    for &(m, n, k) in shapes {
        let (x, y) = (random(1, (m + 3) * (k + 3)), random(2, (k + 3) * (n + 3)));
        for flip in [false, true] {
            let (a, b) = (matrix(&x, m, k, false), matrix(&y, k, n, flip));
            let product = |a: Matrix, threads: usize| {
                let (mut panels, worker) =
                    (vec![f32::NAN; panel_elements(k.min(DEPTH), n)], TASK_ROWS * DEPTH);
                let (mut workers, mut out) = (vec![f32::NAN; threads * worker], vec![f32::NAN; a.rows * n]);
                let team = Team::new(threads).expect("a few threads can start");
                let mut scratch = Packing { panels: &mut panels, workers: &mut workers, worker, team: &team };
                assert_eq!(few::suits(a, b, &scratch), a.rows <= ROWS);
                matmul(&mut out, n, a, b, SET, &mut scratch, |row, first, part| {
                    part.iter_mut().enumerate().for_each(|(i, x)| *x += (row * n + first + i) as f32 * 0.0);
                });
                out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            // by tiles
            let whole = product(a, 2);
            for count in [1, 2, 3, 5, 8] {
                for first in (0..=m - count).step_by(3) {
                    let rows = product(a.rows(first, count), 1 + count % 3);
                    assert_eq!(
                        rows,
                        whole[first * n..][..count * n],
                        "{m}x{n}x{k} {flip}: {count} from {first}"
                    );
                }
            }
        }
    }
}

/// The work of the thread that has most, when each takes its share of the tasks first and then what others have left,
/// of the work that all would have if they ended together.
fn unevenness(tasks: Tasks, threads: usize) -> f64 {
    let count = tasks.count();
    let mut shares: Vec<Range<usize>> =
        (0..threads).map(|t| t * count / threads..(t + 1) * count / threads).collect();
    let mut busy = vec![0; threads];
    while let Some(worker) = (0..threads).min_by_key(|worker| busy[*worker]) {
        let Some(task) = (worker..threads).chain(0..worker).find_map(|owner| shares[owner].next()) else {
            break;
        };
        let (rows, cols) = tasks.part(task);
        busy[worker] += rows.len() * cols.len();
    }
    let most = busy.iter().max().copied().unwrap_or_default();
    (most * threads) as f64 / (tasks.rows * tasks.cols) as f64
}

#[test]
#[cfg_attr(miri, ignore = "arithmetic alone, and much of it")]
fn tasks_cover_a_result_once_and_keep_many_threads_busy() {
    // rows and columns of the products of GPT-2 124M, four rows of 1024, and of a model 128 wide; the deepest sums
    let products =
        [(4096, 1024), (4096, 768), (768, 1024), (3072, 768), (50304, 768), (1024, 512), (128, 384)];
    for (rows, cols) in products.into_iter().chain([(1, 1), (9, 33), (100, 70), (65, 128), (50257, 128)]) {
        for threads in [1, 2, 3, 4, 8, 16, 64] {
            let tasks = Tasks::new(rows, cols, TASK_ROWS, threads);
            let mut hits = vec![0_u8; rows.div_ceil(ROWS) * cols.div_ceil(COLS)];
            for task in 0..tasks.count() {
                let (of_rows, of_cols) = tasks.part(task);
                assert!(!of_rows.is_empty() && !of_cols.is_empty(), "{rows}x{cols} on {threads}: {task}");
                assert!(of_rows.len() <= TASK_ROWS && of_rows.end <= rows && of_cols.end <= cols);
                // whole tiles, so each begins in one task
                assert!(of_rows.start % ROWS == 0 && of_cols.start % COLS == 0);
                for row in of_rows.step_by(ROWS) {
                    for col in of_cols.clone().step_by(COLS) {
                        hits[row / ROWS * cols.div_ceil(COLS) + col / COLS] += 1;
                    }
                }
            }
            assert!(hits.iter().all(|hits| *hits == 1), "{rows}x{cols} on {threads}");
            if products.contains(&(rows, cols)) && threads <= 16 {
                let unevenness = unevenness(tasks, threads);
                // no three equal parts can be made of 128 x 384 in tiles
                let bound = if threads.is_power_of_two() { 1.05 } else { 1.15 };
                assert!(unevenness < bound, "{rows}x{cols} on {threads}: {unevenness}");
            }
        }
    }
}
