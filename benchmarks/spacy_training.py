"""Train a spaCy tagger or entity recognizer with and without ELMo, with spaCy's own commands.

python benchmarks/spacy_training.py tagger en_ewt-ud-train.conllu en_ewt-ud-dev.conllu --setup elmo --epochs 3
python benchmarks/spacy_training.py ner wikigold/train.conll wikigold/dev.conll --setup hash --epochs 10

Results are in results/integrations.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from spacy.util import load_config

from elmokit import Elmo

SCORES = {"tagger": "tag_acc", "ner": "ents_f"}


def spacy(*arguments: object) -> None:
    """Run a command of spaCy."""
    subprocess.run([sys.executable, "-m", "spacy", *map(str, arguments)], check=True)


def use_elmo(config: Any, task: str, setup: str, model: str | None) -> None:
    """Change the config that ``spacy init config`` wrote, as a user would."""
    tok2vec, width = config["components"]["tok2vec"], Elmo.from_pretrained(model).output_dim
    elmo = {"@architectures": "elmokit.Tok2Vec.v1", "model": model, "trainable": setup == "elmo-trained"}
    if setup == "elmo-alone":
        tok2vec["model"] = {**elmo, "width": width}
        config["components"][task]["model"]["tok2vec"]["width"] = "${components.tok2vec.model.width}"
        return
    # The encoder adds its input to its output, so both need the same width. One layer of it is enough, because ELMo has
    # read the whole sentence.
    tok2vec["model"]["embed"] = elmo
    tok2vec["model"]["encode"].update(width=width, depth=1)


def main() -> None:
    """Convert, train and evaluate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=SCORES)
    parser.add_argument("train", type=Path)
    parser.add_argument("dev", type=Path)
    setups = ["hash", "elmo", "elmo-alone", "elmo-trained"]
    parser.add_argument("--setup", choices=setups, default="elmo")
    parser.add_argument("--model", help="a path or name; the small English model by default")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=0, help="train on the first ones only")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in (args.train, args.dev):
            spacy("convert", path, folder, "-c", {"tagger": "conllu", "ner": "ner"}[args.task], "-n", 10)
        spacy("init", "config", folder / "config.cfg", "-p", args.task)
        config = load_config(folder / "config.cfg", interpolate=False)
        if args.setup != "hash":
            use_elmo(config, args.task, args.setup, args.model)
        for corpus in config["corpora"].values():
            corpus["gold_preproc"] = True  # the file's own tokens and sentences
        config["corpora"]["train"]["limit"] = args.sentences // 10  # documents, which `convert` makes of 10 sentences
        config["training"].update(max_epochs=args.epochs, max_steps=0, patience=0, eval_frequency=200)
        config["system"]["seed"] = args.seed
        config.to_disk(folder / "config.cfg")
        start = time.perf_counter()
        train, dev = (folder / f"{path.stem}.spacy" for path in (args.train, args.dev))
        out = folder / "trained"
        spacy("train", folder / "config.cfg", "--paths.train", train, "--paths.dev", dev, "-o", out)
        seconds = time.perf_counter() - start
        meta = json.loads((out / "model-best" / "meta.json").read_text(encoding="utf-8"))
        score = meta["performance"][SCORES[args.task]]
    print(f"{args.task} {args.setup}: {SCORES[args.task]} {100 * score:.2f}, trained in {seconds:.0f} s")


if __name__ == "__main__":
    main()
