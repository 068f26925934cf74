# SPDX-License-Identifier: Apache-2.0
"""SVG drawings in light colors, which a browser replaces by dark ones on dark pages."""

import dataclasses
import re
from xml.sax.saxutils import escape

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

# The contrast of text and ground is at least 4.5. The grounds are those of most pages.
LIGHT = {
    "ground": "#ffffff",
    "ink": "#1f2328",
    "faint": "#59636e",
    "line": "#c4ccd4",
    "blue": "#0b62d6",
    "orange": "#a84800",
    "green": "#17733a",
    "purple": "#7b3fd0",
}
DARK = {
    "ground": "#0d1117",
    "ink": "#e6edf3",
    "faint": "#9aa4af",
    "line": "#3d444d",
    "blue": "#58a6ff",
    "orange": "#f0964a",
    "green": "#4fc46a",
    "purple": "#b98cff",
}
IN_THE_DARK = "".join(
    f'[{use}="{light}"]{{{use}:{DARK[name]}}}'
    for name, light in LIGHT.items()
    for use in ("fill", "stroke")
)


@dataclasses.dataclass
class Drawing:
    """A drawing whose colors are names of the palettes.

    Attributes:
      width, height: the size in pixels.
      title: the text for those who cannot see the drawing.
    """

    width: float
    height: float
    title: str
    elements: list[str] = dataclasses.field(default_factory=list)

    def rectangle(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        color: str,
        opacity: float = 1,
        line: str = "",
    ) -> None:
        stroke = f' stroke="{LIGHT[line]}"' if line else ""
        box = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        fill = f'fill="{LIGHT[color]}" fill-opacity="{opacity:g}"'
        self.elements.append(f"<rect {box} {fill}{stroke}/>")

    def line(
        self,
        points: list[tuple[float, float]],
        color: str,
        width: float = 1.5,
        end: str = "",
    ) -> None:
        """Draws a line through points; with `end="arrow"`, its head is at the last point."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        stroke = f'stroke="{LIGHT[color]}" stroke-width="{width:g}"'
        self.elements.append(f'<polyline points="{path}" fill="none" {stroke}/>')
        if end == "arrow":
            (x, y), (x2, y2) = points[-2:]
            length = ((x2 - x) ** 2 + (y2 - y) ** 2) ** 0.5
            dx, dy = 7 * (x2 - x) / length, 7 * (y2 - y) / length
            corners = [
                (x2, y2),
                (x2 - dx - dy / 2, y2 - dy + dx / 2),
                (x2 - dx + dy / 2, y2 - dy - dx / 2),
            ]
            path = " ".join(f"{x:g},{y:g}" for x, y in corners)
            self.elements.append(f'<polygon points="{path}" fill="{LIGHT[color]}"/>')

    def dot(self, x: float, y: float, radius: float, color: str) -> None:
        self.elements.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" fill="{LIGHT[color]}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        color: str = "ink",
        size: float = 14,
        anchor: str = "start",
    ) -> None:
        """Draws a line of text, in which `_{...}` is set lower, `^{...}` higher and `*...*` bold."""
        place = f'x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}"'
        self.elements.append(
            f'<text {place} fill="{LIGHT[color]}">{_spans(text, size)}</text>'
        )

    def render(self) -> str:
        """Returns the file. Its ground is part of it, so it is readable on a page of the other kind, too."""
        ground = f'<rect width="100%" height="100%" rx="8" fill="{LIGHT["ground"]}"/>'
        style = f"<style>@media (prefers-color-scheme:dark){{{IN_THE_DARK}}}</style>"
        body = "\n".join([style, ground, *self.elements])
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'width="{self.width:g}" height="{self.height:g}" font-family="{FONT}" role="img">\n'
            f"<title>{escape(self.title)}</title>\n{body}\n</svg>\n"
        )


def _spans(text: str, size: float) -> str:
    """Turns the markup of `Drawing.text` into spans; a shift holds until it is taken back."""
    spans, shift = [], 0.0
    for part in re.findall(r"[_^]\{[^}]*\}|\*[^*]+\*|[^_^*]+", text):
        target = {"_": 0.25 * size, "^": -0.35 * size}.get(part[0], 0.0)
        content = part[2:-1] if part[0] in "_^" else part.strip("*")
        # Lost at the beginning of a span.
        space = len(content) - len(content.lstrip(" "))
        style = f' dx="{0.3 * size * space:g}"' if space else ""
        style += f' dy="{target - shift:g}"' if target != shift else ""
        style += f' font-size="{0.72 * size:g}"' if target else ""
        style += ' font-weight="bold"' if part[0] == "*" else ""
        spans.append(
            f"<tspan{style}>{escape(content[space:])}</tspan>"
            if style
            else escape(content)
        )
        shift = target
    return "".join(spans)
