//! The plot: a panel of bars per comparison. The font is built in, so that it looks the same everywhere.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::FontStyle;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub struct Bar {
    pub name: String,
    pub value: f64,
}

pub struct Chart {
    pub title: String,
    pub unit: String,
    pub bars: Vec<Bar>,
}

const WIDTH: i32 = 1_600;
const ROW: i32 = 44;
const HEAD: i32 = 84;
const NAMES: i32 = 470;
const INK: RGBColor = RGBColor(33, 37, 41);
const FAINT: RGBColor = RGBColor(108, 117, 125);
/// Ours is darker than the others.
const OURS: RGBColor = RGBColor(0, 114, 178);
const THEIRS: RGBColor = RGBColor(170, 178, 186);

pub fn draw(path: &Path, charts: &[Chart]) {
    let font = register_font("sans-serif", FontStyle::Normal, dejavu::sans::regular());
    assert!(font.is_ok(), "the built-in font is a font");
    let height: i32 = charts.iter().map(|chart| HEAD + ROW * chart.bars.len() as i32 + 30).sum();
    let area = BitMapBackend::new(path, (WIDTH as u32, height as u32)).into_drawing_area();
    area.fill(&WHITE).expect("drawn");
    let text = |text: &str, size: i32, colour: RGBColor, at: (i32, i32), right: bool| {
        let side = if right { HPos::Right } else { HPos::Left };
        let style = TextStyle::from(("sans-serif", size).into_font()).color(&colour).pos(Pos::new(side, VPos::Center));
        area.draw(&Text::new(text.to_owned(), at, style)).expect("drawn");
    };
    let mut top = 0;
    for chart in charts {
        text(&chart.title, 30, INK, (30, top + 34), false);
        text(&chart.unit, 20, FAINT, (30, top + 64), false);
        top += HEAD;
        let most = chart.bars.iter().map(|bar| bar.value).fold(1e-9, f64::max);
        for bar in &chart.bars {
            let ours = !["hop", "MariaDB", "proxy"].iter().any(|word| bar.name.contains(word));
            let width = (bar.value / most * f64::from(WIDTH - NAMES - 220)) as i32;
            let shape = [(NAMES, top + 6), (NAMES + width.max(2), top + ROW - 6)];
            area.draw(&Rectangle::new(shape, if ours { OURS } else { THEIRS }.filled())).expect("drawn");
            text(&bar.name, 22, INK, (NAMES - 16, top + ROW / 2), true);
            let value = if bar.value < 100.0 { format!("{:.1}", bar.value) } else { format!("{:.0}", bar.value) };
            text(&value, 22, INK, (NAMES + width.max(2) + 12, top + ROW / 2), false);
            top += ROW;
        }
        top += 30;
    }
    area.present().expect("written");
}
