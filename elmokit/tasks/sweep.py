"""Train many variants of a config, as the comparisons in Peters et al. 2018 do.

A sweep's directory holds one run directory for each variant and seed, a layer cache that they share, and
``sweep.json``. After an interruption, the same call continues. Several processes, on all machines that see the
directory, can run the same sweep at once: each training is protected by a lock that is released when its process ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from elmokit.config import check_ratio, read_json, to_dict, write_json
from elmokit.embedding.elmo import Start
from elmokit.embedding.fingerprint import fingerprint
from elmokit.errors import (
    ConfigError,
    ElmoError,
    LockedError,
    ModelNotFoundError,
    OutputError,
    TextError,
    TrainingError,
)
from elmokit.formats.open import open_model
from elmokit.storage.bounded import whole_number
from elmokit.storage.lock import file_lock
from elmokit.storage.progress import ProgressCallback
from elmokit.storage.text_files import check_names
from elmokit.tasks.config import ElmoConfig, MixConfig
from elmokit.tasks.loop import EvaluationCallback
from elmokit.tasks.run import train_task
from elmokit.tasks.run_folder import (
    CONFIG,
    FACTS,
    MAY_CHANGE,
    RESULTS,
    check_bilm,
    check_data,
    check_recordable,
    check_scores,
    elmo_start,
    file_checksum,
    finished_seeds,
    mean_and_deviation,
)
from elmokit.tasks.table import load_config
from elmokit.tasks.task import AnyTask
from elmokit.training.run import Run, changed_settings, damage_errors

RATIOS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""The default fractions of the training data. Figure 1 goes from 0.1 % to 100 %, on a logarithmic axis."""


@dataclass(frozen=True)
class Variant:
    """A config to train with every seed."""

    name: str
    """The name of its directory."""
    label: str
    """Its name in tables."""
    config: Any
    train_ratio: float = 1.0
    with_elmo: bool = True


@dataclass(frozen=True)
class SweepTraining:
    """One training of a sweep: a variant and a seed."""

    variant: Variant
    seed: int

    def run(self, folder: Path) -> Path:
        """Its run directory in the sweep's directory."""
        return folder / self.variant.name / f"run-{self.seed}"

    def is_done(self, folder: Path) -> bool:
        """Check whether it is finished."""
        run = self.run(folder)
        return (run / RESULTS).exists() and self.seed in finished_seeds(run)


@dataclass(frozen=True)
class SweepRow:
    """The results of one variant."""

    name: str
    label: str
    train_ratio: float
    with_elmo: bool
    seeds: tuple[int, ...]
    """Those whose training is finished, also by earlier calls."""
    scores: Mapping[str, Mapping[str, float]]
    """Mean and standard deviation of each dev score; empty if no training is finished."""
    failures: Mapping[int, str] = field(default_factory=dict)
    """The error of each seed whose training failed in this call."""


@dataclass(frozen=True)
class TrainingStart:
    """Announces that a training of a sweep starts."""

    training: SweepTraining
    number: int
    """Counted from 1."""
    total: int
    seconds_left: float | None
    """Estimate for all trainings that are left, from those that this process has done; None before the first."""


def ratio_variants(task: AnyTask, config: Any, ratios: Sequence[float]) -> list[Variant]:
    """Make the variants of Figure 1: random samples of the training texts, without and with ELMo."""
    names: dict[str, float] = {}  # in the names of directories
    for ratio in sorted(set(ratios)):
        check_ratio("ratio", ratio)
        names[f"{ratio:g}"] = ratio
    return [
        Variant(
            f"{kind}-{name}",
            f"{label}, {100 * ratio:g} %",
            replace(config, elmo=elmo, data=replace(config.data, train_ratio=ratio)),
            ratio,
            elmo is not None,
        )
        for name, ratio in names.items()
        for kind, label, elmo in (("baseline", "baseline", None), ("elmo", "ELMo", config.elmo or task.elmo))
    ]


def layer_variants(task: AnyTask, config: Any) -> list[Variant]:
    """Make the variants of Table 2: no ELMo; the last layer; all layers with lambda 1 (nearly their mean) and 0.001."""
    elmo = config.elmo or task.elmo
    return [
        Variant("baseline", "baseline", replace(config, elmo=None), with_elmo=False),
        Variant("last", "last only", replace(config, elmo=_with_mixes(elmo, layers="top", penalty=0.0))),
        Variant("all-1", "all, λ = 1", replace(config, elmo=_with_mixes(elmo, layers="all", penalty=1.0))),
        Variant("all-0.001", "all, λ = 0.001", replace(config, elmo=_with_mixes(elmo, layers="all", penalty=1e-3))),
    ]


