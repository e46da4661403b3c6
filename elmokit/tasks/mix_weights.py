"""The weights that finished runs have learned for the biLM's layers (Figure 2 of Peters et al. 2018)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elmokit.errors import ConfigError, FormatError, ModelNotFoundError
from elmokit.tasks.run_folder import read_json


@dataclass(frozen=True)
class MixWeights:
    """One mix of a run, over its seeds."""

    run: str
    task: str
    place: str
    """ "input" or "output"."""
    layers: tuple[int, ...]
    """Which layers are mixed."""
    weights: tuple[float, ...]
    """Of each: softmaxed, the mean over the seeds."""
    deviations: tuple[float, ...]
    gamma: float
    n_seeds: int


def weights_of_runs(runs: Sequence[str | Path]) -> list[MixWeights]:
    """The mixes of runs, those at the input first.

    Raises:
        ModelNotFoundError: a folder is no run whose training is over.
        ConfigError: no run has a mix.
        FormatError: a run's results are damaged.
    """
    found = [mix for run in runs for mix in _weights_of(Path(run))]
    if not found:
        raise ConfigError(f"No mix of layers was learned in {', '.join(map(str, runs))}: give runs with an elmo table.")
    return sorted(found, key=lambda mix: mix.place)


def _weights_of(run: Path) -> list[MixWeights]:
    path = run / "results.json"
    if not path.is_file():
        raise ModelNotFoundError(f"{run} is no run of a task whose training is over: it has no results.json.")
    content = read_json(path)
    try:
        per_seed = [seed["mixes"] for seed in content["seeds"]]
        return [
            _over_seeds(str(run), content["task"], place, [mixes[place] for mixes in per_seed]) for place in per_seed[0]
        ]
    except (KeyError, TypeError, IndexError, statistics.StatisticsError) as error:
        raise FormatError(f"{path} is damaged ({error!r}). Copy the run again.") from None


def _over_seeds(run: str, task: str, place: str, mixes: Sequence[dict[str, Any]]) -> MixWeights:
    columns = list(zip(*(mix["weights"] for mix in mixes), strict=True))
    return MixWeights(
        run,
        task,
        place,
        tuple(mixes[0]["layers"]),
        tuple(statistics.fmean(column) for column in columns),
        tuple(statistics.stdev(column) if len(column) > 1 else 0.0 for column in columns),
        statistics.fmean(mix["gamma"] for mix in mixes),
        len(mixes),
    )
