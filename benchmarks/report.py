"""Evaluate a model with everything for which there is data, and write the page about it.

    python benchmarks/report.py --data DATA --out results/en-mini.md
    python benchmarks/report.py --data DATA --out results/en-mini.md --only pos --only wsd

Next to the page, a directory with its name gets all numbers (``results.json``) and a figure for each section. A section
is written when it is finished, so an interrupted run continues with ``--only``, which leaves the other sections as they
are. ``benchmarks/quote_results.py`` then writes the numbers into the pages that quote them.

Sections and their files in DATA (they can be compressed): ``perplexity``: ``*/test.txt``; ``minimal-pairs``:
``blimp/*.jsonl`` and ``blimp/published.tsv``; ``similarity``: ``sts-benchmark/test.csv`` or ``dev.csv``; ``pos``:
``ud-english-ewt/*-train.conllu`` and ``*-dev.conllu``; ``wsd``: ``wsd/semcor``, other sets in ``wsd`` and
``wsd/sense-inventory.tsv``. What is missing is left out.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pages import draw_rows, escape_markdown, to_markdown

from elmokit import Elmo, LanguageModel, open_model
from elmokit.config import encode_json
from elmokit.engine.threads import n_threads
from elmokit.evaluation.bench import processor_name
from elmokit.evaluation.minimal_pairs import evaluate_minimal_pairs, read_minimal_pairs, read_published_accuracies
from elmokit.evaluation.pos import probe_pos
from elmokit.evaluation.result import Result, Table, tabulate
from elmokit.evaluation.sense_files import DATA, find_sense_set, read_inventory
from elmokit.evaluation.senses import probe_senses
from elmokit.evaluation.similarity import evaluate_similarity, read_scored_pairs
from elmokit.evaluation.tagged import read_tagged
from elmokit.pretrained.model import PretrainedBiLM, describe
from elmokit.storage.progress import ProgressBar, count_of
from elmokit.text.tokenize import get_tokenizer
from elmokit.version import __version__

Section = tuple[list[str], dict[str, Any]]
"""Paragraphs of Markdown, and all numbers."""
TITLES = {
    "perplexity": "Perplexity",
    "minimal-pairs": "Minimal pairs (BLiMP)",
    "similarity": "Similarity",
    "pos": "Parts of speech (linear probe)",
    "wsd": "Word senses (nearest mean)",
}
PERPLEXITY_NOTE = (
    "Full softmax; each token and each sentence end counts once; each sentence starts from the model's start state. "
    "The mean is geometric. Compare perplexities only between models with the same vocabulary; bits per character "
    "include the spelling of unknown words."
)


class Report:
    """What the sections are computed from, and where their figures go."""

    def __init__(self, model: PretrainedBiLM, data: Path, folder: Path, progress: ProgressBar) -> None:
        self.model, self.data, self.folder, self.progress = model, data, folder, progress

    def files(self, pattern: str) -> list[Path]:
        """Find data; a file that is there compressed, too, once."""
        found = {
            path.with_suffix("") if path.suffix in (".gz", ".xz", ".zst") else path: path
            for path in sorted(self.data.glob(f"{pattern}*"), reverse=True)
        }
        return sorted(found.values())

    def shown(self, name: str, result: Result) -> list[str]:
        """Draw a result (SVG), and return its figure, table and notes."""
        draw_rows(result.table_rows(), result.measure, self.folder / f"{name}.svg")
        table = to_markdown(tabulate(result.table_rows(), result.digits))
        picture = f"![{result.measure}]({self.folder.name}/{name}.svg)"
        return [picture, table, escape_markdown(" ".join(result.notes()))]

    def perplexity(self) -> Section | None:
        """Score texts."""
        language_model, facts, rows = LanguageModel(self.model), {}, []
        for path in self.files("*/test.txt"):
            result = language_model.perplexity(path, progress=self.progress)
            name, facts[path.parent.name] = path.parent.name, result.to_dict()
            row: dict[str, Any] = {"text": name, "predictions": result.n_predictions}
            row["unknown words"] = f"{result.unknown_ratio:.1%}"
            row |= result.by_direction(result.per_direction) | {"mean": result.mean}
            bits = result.by_direction(result.bits_per_character)
            rows.append(row | {f"bits per character, {side}": f"{number:.3f}" for side, number in bits.items()})
        return ([to_markdown(tabulate(rows, 2)), PERPLEXITY_NOTE], facts) if rows else None

    def minimal_pairs(self) -> Section | None:
        """Compare acceptable and unacceptable sentences."""
        if not (files := self.files("blimp/*.jsonl")):
            return None
        published = next(map(read_published_accuracies, self.files("blimp/published.tsv")), None)
        paradigms, tokenize = read_minimal_pairs(files), get_tokenizer("treebank")
        result = evaluate_minimal_pairs(self.model, paradigms, tokenize, published=published, progress=self.progress)
        by_paradigm = to_markdown(tabulate(result.table_rows(by_paradigm=True), result.digits))
        means = "Accuracies are means over paradigms."
        return [*self.shown("minimal-pairs", result), means, by_paradigm], result.to_dict()

    def similarity(self) -> Section | None:
        """Compare cosines with people's scores."""
        files = self.files("sts-benchmark/test.csv") or self.files("sts-benchmark/dev.csv")
        files += self.files("word-similarity/*")
        if not files:
            return None
        tokenize = get_tokenizer("treebank")
        pairs = {f"{path.parent.name}/{path.name}": read_scored_pairs(path, tokenize) for path in files}
        result = evaluate_similarity(Elmo(self.model), pairs, progress=self.progress)
        return self.shown("similarity", result), result.to_dict()

    def pos(self) -> Section | None:
        """Probe universal parts of speech, with a control task, and language-specific ones; with three seeds."""
        train, test = (self.files(f"ud-english-ewt/*-{part}.conllu") for part in ("train", "dev"))
        if not train or not test:
            return None
        paragraphs, facts = [], {}
        for tags in ("upos", "xpos"):
            texts = (list(read_tagged(files[0], tags)) for files in (train, test))
            is_universal = tags == "upos"
            result = probe_pos(Elmo(self.model), *texts, seeds=range(3), control=is_universal, progress=self.progress)
            paragraphs += [f"Tags: {tags.upper()}.", *self.shown(f"pos-{tags}", result)]
            facts[tags] = result.to_dict()
        return paragraphs, facts

    def wsd(self) -> Section | None:
        """Probe word senses."""
        train = self.files(f"wsd/semcor/*{DATA}")
        tests = [path for path in self.files(f"wsd/*/*{DATA}") if path not in train]
        if not train or not tests:
            return None
        inventory = next(map(read_inventory, self.files("wsd/sense-inventory.tsv")), None)
        sets = [find_sense_set(path) for path in tests]
        elmo, semcor = Elmo(self.model), find_sense_set(train[0])
        result = probe_senses(elmo, semcor, sets, inventory, progress=self.progress)
        return self.shown("wsd", result), result.to_dict()


