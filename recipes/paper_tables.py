"""Train variants of a task's config and compare them on dev, as Peters et al. 2018 do.

    python recipes/paper_tables.py ner.toml OUT --over ratios --ratios 0.1,0.3,1 --seeds 1,2,3 --figure curve.png

What is varied (``--over``):

    ratios      samples of the training texts, each without and with ELMo: Figure 1, and how many steps ELMo saves
    layers      no ELMo; the last layer; all layers with lambda 1 (nearly their mean) and 0.001: Table 2
    positions   ELMo at the input, at the input and the output, at the output: Table 3

Each variant is a run in OUT, so the same call continues after an interruption. The table ends with the weight that each
mix has given to each layer (Figure 2). ``--figure``, for ratios, needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from elmokit.tasks.config_file import load_config
from elmokit.tasks.run import train_task
from elmokit.tasks.task_config import ElmoConfig, MixConfig


def with_mixes(elmo: ElmoConfig, **changes: Any) -> ElmoConfig:
    """Return the setting with the same changes in each of its mixes."""
    mixes = {name: mix for name in ("input", "output") if (mix := getattr(elmo, name)) is not None}
    return replace(elmo, **{name: replace(mix, **changes) for name, mix in mixes.items()})


def variants(config: Any, elmo: ElmoConfig, over: str, ratios: list[float]) -> dict[str, Any]:
    """Return the configs to compare, by name."""
    if over == "ratios":
        samples = [(f"{ratio:g}", replace(config, data=replace(config.data, train_ratio=ratio))) for ratio in ratios]
        kinds = (("baseline", None), ("elmo", elmo))
        return {f"{kind}-{name}": replace(sample, elmo=one) for name, sample in samples for kind, one in kinds}
    if over == "layers":
        choices: dict[str, ElmoConfig | None] = {
            "baseline": None,
            "last": with_mixes(elmo, layers="top", penalty=0.0),
            "all-1": with_mixes(elmo, layers="all", penalty=1.0),
            "all-0.001": with_mixes(elmo, layers="all", penalty=1e-3),
        }
    else:
        at_input = elmo.input or elmo.output or MixConfig()
        at_output = elmo.output or at_input
        choices = {
            "input": replace(elmo, input=at_input, output=None),
            "both": replace(elmo, input=at_input, output=at_output),
            "output": replace(elmo, input=None, output=at_output),
        }
    return {name: replace(config, elmo=chosen) for name, chosen in choices.items()}


def in_shared_cache(config: Any, folder: Path) -> Any:
    """Return the config with the layers of a frozen biLM in a directory that all variants share."""
    if config.elmo is None or config.elmo.trainable or config.elmo.cache is not None:
        return config
    return replace(config, elmo=replace(config.elmo, cache=str(folder / "layers")))


def steps_to(score: float, seed: Path, metric: str) -> int | None:
    """Return the steps after which a training had a dev score for the first time; None if it never had."""
    lines = map(json.loads, (seed / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return next((line["n_steps"] for line in lines if line["dev"][metric] >= score), None)


def print_steps(out: Path, ratio: str, metric: str, without: dict[str, Any], seeds: list[int]) -> None:
    """Print how many steps the training with ELMo needs to the best dev score of the one without."""
    best = {result["seed"]: result["dev"][metric] for result in without["seeds"]}
    for seed in seeds:
        names = (f"baseline-{ratio}", f"elmo-{ratio}")
        steps = [steps_to(best[seed], out / name / f"seed-{seed}", metric) for name in names]
        print(f"ratio {ratio}, seed {seed}: {best[seed]:.2f} after {steps[0]} steps, with ELMo after {steps[1]}")


def plot(rows: dict[str, dict[str, float]], metric: str, path: Path) -> None:
    """Plot the dev score over the fraction of the training data, with a band of one standard deviation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 2.8), layout="constrained")
    axes = figure.subplots()
    for kind, label in (("elmo", "ELMo"), ("baseline", "baseline")):
        line = {float(name.split("-", 1)[1]): row for name, row in rows.items() if name.startswith(kind)}
        ratios = sorted(line)
        means, spreads = ([line[ratio][part] for ratio in ratios] for part in ("mean", "deviation"))
        percents = [100 * ratio for ratio in ratios]
        axes.plot(percents, means, label=label, marker="o")
        low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
        axes.fill_between(percents, low, high, alpha=0.2)
    axes.set(xscale="log", xlabel="training data (%)", ylabel=f"dev {metric}")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    """Train the variants that are not trained yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="config of elmokit task train")
    parser.add_argument("out", type=Path, help="directory for the runs")
    parser.add_argument("--over", choices=("ratios", "layers", "positions"), required=True)
    parser.add_argument("--ratios", default="0.001,0.003,0.01,0.03,0.1,0.3,1")
    parser.add_argument("--seeds", help="comma-separated [default: those of the config]")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="such as train.epochs=5")
    parser.add_argument("--figure", type=Path, help="plot the curve of --over ratios")
    arguments = parser.parse_args()
    seeds = [f"train.seeds=[{arguments.seeds}]"] if arguments.seeds else []
    task, config = load_config(arguments.config, [*arguments.set, *seeds])
    ratios = sorted({float(ratio) for ratio in arguments.ratios.split(",")})
    results = {
        name: train_task(task, in_shared_cache(variant, arguments.out), arguments.out / name)
        for name, variant in variants(config, config.elmo or task.elmo, arguments.over, ratios).items()
    }
    rows = {name: result["dev"][task.metric] for name, result in results.items()}
    print(f"| variant | dev {task.metric} | deviation |\n|---|---|---|")
    for name, row in rows.items():
        print(f"| {name} | {row['mean']:.2f} | {row['deviation']:.2f} |")
    for name, result in results.items():
        for position, mix in result["seeds"][0]["mixes"].items():
            weights = " ".join(f"{weight:.2f}" for weight in mix["weights"])
            layers = " ".join(map(str, mix["layers"]))
            print(f"{name}, {position}: layers {layers} have the weights {weights}, gamma {mix['gamma']:.2f}")
    if arguments.over == "ratios":
        for ratio in ratios:
            without = results[f"baseline-{ratio:g}"]
            print_steps(arguments.out, f"{ratio:g}", task.metric, without, list(config.train.seeds))
        if arguments.figure is not None:
            plot(rows, task.metric, arguments.figure)


if __name__ == "__main__":
    main()
