"""The walks through the code in CONTRIBUTING.md name what a call really runs, in that order."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from elmokit import Elmo, train
from elmokit.cli.main import elmokit
from elmokit.tasks.allennlp.task_archive import open_task_archive
from tests.conftest import random_model
from tests.helpers.paths import DATA, ROOT

PACKAGE = ROOT / "elmokit"
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SENTENCES = [["The", "cat", "sat", "."], ["A", "dog", "ran", "."]]


def steps(heading: str) -> list[tuple[str, str]]:
    """Return the functions and files that the numbered steps below a heading name: ``NAME`` (``FILE``)."""
    section = GUIDE.split(f"### {heading}\n")[1].split("\n#")[0]
    listed = re.findall(r"^\d\. .*(?:\n .*)*", section, re.MULTILINE)
    return [step for item in listed for step in re.findall(r"`([\w.]+)` \(`([\w/]+\.[ch]?(?:py)?)`\)", item)]


def check_walk(heading: str, run: Callable[[], object]) -> None:
    """Check that a call runs the functions of a walk, in their order, and that these are in five files at most."""
    walk = steps(heading)
    for name, file in walk:
        if file.endswith(".c"):
            assert re.search(rf"\b{name}\(", (PACKAGE / file).read_text(encoding="utf-8")), f"{file} has no {name}"
    in_python = [step for step in walk if step[1].endswith(".py")]
    assert len(in_python) >= 3
    assert len({file for _, file in in_python}) <= 5
    ahead = in_python[::-1]

    def note(frame: object, event: str, _: object) -> None:
        code = frame.f_code  # type: ignore[attr-defined]
        if event != "call" or not ahead or code.co_qualname != ahead[-1][0]:
            return
        path = Path(code.co_filename)
        if path.name == Path(ahead[-1][1]).name:
            assert path == PACKAGE / ahead[-1][1]
            ahead.pop()

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        threading.setprofile(None)
        sys.setprofile(None)
    assert not ahead, f"{heading}: after {in_python[: -len(ahead)]}, the call does not run {ahead[-1]}"


def test_a_sentence_becomes_vectors() -> None:
    elmo = Elmo.from_pretrained("en-mini")
    check_walk("A sentence becomes vectors", lambda: elmo.embed(SENTENCES))


def test_a_flag_reaches_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("the cat sat .\n")
    arguments = ["embed", "text.txt", "vectors.npz", "--layers", "0,1"]
    check_walk("A flag reaches the code", lambda: elmokit.main(arguments, prog_name="elmokit", standalone_mode=False))


def test_a_state_is_carried_from_batch_to_batch() -> None:
    elmo = Elmo.from_pretrained("en-mini")
    check_walk("A state is carried from batch to batch", lambda: elmo.embed_batch(SENTENCES, elmo.zero_state(2)))


@pytest.mark.slow
def test_a_training_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("the cat sat .\na dog ran .\n" * 20)
    sizes = {"preset": "tiny", "max_words": 20, "batch_size": 2, "window_length": 4}
    call = partial(train, "text.txt", held_out="text.txt", out="run", report=lambda _: None, **sizes)
    call(tokens=16)
    check_walk("A training is resumed", lambda: call(tokens=32))


@pytest.mark.slow
def test_a_request_is_answered() -> None:
    for module in ("fastapi", "granian", "prometheus_client"):
        pytest.importorskip(module)
    from elmokit.serve.app import application
    from elmokit.serve.serve_config import ServeConfig
    from elmokit.serve.served_model import ServedModel
    from tests.helpers.http_client import asking

    config = ServeConfig(batch_wait_ms=0.0)
    model = ServedModel(Elmo(random_model()), config)

    def ask() -> None:
        with asking(application(model, config)) as client:
            assert client.post("/v1/embeddings", {"input": "the cat sat ."}).status == 200

    check_walk("A request is answered", ask)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*the archive does not have the options file")
def test_an_allennlp_archive_opens() -> None:
    check_walk("An AllenNLP archive opens", partial(open_task_archive, DATA / "allennlp-tasks" / "ner.tar.gz"))
