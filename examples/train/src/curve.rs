//! The loss of each step as a picture: one line over two axes.

use std::fmt::Write as _;

const WIDTH: f32 = 640.0;
const HEIGHT: f32 = 240.0;
/// Around the plot; the numbers stand there.
const MARGIN: f32 = 40.0;

/// The losses of steps 1, 2, 3, … as SVG.
pub fn svg(losses: &[f32]) -> String {
    let most = losses.iter().copied().filter(|loss| loss.is_finite()).fold(f32::MIN_POSITIVE, f32::max);
    let last = (losses.len().max(2) - 1) as f32;
    let mut points = String::new();
    for (step, loss) in losses.iter().enumerate().filter(|(_, loss)| loss.is_finite()) {
        let x = MARGIN + step as f32 / last * (WIDTH - 2.0 * MARGIN);
        let y = HEIGHT - MARGIN - loss / most * (HEIGHT - 2.0 * MARGIN);
        // Writing to a string cannot fail.
        let _ = write!(points, "{x:.1},{y:.1} ");
    }
    let (right, bottom) = (WIDTH - MARGIN, HEIGHT - MARGIN);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <path d=\"M{MARGIN} {MARGIN}V{bottom}H{right}\" fill=\"none\" stroke=\"#888\"/>\n\
         <text x=\"4\" y=\"{MARGIN}\">{most:.2}</text>\n\
         <text x=\"4\" y=\"{bottom}\">0</text>\n\
         <text x=\"{right}\" y=\"{}\" text-anchor=\"end\">step {}</text>\n\
         <text x=\"{MARGIN}\" y=\"20\">loss</text>\n\
         <polyline points=\"{}\" fill=\"none\" stroke=\"#06c\"/>\n\
         </svg>\n",
        HEIGHT - 20.0,
        losses.len(),
        points.trim_end(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_a_point_for_each_step_inside_the_picture() {
        let svg = svg(&[2.0, 1.0, 0.0]);
        assert!(svg.contains("points=\"40.0,40.0 320.0,120.0 600.0,200.0\""), "{svg}");
        assert!(super::svg(&[]).ends_with("</svg>\n"));
    }
}
