"""Draw ``docs/pictures/senses.svg``: how the layers of the included model separate the senses of a word.

    python docs/make_senses.py

The colors are readable on light and on dark backgrounds, because the picture has none of its own.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np

from elmokit import Elmo
from elmokit.serve.examples import EXAMPLES
from elmokit.storage.atomic import atomic_write

PICTURE = Path(__file__).parent / "pictures" / "senses.svg"
WORD = "play"
COLORS = "#2f81f7", "#d9730d"
SENSES = list(zip(COLORS, EXAMPLES["senses"][WORD], strict=True))
"""The color of each sense, and sentences with the word in that sense. Table 4 of Peters et al. 2018 has this word."""
INK, LINE = "#6f7a86", "#8b949e"
WIDTH, PANEL_WIDTH, PANEL_HEIGHT, GAP, LINE_HEIGHT, RADIUS = 860, 268, 200, 28, 22, 9


def main() -> None:
    """Draw the picture."""
    sentences = [sentence.split() for _, group in SENSES for sentence in group]
    positions = [sentence.index(WORD) for sentence in sentences]
    senses = np.array([sense for sense, (_, group) in enumerate(SENSES) for _ in group])
    embedded = Elmo.from_pretrained().embed(sentences)
    layers = np.stack([vectors[:, position] for vectors, position in zip(embedded, positions, strict=True)], axis=1)

    n_rows = max(len(group) for _, group in SENSES)
    top = 20 + n_rows * LINE_HEIGHT
    elements = legend()
    maps = [project(vectors) for vectors in layers]
    room = np.array((PANEL_WIDTH, PANEL_HEIGHT)) / 2 - 2 * RADIUS
    scale = min((room / np.abs(points).max(axis=0)).min() for points in maps[1:])  # one for both, so that they compare
    for layer, (vectors, points) in enumerate(zip(layers, maps, strict=True)):
        left = layer * (PANEL_WIDTH + GAP)
        elements += panel(left, top, layer, spread(points * scale), senses, mean_cosines(vectors, senses))
    height = top + PANEL_HEIGHT + 52
    content = "\n".join(elements)
    with atomic_write(PICTURE, overwrite=True) as temporary:
        temporary.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif" font-size="13" '
            f'fill="{INK}">\n{content}\n</svg>\n',
            encoding="utf-8",
        )


def legend() -> list[str]:
    """Return the sentences, one column for each sense, numbered as the points are."""
    elements: list[str] = []
    for sense, (color, group) in enumerate(SENSES):
        for row, sentence in enumerate(group):
            x, y = RADIUS + sense * WIDTH / 2, 14 + row * LINE_HEIGHT
            before, after = sentence.removesuffix(" .").split(WORD, 1)
            word = f'<tspan fill="{color}" font-weight="700">{WORD}</tspan>'
            elements += dot(x, y, len(elements) // 3 + 1, color)
            elements.append(text(x + 18, y + 4.5, f"{escape(before)}{word}{escape(after)}.", anchor="start"))
    return elements


def panel(
    left: float, top: float, layer: int, points: np.ndarray, senses: np.ndarray, cosines: tuple[float, float]
) -> list[str]:
    """Return the map of one layer.

    Args:
        left: Its left edge.
        top: Its upper edge.
        layer: The number of the layer.
        points: ``(occurrences, 2)``, relative to the center.
        senses: ``(occurrences,)``, the number of each occurrence's sense.
        cosines: The mean cosine of two occurrences of one sense, and of different senses.
    """
    center, middle = left + PANEL_WIDTH / 2, top + 24 + PANEL_HEIGHT / 2
    title = "the word alone, no context" if layer == 0 else "context from both sides"
    elements = [
        text(center, top + 12, f'<tspan font-weight="700">Layer {layer}</tspan>: {title}'),
        f'<rect x="{left + 0.5}" y="{top + 24.5}" width="{PANEL_WIDTH - 1}" height="{PANEL_HEIGHT - 1}" rx="10" '
        f'fill="none" stroke="{LINE}" stroke-opacity="0.5"/>',
    ]
    if layer == 0:
        # All occurrences have the same vector.
        elements.append(f'<circle cx="{center}" cy="{middle}" r="{RADIUS}"/>')
        elements.append(text(center, middle + 28, "one vector for all of them"))
    else:
        for number, (point, sense) in enumerate(zip(points, senses, strict=True), start=1):
            elements += dot(center + point[0], middle - point[1], number, SENSES[sense][0])
    same, other = cosines
    elements.append(text(center, top + PANEL_HEIGHT + 44, f"mean cosine: same {same:.2f}, other {other:.2f}"))
    return elements


def text(x: float, y: float, content: str, anchor: str = "middle", style: str = "") -> str:
    """Return a line of text, given its SVG content."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{content}</text>'


def dot(x: float, y: float, number: int, color: str) -> list[str]:
    """Return a point and its number."""
    return [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" fill="{color}"/>',
        text(x, y + 4, str(number), style=' font-size="11" font-weight="700" fill="#fff"'),
    ]


def project(vectors: np.ndarray) -> np.ndarray:
    """Return the first two principal components of the vectors, scaled to length 1 before.

    Args:
        vectors: ``(occurrences, dim)``, those of the first sense first.

    Returns:
        ``(occurrences, 2)``, mirrored so that the first occurrence is on the left and not below the middle.
    """
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    left, sizes, _ = np.linalg.svd(unit - unit.mean(axis=0), full_matrices=False)
    points = left[:, :2] * sizes[:2]
    return points * np.where(points[0] * (-1, 1) < 0, -1, 1)


def spread(points: np.ndarray) -> np.ndarray:
    """Move points apart just so far that every number can be read.

    Args:
        points: ``(occurrences, 2)``, in pixels.
    """
    points = points.copy()
    for _ in range(50):
        for first in range(len(points)):
            for second in range(first):
                apart = points[first] - points[second]
                distance = max(float(np.linalg.norm(apart)), 1e-6)
                push = apart / distance * max(0.0, 2 * RADIUS - distance) / 2
                points[first] += push
                points[second] -= push
    return points


def mean_cosines(vectors: np.ndarray, senses: np.ndarray) -> tuple[float, float]:
    """Return the mean cosine of two occurrences of one sense, and of two of different senses."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T
    is_same = senses[:, None] == senses
    is_pair = ~np.eye(len(senses), dtype=bool)
    return float(cosines[is_same & is_pair].mean()), float(cosines[~is_same].mean())


if __name__ == "__main__":
    main()
