//! The picture: calls per second over time, one panel per window, one series per policy.
//!
//! Short windows are bars side by side, long ones lines. A scale that would flatten a policy to nothing, as a busy loop
//! does to everything beside it, is logarithmic. The font is built in, so a picture needs nothing that the machine may
//! lack.

use std::io::BufWriter;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::FontStyle;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Report, WindowReport};

/// Lengths are in points, which a [`Canvas`] turns into pixels.
const WIDTH: i32 = 1200;
const HEADER: i32 = 84;
const PANEL: i32 = 400;
const FONT: &str = "sans-serif";

/// Pixels per point of a PNG: small text on whole pixels reads badly. A vector picture needs one.
const PNG_SCALE: i32 = 2;

/// Okabe and Ito's colours, which people with any common colour blindness can tell apart, darkest first.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
const INK: RGBColor = RGBColor(33, 37, 41);
const FAINT: RGBColor = RGBColor(108, 117, 125);
const GRID: RGBColor = RGBColor(225, 228, 232);

/// The height of a line of the legend.
const LEGEND_ROW: i32 = 22;

/// Above this many seconds bars would be thinner than a line.
const BARS_SECONDS_MAX: usize = 90;

/// Peaks that differ by more than this factor share a logarithmic scale.
const LINEAR_RATIO_MAX: u64 = 50;

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub(super) enum PlotError {
    /// The file's ending names no format we write.
    #[error("cannot tell the picture format of `{}`, its name must end in .png or .svg", .0.display())]
    Format(PathBuf),
    /// The file could not be written.
    #[error("cannot write `{}`", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The drawing library gave up.
    #[error("cannot draw the plot: {0}")]
    Draw(String),
}

/// Draws the report into a file, in the format its ending names.
pub(super) fn write(report: &Report, path: &Path) -> Result<(), PlotError> {
    let failed = |source| PlotError::Write { path: path.to_owned(), source };
    match path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase).as_deref() {
        Some("svg") => std::fs::write(path, svg(report)?).map_err(failed),
        Some("png") => {
            let (width, height) = size(report, PNG_SCALE);
            let pixels = pixels(report)?;
            let file = std::fs::File::create(path).map_err(failed)?;
            let mut encoder = png::Encoder::new(BufWriter::new(file), width, height);
            encoder.set_color(png::ColorType::Rgb);
            encoder.set_depth(png::BitDepth::Eight);
            let mut writer = encoder.write_header().map_err(|error| failed(error.into()))?;
            writer.write_image_data(&pixels).map_err(|error| failed(error.into()))?;
            writer.finish().map_err(|error| failed(error.into()))
        }
        _ => Err(PlotError::Format(path.to_owned())),
    }
}

fn size(report: &Report, scale: i32) -> (u32, u32) {
    let panels = i32::try_from(panels(report)).unwrap_or(i32::MAX);
    let height = PANEL.saturating_mul(panels).saturating_add(HEADER);
    (WIDTH.saturating_mul(scale).unsigned_abs(), height.saturating_mul(scale).unsigned_abs())
}

fn panels(report: &Report) -> usize {
    report.policies.first().map_or(0, |policy| policy.windows.len())
}

fn svg(report: &Report) -> Result<String, PlotError> {
    let mut text = String::new();
    draw(report, &SVGBackend::with_string(&mut text, size(report, 1)).into_drawing_area(), 1)?;
    Ok(text)
}

fn pixels(report: &Report) -> Result<Vec<u8>, PlotError> {
    let (width, height) = size(report, PNG_SCALE);
    let mut pixels = vec![255; width as usize * height as usize * 3];
    draw(report, &BitMapBackend::with_buffer(&mut pixels, (width, height)).into_drawing_area(), PNG_SCALE)?;
    Ok(pixels)
}

