"""Score minimal pairs as BabyLM's evaluation does, with its calls of transformers on a saved ELMo.

python benchmarks/babylm.py blimp.jsonl.xz --backend causal --pairs 20
python benchmarks/babylm.py blimp.jsonl.xz --backend mlm --pairs 20 --one-pass

This is not BabyLM's program: it was written from reading that program (`strict/` of babylm-org/babylm-eval, and
babylm/evaluation-pipeline-2025), for machines where it cannot be installed, and makes the same calls in the same order.
`--one-pass` leaves out its copies of each sentence with one word masked: neither direction of an ELMo reads the word
that it predicts, so the scores are the same. Results are in results/babylm.md.
"""

from __future__ import annotations

import argparse
import json
import lzma
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoProcessor

from elmokit.integrations.transformers import ElmoForCausalLM, ElmoForMaskedLM, ElmoTokenizer

Backend = Literal["causal", "mlm"]
Encoded = list[dict[str, Any]]


def save(model: Any, backend: Backend, folder: Path) -> None:
    """Save an ELMo as the program opens it (docs/how-to/evaluate/babylm.md)."""
    if backend == "causal":
        ElmoForCausalLM.from_elmokit(model).save_pretrained(folder)
        tokenizer = ElmoTokenizer.from_elmokit(model, direction="forward")
        tokenizer.pad_token = tokenizer.eos_token
    else:
        ElmoForMaskedLM.from_elmokit(model, special_words=True).save_pretrained(folder)
        tokenizer = ElmoTokenizer.from_elmokit(model)
    tokenizer.save_pretrained(folder)


class Scorer:
    """The log probabilities of completions, as `sentence_zero_shot` computes them from a saved model."""

    def __init__(self, folder: Path, backend: Backend, one_pass: bool = False) -> None:
        auto = AutoModelForCausalLM if backend == "causal" else AutoModelForMaskedLM
        self.model = auto.from_pretrained(str(folder), trust_remote_code=True, revision=None).eval()
        self.tokenizer = AutoProcessor.from_pretrained(
            str(folder), padding_side="right", trust_remote_code=True, revision=None
        )
        masked = self.one_pass if one_pass else self.masked
        self.score: Callable[[Encoded], list[float]] = self.causal if backend == "causal" else masked

    def __call__(self, sentences: Sequence[str], completions: Sequence[str] | None = None) -> list[float]:
        """Score the completion at the end of each sentence; None for whole sentences."""
        encoded = []
        for sentence, completion in zip(sentences, sentences if completions is None else completions, strict=True):
            row = self.tokenizer(text=sentence, return_offsets_mapping=True)
            start = len(sentence) - len(completion)
            # A boundary has no characters, so it is never part of a completion.
            row["scored"] = [index for index, (_, end) in enumerate(row["offset_mapping"]) if end > start]
            encoded.append(row)
        with torch.no_grad():
            return self.score(encoded)

    def causal(self, rows: Encoded) -> list[float]:
        """Predict each token from those before it."""
        ids, mask = self._padded(rows)
        targets = ids[:, 1:]
        log_probs = self._logits(ids[:, :-1], mask[:, :-1]).log_softmax(dim=-1)
        of_targets = log_probs.gather(-1, targets[..., None])[..., 0]
        is_scored = torch.zeros(ids.shape)
        for marks, row in zip(is_scored, rows, strict=True):
            marks[row["scored"]] = 1
        sums: list[float] = (of_targets * is_scored[:, 1:]).sum(dim=1).tolist()
        return sums

    def masked(self, rows: Encoded, batch_size: int = 64) -> list[float]:
        """Predict each token from a copy of its sentence where it is masked."""
        copies, of_row = [], []
        for number, row in enumerate(rows):
            for index in row["scored"]:
                ids = list(row["input_ids"])
                ids[index] = self.tokenizer.mask_token_id
                copies.append({"input_ids": ids, "attention_mask": row["attention_mask"]})
                of_row.append((number, index, row["input_ids"][index]))
        sums = [0.0] * len(rows)
        for first in range(0, len(copies), batch_size):
            ids, mask = self._padded(copies[first : first + batch_size])
            numbers, indices, targets = zip(*of_row[first : first + batch_size], strict=True)
            logits = self._logits(ids, mask)[torch.arange(len(ids)), list(indices)]
            found = logits.log_softmax(dim=-1).gather(-1, torch.tensor(targets)[:, None])[:, 0]
            for number, value in zip(numbers, found.tolist(), strict=True):
                sums[number] += value
        return sums

    def one_pass(self, rows: Encoded) -> list[float]:
        """Predict each token from the sentence itself."""
        ids, mask = self._padded(rows)
        log_probs = self._logits(ids, mask).log_softmax(dim=-1)
        return [
            sum(log_probs[number, index, row["input_ids"][index]].item() for index in row["scored"])
            for number, row in enumerate(rows)
        ]

    def word(self, context: str, word: str, n_masks: int = 0) -> float:
        """Compute the probability of a word after a context, as `reading` does: with masks after it for `mlm`."""
        ids = self.tokenizer(word, add_special_tokens=False)["input_ids"]
        probability = 1.0
        for target in ids:
            text = context + (self.tokenizer.mask_token or "") * n_masks
            encoded = self.tokenizer(text, return_tensors="pt")
            with torch.no_grad():
                logits = self.model(**encoded).logits[0]
            is_mask = n_masks and encoded["input_ids"][0, -1] == self.tokenizer.mask_token_id
            position = -1 if not n_masks else -n_masks if is_mask else -n_masks - 1
            probability *= logits[position].softmax(dim=-1)[target].item()
            context += self.tokenizer.decode(target)
        return probability

    def _padded(self, rows: Encoded) -> tuple[Tensor, Tensor]:
        def padded(name: str, value: int) -> Tensor:
            texts = [torch.tensor(row[name]) for row in rows]
            return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=value)

        return padded("input_ids", self.tokenizer.pad_token_id), padded("attention_mask", 0)

    def _logits(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=ids, attention_mask=mask)["logits"]
        return logits


