"""The server among many clients, some of them hostile, and among signals: every answer is the library's, or a refusal.

Each step starts ``elmokit serve`` on the loopback address, gets an empty directory and a scale, and returns how many
attempts it made, what failed, and a note.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from elmokit import Elmo, LanguageModel, SentenceEmbedder
from elmokit.engine.state import unit_vectors
from elmokit.evaluation.occurrences import build_index
from elmokit.formats.save import save_model
from elmokit.serve.served_model import SENTENCES
from tests.conftest import random_model
from tests.helpers.http_client import open_connection, read_until_closed
from tests.helpers.server_process import Process, serving

Outcome = tuple[int, list[str], str]
N_REQUESTS, N_CLIENTS, N_WORKERS_KILLED, N_PARENTS_KILLED, N_STOPS = 100_000, 500, 20, 10, 20
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

    def whole(self) -> bytes:
        """Return the bytes of the request."""
        head = f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(self.body)}\r\n\r\n".encode() + self.body


def write_model(folder: Path) -> Path:
    """Write the model that is served, whose name must be ``tiny``."""
    save_model(random_model(), folder / "tiny")
    return folder / "tiny"


def questions(model: Path, folder: Path, n: int = 60) -> list[Question]:
    """Make requests of every kind, and compute their answers without the server, one sentence at a time."""
    elmo, random = Elmo.from_pretrained(model), Random(0)
    embedder, language_model = SentenceEmbedder.by_name(elmo, "sif"), LanguageModel.from_pretrained(model)
    index = build_index(elmo, lambda: (sentence.split() for sentence in SENTENCES), folder / "index")
    made = []

    def ask(path: str, expected: dict[str, Any], **body: Any) -> None:
        made.append(Question(f"/v1/{path}", json.dumps(body).encode(), 200, expected))

    for number in range(n):
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


class Connection:
    """A connection that is kept for the next request, and opened again where that is refused."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()

    def ask(self, question: Question) -> str | None:
        """Send a request and return what is wrong with its answer."""
        self.connection.request("POST", question.path, question.body, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        return question.problem(answer.status, answer.read())


def many_requests(work: Path, scale: float) -> Outcome:
    """Send many requests over a few connections: every answer is right, and memory does not grow."""
    n, n_clients = max(400, round(N_REQUESTS * scale)), 8
    model = write_model(work)
    asked = [*questions(model, work), *refusals()]
    failures: list[str] = []
    with serving(model, *LIMITS) as server:

        def client(number: int, n: int) -> None:
            random = Random(number)
            with Connection(server.port) as connection:
                for _ in range(n):
                    if problem := connection.ask(random.choice(asked)):
                        failures.append(problem)

        def send(n: int) -> None:
            with ThreadPoolExecutor(n_clients) as pool:
                list(pool.map(lambda number: client(number, n // n_clients), range(n_clients)))

        send(n // 4)
        before = _memory(server)
        started = time.monotonic()
        send(n - n // 4)
        seconds = time.monotonic() - started
        after = _memory(server)
        failures += _idle_and_stopped(server)
    if after - before > GROWTH:
        failures.append(f"memory grew from {before:,} to {after:,} bytes")
    note = (
        f"{before / 1e6:.0f} MB after a quarter, {after / 1e6:.0f} MB at the end; {(n - n // 4) / seconds:.0f} a second"
    )
    return n, failures, note


def _memory(server: Process) -> int:
    """Return the memory of the server's processes that no other process shares, and what they share once."""
    total = 0
    for pid in (server.process.pid, *server.children()):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def _idle_and_stopped(server: Process) -> list[str]:
    """Return what a server still holds when all clients have left, and what is wrong with how it stops."""
    deadline = time.monotonic() + 60
    while "elmokit_queue_requests 0.0" not in server.get("/metrics").content.decode():
        if time.monotonic() > deadline:
            return ["requests are left in the queue"]
        time.sleep(0.1)
    return _stopped(server)


def _stopped(server: Process) -> list[str]:
    code, printed = server.stop()
    # Granian logs a line for each process that was killed.
    lines = [line for line in printed.splitlines() if not line.startswith("[ERROR] Unexpected exit from worker-")]
    return [] if (code, lines) == (0, ["Stopped."]) else [f"stopped with {code}: {printed[-2000:]}"]


def mixed_clients(work: Path, scale: float) -> Outcome:
    """Let clients that behave and clients that do not come at once: those that behave get what they asked for."""
    n = max(25, round(N_CLIENTS * scale))
    model = write_model(work)
    good, bad = questions(model, work), refusals()
    kinds: dict[str, Callable[[int, Random], str | None]] = {
        "well-behaved": lambda port, random: _well_behaved(port, random, good),
        "wrong": lambda port, random: _well_behaved(port, random, bad),
        "half-open": _half_open,
        "slow": lambda port, random: _slow(port, random, good),
        "gone": lambda port, random: _gone(port, random, good),
        "not reading": _not_reading,
        "noise": _noise,
        "pipelined": lambda port, random: _pipelined(port, random, good),
    }
    failures: list[str] = []
    with serving(model, *LIMITS, "--header-timeout-seconds", "5") as server:

        def client(number: int) -> str:
            name = ("well-behaved", *kinds)[number % (len(kinds) + 1)]
            try:
                problem = kinds[name](server.port, Random(number))
            except OSError as error:
                problem = f"{type(error).__name__}: {error}"
            if problem:
                failures.append(f"client {number}, {name}: {problem}")
            return name

        with ThreadPoolExecutor(n) as pool:
            counts = Counter(pool.map(client, range(n)))
        failures += _idle_and_stopped(server)
    return n, failures, ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _well_behaved(port: int, random: Random, asked: list[Question]) -> str | None:
    with Connection(port) as connection:
        problems = [connection.ask(random.choice(asked)) for _ in range(10)]
    return next((problem for problem in problems if problem), None)


def _half_open(port: int, random: Random) -> str | None:
    """Send half of the headers, or nothing: the server closes the connection."""
    with open_connection(port, random.choice((b"", b"P", b"POST /v1/tokens HTTP/1.1\r\nHost: local"))) as connection:
        answer = read_until_closed(connection)
    return f"got {answer[:100]!r}" if answer else None


def _slow(port: int, random: Random, asked: list[Question]) -> str | None:
    """Send a request in small pieces, but in time."""
    question = random.choice(asked)
    whole, n_pieces = question.whole(), 20
    size = len(whole) // n_pieces + 1
    with open_connection(port) as connection:
        for start in range(0, len(whole), size):
            connection.sendall(whole[start : start + size])
            time.sleep(random.uniform(0, 0.1))
        return _answered(connection, question)


def _answered(connection: socket.socket, question: Question) -> str | None:
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return question.problem(answer.status, answer.read())


def _gone(port: int, random: Random, asked: list[Question]) -> str | None:
    """Send a request, and break the connection before the answer, or in the middle of the request."""
    whole = random.choice(asked).whole()
    with open_connection(port, whole[: random.choice((len(whole), random.randrange(len(whole))))]) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
    return None


def _not_reading(port: int, random: Random) -> str | None:
    """Ask for a large answer, and never read it."""
    body = json.dumps({"input": [["a"] * 900]}).encode()
    with open_connection(port, Question("/v1/tokens", body, 200).whole()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        time.sleep(random.uniform(1, 8))
    return None


def _noise(port: int, random: Random) -> str | None:
    """Send bytes that are no request."""
    with open_connection(port) as connection, contextlib.suppress(OSError):
        connection.sendall(random.randbytes(random.choice((1, 100, 100_000))) + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        answer = read_until_closed(connection)
        return None if not answer or answer.startswith(b"HTTP/1.1 4") else f"got {answer[:100]!r}"
    return None


def _pipelined(port: int, random: Random, asked: list[Question]) -> str | None:
    """Send several requests before the first answer: the answers come in their order."""
    several = [random.choice(asked) for _ in range(5)]
    with open_connection(port, b"".join(question.whole() for question in several)) as connection:
        content = connection.makefile("rb")
        for question in several:
            status = int(content.readline().split()[1])
            headers = http.client.parse_headers(content)
            if problem := question.problem(status, content.read(int(headers["Content-Length"]))):
                return problem
    return None


def killed_workers(work: Path, scale: float) -> Outcome:
    """Kill workers while clients ask: others answer, the killed are replaced, and no answer is wrong."""
    n = max(2, round(N_WORKERS_KILLED * scale))
    model = write_model(work)
    good = questions(model, work)
    failures: list[str] = []
    is_over = threading.Event()
    counts = Counter[str]()
    with serving(model, "--workers", "3") as server:

        def client(number: int) -> None:
            random = Random(number)
            while not is_over.is_set():
                try:
                    with Connection(server.port) as connection:
                        problem = connection.ask(random.choice(good))
                except (OSError, http.client.HTTPException):  # the worker that had this connection was killed
                    counts["broken"] += 1
                    continue
                counts["answered"] += 1
                if problem:
                    failures.append(problem)

        threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        random = Random(0)
        for number in range(n):
            if not _wait(lambda: len(server.children()) == 3, 30):
                failures.append(f"after {number} workers were killed, {len(server.children())} are left")
                break
            answered = counts["answered"]
            if not _wait(partial(lambda before: counts["answered"] > before, answered), 60):
                failures.append(f"nothing was answered after {number} workers were killed")
                break
            os.kill(random.choice(server.children()), signal.SIGKILL)
            time.sleep(random.uniform(6, 7))  # if the same one died again before, the server would end
        if not _wait(lambda: len(server.children()) == 3, 30):
            failures.append("the last worker was not replaced")
        is_over.set()
        for thread in threads:
            thread.join()
        failures += _stopped(server)
    # A client has one request at a time, so a killed worker breaks those of 4 clients at most.
    if counts["broken"] > 4 * n:
        failures.append(f"{counts['broken']} requests were broken by {n} kills")
    return n, failures, f"{counts['answered']:,} requests were answered, {counts['broken']} connections broken"


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds, and return whether it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def killed_parent(work: Path, scale: float) -> Outcome:
    """Kill the parent of the workers at any moment: the workers end, and a new server gets the same port."""
    n = max(2, round(N_PARENTS_KILLED * scale))
    model = write_model(work)
    good = questions(model, work, 6)
    failures: list[str] = []
    port, random = "0", Random(0)
    for number in range(n):
        with serving(model, "--workers", "2", "--port", port) as server:
            port = str(server.port)
            with Connection(server.port) as connection:
                if problem := connection.ask(good[number % len(good)]):
                    failures.append(problem)
            time.sleep(random.uniform(0, 0.5))
            workers = server.children()
            server.process.kill()
            server.process.wait(30)
            if not _wait(lambda workers=workers: not any(map(_runs, workers)), 60):  # type: ignore[misc]
                failures.append(f"parent {number} was killed, and workers still run")
                for pid in workers:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                break
    return n, failures, ""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def stopped_while_asked(work: Path, scale: float) -> Outcome:
    """Send SIGTERM at any moment while clients ask: each gets a whole answer, or none."""
    n = max(2, round(N_STOPS * scale))
    model = write_model(work)
    good = questions(model, work, 12)
    failures: list[str] = []
    counts = Counter[str]()
    random = Random(0)

    def client(seed: int, port: int) -> None:
        random = Random(seed)
        while True:
            question = random.choice(good)
            try:
                connection = open_connection(port, question.whole())
            except OSError:  # nobody listens any more
                return
            try:
                with connection:
                    problem = _answered(connection, question)
            except ConnectionError:  # established, but not accepted at the signal
                counts["lost"] += 1
                continue
            except http.client.HTTPException as error:
                problem = f"half of an answer: {error!r}"
            counts["answered"] += 1
            if problem:
                failures.append(problem)

    for number in range(n):
        with serving(model, *(("--workers", "2") if number % 2 else ())) as server:
            threads = [threading.Thread(target=client, args=(seed, server.port)) for seed in range(8)]
            for thread in threads:
                thread.start()
            time.sleep(random.uniform(0, 0.6))
            failures += _stopped(server)
            for thread in threads:
                thread.join()
    return n, failures, ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))


STEPS: dict[str, Callable[[Path, float], Outcome]] = {
    "many requests": many_requests,
    "mixed clients": mixed_clients,
    "SIGKILL of workers": killed_workers,
    "SIGKILL of the parent": killed_parent,
    "SIGTERM among requests": stopped_while_asked,
}