fn draw<B: DrawingBackend>(report: &Report, area: &DrawingArea<B, Shift>, scale: i32) -> Result<(), PlotError> {
    for (style, bytes) in [(FontStyle::Normal, dejavu::sans::regular()), (FontStyle::Bold, dejavu::sans::bold())] {
        register_font(FONT, style, bytes).map_err(|_| PlotError::Draw("the built-in font is damaged".to_owned()))?;
    }
    try_draw(report, &Canvas { area, scale }).map_err(|error| PlotError::Draw(error.to_string()))
}

type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;

/// A drawing area whose lengths are in points.
struct Canvas<'a, B: DrawingBackend> {
    area: &'a DrawingArea<B, Shift>,
    scale: i32,
}

impl<B: DrawingBackend> Canvas<'_, B> {
    fn pixel(&self, (x, y): (i32, i32)) -> (i32, i32) {
        (x * self.scale, y * self.scale)
    }

    fn text(&self, text: &str, at: (i32, i32), look: Look) -> Drawn<B> {
        let size = look.size * self.scale.unsigned_abs();
        let weight = if look.bold { FontStyle::Bold } else { FontStyle::Normal };
        let mut style = (FONT, size, weight).into_font().color(&look.colour).pos(Pos::new(look.align, VPos::Center));
        if look.upwards {
            style = style.transform(FontTransform::Rotate270);
        }
        self.area.draw(&Text::new(text, self.pixel(at), style))
    }

    fn line(&self, points: &[(i32, i32)], colour: RGBColor) -> Drawn<B> {
        let points: Vec<_> = points.iter().map(|point| self.pixel(*point)).collect();
        self.area.draw(&PathElement::new(points, colour.stroke_width(self.scale.unsigned_abs())))
    }

    fn rectangle(&self, from: (i32, i32), to: (i32, i32), colour: RGBColor) -> Drawn<B> {
        self.area.draw(&Rectangle::new([self.pixel(from), self.pixel(to)], colour.filled()))
    }
}

/// How a piece of text looks.
#[derive(Clone, Copy)]
struct Look {
    size: u32,
    bold: bool,
    colour: RGBColor,
    align: HPos,
    upwards: bool,
}

impl Look {
    const fn plain(size: u32, colour: RGBColor, align: HPos) -> Self {
        Self { size, bold: false, colour, align, upwards: false }
    }

    const fn bold(size: u32) -> Self {
        Self { size, bold: true, colour: INK, align: HPos::Left, upwards: false }
    }
}

fn try_draw<B: DrawingBackend>(report: &Report, canvas: &Canvas<'_, B>) -> Drawn<B> {
    canvas.area.fill(&WHITE)?;
    canvas.text(&report.title, (24, 28), Look::bold(26))?;
    let scenario = &report.scenario;
    let subtitle = format!(
        "calls per second while nobody answers; {}, a call fails after {}, seed {}",
        if scenario.tick == "0s" { "no ticker".to_owned() } else { format!("ticker {}", scenario.tick) },
        scenario.latency,
        scenario.seed
    );
    canvas.text(&subtitle, (24, 60), Look::plain(17, FAINT, HPos::Left))?;
    for at in 0..panels(report) {
        let series: Vec<Series<'_>> = report
            .policies
            .iter()
            .enumerate()
            .filter_map(|(number, policy)| {
                let window = policy.windows.get(at)?;
                Some(Series { policy: &policy.policy, window, colour: COLOURS[number % COLOURS.len()] })
            })
            .collect();
        let top = PANEL.saturating_mul(i32::try_from(at).unwrap_or(i32::MAX)).saturating_add(HEADER);
        draw_panel(&series, report.since, top, canvas)?;
    }
    canvas.area.present()
}

struct Series<'a> {
    policy: &'a str,
    window: &'a WindowReport,
    colour: RGBColor,
}