def position_variants(task: AnyTask, config: Any) -> list[Variant]:
    """Make the variants of Table 3: ELMo at the input, at the input and the output, at the output."""
    elmo = config.elmo or task.elmo
    at_input = elmo.input or elmo.output or MixConfig()
    at_output = elmo.output or at_input
    return [
        Variant("input", "input only", replace(config, elmo=replace(elmo, input=at_input, output=None))),
        Variant("both", "input and output", replace(config, elmo=replace(elmo, input=at_input, output=at_output))),
        Variant("output", "output only", replace(config, elmo=replace(elmo, input=None, output=at_output))),
    ]


def _with_mixes(elmo: ElmoConfig, **changes: Any) -> ElmoConfig:
    mixes = {name: mix for name in ("input", "output") if (mix := getattr(elmo, name)) is not None}
    return replace(elmo, **{name: replace(mix, **changes) for name, mix in mixes.items()})


def run_sweep(
    task: AnyTask,
    variants: Sequence[Variant],
    seeds: Sequence[int],
    folder: str | Path,
    *,
    device: str = "cpu",
    on_start: Callable[[TrainingStart], None] | None = None,
    progress: ProgressCallback | None = None,
    on_evaluation: EvaluationCallback | None = None,
) -> list[SweepRow]:
    """Train everything that is not trained yet, and collect the results in ``results.json``.

    If a training fails, the others are still done. The rows that earlier calls wrote for other variants are kept. Once
    everything is trained, the results are collected without the data and the biLM.

    Args:
        task: The task.
        variants: The configs to compare.
        seeds: Each variant is trained once with each.
        folder: The sweep's directory. An existing sweep is continued; seeds and ratios can be added.
        device: Where to compute.
        on_start: Called when a training starts.
        progress: Called during each training, as in :func:`elmokit.tasks.run.train_task`.
        on_evaluation: Called after each evaluation.

    Returns:
        One row per variant, with the trainings that failed. Trainings that another process is running are left to it,
        and are not in the rows.

    Raises:
        ConfigError, TrainingError, OutputError: The configs or the directory cannot be used, so nothing was trained.
    """
    folder = Path(folder)
    check_names([folder])  # of the layer cache in it
    trainings = [SweepTraining(variant, seed) for variant in variants for seed in seeds]
    is_done = all(training.is_done(folder) for training in trainings)
    for variant in variants:
        try:
            task.check_inputs(variant.config)
        except ConfigError as error:
            raise ConfigError(f"{variant.label}: {error}") from None
        if not is_done:
            check_recordable(task, variant.config)
    _start_sweep(task, folder)
    _check_started(task, variants, folder, may_lack_inputs=is_done)
    failures: dict[str, dict[int, str]] = {variant.name: {} for variant in variants}
    seconds = trained = 0.0  # trained: in multiples of a training on all data
    for number, training in enumerate(trainings, start=1):
        if training.is_done(folder):
            continue
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(file_lock(folder / training.variant.name / f"run-{training.seed}.lock"))
            except LockedError:
                continue
            if training.is_done(folder):  # by another process, before the lock was free
                continue
            if on_start is not None:
                left = sum(other.variant.train_ratio for other in trainings if not other.is_done(folder))
                on_start(TrainingStart(training, number, len(trainings), seconds / trained * left if trained else None))
            started = time.monotonic()
            try:
                train_task(
                    task,
                    _config_of(training, folder),
                    training.run(folder),
                    device=device,
                    progress=progress,
                    on_evaluation=on_evaluation,
                )
            except ElmoError as error:
                failures[training.variant.name][training.seed] = str(error)
                continue
            seconds, trained = seconds + time.monotonic() - started, trained + training.variant.train_ratio
    rows = [_row(variant, folder, failures[variant.name]) for variant in variants]
    tables = [*_other_rows(folder, failures), *map(dataclasses.asdict, rows)]
    write_json(folder / RESULTS, {"task": task.name, "metric": task.metric, "rows": tables})
    return rows


def n_unfinished(rows: Sequence[SweepRow], seeds: Sequence[int]) -> int:
    """Count the trainings that other processes are still running."""
    return sum(len(set(seeds) - {*row.seeds, *row.failures}) for row in rows)


@dataclass(frozen=True)
class StepsSaved:
    """How many steps training needs with ELMo to reach the baseline's best score."""

    n_seeds: int
    """Seeds whose two trainings are finished."""
    n_reached: int
    """How many of these reach the score; the steps are means over them."""
    baseline: float
    """Steps of the baseline to its best dev score."""
    with_elmo: float
    """Steps with ELMo to a score as good."""


