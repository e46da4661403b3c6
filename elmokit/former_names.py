"""Replacements for names of earlier versions, for use in error messages.

For these names, suggesting the most similar current name would be misleading. Current names are not looked up here.
"""

from __future__ import annotations

from collections.abc import Mapping

_PROGRAM = "Use the program {} in elmokit's repository."
_RECIPE = "The training recipe (modern or bilm-tf) now sets this."
_NONE = "It has no replacement."
_DRAW = "Plot the numbers that --json prints."

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
"""Commands, by the words after ``elmokit``."""
SETTINGS = {
    "backward_only": f"{_NONE} Train both directions.",
    "cutoffs": "The adaptive softmax was removed. For large vocabularies, use the sampled softmax (n_samples).",
    "drain_seconds": f"{_NONE} Let the load balancer stop sending requests first.",
    "figure": _DRAW,
    "hours": "Set the length with epochs or tokens.",
    "keep": "Repeat the whole evaluation, which takes seconds.",
    "max_connections": f"{_NONE} Limit connections in the reverse proxy.",
    "resume": "To resume a run, repeat the command that started it.",
    "save_words": f"{_NONE} Checkpoints are counted in steps (save_every).",
    "workers": (
        "Use a server that starts several processes: granian --interface asgi --factory --workers 4 "
        "elmokit.serve.app:create_app."
    ),
    "vectors": "Repeat the whole probe, which takes a minute.",
    **dict.fromkeys(
        (
            *("decay_ratio", "final_ratio", "layer_loss", "optimizer", "reset_state", "same_order"),
            *("scale_loss_by_steps", "schedule", "shuffle", "warmup_ratio", "weight_decay", "word_dropout"),
        ),
        _RECIPE,
    ),
}
"""Training settings and flags, by their names in Python."""
FLAGS = {
    "fasta": "It is '--text-kind fasta' now.",
    "strict": "It is '--text-kind allennlp' now.",
    "tokenize": "It is '--text-kind lines' now.",
    "tokenized": "It is '--text-kind tokens' now.",
}
"""Flags that became values of another flag after 0.3."""
VALUES = {
    "softmax adaptive": "For large vocabularies, use the sampled softmax (--n-samples).",
    "start stateful": "Use --documents --start zero.",
}
"""Values of flags, each after its flag's name."""
PYTHON = {
    "AlignmentResult": _PROGRAM.format("recipes/align.py"),
    "HeatMap": "Plot the arrays of surprisal and substitutes.",
    "align": _PROGRAM.format("recipes/align.py"),
    "resume": "Repeat the call of train, finetune or distill.",
    "show": "Plot the arrays of surprisal and substitutes.",
}
"""Names of the package."""
MODELS = {"chinese-baidu": "PaddlePaddle files are no longer supported."}
"""Names of published models."""


def replacement(former: Mapping[str, str], name: str) -> str:
    """Return the hint, after a space, for an error about a name of an earlier version; empty for other names."""
    return f" An earlier version had it. {former[name]}" if name in former else ""
