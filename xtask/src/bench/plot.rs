//! Plots as SVG text: bars for cost comparisons, lines for growth.

use std::fmt::Write as _;

use super::measured::Spread;

const WIDTH: f64 = 720.0;
const LABELS: f64 = 300.0;
const BAR: f64 = 16.0;
/// Colours that are readable on white and on dark backgrounds.
const COLOURS: [&str; 4] = ["#1b7f5a", "#c2803a", "#4878a8", "#9a5fa0"];

/// Group of bars, each with the index of its series and its value.
pub(super) struct Group {
    pub(super) name: String,
    pub(super) bars: Vec<(usize, f64)>,
}

/// Returns a plot of horizontal bars, all from 0 on one scale.
pub(super) fn bars(title: &str, series: &[&str], groups: &[Group]) -> String {
    let most = groups.iter().flat_map(|group| &group.bars).map(|(_, value)| *value).fold(1.0, f64::max);
    let scale = (WIDTH - LABELS - 70.0) / most;
    let mut body = String::new();
    let mut y = 60.0;
    for (at, name) in series.iter().enumerate() {
        let x = 10.0 + 140.0 * at as f64;
        write!(body, "<rect x=\"{x}\" y=\"34\" width=\"10\" height=\"10\" fill=\"{}\"/>", COLOURS[at % COLOURS.len()])
            .ok();
        writeln!(body, "<text x=\"{}\" y=\"43\">{}</text>", x + 15.0, escaped(name)).ok();
    }
    for group in groups {
        writeln!(body, "<text x=\"10\" y=\"{:.0}\">{}</text>", y + 12.0, escaped(&group.name)).ok();
        for &(series, value) in &group.bars {
            let (width, colour) = ((value * scale).max(1.0), COLOURS[series % COLOURS.len()]);
            write!(body, "<rect x=\"{LABELS}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"12\" fill=\"{colour}\"/>")
                .ok();
            writeln!(body, "<text x=\"{:.1}\" y=\"{:.0}\">{value:.0}</text>", LABELS + width + 5.0, y + 11.0).ok();
            y += BAR;
        }
        y += 10.0;
    }
    document(title, y + 5.0, &body)
}

/// Returns a plot of one line over counts on a logarithmic scale, with the extremes at each median.
pub(super) fn line(title: &str, points: &[(u64, Spread)]) -> String {
    let (left, right, top, bottom) = (60.0, WIDTH - 40.0, 50.0, 250.0);
    let most = points.iter().map(|(_, spread)| spread.max).fold(1.0, f64::max);
    let decades = points.iter().map(|(count, _)| log(*count)).fold(1.0, f64::max);
    let x = |count: u64| left + (right - left) * log(count) / decades;
    let y = |ns: f64| bottom - (bottom - top) * ns.max(0.0) / most;
    let mut body = String::new();
    for part in 0..=4 {
        let ns = most * f64::from(part) / 4.0;
        let at = y(ns);
        write!(body, "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#888888\" stroke-opacity=\"0.3\"/>").ok();
        writeln!(body, "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{ns:.0}</text>", left - 6.0, at + 4.0).ok();
    }
    let mut path = String::new();
    for &(count, spread) in points {
        let (at, median) = (x(count), y(spread.median));
        write!(path, "{}{at:.1} {median:.1}", if path.is_empty() { "M" } else { " L" }).ok();
        let (least, most) = (y(spread.min), y(spread.max));
        write!(
            body,
            "<line x1=\"{at:.1}\" y1=\"{least:.1}\" x2=\"{at:.1}\" y2=\"{most:.1}\" stroke=\"{}\"/>",
            COLOURS[0]
        )
        .ok();
        write!(body, "<circle cx=\"{at:.1}\" cy=\"{median:.1}\" r=\"3.5\" fill=\"{}\"/>", COLOURS[0]).ok();
        writeln!(body, "<text x=\"{at:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{count}</text>", bottom + 18.0).ok();
    }
    writeln!(body, "<path d=\"{path}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>", COLOURS[0]).ok();
    document(title, bottom + 30.0, &body)
}

/// Returns the decimal logarithm. 0 is plotted like 1.
fn log(count: u64) -> f64 {
    (count.max(1) as f64).log10()
}

fn document(title: &str, height: f64, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"14\">{}</text>\n{body}</svg>\n",
        escaped(title)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_is_of_the_largest_value_and_names_are_escaped() {
        let groups = [Group { name: "a < b".into(), bars: vec![(0, 10.0), (1, 350.0)] }];
        let svg = bars("costs", &["one", "other"], &groups);
        assert!(svg.contains("width=\"350.0\"") && svg.contains("width=\"10.0\""), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn a_line_goes_through_every_median() {
        let spread = |median| Spread { median, min: median, max: median };
        let svg = line("growth", &[(0, spread(50.0)), (10, spread(100.0)), (100, spread(100.0))]);
        assert!(svg.contains("d=\"M60.0 150.0 L370.0 50.0 L680.0 50.0\""), "{svg}");
    }
}