def steps_to_baseline(rows: Sequence[SweepRow], folder: str | Path, metric: str) -> dict[float, StepsSaved]:
    """Compare the steps to the baseline's best score, by ratio. Ratios without a finished seed are left out."""
    saved: dict[float, StepsSaved] = {}
    baselines = {row.train_ratio: row for row in rows if not row.with_elmo}
    for row in rows:
        base = baselines.get(row.train_ratio)
        if base is None or not row.with_elmo:
            continue
        steps: list[tuple[int, int]] = []
        seeds = sorted(set(row.seeds) & set(base.seeds))
        for seed in seeds:
            baseline_steps, best = max(_evaluations(folder, base.name, seed, metric), key=itemgetter(1))
            reached = [n for n, score in _evaluations(folder, row.name, seed, metric) if score >= best]
            if reached:
                steps.append((baseline_steps, reached[0]))
        if seeds:
            baseline, sooner = map(statistics.fmean, zip(*steps, strict=True)) if steps else (math.nan, math.nan)
            saved[row.train_ratio] = StepsSaved(len(seeds), len(steps), baseline, sooner)
    return saved


def _start_sweep(task: AnyTask, folder: Path) -> None:
    path = folder / "sweep.json"
    if not path.exists():
        # Names with a dot are what another process of this sweep is writing.
        if folder.exists() and not (folder.is_dir() and all(path.name.startswith(".") for path in folder.iterdir())):
            raise OutputError(f"{folder} already exists and is not a sweep to continue.")
        write_json(path, {"task": task.name})
    _check_same(folder, changed_settings(read_json(path), {"task": task.name}, set()))


def _check_started(task: AnyTask, variants: Sequence[Variant], folder: Path, may_lack_inputs: bool) -> None:
    """Check that trainings that were started earlier had this config, and the same data and biLM, before any other."""
    checksum_of = functools.cache(file_checksum)
    missing = (TextError, ModelNotFoundError) if may_lack_inputs else ()

    @functools.cache
    def fingerprint_of(model: str | None, start: Start) -> str:
        return fingerprint(open_model(model), start)

    for training in (started for variant in variants for started in _started(variant, folder)):
        run, config = training.run(folder), _config_of(training, folder)
        if not (run / CONFIG).exists():
            continue
        _check_same(run, changed_settings(to_dict(load_config(run / CONFIG)[1]), to_dict(config), MAY_CHANGE))
        with contextlib.suppress(*missing):
            check_data(run, task, config, checksum_of)
        # A biLM that was fine-tuned first is in the run.
        if (run / FACTS).exists() and config.elmo is not None and config.elmo.finetune is None:
            with contextlib.suppress(*missing):
                check_bilm(run, fingerprint_of(config.elmo.model, elmo_start(config.elmo)))


def _check_same(started: Path, changes: Sequence[str]) -> None:
    if changes:
        raise TrainingError(f"{started} was started with other settings: {', '.join(changes)}.")


def _started(variant: Variant, folder: Path) -> list[SweepTraining]:
    """List a variant's trainings that were started, by this call or an earlier one."""
    seeds = (whole_number(path.name.removeprefix("run-")) for path in (folder / variant.name).glob("run-*"))
    return [SweepTraining(variant, seed) for seed in sorted(seed for seed in seeds if seed is not None)]


def _config_of(training: SweepTraining, folder: Path) -> Any:
    """Return the variant's config for one seed, with the layer cache that all variants with a frozen biLM share."""
    config = training.variant.config
    if config.elmo is not None and config.elmo.cache is None and not config.elmo.trainable:
        config = replace(config, elmo=replace(config.elmo, cache=str(folder / "layers")))
    return replace(config, train=replace(config.train, seeds=(training.seed,)))


def _row(variant: Variant, folder: Path, failures: Mapping[int, str]) -> SweepRow:
    done = [training for training in _started(variant, folder) if training.is_done(folder)]
    scores = [_dev_scores(training.run(folder) / RESULTS) for training in done]
    return SweepRow(
        variant.name,
        variant.label,
        variant.train_ratio,
        variant.with_elmo,
        tuple(training.seed for training in done),
        mean_and_deviation(scores) if scores else {},
        failures,
    )


def _other_rows(folder: Path, names: Collection[str]) -> list[Any]:
    """Read the rows that earlier calls wrote for variants of other names."""
    path = folder / RESULTS
    if not path.exists():
        return []
    content = read_json(path)
    with damage_errors(path):
        return [row for row in content["rows"] if row["name"] not in names]


def _dev_scores(results: Path) -> dict[str, float]:
    """Read the scores of a run's only seed."""
    content = read_json(results)
    with damage_errors(results):
        return check_scores(content["seeds"][0]["dev"])


def _evaluations(folder: str | Path, variant: str, seed: int, metric: str) -> list[tuple[int, float]]:
    """Read the number of steps and the score of each evaluation of a finished training."""
    log = Run(Path(folder) / variant / f"run-{seed}" / f"seed-{seed}").log
    with damage_errors(log.path):
        first, *others = log.records()  # at least one
        return [(record["n_steps"], check_scores(record["dev"])[metric]) for record in (first, *others)]
