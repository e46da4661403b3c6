"""Draw the pictures of the documents: ``python docs/make_pictures.py`` writes ``docs/pictures/*.svg``.

The diagrams are plain SVG. The plots need matplotlib, and read their numbers from the tables in ``results/``, so that
each number exists once.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from dark_pictures import with_dark_colors
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))

from pages import COLORS, LINES, styled_figure  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
INK, GRAY, BLUE, ORANGE, GREEN, PALE = "#262626", "#8a8a8a", COLORS[0], COLORS[1], COLORS[2], "#f3f3f3"


class Diagram:
    """An SVG drawing on a ground of its own, which is readable on light and dark pages.

    Args:
        width: Width in pixels.
        height: Height in pixels.
        title: What the picture shows, for those who cannot see it.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'role="img" font-family="DejaVu Sans, Verdana, sans-serif" font-size="14">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0 L8 4 L0 8 z" fill="context-stroke"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="8" fill="white"/>',
        ]

    def box(self, x: float, y: float, width: float, height: float, color: str, fill: str = "white") -> None:
        """Draw a rectangle with round corners."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{fill}" stroke="{color}" '
            'stroke-width="1.5"/>'
        )

    def text(self, x: float, y: float, text: str, color: str = INK, anchor: str = "middle", style: str = "") -> None:
        """Write one line."""
        self.parts.append(f'<text x="{x}" y="{y}" fill="{color}" text-anchor="{anchor}" {style}>{escape(text)}</text>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, color: str = GRAY) -> None:
        """Draw an arrow to the second point."""
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{color}" stroke-width="1.5" '
            'marker-end="url(#tip)"/>'
        )

    def save(self, name: str) -> None:
        """Write the file."""
        (PICTURES / f"{name}.svg").write_text(with_dark_colors("\n".join([*self.parts, "</svg>\n"])), encoding="utf-8")


def draw_architecture() -> None:
    """Draw the network over four tokens, and the mix of one of them."""
    tokens = ("The", "bank", "lent", "money")
    diagram = Diagram(760, 440, "The biLM: a char CNN, and two layers of forward and backward LSTMs")
    column, left = 135, 150  # distance of the tokens' columns, and the center of the first one
    rows = {"layer 2": 100, "layer 1": 195, "layer 0": 290}
    for name, y in rows.items():
        diagram.text(20, y + 22, name, GRAY, "start")
    diagram.text(20, 372, "char CNN", GRAY, "start")
    diagram.text(20, 422, "tokens", GRAY, "start")
    for i, token in enumerate(tokens):
        x = left + i * column
        diagram.text(x, 422, token)
        diagram.arrow(x, 408, x, 390)
        diagram.box(x - 45, 350, 90, 36, INK, PALE)
        diagram.text(x, 373, "·".join(token), style='font-size="12"')
        diagram.arrow(x, 350, x, 330)
        diagram.box(x - 45, 292, 90, 34, GREEN)
        for below, y in ((292, 195), (195, 100)):
            diagram.arrow(x - 25, below, x - 25, y + 42, BLUE)
            diagram.arrow(x + 25, below, x + 25, y + 42, ORANGE)
            if i:
                # The forward LSTM passes its state to the right, the backward LSTM to the left. The arrows are drawn
                # before the boxes, so that they pass behind the boxes of the other direction.
                diagram.arrow(x - column - 5, y + 10, x - 49, y + 10, BLUE)
                diagram.arrow(x + 3, y + 28, x - column + 49, y + 28, ORANGE)
    for x in range(left, left + len(tokens) * column, column):
        for y in (195, 100):
            diagram.box(x - 47, y, 42, 38, BLUE)
            diagram.box(x + 5, y, 42, 38, ORANGE)
            diagram.text(x - 26, y + 25, "→", BLUE)
            diagram.text(x + 26, y + 25, "←", ORANGE)
    chosen = left + column
    diagram.box(chosen - 57, 88, 114, 246, INK, "none")
    diagram.arrow(chosen, 88, chosen, 62, INK)
    diagram.box(chosen - 130, 24, 260, 36, INK, PALE)
    diagram.text(chosen, 47, "scalar mix: the vector of “bank”")
    diagram.text(640, 120, "LSTMs", INK, "start")
    diagram.text(640, 142, "forward →", BLUE, "start")
    diagram.text(640, 162, "backward ←", ORANGE, "start")
    diagram.save("architecture")


def draw_shapes() -> None:
    """Draw the steps from tokens to vectors with the shapes of their results."""
    steps = (
        ("tokens", "“the cat sat”", ""),
        ("bytes", "(distinct tokens, 50)", "the same"),
        ("byte vectors", "(distinct tokens, 50, 16)", "the same"),
        ("convolutions, maximum", "(distinct tokens, 512)", "2048"),
        ("highway, projection", "(batch, time, 192)", "512"),
        ("layer 0: twice the same", "(batch, time, 384)", "1024"),
        ("LSTM layer 1: → and ←", "(batch, time, 384)", "1024"),
        ("LSTM layer 2: → and ←", "(batch, time, 384)", "1024"),
        ("all layers", "(3, batch, time, 384)", "1024"),
        ("scalar mix", "(batch, time, 384)", "1024"),
    )
    height, gap = 36, 18
    diagram = Diagram(700, 40 + len(steps) * (height + gap), "The shapes of the results of each step")
    diagram.text(270, 24, "shape, for en-mini", GRAY, "start")
    diagram.text(500, 24, "last size, original ELMo", GRAY, "start")
    for i, (name, shape, original) in enumerate(steps):
        y = 38 + i * (height + gap)
        color = BLUE if "LSTM" in name else GREEN if "layer 0" in name else INK
        diagram.box(20, y, 225, height, color, PALE if color == INK else "white")
        diagram.text(132, y + 23, name, color)
        diagram.text(270, y + 23, shape, INK, "start")
        diagram.text(500, y + 23, original, GRAY, "start")
        if i:
            diagram.arrow(132, y - gap, 132, y - 2)
    diagram.save("shapes")


def draw_engine() -> None:
    """Draw the way of a sentence through the engine, and where PyTorch takes its place."""
    title = "A sentence becomes vectors in the engine, which packs the weights of a file or of PyTorch modules"
    diagram = Diagram(760, 478, title)
    tokens, lstm, width = 205, 410, 165  # the left edges of the two parts, and their width
    rows = (
        (154, BLUE, "engine: C functions on packed weights, or NumPy", "token layer", "LSTM layers", "→ and ←"),
        (350, ORANGE, "PyTorch modules: weights that are trained", "CharCNN", "LSTMStack", "→ and ←"),
    )
    for y, color, name, first, second, under in rows:
        diagram.box(185, y, 410, 104, color)
        diagram.text(390, y + 22, name, color)
        for x, part, note in ((tokens, first, "each distinct token once"), (lstm, second, under)):
            diagram.box(x, y + 34, width, 56, color, PALE)
            diagram.text(x + width / 2, y + 57, part)
            diagram.text(x + width / 2, y + 77, note, GRAY, style='font-size="11"')
        diagram.arrow(tokens + width, y + 62, lstm - 2, y + 62, color)
        diagram.arrow(150, 304, 183, y + 52, color)
        diagram.arrow(595, y + 52, 628, 304, color)
    diagram.box(20, 276, 130, 56, INK, PALE)
    diagram.text(85, 299, "sentence")
    diagram.text(85, 319, "word and char ids", GRAY, style='font-size="11"')
    diagram.box(630, 276, 110, 56, INK, PALE)
    diagram.text(685, 299, "vectors")
    diagram.text(685, 319, "of all layers", GRAY, style='font-size="11"')
    diagram.box(285, 14, 210, 56, INK, PALE)
    diagram.text(390, 37, "model file, of any format")
    diagram.text(390, 57, "arrays, read when they are needed", GRAY, style='font-size="11"')
    diagram.arrow(390, 70, 390, 152, GRAY)
    diagram.text(404, 108, "packed once, layer by layer", GRAY, "start")
    diagram.text(404, 128, "without gradients, on a CPU", GRAY, "start")
    for x in (tokens + 30, lstm + width - 30):
        diagram.arrow(x, 350, x, 260, GRAY)
    diagram.text(390, 299, "a copy of the weights", GRAY)
    diagram.text(390, 319, "by to_model()", GRAY)
    diagram.text(390, 472, "with gradients, or on a GPU", GRAY)
    diagram.save("engine")


def draw_layers() -> None:
    """Plot what a linear probe and a nearest sense read from each layer (``results/probes.md``)."""
    scores = [
        ("parts of speech, accuracy", "accuracy", 1, "most frequent tag of the word"),
        ("word senses, F1", "Senseval-2", 4, "first sense of the inventory"),
    ]
    with styled_figure(6.9, 2.5) as figure:
        for axes, (title, header, cell, baseline) in zip(figure.subplots(1, 2), scores, strict=True):
            table = {row[0]: row[cell] for row in _table("probes.md", header)}
            values = [_number(table[f"layer {k}"]) for k in range(3)]
            base = _number(table[baseline])
            axes.bar(range(3), values, 0.55, color=COLORS[:3])
            axes.axhline(base, color=INK, linestyle="--", linewidth=0.8, label=f"{baseline}: {base:.1f}")
            low, high = min(*values, base) - 6, max(*values, base) + 4
            for k, value in enumerate(values):
                axes.text(k, value - (high - low) / 15, f"{value:.1f}", ha="center", fontsize=7, color="white")
            axes.set(title=title, xticks=range(3), xticklabels=["layer 0", "layer 1", "layer 2"])
            axes.set_ylim(low, high)
            axes.legend(loc="upper left")
            axes.grid(axis="x", visible=False)
        _save(figure, "layers")


def draw_training() -> None:
    """Plot the perplexity of ``en-mini`` during the last stage of its training (``results/en-mini-training.md``)."""
    header, *rows = _table("en-mini-training.md", "predictions")
    millions = [_number(row[0]) for row in rows]
    curves = {name: [float(row[column]) for row in rows] for column, name in enumerate(header[1:], start=1)}
    with styled_figure(4.6, 2.5) as figure:
        axes = figure.subplots()
        for (name, curve), line in zip(curves.items(), LINES, strict=False):
            axes.plot(millions, curve, label=name, **line)
        axes.set(xlabel="predictions per direction (million)", ylabel="held-out perplexity")
        axes.legend()
        _save(figure, "training")


def draw_speed() -> None:
    """Plot tokens per second in the original sizes (``results/speed.md``)."""
    header, *rows = _table("speed.md", "AllenNLP")
    rows = [row for row in rows if row[0] == "original"]
    shown = {
        "AllenNLP": ("AllenNLP", INK),
        "reference": ("plain PyTorch", COLORS[3]),
        "float32": ("elmokit, float32", COLORS[0]),
        "bfloat16": ("elmokit, bfloat16", COLORS[4]),
        "int8": ("elmokit, int8", COLORS[2]),
    }
    with styled_figure(5.8, 2.9) as figure:
        axes = figure.subplots()
        for k, (column, (name, color)) in enumerate(shown.items()):
            speeds = [_number(row[header.index(column)]) for row in rows]
            places = [batch + (k - 2) * 0.17 for batch in range(len(speeds))]
            axes.bar(places, speeds, 0.15, color=color, label=name)
            for place, speed in zip(places, speeds, strict=True):
                axes.text(place, speed * 1.06, f"{speed:,.0f}", ha="center", fontsize=6)
        axes.set(ylabel="tokens per second", yscale="log", xticks=range(3))
        axes.set_xticklabels(["one sentence", "16 sentences", "64 sentences"])
        axes.yaxis.set_major_locator(FixedLocator([50, 100, 200, 500, 1000, 2000]))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(25, 12000)
        axes.grid(axis="x", visible=False)
        axes.legend(loc="upper left", ncols=3)
        _save(figure, "speed")


def _table(page: str, header: str) -> list[list[str]]:
    """Return the rows of the first table of a page in ``results/`` whose header has the given cell, header included."""
    rows: list[list[str]] = []
    for line in (ROOT / "results" / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and (rows or header in cells):
            rows.append(cells)
        elif rows:
            break
    return [row for row in rows if set(row[0]) != {"-"}]


def _number(cell: str) -> float:
    """Return the number at the beginning of a cell, such as ``88.0 % ± 0.02``."""
    return float(cell.split()[0].replace(",", ""))


def _save(figure: Figure, name: str) -> None:
    path = PICTURES / f"{name}.svg"
    svg = io.StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None}, bbox_inches="tight", pad_inches=0.12)
    path.write_text(with_dark_colors(svg.getvalue()), encoding="utf-8")


if __name__ == "__main__":
    draw_architecture()
    draw_shapes()
    draw_engine()
    draw_layers()
    draw_training()
    draw_speed()
