"""Train coreference and named entities on vectors of sentences and of documents, with nothing else changed.

    python benchmarks/document_tasks.py DATA OUT [TASK...] [--seeds 1,2,3] [--set KEY=VALUE]...

DATA has the directories that TASKS names. Results are stored in OUT. If the script is interrupted, run it again to
resume. Each sentence is looked up as an object, because one that occurs twice has two vectors as part of documents.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby, islice, pairwise, product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elmokit import Elmo
from elmokit.storage.text_files import read_lines
from elmokit.tasks import run
from elmokit.tasks.coref import read_coref
from elmokit.tasks.inputs import ElmoShape
from elmokit.tasks.task_table import load_config

# Where documents begin, and where the last one ends, in sentences from 0. The files of named entities do not mark it;
# these numbers were read off their text: a new topic, which in ner-bc5cdr is a title.
# fmt: off
STARTS = {
    "ner-wikigold/train.conll": (
        0, 3, 9, 13, 26, 28, 48, 53, 61, 62, 66, 69, 85, 106, 108, 118, 168, 173, 218, 237, 270, 276, 277, 288, 302,
        330, 332, 334, 362, 392, 393, 397, 407, 409, 416, 430, 439, 444, 461, 470, 474, 489, 496, 497, 507, 516, 520,
        524, 569, 590, 603, 605, 612, 615, 621, 642, 646, 650, 664, 666, 678, 681, 688, 690, 711, 726, 729, 735, 744,
        749, 752, 759, 764, 770, 777, 784, 791, 838, 845, 849, 862, 865, 901, 907, 911, 912, 927, 932, 943, 947, 953,
        955, 960, 963, 969, 982, 993, 1012, 1052, 1053, 1056, 1070,
    ),
    "ner-wikigold/dev.conll": (
        0, 1, 30, 89, 94, 98, 117, 120, 130, 137, 139, 151, 153, 157, 174, 220, 237, 274, 279, 283, 296,
    ),
    "ner-bc5cdr/train.conll": (
        0, 12, 17, 24, 27, 34, 45, 50, 57, 80, 90, 107, 119, 135, 148, 158, 165, 173, 183, 188, 201, 214, 218, 235,
        246, 260, 276, 284, 293, 299, 304, 313, 324, 334, 347, 352, 367, 378, 390, 393, 404, 411, 414, 420, 433, 438,
        446, 450, 455, 471, 484, 504, 513, 532,
    ),
    "ner-bc5cdr/dev.conll": (
        0, 17, 26, 30, 42, 51, 59, 75, 79, 92, 103, 115, 119, 137, 139, 142, 145, 157, 173, 194, 210, 219, 237, 245,
        252, 267, 280, 292, 306, 315, 325, 330, 346, 354, 364, 372, 382, 386, 400, 410, 418, 429, 433, 440, 454, 466,
        474, 484, 497,
    ),
}
# fmt: on
NER = "[train]\nepochs = 40\npatience = 10\n"
TASKS = {
    "wikigold": ("ner", "ner-wikigold/train.conll", "ner-wikigold/dev.conll", NER),
    "bc5cdr": ("ner", "ner-bc5cdr/train.conll", "ner-bc5cdr/dev.conll", NER),
    "coref": ("coref", "coref-litbank/train.conll.xz", "coref-litbank/dev.conll", "[data]\ndrop_singletons = true\n"),
}


class DocumentLayers:
    """Has the methods of ``LayerCache`` that training calls, and keeps the layers in memory."""

    def __init__(self, elmo: Elmo, sizes: Iterable[int] | None, dtype: str, computed: list[NDArray[Any]]) -> None:
        self.elmo, self.sizes, self.dtype, self.computed = elmo, sizes, dtype, computed
        self.shape = ElmoShape(elmo.n_layers, elmo.output_dim)
        self.by_sentence: dict[int, NDArray[Any]] = {}

    def fill(self, sentences: Iterable[Sequence[str]], _progress: object = None) -> None:
        """Compute the layers of all sentences, each on its own or in documents of the given sizes."""
        sentences = list(sentences)
        if not self.computed:  # by the training of another seed
            layers: Iterable[NDArray[Any]]
            if self.sizes is None:
                layers = self.elmo.embed(iter(sentences))
            else:
                left = iter(sentences)
                documents = (list(islice(left, size)) for size in self.sizes)
                layers = chain.from_iterable(self.elmo.embed_documents(documents))
            self.computed += (one.astype(self.dtype) for one in layers)
        self.by_sentence = {id(sentence): one for sentence, one in zip(sentences, self.computed, strict=True)}

    def layers(self, sentences: Sequence[Sequence[str]]) -> list[NDArray[Any]]:
        """Return one array per sentence, ``(layers, tokens, dim)``."""
        return [self.by_sentence[id(sentence)] for sentence in sentences]


def first_sentences(path: Path, n_sentences: int) -> Iterator[str]:
    """Yield the lines of the first sentences of a file in columns."""
    groups = (list(lines) for blank, lines in groupby(read_lines(path), key=lambda line: not line.strip()) if not blank)
    for lines in islice(groups, n_sentences):
        yield from (*lines, "")


def main() -> None:
    """Train the named tasks, and print a row for each: sentences, documents, mean difference and its standard error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("tasks", nargs="*", choices=[[], *TASKS])
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the task's config")
    options = parser.parse_args()
    for name in options.tasks or TASKS:
        kind, *files, extra = TASKS[name]
        out = options.out.resolve() / name
        out.mkdir(parents=True, exist_ok=True)
        sizes: list[int] = []
        settings = [*options.set, f"train.seeds=[{options.seeds}]"]
        for split, file in zip(("train", "dev"), files, strict=True):
            path = options.data.resolve() / file
            if file in STARTS:
                sizes += (stop - start for start, stop in pairwise(STARTS[file]))
                (out / f"{split}.conll").write_text("\n".join(first_sentences(path, STARTS[file][-1])) + "\n", "utf-8")
                path = out / f"{split}.conll"
            else:
                sizes += (len(document.sentences) for document in read_coref(str(path)))
            settings.append(f"data.{split}={path}")
        (out / "config.toml").write_text(f'task = "{kind}"\npreset = "small"\n{extra}', "utf-8")
        task, config = load_config(out / "config.toml", settings)
        variants: dict[str, list[int] | None] = {"sentences": None, "documents": sizes}
        computed: dict[str, list[NDArray[Any]]] = {variant: [] for variant in variants}
        scores: dict[str, list[float]] = {variant: [] for variant in variants}
        for seed, (variant, of_each) in product(config.train.seeds, variants.items()):

            def layers(
                _: object, elmo: Elmo, dtype: str, of_each: Any = of_each, computed: Any = computed[variant]
            ) -> DocumentLayers:
                return DocumentLayers(elmo, of_each, dtype, computed)

            run.LayerCache = layers  # type: ignore[assignment,misc]
            one = replace(config, elmo=task.elmo, train=replace(config.train, seeds=(seed,)))
            (result,) = (one for one in run.train_task(task, one, out / variant)["seeds"] if one["seed"] == seed)
            scores[variant].append(result["dev"][task.metric])
            print(name, variant, result, flush=True)
        if len(config.train.seeds) < 2:
            continue
        differences = np.subtract(scores["documents"], scores["sentences"]).tolist()
        cells = [f"{mean(values):.1f} ± {stdev(values):.1f}" for values in scores.values()]
        error = stdev(differences) / math.sqrt(len(differences))
        cells.append(f"{mean(differences):+.1f} ± {error:.1f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
