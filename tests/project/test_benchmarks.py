"""Every program in ``benchmarks/`` starts, on small input: its numbers mean nothing, but it has not rotted."""

from __future__ import annotations

import contextlib
import itertools
import json
import lzma
import os
import random
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch

from elmokit.engine.threads import n_threads, set_threads
from elmokit.formats.save import save_model
from tests.conftest import random_model
from tests.helpers.paths import ROOT
from tests.helpers.task_examples import TEXTS

BENCHMARKS = ROOT / "benchmarks"
# Started by tests/project/test_quotes.py and transformer.py, and imported by report.py and gpu.py.
STARTED_ELSEWHERE = {"quote_results.py", "transformer_peers.py", "pages.py", "part_results.py"}
# How each is started, and the modules that it needs. Some only say which arguments they take, because they start many
# processes or take minutes.
PROGRAMS = [
    ("babylm.py pairs.jsonl --model model --pairs 1", "transformers"),
    ("babylm.py pairs.jsonl --model model --pairs 1 --backend mlm --one-pass", "transformers"),
    ("compat.py text.txt model --n-sentences 4 --batch-size 2 --rounds 1", ""),
    ("document_cache.py fit data/documents --split test", ""),
    ("document_cache.py bits data/documents --split test --skip-sentences 1", ""),
    ("document_cache.py cost data/documents --split test --rounds 1", ""),
    ("documents.py perplexity data/documents --shuffled", ""),
    ("drift.py model text.txt --lines 3", ""),
    ("embed_end_to_end.py text.txt --model model --lines 10 --rounds 1", ""),
    ("first_vector.py --help", ""),
    ("flair_training.py ner --model model", "flair"),
    ("gpu.py out --texts text.txt --held-out text.txt --device cpu --quick --minutes 0.1 --parts parity", ""),
    ("inference.py text.txt --work work --sizes tiny --batches 2 --lines 4 --rounds 1 --threads 1", ""),
    ("loading.py model options.json weights.hdf5 --rounds 1", ""),
    ("long_lines.py --characters 100", ""),
    ("mteb_sts.py pairs.csv --model model", "mteb"),
    (
        "ngram_baseline.py --vocabulary model/vocab.txt --train text.txt --test text.txt --backward --words text.txt w",
        "",
    ),
    ("onnx_speed.py text.txt", "onnxruntime"),
    ("precisions.py --sizes tiny --rows 1,2 --tokens 4 --rounds 1", ""),
    ("report.py --data data --out report.md --model model", "matplotlib"),
    ("serve.py text.txt --model model --seconds 1 --lines 4 --clients 2 --requests 4", "gevent locust psutil"),
    ("spacy_training.py --help", "spacy"),
    ("sts_training.py pairs.csv pairs.csv --model model --pairs 4", "sentence_transformers datasets"),
    ("tasks.py data out sick --seeds 1", ""),
    ("train_speed.py text.txt --sizes tiny,en-mini --words 1100 --rounds 1 --threads 1 --batch-size 2", ""),
    ("train_speed.py text.txt --sizes tiny --words 1100 --rounds 1 --threads 1 --batch-size 2 --precisions", ""),
    ("transformer.py --help", ""),
    ("two_commits.py --help", ""),
]


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a directory with a small file of every kind."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    words = ["the", "cat", "sat", "dog", "mat", "."]
    lines = [" ".join(draw.choices(words, k=draw.randint(3, 9))) for _ in range(40)]
    text = "\n".join(lines) + "\n"
    scored = "".join(f"{one},{other},{n % 6}\n" for n, (one, other) in enumerate(itertools.pairwise(lines)))
    columns = "the O\ncat B-cat\nsat O\n\nthe O\ndog B-dog\n. O\n\n" * 20
    minimal = {"sentence_good": "the cat sat .", "sentence_bad": "cat the .", "UID": "a", "linguistics_term": "b"}
    files = {
        "text.txt": text,
        "pairs.csv": scored,
        "pairs.jsonl": json.dumps(minimal | {"field": "b"}) + "\n",
        "ner/train.conll": columns,
        "ner/dev.conll": columns,
        "data/documents/documents.tsv": "split\tsentences\ntest\t30\ntest\t10\n",
        "data/wiki/test.txt": text,
        "data/sts-benchmark/dev.csv": scored,
        "data/nli-sick/train.jsonl": TEXTS["nli"],
        "data/nli-sick/dev.jsonl": TEXTS["nli"],
    }
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content, encoding="utf-8")
    Path("data/documents/test.txt.xz").write_bytes(lzma.compress(text.encode()))
    save_model(random_model(), "model")
    save_model(random_model(), "weights.hdf5")


def test_every_program_is_started() -> None:
    listed = {shlex.split(command)[0] for command, _ in PROGRAMS}
    assert listed | STARTED_ELSEWHERE == {path.name for path in BENCHMARKS.glob("*.py")}


@pytest.mark.slow
@pytest.mark.usefixtures("inputs", "short_probes")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("command", "modules"), PROGRAMS, ids=[command for command, _ in PROGRAMS])
def test_it_starts(command: str, modules: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in modules.split():
        pytest.importorskip(module)
    program, *arguments = shlex.split(command)
    monkeypatch.setattr(sys, "argv", [program, *arguments])
    monkeypatch.syspath_prepend(BENCHMARKS)
    environment, threads, torch_threads = dict(os.environ), n_threads(), torch.get_num_threads()
    try:
        with pytest.raises(SystemExit, match=r"^0$") if "--help" in arguments else contextlib.nullcontext():
            runpy.run_path(str(BENCHMARKS / program), run_name="__main__")
    finally:
        os.environ.clear()
        os.environ.update(environment)
        set_threads(threads)
        torch.set_num_threads(torch_threads)
