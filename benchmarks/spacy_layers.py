"""Measure spaCy's component ``elmo_layers``, which needs no PyTorch, beside ``Elmo.embed`` (results/integrations.md).

    python benchmarks/spacy_layers.py lm-wikipedia/test.txt.xz --lines 200

Speeds are in tokens per second of processor time. The model is opened before they are measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import spacy
from spacy.tokens import Doc

from elmokit import Elmo
from elmokit.storage.text_files import read_sentences

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--lines", type=int, default=200)
    arguments = parser.parse_args()
    sentences = list(islice(read_sentences(arguments.text), arguments.lines))
    n_tokens = sum(map(len, sentences))

    started = time.process_time()
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo_layers")
    nlp("The first text.")
    print(f"the component is ready after {time.process_time() - started:.1f} s")
    started = time.process_time()
    docs = list(nlp.pipe(Doc(nlp.vocab, words=sentence) for sentence in sentences))
    with_spacy = time.process_time() - started
    assert "torch" not in sys.modules

    elmo = Elmo.from_pretrained()
    started = time.process_time()
    vectors = elmo.embed(sentences)
    alone = time.process_time() - started
    pairs = zip(docs, vectors, strict=True)
    difference = max(float(np.abs(doc._.elmo_layers - array).max()) for doc, array in pairs)
    print(
        f"{n_tokens:,} tokens: {n_tokens / with_spacy:,.0f} tokens/s in spaCy, {n_tokens / alone:,.0f} by Elmo.embed; "
        f"largest difference {difference:.1e}"
    )
