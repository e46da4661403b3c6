"""Describe an opened archive of AllenNLP, and write it as a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elmokit.config import write_json
from elmokit.embedding.elmo import Elmo
from elmokit.errors import OutputError
from elmokit.formats.folder import save_folder
from elmokit.network.tensors import save_tensors
from elmokit.storage.atomic import atomic_write
from elmokit.tasks.allennlp_archive.opened import OpenedArchive
from elmokit.tasks.run_folder import ARCHIVE_SEED, BEST_WEIGHTS, OWN_BILM, elmo_start, start_run, write_facts
from elmokit.tasks.vocabulary import vocabulary_content


def describe_archive(opened: OpenedArchive) -> dict[str, Any]:
    """Return facts about an opened archive, for the user."""
    setup, archive = opened.setup, opened.archive
    facts: dict[str, Any] = {
        "task": setup.task.name,
        "model": archive.config["model"].get("type"),
        "allennlp": archive.version or "not recorded",
        "parameters": sum(parameter.numel() for parameter in opened.model.parameters()),
    }
    facts |= {name: len(table.words) for name, table in setup.inputs.tables.items()}
    if setup.inputs.chars is not None:
        facts["characters"] = len(setup.inputs.chars) if setup.inputs.spelling == "characters" else "bytes"
    facts |= {name: labels for name, labels in setup.labels.items() if any(labels)}
    if opened.bilm is not None:
        bilm = opened.bilm.config
        facts["elmo"] = {"layers": bilm.n_layers + 1, "dim": bilm.output_dim, "start": setup.config.elmo.start}
    return facts


def save_as_run(opened: OpenedArchive, folder: str | Path) -> None:
    """Write the model of an archive as a run directory, atomically."""
    folder = Path(folder)
    if folder.exists():  # `atomic_write` would advise a flag that the command does not have
        raise OutputError(f"{folder} already exists; choose another directory.")
    setup = opened.setup
    elmo = None
    if opened.bilm is not None:
        elmo = Elmo(opened.bilm, start=elmo_start(setup.config.elmo))
    content = {**vocabulary_content(setup.inputs), "labels": setup.labels}
    origin = {"archive": str(opened.archive.source), "allennlp": opened.archive.version, "notes": opened.notes}
    with atomic_write(folder, folder=True) as run:
        start_run(run, setup.task, setup.config, content)
        write_facts(run, setup.task, setup.config, {}, elmo, origin)
        if opened.bilm is not None:
            save_folder(opened.bilm, run / OWN_BILM)
        seed = run / f"seed-{ARCHIVE_SEED}"
        seed.mkdir()
        save_tensors(opened.model.state_dict(), seed / BEST_WEIGHTS)
        # An archive does not say how the model was scored.
        write_json(seed / "result.json", {"seed": ARCHIVE_SEED, "dev": {}})
