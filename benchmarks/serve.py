"""Measure ``elmokit serve`` under load, on this machine only.

    python benchmarks/serve.py TEXT [--phases throughput latency clients stop memory] [--seconds 20] [--model MODEL]

The script starts a server, and sends requests with Locust (``pip install locust``). Every answer is compared, to the
last bit, with what ``Elmo.embed`` returns for the same sentences in this process. The phases:

- throughput: a few clients send requests of many sentences without a pause; tokens/s, and CPU time of the server per
  token, against ``Elmo.embed`` in this process, before and after;
- latency: requests of one sentence, at half of the rate that was possible without a pause; 50th and 99th percentile;
- clients: 1,000 clients at once, one sentence per request;
- stop: the server gets SIGTERM under load; every request that it accepted must be answered;
- memory: many small requests; resident memory of the server.

All phases are bounded by --seconds or by a number of requests, and all connections are to 127.0.0.1. Server and clients
share the cores, so that CPU time says more than wall-clock time on a small machine.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import gevent
import msgspec
import numpy as np
import psutil
import torch
from locust import FastHttpUser, constant, constant_throughput
from locust.env import Environment

from elmokit import Elmo, open_model
from elmokit.text.text import Text

PHASES = ["throughput", "latency", "clients", "stop", "memory"]
MAX_CLIENTS = 2000
LAYERS = "all"


class Requests:
    """Requests with their right answers, in a cycle."""

    def __init__(self, groups: list[list[list[str]]], vectors: list[list[np.ndarray[Any, Any]]], layers: Any) -> None:
        self.bodies = [
            msgspec.json.encode({"input": group, "layers": layers, "encoding_format": "base64"}) for group in groups
        ]
        self.expected = [[base64.b64encode(one.astype("<f4").tobytes()).decode() for one in many] for many in vectors]
        self.n_tokens = [sum(map(len, group)) for group in groups]
        self.numbers = itertools.cycle(range(len(groups)))


class Load:
    """A number of clients that send requests to a server until a time or a number of requests is over.

    Attributes:
        outcomes: How many requests ended in which way: "right", "wrong", an HTTP status, or the name of an exception.
        seconds: The duration of each request that was answered.
        n_tokens: Tokens of the right answers.
    """

    def __init__(self, address: str, requests: Requests, rate_per_client: float | None = None) -> None:
        self.outcomes: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.n_tokens = self.n_sent = 0
        self.limit = float("inf")
        load = self

        class Client(FastHttpUser):
            host = address
            wait_time = constant(0) if rate_per_client is None else constant_throughput(rate_per_client)
            network_timeout = connection_timeout = 120.0
            concurrency = 1

            def send(self) -> None:
                if load.n_sent >= load.limit:
                    gevent.sleep(0.1)
                    return
                load.n_sent += 1
                number = next(requests.numbers)
                started = time.perf_counter()
                with self.client.post(
                    "/v1/tokens",
                    data=requests.bodies[number],
                    headers={"Content-Type": "application/json"},
                    catch_response=True,
                ) as answer:
                    answer.success()
                    if answer.status_code != 200:
                        outcome = str(answer.status_code) if answer.status_code else type(answer.error).__name__
                    else:
                        load.seconds.append(time.perf_counter() - started)
                        data = msgspec.json.decode(answer.content)["data"]
                        is_right = [one["vectors"] for one in data] == requests.expected[number]
                        outcome = "right" if is_right else "wrong"
                        load.n_tokens += requests.n_tokens[number] * is_right
                    load.outcomes[outcome] += 1

            tasks = (send,)

        self.environment = Environment(user_classes=[Client], catch_exceptions=False)
        self.runner = self.environment.create_local_runner()

    def start(self, n_clients: int) -> None:
        """Start the clients."""
        self.runner.start(min(n_clients, MAX_CLIENTS), spawn_rate=MAX_CLIENTS)

    def stop(self) -> None:
        """Let the clients finish their requests, and stop them."""
        self.environment.stop_timeout = 120
        self.runner.stop()
        self.runner.quit()

    def run(self, n_clients: int, seconds: float, n_requests: int | None = None) -> float:
        """Send requests for a time, or until a number of them is done. Return the duration."""
        self.limit = float("inf") if n_requests is None else n_requests
        started = time.perf_counter()
        self.start(n_clients)
        while time.perf_counter() - started < seconds and sum(self.outcomes.values()) < self.limit:
            gevent.sleep(0.05)
        duration = time.perf_counter() - started
        self.stop()
        return duration


class Server:
    """``elmokit serve`` in a process of its own, with one thread for computing."""

    def __init__(self, model: str | None, *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "elmokit",
            "serve",
            *(["--model", model] if model else []),
            "--port",
            "0",
            *options,
        ]
        self.process = subprocess.Popen(
            [*command, "--threads", "1"], stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.search(r"http://[\d.:]+", line)
        if found is None:
            raise SystemExit(line + self.process.stderr.read())
        self.address = found[0]
        self.status = psutil.Process(self.process.pid)

    def cpu_seconds(self) -> float:
        """Return the CPU time of the server so far."""
        times = [one.cpu_times() for one in (self.status, *self.status.children())]
        return float(sum(one.user + one.system for one in times))

    def rss_mib(self) -> float:
        """Return the memory of the server's processes, what they share once."""
        return float(sum(one.memory_full_info().pss for one in (self.status, *self.status.children()))) / 2**20

    def stop(self) -> int:
        """Stop the server and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def embed_rate(elmo: Elmo, sentences: list[list[str]]) -> tuple[float, float]:
    """Return tokens per second and CPU seconds per 1,000 tokens of ``Elmo.embed``."""
    started, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    elmo.embed(sentences, layers=LAYERS)
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    n_tokens = sum(map(len, sentences))
    used = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    return n_tokens / seconds, 1000 * used / n_tokens


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="tokenized text, one sentence per line")
    parser.add_argument("--model", help="path, URL or published name  [default: en-mini]")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a phase  [default: 20]")
    parser.add_argument("--lines", type=int, default=2000, help="sentences of the text to send  [default: 2000]")
    parser.add_argument("--group", type=int, default=64, help="sentences per request in `throughput`  [default: 64]")
    parser.add_argument("--senders", type=int, default=8, help="clients in `throughput` and `stop`  [default: 8]")
    parser.add_argument("--clients", type=int, default=1000, help="clients in `clients`  [default: 1000]")
    parser.add_argument("--requests", type=int, default=100_000, help="requests in `memory`  [default: 100000]")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    sentences = list(itertools.islice(Text(arguments.text).token_lists(), arguments.lines))
    elmo = Elmo(open_model(arguments.model))
    before = embed_rate(elmo, sentences)  # also fills the token cache, as the first requests fill the server's
    groups = [sentences[first : first + arguments.group] for first in range(0, len(sentences), arguments.group)]
    many = Requests(groups, [elmo.embed(group, layers=LAYERS) for group in groups], LAYERS)
    single = Requests([[one] for one in sentences], [[one] for one in elmo.embed(sentences, layers="top")], "top")
    print(f"{len(sentences):,} sentences, {sum(map(len, sentences)):,} tokens")

    if "throughput" in arguments.phases:
        server = Server(arguments.model)
        Load(server.address, many).run(arguments.senders, 5)  # the token cache
        load, cpu = Load(server.address, many), server.cpu_seconds()
        rates = [embed_rate(elmo, sentences)]
        duration = load.run(arguments.senders, arguments.seconds)
        cpu = server.cpu_seconds() - cpu
        rates.append(embed_rate(elmo, sentences))
        rate, used = (statistics.mean(column) for column in zip(*rates, strict=True))
        print(
            f"throughput: {load.n_tokens / duration:,.0f} tokens/s, {1000 * cpu / load.n_tokens:.3f} CPU s per 1,000 "
            f"tokens; Elmo.embed alone {rate:,.0f} ({before[0]:,.0f} with an empty cache) and {used:.3f}; "
            f"{load.n_tokens / duration / rate:.0%} by wall-clock time, "
            f"{used / (1000 * cpu / load.n_tokens):.0%} by CPU time; {dict(load.outcomes)}"
        )
        server.stop()
    if "latency" in arguments.phases:
        server = Server(arguments.model)
        load = Load(server.address, single)
        duration = load.run(arguments.senders, arguments.seconds / 2)
        saturated = load.outcomes["right"] / duration
        load = Load(server.address, single, rate_per_client=saturated / 2 / arguments.senders)
        duration = load.run(arguments.senders, arguments.seconds)
        p50, p99 = np.percentile(np.array(load.seconds) * 1000, [50, 99])
        print(
            f"latency: {saturated:.0f} requests/s without a pause; at {load.outcomes['right'] / duration:.0f} "
            f"requests/s p50 {p50:.1f} ms, p99 {p99:.1f} ms; {dict(load.outcomes)}"
        )
        server.stop()
    if "clients" in arguments.phases:
        server = Server(arguments.model)
        load = Load(server.address, single)
        duration = load.run(arguments.clients, 10 * arguments.seconds, n_requests=5 * arguments.clients)
        p50, p99 = np.percentile(np.array(load.seconds), [50, 99])
        print(
            f"clients: {arguments.clients:,} at once, {load.n_sent:,} requests in {duration:.1f} s, p50 {p50:.2f} s, "
            f"p99 {p99:.2f} s; {dict(load.outcomes)}"
        )
        server.stop()
    if "stop" in arguments.phases:
        server = Server(arguments.model)
        load = Load(server.address, single)
        load.start(4 * arguments.senders)
        gevent.sleep(3)
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(60)
        gevent.sleep(0.5)
        load.limit = 0
        load.stop()
        print(f"stop: exit code {code}; {dict(load.outcomes)}")
    if "memory" in arguments.phases:
        server = Server(arguments.model)
        done, sizes = 0, []
        while done < arguments.requests:
            load = Load(server.address, single)
            load.run(arguments.senders, 600, n_requests=arguments.requests // 10)
            done += load.outcomes["right"]
            sizes.append(f"{server.rss_mib():.0f}")
            print(f"memory: {done:,} requests, MiB {' '.join(sizes)}; {dict(load.outcomes)}", flush=True)
        server.stop()


if __name__ == "__main__":
    main()
