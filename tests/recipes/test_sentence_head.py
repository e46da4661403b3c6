"""The recipe that trains a head, on pairs that are similar if both are about animals or both about places."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

import pytest

from elmokit import Elmo, SentenceEmbedder, open_model, save_model
from elmokit.pretrained.model import PretrainedBiLM
from recipes import sentence_head

ANIMALS, PLACES, NOISE = ["cat", "dog"], ["mat", "on"], ["the", "sat", "ran"]


def write_pairs(path: str, seed: int) -> None:
    rng, rows = Random(seed), []
    for _ in range(200):
        topics = rng.choices([ANIMALS, PLACES], k=2)
        sentences = [[rng.choice(topic), *rng.choices(NOISE, k=rng.randrange(1, 5))] for topic in topics]
        for sentence in sentences:
            rng.shuffle(sentence)
        rows.append(",".join([*map(" ".join, sentences), str(5.0 * (topics[0] is topics[1]))]))
    Path(path).write_text("\n".join(rows), encoding="utf-8")


def test_a_head_learns_what_makes_sentences_similar_and_is_stored(
    model: PretrainedBiLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(model, "model")
    write_pairs("train.csv", 1)
    write_pairs("dev.csv", 2)
    rows = [("entailment", "the cat sat", "cat ran"), ("neutral", "the dog", "mat"), ("entailment", "mat", "the mat")]
    lines = [json.dumps({"gold_label": a, "sentence1": b, "sentence2": c}) for a, b, c in rows]
    Path("labels.jsonl").write_text("\n".join(lines), encoding="utf-8")
    given = ["train.csv", "--model", "model", "--held-out", "dev.csv", "--out", "new", "--steps", "60"]
    rates = ["--learning-rate", "0.02", "--word-learning-rate", "0.05", "--decay", "0.01"]
    monkeypatch.setattr(sys, "argv", ["sentence_head.py", *given, *rates])
    sentence_head.main()
    before, trained, after = capsys.readouterr().out.splitlines()
    assert float(before.split()[-1]) < 0.5 < 0.8 < float(after.split()[-1])
    assert trained == "Trained on 200 scored and 0 entailed pairs."
    stored = open_model("new")
    weights = dict(zip(stored.vocabulary.words, stored.sentence_head.word_weights, strict=True))
    assert max(weights[word] for word in NOISE) < min(weights[word] for word in ANIMALS + PLACES)
    assert SentenceEmbedder.by_name(Elmo(stored), "trained").embed([["the", "cat"]]).shape[0] == 1
    monkeypatch.setattr(
        sys, "argv", ["sentence_head.py", "labels.jsonl", "--model", "new", "--out", "both", "--steps", "2"]
    )
    sentence_head.main()
    assert capsys.readouterr().out == "Trained on 0 scored and 2 entailed pairs.\n"
    assert Path("new/model.safetensors").read_bytes() == Path("model/model.safetensors").read_bytes()
