"""The weights that finished runs have learned for the biLM's layers (Figure 2 of Peters et al. 2018)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from elmokit.config import read_json
from elmokit.errors import ConfigError
from elmokit.tasks.run_folder import RESULTS
from elmokit.training.run import damage_errors


@dataclass(frozen=True)
class MixWeights:
    """The learned weights of one mix of a run, averaged over its seeds."""

    run: str
    task: str
    position: str
    """ "input" or "output"."""
    layers: tuple[int, ...]
    """The layers that are mixed."""
    weights: tuple[float, ...]
    """The weight of each layer after the softmax, averaged over the seeds."""
    deviations: tuple[float, ...]
    gamma: float
    n_seeds: int


def weights_of_runs(runs: Sequence[str | Path]) -> list[MixWeights]:
    """Return the mixes of finished runs, those at the input first."""
    mixes = [mix for run in runs for mix in _weights_of(Path(run))]
    if not mixes:
        names = ", ".join(map(str, runs))
        raise ConfigError(f"{names}: no mix of layers was learned.")
    return sorted(mixes, key=lambda mix: mix.position)


def _weights_of(run: Path) -> list[MixWeights]:
    path = run / RESULTS
    content = read_json(path, "result of a finished run")
    with damage_errors(path):
        per_seed = [seed["mixes"] for seed in content["seeds"]]
        return [
            _mean_weights(str(run), content["task"], position, [mixes[position] for mixes in per_seed])
            for position in per_seed[0]
        ]


def _mean_weights(run: str, task: str, position: str, mixes: Sequence[dict[str, Any]]) -> MixWeights:
    layers = msgspec.convert(mixes[0]["layers"], tuple[int, ...])
    columns = dict(zip(layers, zip(*(mix["weights"] for mix in mixes), strict=True), strict=True))
    return MixWeights(
        run,
        str(task),
        position,
        layers,
        tuple(statistics.fmean(column) for column in columns.values()),
        tuple(statistics.stdev(column) if len(column) > 1 else 0.0 for column in columns.values()),
        statistics.fmean(mix["gamma"] for mix in mixes),
        len(mixes),
    )