/// One panel. The axes are drawn here because the library's labels sit off centre with a built-in font.
fn draw_panel<B: DrawingBackend>(series: &[Series<'_>], since: &str, top: i32, canvas: &Canvas<'_, B>) -> Drawn<B> {
    let Some(first) = series.first() else { return Ok(()) };
    let seconds = first.window.per_second.len();
    let frame = Frame::new(top, seconds, series);

    canvas.text(&format!("first {}", first.window.window), (frame.left, top + 14), Look::bold(18))?;
    for value in frame.scale.marks() {
        let y = frame.y(value);
        canvas.line(&[(frame.left, y), (frame.right, y)], GRID)?;
        canvas.text(&thousands(value), (frame.left - 10, y), Look::plain(15, FAINT, HPos::Right))?;
    }
    let unit = TimeUnit::of(seconds);
    for second in unit.marks(seconds) {
        let x = frame.x(second as f64);
        canvas.line(&[(x, frame.bottom), (x, frame.bottom + 5)], FAINT)?;
        let label = (second / unit.seconds).to_string();
        canvas.text(&label, (x, frame.bottom + 17), Look::plain(15, FAINT, HPos::Center))?;
    }
    let middle = (frame.left.midpoint(frame.right), frame.bottom + 38);
    canvas.text(&format!("{} since {since}", unit.name), middle, Look::plain(15, INK, HPos::Center))?;
    let axis = if frame.scale.logarithmic { "calls per second (logarithmic)" } else { "calls per second" };
    let look = Look { upwards: true, ..Look::plain(15, INK, HPos::Center) };
    canvas.text(axis, (26, frame.top.midpoint(frame.bottom)), look)?;

    for (number, one) in series.iter().enumerate() {
        if seconds <= BARS_SECONDS_MAX {
            frame.bars(canvas, one, number, series.len())?;
        } else {
            frame.curve(canvas, one)?;
        }
    }
    canvas.line(&[(frame.left, frame.bottom), (frame.right, frame.bottom)], INK)?;

    for (row, one) in (0i32..).zip(series) {
        let y = top + 14 + row * LEGEND_ROW;
        let (calls, peak) = (thousands(one.window.calls), thousands(one.window.peak_per_second));
        let text = format!("{}   {calls} calls, peak {peak}/s", one.policy);
        canvas.text(&text, (frame.right - 24, y), Look::plain(15, INK, HPos::Right))?;
        canvas.rectangle((frame.right - 16, y - 7), (frame.right, y + 7), one.colour)?;
    }
    Ok(())
}

/// Where a panel's plot lies, and how values map to points.
struct Frame {
    left: i32,
    right: i32,
    top: i32,
    bottom: i32,
    seconds: usize,
    scale: Scale,
}

impl Frame {
    fn new(top: i32, seconds: usize, series: &[Series<'_>]) -> Self {
        let legend = LEGEND_ROW.saturating_mul(i32::try_from(series.len()).unwrap_or(i32::MAX));
        Self {
            left: 100,
            right: WIDTH - 30,
            // Even a long legend leaves half of the panel to the plot.
            top: top + legend.saturating_add(18).min(PANEL / 2),
            bottom: top + PANEL - 66,
            seconds,
            scale: Scale::of(series),
        }
    }

    fn x(&self, second: f64) -> i32 {
        self.left + (f64::from(self.right - self.left) * second / self.seconds.max(1) as f64).round() as i32
    }

    fn y(&self, calls: u64) -> i32 {
        self.bottom - (f64::from(self.bottom - self.top) * self.scale.share(calls)).round() as i32
    }

    fn bars<B: DrawingBackend>(
        &self,
        canvas: &Canvas<'_, B>,
        series: &Series<'_>,
        number: usize,
        of: usize,
    ) -> Drawn<B> {
        // Each second keeps a tenth free on both sides, and the series share the rest.
        let width = 0.8 / of.max(1) as f64;
        for (second, calls) in series.window.per_second.iter().enumerate().filter(|(_, calls)| **calls > 0) {
            let left = second as f64 + 0.1 + width * number as f64;
            let (from, to) = (self.x(left), self.x(left + width));
            canvas.rectangle((from, self.y(*calls)), (to.max(from + 2) - 1, self.bottom), series.colour)?;
        }
        Ok(())
    }

    fn curve<B: DrawingBackend>(&self, canvas: &Canvas<'_, B>, series: &Series<'_>) -> Drawn<B> {
        // Seconds that share a column show the busiest of them, so that a lone call does not vanish.
        let columns = (self.right - self.left).max(1) as usize;
        let cells = &series.window.per_second;
        let per_column = cells.len().div_ceil(columns).max(1);
        let mut points = Vec::with_capacity(2 * columns);
        for (column, chunk) in cells.chunks(per_column).enumerate() {
            let y = self.y(chunk.iter().copied().max().unwrap_or(0));
            let second = column * per_column;
            points.push((self.x(second as f64), y));
            points.push((self.x((second + chunk.len()) as f64), y));
        }
        canvas.line(&points, series.colour)
    }
}

/// The vertical scale of a panel.
struct Scale {
    top: u64,
    logarithmic: bool,
}

impl Scale {
    fn of(series: &[Series<'_>]) -> Self {
        let peaks = || series.iter().map(|series| series.window.peak_per_second);
        let top = peaks().max().unwrap_or(0).max(1);
        let least = peaks().filter(|peak| *peak > 0).min().unwrap_or(top);
        let logarithmic = top / least > LINEAR_RATIO_MAX;
        Self { top, logarithmic }
    }

    /// The share of the height, 0 for no calls. On a logarithmic scale one call stands a little above none.
    fn share(&self, calls: u64) -> f64 {
        if calls == 0 {
            0.0
        } else if self.logarithmic {
            (2.0 * calls as f64).ln() / (2.0 * self.top as f64).ln()
        } else {
            calls as f64 / self.top as f64
        }
    }

    /// The values with a grid line: round numbers up to the top.
    fn marks(&self) -> Vec<u64> {
        if self.logarithmic {
            let powers = std::iter::successors(Some(1u64), |power| power.checked_mul(10));
            return std::iter::once(0).chain(powers.take_while(|power| *power <= self.top)).collect();
        }
        let step = nice_step(self.top, 5);
        (0..).map(|number| number * step).take_while(|value| *value <= self.top).collect()
    }
}

/// The smallest of 1, 2, 5, 10, 20, … that makes at most `most` steps.
fn nice_step(range: u64, most: u64) -> u64 {
    let decades = std::iter::successors(Some(1u64), |decade| decade.checked_mul(10));
    decades
        .flat_map(|decade| [1, 2, 5].map(|factor| decade.saturating_mul(factor)))
        .find(|step| range / step <= most)
        .unwrap_or(u64::MAX)
}

/// What the horizontal axis counts in.
struct TimeUnit {
    name: &'static str,
    seconds: usize,
    /// Steps that look natural in this unit.
    steps: &'static [usize],
}

impl TimeUnit {
    fn of(seconds: usize) -> Self {
        match seconds {
            0..=300 => Self { name: "seconds", seconds: 1, steps: &[1, 2, 5, 10, 15, 30] },
            301..=18_000 => Self { name: "minutes", seconds: 60, steps: &[1, 2, 5, 10, 15, 30] },
            _ => Self { name: "hours", seconds: 3600, steps: &[1, 2, 6, 12, 24] },
        }
    }

    /// The seconds with a label, at most about 15.
    fn marks(&self, seconds: usize) -> Vec<usize> {
        let units = seconds / self.seconds;
        let step = self.steps.iter().copied().find(|step| units / step <= 15).unwrap_or(units.div_ceil(15).max(1));
        (0..=units).step_by(step).map(|unit| unit * self.seconds).collect()
    }
}

/// `3600000` as `3,600,000`.
fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
