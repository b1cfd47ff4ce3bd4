//! A little SVG: enough for axes, lines, bars and text.

use std::fmt::Write;

/// The style of a drawing that is a file of its own: colours as they are, for programs that know no
/// variables.
pub const STYLE: &str = include_str!("drawing.css");

/// A drawing that grows. Coordinates are in the drawing's own units; the page scales it to its
/// column.
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// Escapes text so that it may stand in HTML and SVG, attributes included.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// The place of text at its point.
#[derive(Clone, Copy)]
pub enum Anchor {
    /// Begins there.
    Start,
    /// Is centred there.
    Middle,
    /// Ends there.
    End,
}

impl Svg {
    /// Makes an empty drawing.
    pub fn new(width: f64, height: f64) -> Svg {
        Svg { width, height, body: String::new() }
    }

    /// Returns the width.
    pub fn width(&self) -> f64 {
        self.width
    }

    /// Draws a straight line with a class.
    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        let _ = write!(
            self.body,
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" class="{class}"/>"#
        );
    }

    /// Draws a filled rectangle in colour `colour` (an index), with a title.
    pub fn bar(&mut self, x: f64, y: f64, w: f64, h: f64, colour: usize, title: &str) {
        let title = escape(title);
        let _ = write!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{:.1}" height="{h:.1}" rx="1.5" class="f{}"><title>{title}</title></rect>"#,
            w.max(0.5),
            colour % 8
        );
    }

    /// Draws a path through points in colour `colour`.
    pub fn curve(&mut self, points: &[(f64, f64)], colour: usize) {
        let _ = write!(self.body, r#"<path d="{}" class="s{}"/>"#, path(points), colour % 8);
    }

    /// Draws a broken path through points in colour `colour`: what nobody measured.
    pub fn broken(&mut self, points: &[(f64, f64)], colour: usize) {
        let d = path(points);
        let _ = write!(self.body, r#"<path d="{d}" class="s{}" stroke-dasharray="5 4"/>"#, colour % 8);
    }

    /// Draws the area under points, down to `base`.
    pub fn area(&mut self, points: &[(f64, f64)], base: f64, colour: usize) {
        let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
        let mut all = vec![(first.0, base)];
        all.extend_from_slice(points);
        all.push((last.0, base));
        let _ = write!(self.body, r#"<path d="{}Z" class="a{}"/>"#, path(&all), colour % 8);
    }

    /// Draws a dot with a title.
    pub fn dot(&mut self, (x, y): (f64, f64), colour: usize, title: &str) {
        let title = escape(title);
        let _ = write!(
            self.body,
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" class="f{}"><title>{title}</title></circle>"#,
            colour % 8
        );
    }

    /// Draws text.
    pub fn text(&mut self, x: f64, y: f64, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        let _ = write!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" class="{class}">{text}</text>"#
        );
    }

    /// Returns the drawing as a file of its own, with its style in it.
    pub fn alone(self, label: &str) -> String {
        debug_assert!(!STYLE.contains("</"), "the style would end early");
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w:.0} {h:.0}" width="{w:.0}" height="{h:.0}"><title>{}</title><style>{STYLE}</style><rect width="100%" height="100%" fill="white"/>{}</svg>"#,
            escape(label),
            self.body,
            w = self.width,
            h = self.height,
        )
    }

    /// Returns the whole element; `label` describes it to those who can't see it.
    pub fn finish(self, label: &str) -> String {
        format!(
            r#"<svg viewBox="0 0 {:.0} {:.0}" role="img" aria-label="{}">{}</svg>"#,
            self.width,
            self.height,
            escape(label),
            self.body
        )
    }
}

/// Formats the data of a path through points.
fn path(points: &[(f64, f64)]) -> String {
    debug_assert!(!points.is_empty(), "a path without a point");
    let mut d = String::new();
    for (i, (x, y)) in points.iter().enumerate() {
        let _ = write!(d, "{}{x:.1} {y:.1}", if i == 0 { 'M' } else { 'L' });
    }
    d
}

/// Returns a number not below `value` that reads well, and the step of three or four marks up to
/// it.
pub fn nice(value: f64) -> (f64, f64) {
    if !value.is_finite() || value <= 0.0 {
        return (1.0, 0.5);
    }
    let rough = value / 4.0;
    let unit = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 2.5, 5.0, 10.0].iter().map(|m| m * unit).find(|s| *s >= rough).unwrap_or(unit * 10.0);
    ((value / step).ceil() * step, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_out_of_text() {
        assert_eq!(escape("<a href='x'>\"&\n"), "&lt;a href=&#39;x&#39;&gt;&quot;&amp; ");
    }

    #[test]
    fn nice_marks() {
        assert_eq!(nice(3.7), (4.0, 1.0));
        assert_eq!(nice(1.0), (1.0, 0.25));
        assert_eq!(nice(0.0), (1.0, 0.5));
        assert_eq!(nice(f64::NAN), (1.0, 0.5));
        let (top, step) = nice(123_456.0);
        assert!(top >= 123_456.0 && (3.0..=5.0).contains(&(top / step)));
    }
}
