"""The server among many clients: every answer is that of a client alone, or a refusal, and memory does not grow.

What clients and signals can do to its connections and processes is tested in ``tests/serve/test_process.py``.
"""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from elmokit.formats.save import save_model
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
    expected: bytes | None = None
    """What a client that is alone is answered; None for a refusal, whose wording is not compared."""

    def problem(self, status: int, content: bytes) -> str | None:
        """Return what is wrong with an answer, if anything is."""
        if status != self.status:
            return f"{self.path} {self.body[:80]!r}: {status} instead of {self.status}: {content[:200]!r}"
        if self.expected is None:
            return None if set(json.loads(content)) == {"error"} else f"{self.path}: {content[:200]!r} is no error"
        return None if content == self.expected else f"{self.path} {self.body[:80]!r}: not what a client alone gets"


def questions(server: Process) -> list[Question]:
    """Make requests of every kind, and ask each alone: ``tests/serve`` compares such answers with the library's."""
    random, made = Random(0), []
    for number in range(60):
        texts = [[random.choice(WORDS) for _ in range(random.randint(1, 12))] for _ in range(random.choice((1, 1, 3)))]
        place = {"sentence": texts[0], "position": random.randrange(len(texts[0])), "n": 3}
        layers = random.choice(("all", "top", "average", 1, [0, 2]))
        requests: list[tuple[str, dict[str, Any]]] = [
            ("embeddings", {"input": texts}),
            ("tokens", {"input": texts, "layers": layers, "encoding_format": "base64"}),
            ("surprisal", {"input": texts}),
            ("substitutes", place),
            ("neighbors", place),
        ]
        path, body = requests[number % len(requests)]
        answer = server.post(f"/v1/{path}", body)
        made.append(Question(f"/v1/{path}", json.dumps(body).encode(), 200, answer.content))
        assert answer.status == 200, answer.content
    return made


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
    failures: list[str] = []
    with serving(model, *LIMITS) as server:
        asked = [*questions(server), *refusals()]

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