def read_pairs(path: Path, n_pairs: int | None) -> dict[str, list[dict[str, str]]]:
    """Read the first pairs of each paradigm of BLiMP."""
    paradigms: dict[str, list[dict[str, str]]] = defaultdict(list)
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as file:
        for line in file:
            pair = json.loads(line)
            if n_pairs is None or len(paradigms[pair["UID"]]) < n_pairs:
                paradigms[pair["UID"]].append(pair)
    return paradigms


def main() -> None:
    """Print the mean accuracy over paradigms, and the ties, which count as right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("blimp", type=Path)
    parser.add_argument("--model", help="a path or name; the small English model by default")
    parser.add_argument("--backend", choices=["causal", "mlm"], default="causal")
    parser.add_argument("--pairs", type=int, help="of each paradigm; all by default")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--one-pass", action="store_true", help="for mlm: read each sentence once, without masks")
    args = parser.parse_args()
    paradigms, start = read_pairs(args.blimp, args.pairs), time.perf_counter()
    pairs = [pair for own in paradigms.values() for pair in own]
    n_right: dict[str, int] = defaultdict(int)
    n_ties = 0
    with tempfile.TemporaryDirectory() as folder:
        save(args.model, args.backend, Path(folder))
        score = Scorer(Path(folder), args.backend, args.one_pass)
        for first in range(0, len(pairs), args.batch_size):
            batch = pairs[first : first + args.batch_size]
            good, bad = (score([pair[f"sentence_{kind}"] for pair in batch]) for kind in ("good", "bad"))
            for pair, of_good, of_bad in zip(batch, good, bad, strict=True):
                n_right[pair["UID"]] += of_good >= of_bad  # as `torch.max` chooses the first of equal ones
                n_ties += of_good == of_bad
    accuracies = [n_right[name] / len(own) for name, own in paradigms.items()]
    print(
        f"{args.backend}: {100 * sum(accuracies) / len(accuracies):.2f} % of {len(pairs):,} pairs in {len(paradigms)} "
        f"paradigms, {n_ties} ties, {time.perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
