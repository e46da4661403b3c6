"""What took the place of names of earlier versions: what an error about such a name says.

The known name that is spelled most alike would be a wrong advice there. Names that are still known are not asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

_PROGRAM = "Use the program {} in elmokit's repository."
_RECIPE = "The recipe of a training decides this now (modern or bilm-tf)."
_NONE = "Nothing took its place."
_DRAW = "Draw the numbers that --json prints."

COMMANDS = {
    "align": _PROGRAM.format("recipes/align.py"),
    "evaluate all": _PROGRAM.format("benchmarks/report.py"),
    "evaluate reading-times": _PROGRAM.format("recipes/reading_times.py"),
    "export": _PROGRAM.format("recipes/static_table.py"),
    "mcp": _PROGRAM.format("recipes/mcp_server.py"),
    "sentence-head": _PROGRAM.format("recipes/sentence_head.py"),
    "task sweep": _PROGRAM.format("recipes/paper_tables.py"),
    "task weights": _PROGRAM.format("recipes/paper_tables.py"),
}
"""Commands, by what follows ``elmokit``."""
SETTINGS = {
    "backward_only": f"{_NONE} Train both directions.",
    "cutoffs": "The adaptive softmax is gone. Large vocabularies train with sampled words (n_samples).",
    "drain_seconds": f"{_NONE} Let the load balancer stop sending requests first.",
    "figure": _DRAW,
    "hours": "Give the length as epochs or tokens.",
    "keep": "Run the whole evaluation again, which takes seconds.",
    "max_connections": f"{_NONE} Limit connections in the reverse proxy.",
    "resume": "The command that started a run continues it.",
    "save_words": f"{_NONE} Checkpoints are counted in steps (save_every).",
    "workers": (
        "Start several processes with a server that does it: granian --interface asgi --factory --workers 4 "
        "elmokit.serve.app:create_app."
    ),
    **dict.fromkeys(
        (
            *("decay_ratio", "final_ratio", "layer_loss", "optimizer", "reset_state", "same_order"),
            *("scale_loss_by_steps", "schedule", "shuffle", "warmup_ratio", "weight_decay", "word_dropout"),
        ),
        _RECIPE,
    ),
}
"""Settings of trainings, and flags, by their names in Python."""
FLAGS = {
    "fasta": "It is '--text-kind fasta' now.",
    "strict": "It is '--text-kind allennlp' now.",
    "tokenize": "It is '--text-kind lines' now.",
    "tokenized": "It is '--text-kind tokens' now.",
}
"""Flags that became a value of another one, after 0.3."""
VALUES = {
    "softmax adaptive": "Large vocabularies train with sampled words (--n-samples).",
    "start stateful": "Use --documents --start zero.",
}
"""Values of flags, each after the name of its flag."""
PYTHON = {
    "AlignmentResult": _PROGRAM.format("recipes/align.py"),
    "HeatMap": "Draw the arrays of surprisal and substitutes.",
    "align": _PROGRAM.format("recipes/align.py"),
    "resume": "Call train, finetune or distill again as at the start.",
    "show": "Draw the arrays of surprisal and substitutes.",
}
"""Names of the package."""
MODELS = {"chinese-baidu": "Files of PaddlePaddle are not read any more."}
"""Names of published models."""


def replacement(former: Mapping[str, str], name: str) -> str:
    """Return what an error adds about a name of an earlier version, after a space; an empty text for other names."""
    return f" An earlier version had it. {former[name]}" if name in former else ""
