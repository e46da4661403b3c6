"""Run the experiments of results/probes.md and print its tables.

    python benchmarks/probes.py DATA OUT [MODEL]

DATA holds ``ud-english-ewt`` (CoNLL-U) and ``wsd`` (semcor, senseval2, senseval3, semeval2007, sense-inventory.tsv.xz).
OUT stores vectors, sense means and an index. If the script is interrupted, run it again to resume. Use another OUT for
another model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ELMOKIT = [sys.executable, "-m", "elmokit"]
SEEDS = 3
EWT = ("ud-english-ewt/en_ewt-ud-train.conllu.xz", "ud-english-ewt/en_ewt-ud-dev.conllu")
SENSE_SETS = ("senseval2", "senseval3", "semeval2007")
QUERIES = [
    ("play", "The theatre showed a new play by her brother ."),
    ("play", "It was a great play by the second baseman in the last game ."),
    ("play", "The children play in the garden until it is dark ."),
]


def main() -> None:
    """Run the experiments whose results are not in OUT; print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="directory with the corpora")
    parser.add_argument("out", type=Path, help="directory for the results")
    parser.add_argument("model", nargs="?", default="en-mini", help="path, URL or published name  [default: en-mini]")
    arguments = parser.parse_args()
    data, out, model = arguments.data.resolve(), arguments.out, arguments.model
    out.mkdir(parents=True, exist_ok=True)
    texts = [str(data / name) for name in EWT]

    for tags in ("upos", "xpos"):
        extra = ["--control"] if tags == "upos" else []
        flags = ["--tags", tags, "--seeds", str(SEEDS), "--vectors", "ewt", "--figure", f"pos-{tags}", "--overwrite"]
        facts = run(out, f"pos-{tags}", ["probe", "pos", *texts, "--model", model, *flags, *extra])
        print(f"\n## Parts of speech: {tags}, {facts['tags']} tags\n")
        print_pos(facts)

    sets = [str(data / "wsd" / name) for name in ("semcor", *SENSE_SETS)]
    flags = ["--inventory", str(data / "wsd" / "sense-inventory.tsv.xz"), "--senses", "semcor.safetensors"]
    flags += ["--figure", "wsd", "--overwrite"]
    facts = run(out, "wsd", ["probe", "wsd", *sets, "--model", model, *flags])
    print("\n## Word senses\n")
    print_wsd(facts)

    print("\n## Neighbours\n")
    subprocess.run([*ELMOKIT, "neighbours", "index", texts[0], "index", "--model", model], cwd=out, check=True)
    for word, sentence in QUERIES:
        call = [*ELMOKIT, "neighbours", "find", "index", word, sentence, "--number", "4", "--min-count", "2"]
        shown = subprocess.run(call, cwd=out, check=True, capture_output=True, text=True).stdout
        print("".join(f"    {line}\n" for line in shown.splitlines()))


def run(out: Path, name: str, arguments: list[str]) -> dict[str, Any]:
    """Run a command with ``--json`` and return its results, or those of an earlier run from OUT."""
    path = out / f"{name}.json"
    if not path.exists():
        done = subprocess.run([*ELMOKIT, *arguments, "--json"], cwd=out, check=True, stdout=subprocess.PIPE, text=True)
        path.write_text(done.stdout, encoding="utf-8")
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts


def print_pos(facts: dict[str, Any]) -> None:
    """Print the accuracy by layer as a Markdown table."""
    print("| | accuracy | control task | selectivity |\n|---|---|---|---|")
    print(f"| most frequent tag of the word | {facts['most_frequent_tag']:.2%} | | |")
    for row in facts["rows"]:
        control, selectivity = "", ""
        if row["selectivity"] is not None:
            control, selectivity = f"{row['accuracy'] - row['selectivity']:.2%}", f"{row['selectivity']:.2%}"
        name = f"layer {row['name']}" if row["name"].isdigit() else row["name"]
        if row["weights"]:
            name += f" (weights {', '.join(f'{weight:.2f}' for weight in row['weights'])})"
        print(f"| {name} | {row['accuracy']:.2%} ± {row['deviation']:.2%} | {control} | {selectivity} |")


def print_wsd(facts: dict[str, Any]) -> None:
    """Print F1 by layer, test set and part of speech as a Markdown table."""
    first = facts["rows"][0]
    columns = [*first["scores"], *first["parts_of_speech"]]
    print(f"| | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|")
    for row in facts["rows"]:
        scores = {**row["scores"], **row["parts_of_speech"]}
        name = f"layer {row['name']}" if row["name"].isdigit() else row["name"]
        print(f"| {name} | {' | '.join(format(100 * scores[column]['f1'], '.1f') for column in columns)} |")
    unseen, n_instances = sum(facts["backed_off"].values()), sum(facts["instances"].values())
    print(
        f"\n{facts['senses']:,} senses in training; {unseen:,} of {n_instances:,} instances had no sense in training."
    )


if __name__ == "__main__":
    main()
