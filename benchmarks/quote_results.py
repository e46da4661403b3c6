"""Write the numbers of the included model's report into the pages that quote them.

    python benchmarks/report.py --data DATA --out results/en-mini.md
    python benchmarks/quote_results.py [--check]

A quote is a piece of a page in which ``{}`` stands for a number of ``results/en-mini/results.json``. ``--check``
changes nothing, and fails if a page has another number; a test does the same. Numbers of other measurements, and what
pages say about earlier models, are written by hand.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "en-mini" / "results.json"
LAYERS = ("0", "1", "2")
N_GRAM = {"lm-wikipedia": "146.34", "lm-books": "115.15", "wikitext-2": "340.53"}
"""Perplexities of the n-gram model, beside which a page has those of the present model."""
TABLE_ROWS = {"0": "layer 0", "1": "layer 1", "2": "layer 2", "average": "mean of the layers"}
PRIOR = "top layer with prior"
SENSE_SETS, SENSE_PARTS = ("senseval2", "senseval3", "semeval2007", "all"), ("ADJ", "ADV", "NOUN", "VERB")


class Quote(NamedTuple):
    """A piece of a page, and the numbers in it."""

    page: str
    text: str
    numbers: tuple[str, ...]


def quotes(results: dict[str, Any]) -> Iterator[Quote]:
    """Yield all quotes."""
    perplexity = {name: numbers["perplexity"] for name, numbers in results["perplexity"].items()}
    wikipedia, novels = (f"{perplexity[name]['geometric_mean']:.1f}" for name in ("lm-wikipedia", "lm-books"))
    pairs = results["minimal-pairs"]["paradigms"]
    blimp = {
        side: f"{100 * sum(one['correct'][side] / one['n_pairs'] for one in pairs) / len(pairs):.1f}"
        for side in ("forward", "backward", "both", "unknown words paid")
    }
    senses = {row["name"]: row for row in results["wsd"]["rows"]}
    f1 = {name: f"{100 * row['scores']['all']['f1']:.1f}" for name, row in senses.items()}
    tags, fine_tags = ({row["name"]: row for row in results["pos"][kind]["rows"]} for kind in ("upos", "xpos"))
    accuracy = {name: f"{100 * row['accuracy']:.1f}" for name, row in tags.items()}
    mix, fine_mix = (tuple(f"{weight:.2f}" for weight in kind["mix"]["weights"]) for kind in (tags, fine_tags))
    similarity = {
        (pooling["layers"], pooling["weighting"]): f"{pooling['spearman']:.3f}"
        for pooling in results["similarity"]["sts-benchmark/dev.csv"]["poolings"]
    }
    whitened, trained = similarity["0", "stored whitening"], similarity["0", "stored head"]

    yield Quote("README.md", "of the included model, Wikipedia | {};", (f"{float(wikipedia):.0f}",))
    yield Quote("docs/index.md", "**{}** test perplexity of the included model", (f"{float(wikipedia):.0f}",))
    gained = "test perplexity {} (Wikipedia), BLiMP {} %, STS benchmark (dev) {}, with its head {}."
    yield Quote("CHANGELOG.md", gained, (wikipedia, blimp["both"], whitened, trained))
    yield Quote("docs/explanation/layers.md", "rises from {} to {}, where", (f1["2"], f1[PRIOR]))
    layers_sif = tuple(similarity[layer, "sif"] for layer in LAYERS)
    yield Quote("docs/explanation/layers.md", "{} against {} and {}, in", layers_sif)
    page = "docs/how-to/compare-sentences.md"
    yield Quote(page, "| layer 0 | {} | {} | {} |", (similarity["0", "mean"], similarity["0", "sif"], whitened))
    yield Quote(page, "layer 0 reaches {} (dev).", (trained,))
    yield Quote(page, "(its training set was used) | {} | {} |", (whitened, trained))
    page = "results/similarity.md"
    yield Quote(page, "is best if both are done ({}).", (whitened,))
    yield Quote(page, "with it, layer 0 has {}.", (whitened,))
    page = "elmokit/serve/page/measured.js"
    yield Quote(page, "senses: { layers: [{}, {}, {}]", tuple(f1[layer] for layer in LAYERS))
    most_frequent = f"{100 * results['pos']['upos']['most_frequent_tag']:.1f}"
    measured = (*(accuracy[layer] for layer in LAYERS), most_frequent, *mix)
    yield Quote(page, "tags: { layers: [{}, {}, {}], baseline: {}, mix: [{}, {}, {}]", measured)

    page = "results/README.md"
    yield Quote(page, "BLiMP {} % with some 100 M words", (blimp["both"],))
    both_sides = [
        f"{perplexity[name][side]:.1f}" for name in ("lm-wikipedia", "lm-books") for side in ("forward", "backward")
    ]
    yield Quote(page, "Wikipedia {} / {}, novels {} / {}", tuple(both_sides))
    summary = (
        "test perplexity {} (Wikipedia) and {} (novels), BLiMP {} %, parts of speech (dev) {} %, word senses {} F1, "
        "STS (dev) {}, with its head {};"
    )
    yield Quote(page, summary, (wikipedia, novels, blimp["both"], accuracy["1"], f1["2"], whitened, trained))
    yield Quote(page, "layer 0 {} %, layer 1 {} %, layer 2 {} %;", tuple(accuracy[layer] for layer in LAYERS))
    yield Quote(page, "word senses: {}, {} and {} F1", tuple(f1[layer] for layer in LAYERS))
    sentence_vectors = "whitened: {}, trained on pairs {} (Spearman, STS benchmark, dev); plain mean of all layers {};"
    yield Quote(page, sentence_vectors, (whitened, trained, similarity["average", "mean"]))
    for side, name in (("forward", "forward"), ("backward", "backward"), ("both", "both directions summed")):
        line = f"`en-mini`, {name} | 100 M | `elmokit evaluate minimal-pairs` | 67,000 | | {{}} |"
        yield Quote("results/babylm.md", line, (blimp[side],))
    for corpus, before in N_GRAM.items():
        numbers = tuple(f"{perplexity[corpus][side]:.2f}" for side in ("forward", "backward"))
        yield Quote("results/language-models.md", f"| {before} | {{}} / {{}} |\n", numbers)

    page, others = "results/en-mini-training.md", ("lm-wikipedia-2", "lm-fiction", "lm-modern", "lm-dialogue")
    bits = {name: f"{sum(one['bits_per_character'].values()) / 2:.3f}" for name, one in results["perplexity"].items()}
    unknown = {name: f"{100 * one['unknown_ratio']:.1f}" for name, one in results["perplexity"].items()}
    means = {name: f"{one['geometric_mean']:.1f}" for name, one in perplexity.items()}
    blimp_unknown = f"{100 * results['minimal-pairs']['unknown_ratio']:.1f}"
    for third_edition, numbers in {
        "1.538 / 1.505": (bits["lm-wikipedia"], bits["lm-books"]),
        "1.554 / 1.518 / 1.433 / 1.244": tuple(bits[name] for name in others),
        "7.7 / 3.8": (unknown["lm-wikipedia"], unknown["lm-books"]),
        "8.3 / 4.2 / 6.2 / 4.5": tuple(unknown[name] for name in others),
        "53.9 / 55.1 / 87.6": (wikipedia, novels, means["wikitext-2"]),
        "49.2 / 47.5 / 56.9 / 18.5": tuple(means[name] for name in others),
        "75.6 / 77.1": (blimp["both"], blimp["unknown words paid"]),
        "4.5": (blimp_unknown,),
        "63.5 / 69.0": (f1["2"], f1[PRIOR]),
        "0.752 / 0.815": (whitened, trained),
        "95.0 / 95.2": (accuracy["1"], accuracy["mix"]),
    }.items():
        yield Quote(page, f"| {third_edition} | {' / '.join(['{}'] * len(numbers))} |", numbers)

    page = "results/probes.md"
    for row, name in TABLE_ROWS.items():
        yield Quote(page, f"| {name} | {{}} % ± {{}} | {{}} % | {{}} |", _probe(tags[row]))
    learned = "| learned mix (weights {}, {}, {}) | {} % ± {} | {} % | {} |"
    yield Quote(page, learned, (*mix, *_probe(tags["mix"])))
    fine = [f"{100 * fine_tags[name]['accuracy']:.2f}" for name in (*LAYERS, "average", "mix")]
    sentence = "the layers {}, {}\nand {} %, their mean {} %, and the learned mix {} % (weights {}, {}, {})"
    yield Quote(page, sentence, (*fine, *fine_mix))
    rows = TABLE_ROWS | {PRIOR: "top layer with a prior for frequent senses, half whitened"}
    for row, name in rows.items():
        scores = [senses[row]["scores"][one] for one in SENSE_SETS]
        scores += [senses[row]["parts_of_speech"][one] for one in SENSE_PARTS]
        numbers = tuple(f"{100 * score['f1']:.1f}" for score in scores)
        yield Quote(page, f"| {name} | {' | '.join(['{}'] * len(numbers))} |\n", numbers)


def _probe(row: dict[str, Any]) -> tuple[str, ...]:
    control = sum(row["controls"]) / len(row["controls"])
    return tuple(f"{100 * number:.2f}" for number in (row["accuracy"], row["deviation"], control, row["selectivity"]))


def apply(quote: Quote, text: str) -> str:
    """Return the text of a page with the present numbers of a quote."""
    found = list(re.finditer(re.escape(quote.text).replace(r"\{\}", r"([-\d.]+)"), text))
    if len(found) != 1:
        sys.exit(f"{quote.page} has {len(found)} quotes of the form {quote.text!r}; expected one.")
    (match,) = found
    for group in range(len(quote.numbers), 0, -1):
        start, stop = match.span(group)
        text = text[:start] + quote.numbers[group - 1] + text[stop:]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page has another number")
    args = parser.parse_args()
    stale = []
    for quote in quotes(json.loads(RESULTS.read_text(encoding="utf-8"))):
        page = ROOT / quote.page
        before = page.read_text(encoding="utf-8")
        after = apply(quote, before)
        if after != before:
            stale.append(f"{quote.page}: {quote.text.strip()}: now {', '.join(quote.numbers)}")
            if not args.check:
                page.write_text(after, encoding="utf-8")
    print("\n".join(stale))
    if args.check and stale:
        sys.exit("Other numbers than those of the report. Run: python benchmarks/quote_results.py")


if __name__ == "__main__":
    main()
