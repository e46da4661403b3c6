"""``elmokit bench``: measure how fast this machine computes a model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from elmokit.cli.parameters import Json, Model, ModelOptions, Threads
from elmokit.cli.running import echo_json
from elmokit.storage.progress import ProgressBar, count_of

if TYPE_CHECKING:
    from elmokit.evaluation.speed import Speed, SpeedReport


def bench(*, model: Model = None, options: ModelOptions = None, threads: Threads = None, json: Json = False) -> None:
    """Measure how fast this machine computes a model, in every precision and in plain NumPy.

    The rows are sentences of 20 tokens that are computed together; no token is cached. "of ceiling" compares the speed
    with what this machine would reach if it only multiplied matrices, in the same precision, at the fastest rate that
    was measured.

    Run it on an idle machine: other programs slow down all threads.

    Args:
        threads: Number of CPU threads.  [default: all cores]

    Examples:
        elmokit bench
        elmokit bench --model original --threads 4
        elmokit bench --model my-model --json > speed.json
    """
    if threads is not None:
        # Before NumPy is imported, which reads it: its products are measured, too.
        os.environ["OMP_NUM_THREADS"] = str(threads)
    from elmokit.engine.threads import set_threads
    from elmokit.evaluation.speed import measure_speed
    from elmokit.formats.open import open_model

    if threads is not None:
        set_threads(threads)
    opened = open_model(model, options=options)
    with ProgressBar("") as progress:
        report = measure_speed(opened, progress=progress)
    if json:
        echo_json({"model": str(opened.source), **report.as_dict()})
        return
    click.echo("\n".join(_report_lines(report, str(opened.source), opened.n_parameters)))


def _report_lines(report: SpeedReport, source: str, n_parameters: int) -> list[str]:
    machine = report.machine
    kernels = f"{machine['used']}, {machine['library']}" if machine["used"] else f"none: {machine['why_no_library']}"
    threads = count_of(machine["threads"], "thread")
    lines = [
        f"model             {source}, {n_parameters:,} parameters",
        f"processor         {machine['processor']}, {threads}, NumPy {machine['numpy']}",
        f"instruction sets  {', '.join(machine['instruction_sets'])}",
        f"kernels           {kernels}",
        "",
        f"{'measured ceilings':<18}{'products':>18}{'reading weights':>18}",
        *(
            f"{precision:<18}{rate / 1e9:>10,.0f} GFLOP/s{report.bytes_per_second[precision] / 1e9:>13,.1f} GB/s"
            for precision, rate in report.operations_per_second.items()
        ),
        "",
        f"{'requested':<12}{'rows':>5}  {'backend':<23}{'weights':<20}"
        f"{'tokens/s':>10}{'/ NumPy':>11}{'of ceiling':>12}",
    ]
    for speed in report.speeds:
        ratio = speed.tokens_per_second / report.speed("reference", speed.n_rows).tokens_per_second
        # Plain NumPy is compared with what float32 could reach.
        of_ceiling = speed.tokens_per_second / speed.ceiling
        lines.append(
            f"{_name(speed):<12}{speed.n_rows:>5}  {speed.backend:<23}{' and '.join(speed.computed_in):<20}"
            f"{speed.tokens_per_second:>10,.0f}{ratio:>11.1f}{of_ceiling:>12.0%}"
        )
    notes = [note for speed in report.speeds if (note := _note(speed))]
    return [*lines, *([""] if notes else []), *dict.fromkeys(notes)]


def _name(speed: Speed) -> str:
    return "NumPy" if speed.request == "reference" else speed.request


def _note(speed: Speed) -> str:
    """Say where a better precision than the requested one computes."""
    if speed.request == "reference" or speed.computed_in == (speed.request,):
        return ""
    better = " and ".join(precision for precision in speed.computed_in if precision != speed.request)
    some = "layers" if speed.request not in speed.computed_in else "some layers"
    return f"{speed.request}: {some} computed in {better}, because {speed.request} is not faster there."
