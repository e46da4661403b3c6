"""Compare the surprisal that minicons computes with ``ElmoForCausalLM`` and elmokit's own (results/integrations.md).

    python benchmarks/minicons_surprisal.py text.txt

The file has one tokenized sentence per line; the first 500 are used.
"""

from __future__ import annotations

import sys
import time
from itertools import islice

import numpy as np
from minicons.scorer import IncrementalLMScorer

from elmokit import LanguageModel
from elmokit.integrations.transformers import ElmoForCausalLM, ElmoTokenizer
from elmokit.storage.text_files import read_sentences

N_SENTENCES, BATCH_SIZE = 500, 16

if __name__ == "__main__":
    sentences = [tokens for tokens in islice(read_sentences(sys.argv[1]), N_SENTENCES) if tokens]
    texts = [" ".join(tokens) for tokens in sentences]
    n_tokens = sum(map(len, sentences))
    tokenizer = ElmoTokenizer.from_elmokit(direction="forward", tokenization="spaces")
    scorer = IncrementalLMScorer(ElmoForCausalLM.from_elmokit(), "cpu", tokenizer)
    started = time.perf_counter()
    scores = [
        [score for _, score in row[1:]]
        for start in range(0, len(texts), BATCH_SIZE)
        for row in scorer.token_score(texts[start : start + BATCH_SIZE], surprisal=True, eos_token=True)
    ]
    print(f"minicons: {n_tokens / (time.perf_counter() - started):,.0f} tokens/s")
    lm = LanguageModel.from_pretrained()
    started = time.perf_counter()
    expected = [sentence.nats[0, 1:] for sentence in lm.surprisal(sentences)]
    print(f"elmokit: {n_tokens / (time.perf_counter() - started):,.0f} tokens/s")
    difference = max(float(np.abs(row - nats).max()) for row, nats in zip(scores, expected, strict=True))
    print(f"{len(texts)} sentences, {n_tokens:,} tokens, largest difference {difference:.1e} nats")
