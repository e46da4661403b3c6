"""Compare what ``ElmoForMaskedLM`` finds for each word with ``LanguageModel.substitutes`` (results/integrations.md).

python benchmarks/transformers_fill_mask.py text.txt

The file has one tokenized sentence per line; the first 40 are used. The pipeline masks one word at a time; the model
also computes all words of a sentence in one pass.
"""

from __future__ import annotations

import sys
import time
from itertools import islice

import torch
from transformers import pipeline

from elmokit import LanguageModel
from elmokit.integrations.transformers import ElmoForMaskedLM, ElmoTokenizer
from elmokit.storage.text_files import read_sentences

N_SENTENCES, N_MASKED = 40, 300

if __name__ == "__main__":
    sentences = [tokens for tokens in islice(read_sentences(sys.argv[1]), N_SENTENCES) if tokens]
    model, tokenizer = ElmoForMaskedLM.from_elmokit(), ElmoTokenizer.from_elmokit(tokenization="spaces")
    lm = LanguageModel.from_pretrained(precision="float32")
    expected = [words for tokens in sentences for words in lm.substitutes(tokens, n=5)]

    started, logits, tokens_of_text = time.perf_counter(), [], [word for tokens in sentences for word in tokens]
    with torch.inference_mode():
        for tokens in sentences:
            scores = model(**tokenizer(tokens, is_split_into_words=True, return_tensors="pt")).logits[0, 1:-1]
            scores[:, :3] = -torch.inf  # the special words, as for a mask
            logits.append(scores)
    probabilities = torch.cat(logits).softmax(dim=1)
    print(f"one pass per sentence: {len(expected) / (time.perf_counter() - started):,.0f} tokens/s")
    difference = max(
        abs(float(row[word.word_id]) - word.probability)
        for row, words in zip(probabilities, expected, strict=True)
        for word in words
    )
    print(f"{len(expected):,} tokens, largest difference of a probability {difference:.1e}")

    fill = pipeline("fill-mask", model=model, tokenizer=tokenizer)
    masked = [
        (" ".join([*tokens[:i], "<MASK>", *tokens[i + 1 :]]), tokens[i])
        for tokens in sentences
        for i in range(len(tokens))
    ][:N_MASKED]
    started = time.perf_counter()
    found = [[row["token_str"] for row in fill(text)] for text, _ in masked]
    print(f"pipeline: {len(masked) / (time.perf_counter() - started):,.1f} masks/s")
    top1 = sum(words[0] == gold for words, (_, gold) in zip(found, masked, strict=True)) / len(masked)
    top5 = sum(gold in words for words, (_, gold) in zip(found, masked, strict=True)) / len(masked)
    same = sum(words[0] == best[0].word for words, best in zip(found, expected[:N_MASKED], strict=True)) / len(masked)
    print(f"{len(masked)} masks: first word right {top1:.1%}, among five {top5:.1%}; first as elmokit's {same:.1%}")