def headlines(facts: dict[str, Any]) -> list[list[str]]:
    """Return the most important numbers."""
    lines = [
        [f"perplexity, {name}, mean of directions", f"{text['perplexity']['geometric_mean']:.2f}"]
        for name, text in facts.get("perplexity", {}).items()
    ]
    overall = facts.get("minimal-pairs", {"accuracy": {"overall": {}}})["accuracy"]["overall"]
    lines += [[f"BLiMP, {choice} (%)", f"{100 * accuracy:.1f}"] for choice, accuracy in overall.items()]
    for name, pairs in facts.get("similarity", {}).items():
        best = {"best untrained pooling": "", "stored head": "stored head"}
        for title, weighting in best.items():
            scores = [
                one["spearman"]
                for one in pairs["poolings"]
                if one["spearman"] is not None and (one["weighting"] == "stored head") == bool(weighting)
            ]
            lines += [[f"similarity, {name}, {title}", f"{max(scores):.3f}"]] if scores else []
    for tags, result in facts.get("pos", {}).items():
        layer = max((row for row in result["rows"] if row["name"].isdigit()), key=lambda row: row["accuracy"])
        title = f"part-of-speech probe, {tags}, best layer ({layer['name']}) (%)"
        lines.append([title, f"{100 * layer['accuracy']:.1f}"])
    if "wsd" in facts:
        rows = facts["wsd"]["rows"]
        name = list(rows[0]["scores"])[-1]
        layer = max((row for row in rows if row["name"].isdigit()), key=lambda row: row["scores"][name]["f1"])
        title = f"word senses, {name}, best layer ({layer['name']}) (F1, %)"
        lines.append([title, f"{100 * layer['scores'][name]['f1']:.1f}"])
    return lines


def model_facts(model: PretrainedBiLM) -> Table:
    """Return what is known about the model."""
    facts = describe(model)
    card = {key: text for key, text in facts.pop("card").items() if isinstance(text, str) and key != "name"}
    known = {key: fact for key, fact in facts.items() if key != "path" and fact} | card
    return Table(["fact", "value"], [[key, " ".join(str(fact).split())] for key, fact in known.items()])


def sections_of(page: Path) -> dict[str, str]:
    """Return the sections of a page that exists, by title, without the headings."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    return dict(part.split("\n", 1) for part in f"\n{text}".split("\n## ")[1:])


def main() -> None:
    """Compute sections, and write each one into the page when it is finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory of the data")
    parser.add_argument("--out", type=Path, required=True, help="the page, such as results/en-mini.md")
    parser.add_argument("--model", default="en-mini", help="[default: en-mini]")
    parser.add_argument("--only", action="append", choices=TITLES, help="compute this section only; can be repeated")
    args = parser.parse_args()
    folder = args.out.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    stored = folder / "results.json"
    facts = json.loads(stored.read_text(encoding="utf-8")) if stored.is_file() else {}
    sections = sections_of(args.out)
    model = open_model(args.model)
    libraries = f"NumPy {version('numpy')}, PyTorch {version('torch')}, Python {platform.python_version()}"
    machine = f"{processor_name()}, {count_of(n_threads(), 'thread')}"
    with ProgressBar("") as progress:
        report = Report(model, args.data, folder, progress)
        for name in args.only or TITLES:
            compute: Callable[[], Section | None] = getattr(report, name.replace("-", "_"))
            if (section := compute()) is None:
                print(f"no data for {name}")
                continue
            paragraphs, facts[name] = section
            sections[TITLES[name]] = "\n".join(f"\n{paragraph}" for paragraph in paragraphs if paragraph)
            facts = {name: facts[name] for name in TITLES if name in facts}
            stored.write_text(encode_json(facts), encoding="utf-8")
            sections["Model"] = f"\n{to_markdown(model_facts(model))}"
            sections["How it was measured"] = f"\nelmokit {__version__}, {libraries}, {machine}."
            order = [*TITLES.values(), "Model", "How it was measured"]
            head = (
                f"# Evaluation of {args.model}\n\nMade by `python benchmarks/report.py --data DATA --out {args.out}`.\n"
            )
            numbers = to_markdown(Table(["number", "value"], headlines(facts)))
            texts = [f"## {title}\n{sections[title].rstrip()}\n" for title in order if title in sections]
            args.out.write_text("\n".join([head, f"{numbers}\n", *texts]), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
