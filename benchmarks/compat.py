"""Compare the speed of the old programs' calls with that of the corresponding calls of elmokit.

    python benchmarks/compat.py SENTENCES MODEL [--n-sentences 512] [--batch-size 32] [--rounds 5]

SENTENCES is a file with one tokenized sentence per line. Both sides of a pair open the same weights, those of MODEL
(which reads characters, as published ones do), read the same batches of strings and run one after the other in every
round, in one thread. The script prints a Markdown table of medians over rounds, in CPU time. The ratio is the median of
the ratios within each round, so that a busy machine affects both sides equally.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch

from elmokit import Elmo, ElmoModule, open_model, save_model
from elmokit.compat import allennlp, bilm, many_langs, simple_elmo, tfhub
from elmokit.storage.text_files import read_lines
from elmokit.text.tokenize import split_tokens

Sentences = list[list[str]]
WARM_UP_BATCHES = 2  # packs the weights and fills the libraries' caches


class Pair(NamedTuple):
    """A call of an old program and the call of elmokit that does the same work."""

    old_name: str
    old: Callable[[list[Sentences]], object]
    new_name: str
    new: Callable[[list[Sentences]], object]


def make_pairs(source: str, folder: Path, batch_size: int) -> list[Pair]:
    """Build both sides of every pair. The old programs read the published format from ``folder``."""
    model = open_model(source)
    options, weights, vocabulary = folder / "elmo_options.json", folder / "elmo_weights.hdf5", folder / "vocab.txt"
    save_model(model, weights)
    vocabulary.write_text("<S>\n</S>\n<UNK>\n", encoding="utf-8")  # the character batcher only checks it

    elmo, module = Elmo.from_pretrained(weights), ElmoModule.from_pretrained(weights)
    stateful = Elmo.from_pretrained(weights, start="stateful")
    allennlp_elmo = allennlp.Elmo(str(options), str(weights), 1, dropout=0.0)
    embedder = allennlp.ElmoEmbedder(str(options), str(weights))
    language_model = bilm.BidirectionalLanguageModel(options, weights)
    batcher = bilm.Batcher(vocabulary, 50)
    hub_module = tfhub.Module(weights)
    many = many_langs.Embedder(weights, batch_size)
    simple = simple_elmo.ElmoModel()
    simple.load(weights, max_batch_size=batch_size)

    def forward(batches: list[Sentences]) -> None:
        for batch in batches:
            module(module.ids(batch))

    def flat(batches: list[Sentences]) -> Sentences:
        return [sentence for batch in batches for sentence in batch]

    def by_allennlp(batches: list[Sentences]) -> None:
        for batch in batches:
            allennlp_elmo(allennlp.batch_to_ids(batch))

    def by_bilm(batches: list[Sentences]) -> None:
        for batch in batches:
            bilm.weight_layers("input", language_model(batcher.batch_sentences(batch)))

    def by_hub(batches: list[Sentences]) -> None:
        for batch in batches:
            hub_module([" ".join(sentence) for sentence in batch], signature="default", as_dict=True)

    return [
        Pair("allennlp.Elmo", by_allennlp, "ElmoModule.forward", forward),
        Pair(
            "allennlp.ElmoEmbedder.embed_sentences",
            lambda batches: list(embedder.embed_sentences(flat(batches), batch_size)),
            'Elmo.embed, start="stateful"',
            lambda batches: stateful.embed(flat(batches), batch_size=batch_size),
        ),
        Pair("bilm.BidirectionalLanguageModel, weight_layers", by_bilm, "ElmoModule.forward", forward),
        Pair("tfhub.Module", by_hub, "ElmoModule.forward", forward),
        Pair(
            "many_langs.Embedder.sents2elmo",
            lambda batches: many.sents2elmo(flat(batches)),
            "Elmo.embed",
            lambda batches: elmo.embed(flat(batches), layers="average"),
        ),
        Pair(
            "simple_elmo.ElmoModel.get_elmo_vectors",
            lambda batches: simple.get_elmo_vectors(flat(batches)),
            "Elmo.embed",
            lambda batches: elmo.embed(flat(batches), layers="average"),
        ),
    ]


def seconds(call: Callable[[list[Sentences]], object], batches: list[Sentences]) -> float:
    """Measure the CPU time of one call."""
    started = time.process_time()
    call(batches)
    return time.process_time() - started


def main() -> None:
    """Measure all pairs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", type=Path, help="tokenized text, one sentence per line")
    parser.add_argument("model", help="a model that HDF5 files can hold")
    parser.add_argument("--n-sentences", type=int, default=512, help="number of sentences to read  [default: 512]")
    parser.add_argument("--batch-size", type=int, default=32, help="sentences per batch  [default: 32]")
    parser.add_argument("--rounds", type=int, default=5, help="number of measurements of each call  [default: 5]")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = (tokens for line in read_lines(args.sentences) if (tokens := split_tokens(line)))
    sentences = list(islice(lines, args.n_sentences))
    batches = [sentences[start : start + args.batch_size] for start in range(0, len(sentences), args.batch_size)]
    n_tokens = sum(map(len, sentences))
    print(f"{len(sentences)} sentences, {n_tokens} tokens, batches of {args.batch_size}\n")
    print("| old call | tokens/s | elmokit call | tokens/s | old / new speed |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for pair in make_pairs(args.model, Path(folder), args.batch_size):
            for call in (pair.old, pair.new):
                call(batches[:WARM_UP_BATCHES])
            times = [(seconds(pair.old, batches), seconds(pair.new, batches)) for _ in range(args.rounds)]
            old, new = (n_tokens / statistics.median(each) for each in zip(*times, strict=True))
            ratio = statistics.median(new_time / old_time for old_time, new_time in times)
            print(f"| `{pair.old_name}` | {old:,.0f} | `{pair.new_name}` | {new:,.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
