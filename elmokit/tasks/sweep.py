"""Trainings side by side, as Peters et al. 2018 compare them: data (Figure 1), layers (Table 2), places (Table 3).

A sweep's folder holds one run folder for each variant and seed, a layer cache that they share, and ``sweep.json``.
The same command goes on after a kill. Several processes, on machines that see the folder, may run it at once: each
training is held by a lock that goes away with its process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elmokit.config import read_toml, to_dict
from elmokit.errors import ConfigError, LockedError, OutputError, TrainingError
from elmokit.io.lock import file_lock
from elmokit.tasks.config import ElmoConfig, MixConfig
from elmokit.tasks.loop import Progress
from elmokit.tasks.run import Finetune, refuse_no_input, train_task
from elmokit.tasks.run_folder import AnyTask, changes, mean_and_deviation, read_json, write_json
from elmokit.tasks.table import config_of

SHARES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Figure 1 goes from 0.1 % to 100 %, on a logarithmic axis."""


@dataclass(frozen=True)
class Variant:
    """One way to train, for every seed."""

    name: str
    """Of its folder."""
    label: str
    """What a table calls it."""
    config: Any
    share: float = 1.0
    with_elmo: bool = True


@dataclass(frozen=True)
class Cell:
    """One training: a variant and a seed."""

    variant: Variant
    seed: int

    def run(self, folder: Path) -> Path:
        """Its run folder in the sweep's."""
        return folder / self.variant.name / f"run-{self.seed}"

    def is_done(self, folder: Path) -> bool:
        """Whether its training is over."""
        return (self.run(folder) / "results.json").exists()


@dataclass(frozen=True)
class Row:
    """What the trainings of one variant have come to."""

    name: str
    label: str
    share: float
    with_elmo: bool
    seeds: tuple[int, ...]
    """Whose training is over."""
    scores: Mapping[str, Mapping[str, float]]
    """Of dev: mean and deviation of each; empty while no training is over."""


@dataclass(frozen=True)
class SweepProgress:
    """A training of a sweep begins."""

    cell: Cell
    number: int
    """Counted from 1."""
    total: int
    seconds_left: float | None
    """Of the whole sweep in this process, by the trainings before; None of the first."""


def share_variants(task: AnyTask, config: Any, shares: Sequence[float]) -> list[Variant]:
    """Figure 1: random shares of the training texts, a smaller one part of every larger one, without and with ELMo."""
    if not shares or not all(0 < share <= 1 for share in shares):
        raise ConfigError(f"shares are {list(shares)}; give one or more, each above 0, up to 1.")
    return [
        Variant(
            f"{kind}-{share:g}",
            f"{label}, {100 * share:g} %",
            replace(config, elmo=elmo, data=replace(config.data, train_ratio=share)),
            share,
            elmo is not None,
        )
        for share in sorted(set(shares))
        for kind, label, elmo in (("baseline", "baseline", None), ("elmo", "ELMo", config.elmo or task.elmo))
    ]


def layer_variants(task: AnyTask, config: Any) -> list[Variant]:
    """Table 2: no ELMo, the last layer only, all layers with lambda = 1 (close to their average) and with 0.001."""
    elmo = config.elmo or task.elmo
    return [
        Variant("baseline", "baseline", replace(config, elmo=None), with_elmo=False),
        Variant("last", "last only", replace(config, elmo=_with_mixes(elmo, layers="top", penalty=0.0))),
        Variant("all-1", "all, λ = 1", replace(config, elmo=_with_mixes(elmo, layers="all", penalty=1.0))),
        Variant("all-0.001", "all, λ = 0.001", replace(config, elmo=_with_mixes(elmo, layers="all", penalty=1e-3))),
    ]


def place_variants(task: AnyTask, config: Any) -> list[Variant]:
    """Table 3: ELMo at the input only, at input and output, at the output only."""
    elmo = config.elmo or task.elmo
    at_input = elmo.input or elmo.output or MixConfig()
    at_output = elmo.output or at_input
    return [
        Variant("input", "input only", replace(config, elmo=replace(elmo, input=at_input, output=None))),
        Variant("both", "input and output", replace(config, elmo=replace(elmo, input=at_input, output=at_output))),
        Variant("output", "output only", replace(config, elmo=replace(elmo, input=None, output=at_output))),
    ]


def _with_mixes(elmo: ElmoConfig, **changes: Any) -> ElmoConfig:
    mixes = {place: mix for place in ("input", "output") if (mix := getattr(elmo, place)) is not None}
    return replace(elmo, **{place: replace(mix, **changes) for place, mix in mixes.items()})


