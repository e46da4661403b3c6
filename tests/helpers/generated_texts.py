"""Texts of every kind that users hand to a reader, drawn from a seed: some thousands, each of a few lines."""

from __future__ import annotations

import codecs
import gzip
from pathlib import Path
from random import Random

TOKENS = [
    *("The", "cat", "sat", ".", "A", "dog", "ran", ",", "and", "it", "'s", "raining", "!", "<3", "#", "##ing", "..."),
    *("Dr.", "na\u00efve", "\u732b", "10\u00a0000", "\u3000", "\u201c", "\u201d", "<unk>", "@@", "U.S."),
    *("e.g.", "1.5", "-LRB-", "&amp;"),
]  # fmt: skip
RAW = [
    "The cat sat on the mat. A dog ran!",
    "It's raining, and we left at 5 p.m. on foot.",
    "Dr. Smith said: \u201cHello.\u201d She didn't reply.",
    "he went on and on about it",
    "What? No. Yes...",
    "Prices rose 1.5 % to $10,000 in the U.S. last year.",
    "A & B",
    "\u732b\u304c\u5ea7\u3063\u305f\u3002\u72ac\u304c\u8d70\u3063\u305f\u3002",
    "mat. Dog. cat. end.",
    "- an item of a list",
]
NOVEL = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness. It "
    "was the epoch of belief, it was the epoch of incredulity, and nobody knew what it would be in the end. Then the "
    "winter came, and with it the long nights by the fire, when old stories were told again to the children."
)


def _tokenized(random: Random) -> list[str]:
    separators = [" ", " ", " ", "  ", "\t", " \t "]
    lines = []
    for _ in range(random.randrange(1, 12)):
        tokens = [random.choice(TOKENS) for _ in range(random.randrange(0, 9))]
        lines.append("".join(token + random.choice(separators) for token in tokens))
    return lines


def _raw(random: Random) -> list[str]:
    return [random.choice([*RAW, "", "   "]) for _ in range(random.randrange(1, 12))]


def _wrapped(random: Random) -> list[str]:
    lines: list[str] = []
    for _ in range(random.randrange(1, 4)):
        line = ""
        for word in NOVEL.split()[random.randrange(20) :]:
            if len(line) + len(word) > 55:
                lines.append(line)
                line = ""
            line = f"{line} {word}" if line else word
        lines += [line, ""]
    return lines


def _conllu(random: Random) -> list[str]:
    lines = ["# global.columns = ID FORM"] if random.random() < 0.2 else []
    n_columns = 2 if lines else 10
    for number in range(random.randrange(0, 5)):
        lines.append(f"# sent_id = {number}")
        for place in range(1, random.randrange(1, 6)):
            if random.random() < 0.1:
                lines.append("\t".join([f"{place}-{place + 1}", "don't", *"________"][:n_columns]))
            word = random.choice([*TOKENS, "10 000", "_", "mat."])
            width = n_columns - (random.random() < 0.02)
            lines.append("\t".join([str(place), word, *"________"][:width]))
        lines.append("")
    return lines


def _fasta(random: Random) -> list[str]:
    lines: list[str] = []
    for number in range(random.randrange(1, 5)):
        lines.append(random.choice([f">p{number} first", f">p{number}", ">same", ">", "; a comment"]))
        for _ in range(random.randrange(0, 3)):
            lines.append("".join(random.choice("ACDEFGHIKLMNPQRSTVWYacde *") for _ in range(random.randrange(1, 20))))
    return lines


def _table(random: Random) -> list[str]:
    separator = random.choice("\t\t,;")
    rows = [["item", "text", "critical"]]
    for number in range(random.randrange(1, 6)):
        text = random.choice(RAW).replace(separator, " ")
        region = random.choice([text.split()[0], text.split()[-1], "0:3", "", "nothing"])
        rows.append([str(number), text, region][: 3 - (random.random() < 0.03)])
    return [separator.join(row) for row in rows]


def _other_format(random: Random) -> list[str]:
    formats = [
        ['{"text": "The cat sat ."}', '{"text": "A dog ran ."}'],
        ["<html lang='en'>", "<p>The cat sat .</p>", "</html>"],
        ["@r1", "ACGTN", "+", "II#I!"],
        ["1", "00:00:01,000 --> 00:00:03,000", "Hello there.", ""],
        ["# Title", "", "* The cat sat.", "* A dog ran."],
    ]
    return random.choice(formats)


def _blank(random: Random) -> list[str]:
    return [random.choice(["", " ", "\t", "\u00a0"]) for _ in range(random.randrange(0, 4))]


def _long(random: Random) -> list[str]:
    tokens = [random.choice(TOKENS) for _ in range(400)]
    return [" ".join(tokens), "", "A dog ran ."] + ["The cat sat ."] * random.randrange(0, 130)


KINDS = {
    _tokenized: (6, [".txt", ".txt", ".tsv"]),
    _raw: (4, [".txt"]),
    _wrapped: (2, [".txt"]),
    _conllu: (2, [".conllu", ".conllup", ".conllu.gz", ".txt"]),
    _fasta: (2, [".fasta", ".txt"]),
    _table: (2, [".tsv", ".csv", ".txt"]),
    _other_format: (1, [".txt", ".jsonl"]),
    _blank: (1, [".txt", ".conllu"]),
    _long: (1, [".txt"]),
}
"""How often each kind of text is drawn, and how its files are named."""


def text_content(random: Random, lines: list[str]) -> bytes:
    """Join lines as one of many programs would write them, sometimes with damage."""
    end = random.choice(["\n", "\n", "\n", "\r\n", "\r"])
    ends = [random.choice(["\n", "\n", "\r\n", "\n\n"]) if random.random() < 0.05 else end for _ in lines]
    text = "".join(line + own for line, own in zip(lines, ends, strict=True))
    if random.random() < 0.2:
        text = text.removesuffix("\n")
    if random.random() < 0.05:
        text = text.replace(" ", random.choice(["\r", "\x0c", "\u2028", "\x85", "\0", "\ufeff"]), 1)
    data = text.encode()
    if random.random() < 0.1:
        data = codecs.BOM_UTF8 + data
    if random.random() < 0.03:
        data = data[:10] + b"\xff" + data[10:]
    return data


def write_texts(folder: Path, n_texts: int) -> list[Path]:
    """Write the first ``n_texts`` texts to files; each depends on its number alone."""
    kinds = [kind for kind, (weight, _) in KINDS.items() for _ in range(weight)]
    paths = []
    for number in range(n_texts):
        random = Random(number)
        kind = random.choice(kinds)
        path = folder / f"{number:04}{random.choice(KINDS[kind][1])}"
        content = text_content(random, kind(random))
        path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
        paths.append(path)
    return paths
