"""Embed a text file, then show the nearest neighbors of a few words in context.

python examples/demo.py [OUT]
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

import h5py

from elmokit import Elmo
from elmokit.embedding.corpus import embed_file
from elmokit.engine.threads import set_threads
from elmokit.evaluation.neighbors import in_context, nearest_tokens
from elmokit.storage.text_files import read_lines
from elmokit.text.tokenize import split_tokens

SENTENCES = Path(__file__).with_name("sentences.txt")
QUERIES = [("bank", 7), ("bank", 1), ("play", 9), ("play", 13)]  # a word and its line, counted from 0


def main() -> None:
    """Embed the sentences, describe the output file and print neighbors."""
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("demo.hdf5")
    elmo = Elmo.from_pretrained()
    config = elmo.model.config
    print(
        f"model      {elmo.model.source.name if elmo.model.source else '?'}: {elmo.model.n_parameters / 1e6:.1f} M "
        f"parameters, {config.n_layers} LSTM layers ({config.hidden_dim}/{config.projection_dim}), two directions"
    )
    summary = embed_file(elmo, SENTENCES, output, overwrite=True)
    print(f"text       {SENTENCES.name}: {summary.n_sentences} sentences, {summary.n_tokens} tokens")
    sentences = [split_tokens(line) for line in read_lines(SENTENCES)]
    print(
        f"speed      {words_per_second(sentences):,.0f} words/s on one core, in {elmo.computer.network.computation()}"
    )
    print("           (the README's speeds are of an idle AMD EPYC of 2024, which has VNNI, products of bytes;")
    print("           a larger text is faster, as its frequent words are computed once)")
    with h5py.File(output) as file:
        print(f"written    {output}: {len(file) - 1} datasets named by line number, and sentence_to_index")
        print(f"           dataset '0' is {file['0'].shape} (layers, tokens, dim) {file['0'].dtype}")
        vectors = [file[str(number)][...] for number in range(summary.n_sentences)]

    for word, line in QUERIES:
        token = sentences[line].index(word)
        print(f"\nnearest to         {in_context(sentences[line], token)}")
        for layer in range(elmo.n_layers):
            for neighbor in nearest_tokens(vectors, line, token, layer, n_neighbors=3):
                shown = in_context(sentences[neighbor.sentence], neighbor.token)
                print(f"  layer {layer}  {neighbor.similarity:.2f}    {shown}")


def words_per_second(sentences: list[list[str]]) -> float:
    """Measure the top layer in batches in the processor time of one core, so that other programs count little."""
    elmo = Elmo.from_pretrained(token_cache_mib=0)
    set_threads(1)
    elmo.embed(sentences, layers="top")  # not counted: it packs the weights

    seconds = []
    for _ in range(9):
        started = time.process_time()
        elmo.embed(sentences, layers="top")
        seconds.append(time.process_time() - started)
    return sum(map(len, sentences)) / statistics.median(seconds)


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the program that reads the output has ended, as in `python examples/demo.py | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