def run_sweep(
    task: AnyTask,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    folder: str | Path,
    *,
    device: str = "cpu",
    report: Callable[[SweepProgress | Progress], None] = lambda progress: None,
    finetune: Finetune | None = None,
    facts: Mapping[str, Any] | None = None,
) -> list[Row]:
    """Train what is not trained yet, and gather what there is in ``results.json``.

    Args:
        folder: of the sweep; one that stands is gone on with. Seeds and shares may be added.
        report: called as each training begins, and by the trainings.

    Returns:
        a row for each variant. Trainings that another process is at are left to it, and not in their rows.

    Raises:
        ConfigError: a variant's model would read no word.
        TrainingError: the folder is of a sweep with another task or other settings, or a training failed.
        OutputError: the folder is something else, or cannot be written.
    """
    folder = Path(folder)
    for variant in variants:
        try:
            refuse_no_input(task, variant.config)
        except ConfigError as error:
            raise ConfigError(f"{variant.label}: {error}") from None
    _begin(task, folder)
    cells = [Cell(variant, seed) for variant in variants for seed in seeds]
    for cell in cells:
        _refuse_other_settings(cell, folder)
    seconds = trained = 0.0
    for number, cell in enumerate(cells, start=1):
        if cell.is_done(folder):
            continue
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(file_lock(folder / cell.variant.name / f"run-{cell.seed}.lock"))
            except LockedError:  # another process trains this one
                continue
            if cell.is_done(folder):
                continue
            to_train = sum(other.variant.share for other in cells if not other.is_done(folder))
            left = seconds / trained * to_train if trained else None
            report(SweepProgress(cell, number, len(cells), left))
            started = time.monotonic()
            config, run = _config_of(cell, folder), cell.run(folder)
            train_task(task, config, run, device=device, report=report, finetune=finetune, resume=True, facts=facts)
            seconds, trained = seconds + time.monotonic() - started, trained + cell.variant.share
    rows = [_row(variant, seeds, folder) for variant in variants]
    content = {"task": task.name, "metric": task.metric, "rows": [dataclasses.asdict(row) for row in rows]}
    write_json(folder / "results.json", content)
    return rows


def n_elsewhere(rows: Sequence[Row], seeds: Sequence[int]) -> int:
    """How many trainings other processes are still at."""
    return sum(len(set(seeds) - set(row.seeds)) for row in rows)


@dataclass(frozen=True)
class Saving:
    """How soon ELMo is as good as the baseline at its best."""

    n_seeds: int
    """Of which both trainings are over."""
    n_there: int
    """Of these, in which ELMo gets there; the steps are means over them."""
    baseline: float
    """Steps to its best dev score."""
    with_elmo: float
    """Steps to as good a one."""


def steps_to_baseline(rows: Sequence[Row], folder: str | Path, metric: str) -> dict[float, Saving]:
    """By share; shares of which no seed is over are left out."""
    found: dict[float, Saving] = {}
    baselines = {row.share: row for row in rows if not row.with_elmo}
    for row in rows:
        base = baselines.get(row.share)
        if base is None or not row.with_elmo:
            continue
        steps: list[tuple[int, int]] = []
        seeds = sorted(set(row.seeds) & set(base.seeds))
        for seed in seeds:
            lines = _metrics(Path(folder) / base.name / f"run-{seed}")
            best = max(lines, key=lambda line: float(line["dev"][metric]))
            with_elmo = _metrics(Path(folder) / row.name / f"run-{seed}")
            there = [line["n_steps"] for line in with_elmo if line["dev"][metric] >= best["dev"][metric]]
            if there:
                steps.append((best["n_steps"], there[0]))
        if seeds:
            baseline, sooner = map(statistics.fmean, zip(*steps, strict=True)) if steps else (math.nan, math.nan)
            found[row.share] = Saving(len(seeds), len(steps), baseline, sooner)
    return found


def _begin(task: AnyTask, folder: Path) -> None:
    path = folder / "sweep.json"
    if not path.exists():
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder} is a file; the sweep's folder is to be made there. Choose another name.")
        # a name with a dot is what another process of this sweep is writing
        if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
            raise OutputError(f"{folder} is no sweep's folder, and not empty. Choose another.")
        write_json(path, {"task": task.name})
    if (earlier := read_json(path).get("task")) != task.name:
        raise TrainingError(f"{folder} is a sweep of the task {earlier}, not {task.name}. Choose another folder.")


def _refuse_other_settings(cell: Cell, folder: Path) -> None:
    """A training that has begun must be of this config; what is not over is looked at again when it goes on."""
    path = cell.run(folder) / "config.toml"
    if not path.exists():
        return
    earlier = to_dict(config_of(read_toml(path), str(path))[1])
    if differing := changes(earlier, to_dict(_config_of(cell, folder))):
        raise TrainingError(
            f"{folder} is a sweep with other settings: in {cell.variant.name}, {', '.join(differing)}. Go on with the "
            "same, or choose another folder."
        )


def _config_of(cell: Cell, folder: Path) -> Any:
    """The variant's config for one seed, its layers in the cache that all share."""
    config = cell.variant.config
    if config.elmo is not None and config.elmo.cache is None:
        config = replace(config, elmo=replace(config.elmo, cache=str(folder / "layers")))
    return replace(config, train=replace(config.train, seeds=(cell.seed,)))


def _row(variant: Variant, seeds: Sequence[int], folder: Path) -> Row:
    cells = [Cell(variant, seed) for seed in seeds]
    done = [cell for cell in cells if cell.is_done(folder)]
    scores = [read_json(cell.run(folder) / "results.json")["seeds"][0]["dev"] for cell in done]
    return Row(
        variant.name,
        variant.label,
        variant.share,
        variant.with_elmo,
        tuple(cell.seed for cell in done),
        mean_and_deviation(scores) if scores else {},
    )


def _metrics(run: Path) -> list[dict[str, Any]]:
    """The evaluations of a run's only seed."""
    (log,) = run.glob("seed-*/metrics.jsonl")
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
