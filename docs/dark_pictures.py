"""Colors of a picture on a dark page: a style sheet inside the SVG, for readers whose browser prefers dark pages.

Other programs ignore the style sheet and show the light picture. In a browser, the scheme of the page around it
counts if it sets ``color-scheme``, so the picture follows the switch of the documentation site.
"""

from __future__ import annotations

DARK = {
    "#262626": "#e6edf3",  # text and lines
    "#8a8a8a": "#9aa5b1",  # notes and arrows
    "#d9d9d9": "#39434e",  # grids
    "#f3f3f3": "#26303a",  # boxes
    "#ffffff": "#181f27",  # the ground, and text on bars
    "white": "#181f27",
    "#0072b2": "#58b0f0",
    "#d55e00": "#f4924a",
    "#009e73": "#3cc498",
    "#cc79a7": "#e39ac3",
    "#e69f00": "#efb73e",
    "#56b4e9": "#8fd0f5",
}
"""The color in a dark picture for each color of the light one, in lower case."""


def with_dark_colors(svg: str) -> str:
    """Add a style sheet that replaces the colors of an SVG on dark pages."""
    rules = []
    for light, dark in DARK.items():
        for name in ("fill", "stroke"):
            # Diagrams have attributes, and matplotlib writes styles, which only an important rule replaces.
            if f'{name}="{light}"' in svg.lower() or f"{name}: {light}" in svg.lower():
                where = f'[{name}="{light}" i], [style*="{name}: {light}" i]'
                rules.append(f"{where} {{{name}: {dark} !important}}")
    sheet = "\n".join(["<style>@media (prefers-color-scheme: dark) {", *rules, "}</style>"])
    head, end, tail = svg.rpartition("</svg>")
    return f"{head}{sheet}\n{end}{tail}"
