"""The server among many clients: every answer is the library's, or a refusal, and memory does not grow.

What clients and signals can do to its connections and processes is tested in ``tests/serve/test_process.py``.
"""

from __future__ import annotations

import base64
import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from elmokit import Elmo, LanguageModel, SentenceEmbedder
from elmokit.engine.state import unit_vectors
from elmokit.evaluation.occurrences import build_index
from elmokit.formats.save import save_model
from elmokit.serve.examples import SENTENCES
from tests.campaign.interruptions import Outcome, Step
from tests.conftest import random_model
from tests.helpers.server_process import Process, serving

N_REQUESTS, N_CLIENTS = 100_000, 8
GROWTH = 32 << 20
"""Bytes by which a server may grow after its first requests: 340 bytes for each of 100,000."""
WORDS = "the cat sat on a mat . dog ran river bank Überläufer 漢字 unseen".split()  # noqa: SIM905
LIMITS = ("--max-texts", "100", "--max-text-characters", "2000", "--max-request-tokens", "1000", "--max-body-mib", "1")


@dataclass(frozen=True)
class Question:
    """A request, with the status and the content that its answer must have."""

    path: str
    body: bytes
    status: int
    expected: Any = None
    """What the library computes; None for a refusal."""

    def problem(self, status: int, content: bytes) -> str | None:
        """Return what is wrong with an answer, if anything is."""
        if status != self.status:
            return f"{self.path} {self.body[:80]!r}: {status} instead of {self.status}: {content[:200]!r}"
        if self.expected is None:
            return None if set(json.loads(content)) == {"error"} else f"{self.path}: {content[:200]!r} is no error"
        found = {key: value for key, value in json.loads(content).items() if key in self.expected}
        return None if found == self.expected else f"{self.path} {self.body[:80]!r}: not what the library computes"


def questions(model: Path, folder: Path) -> list[Question]:
    """Make requests of every kind, and compute their answers without the server, one sentence at a time."""
    elmo, random = Elmo.from_pretrained(model), Random(0)
    embedder, language_model = SentenceEmbedder.by_name(elmo, "sif"), LanguageModel.from_pretrained(model)
    index = build_index(elmo, lambda: (sentence.split() for sentence in SENTENCES), folder / "index")
    made = []

    def ask(path: str, expected: dict[str, Any], **body: Any) -> None:
        made.append(Question(f"/v1/{path}", json.dumps(body).encode(), 200, expected))

    for number in range(60):
        texts = [[random.choice(WORDS) for _ in range(random.randint(1, 12))] for _ in range(random.choice((1, 1, 3)))]
        position = random.randrange(len(texts[0]))
        kind = number % 6
        if kind in (0, 1):
            rows = unit_vectors(np.concatenate([embedder.embed([text]) for text in texts]))
            ask("embeddings", {"data": [{"object": "embedding", **row} for row in _embeddings(rows)]}, input=texts)
        elif kind == 2:
            layers = random.choice(("all", "top", "average", 1, [0, 2]))
            arrays = [elmo.embed([text], layers=layers)[0] for text in texts]
            data = [
                {
                    "index": at,
                    "tokens": text,
                    "sentence_lengths": [len(text)],
                    "shape": list(array.shape),
                    "vectors": _base64(array),
                }
                for at, (text, array) in enumerate(zip(texts, arrays, strict=True))
            ]
            ask("tokens", {"data": data}, input=texts, layers=layers, encoding_format="base64")
        elif kind == 3:
            ask("surprisal", {"data": _surprisal(language_model, texts)}, input=texts)
        elif kind == 4:
            found = {
                direction: [
                    {"word": one.word, "probability": one.probability}
                    for one in language_model.substitutes(texts[0], position, direction, 3)  # type: ignore[arg-type]
                ]
                for direction in ("forward", "backward", "both")
            }
            ask("substitutes", found, sentence=texts[0], position=position, n=3)
        else:
            near = index.neighbors(elmo, texts[0], position, n_neighbors=2).to_dict()
            expected = {key: json.loads(json.dumps(near[key])) for key in ("layers", "context_free")}
            ask("neighbors", expected, sentence=texts[0], position=position, n=2)
    return made


def _embeddings(rows: Any) -> list[dict[str, Any]]:
    return [{"index": index, "embedding": row.tolist()} for index, row in enumerate(rows)]


def _base64(array: Any) -> str:
    return base64.b64encode(array.astype("<f4").tobytes()).decode("ascii")


def _surprisal(model: LanguageModel, texts: list[list[str]]) -> list[dict[str, Any]]:
    data = []
    for index, text in enumerate(texts):
        (found,) = model.surprisal([text])
        inner = found.nats[:, 1:-1]
        one = {"index": index, "tokens": text, "sentence_lengths": [len(text)]}
        one |= {"is_unknown": found.is_unknown[1:-1].tolist()}
        assert found.spelling_nats is not None
        one |= {"spelling_nats": found.spelling_nats[1:-1].tolist()}
        one |= {"forward": inner[0].tolist(), "backward": inner[1].tolist(), "both": inner.mean(axis=0).tolist()}
        data.append(one | {"total": dict(zip(("forward", "backward"), found.total_nats, strict=True))})
    return data


def refusals() -> list[Question]:
    """Return the bad requests of the server's tests; they need the limits of ``LIMITS``."""
    from tests.serve.test_serve import BAD

    return [
        Question(f"/v1/{path}", body if isinstance(body, bytes) else json.dumps(body).encode(), status)
        for path, body, status, _ in BAD
    ]


def many_requests(work: Path, scale: float) -> Outcome:
    """Send many requests over a few connections: every answer is right, and memory does not grow."""
    n = max(400, round(N_REQUESTS * scale))
    model = work / "tiny"
    save_model(random_model(), model)
    asked = [*questions(model, work), *refusals()]
    failures: list[str] = []
    with serving(model, *LIMITS) as server:

        def client(number: int, n: int) -> None:
            random = Random(number)
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
            for _ in range(n):
                question = random.choice(asked)
                connection.request("POST", question.path, question.body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                if problem := question.problem(answer.status, answer.read()):
                    failures.append(problem)
            connection.close()

        def send(n: int) -> None:
            with ThreadPoolExecutor(N_CLIENTS) as pool:
                list(pool.map(lambda number: client(number, n // N_CLIENTS), range(N_CLIENTS)))

        send(n // 4)
        before = _memory(server)
        started = time.monotonic()
        send(n - n // 4)
        seconds = time.monotonic() - started
        after = _memory(server)
        if server.stop() != (0, "Stopped.\n"):
            failures.append("it did not stop as it should")
    if after - before > GROWTH:
        failures.append(f"memory grew from {before:,} to {after:,} bytes")
    note = f"{before / 1e6:.0f} MB after a quarter, {after / 1e6:.0f} MB at the end"
    return n, failures, f"{note}; {(n - n // 4) / seconds:.0f} a second"


def _memory(server: Process) -> int:
    """Return the memory of the server's process."""
    lines = Path(f"/proc/{server.process.pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


STEPS: dict[str, Step] = {"many requests": many_requests}
