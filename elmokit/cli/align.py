"""``elmokit align``: map the vectors of a model into the space of another."""

from __future__ import annotations

from pathlib import Path

import click

from elmokit.cli.parameters import Device, Json, Output, Overwrite
from elmokit.cli.running import echo_json, print_note
from elmokit.storage.progress import ProgressBar


def align(
    source: str,
    target: str,
    source_texts: Path,
    target_texts: Path,
    dictionary: Path,
    *,
    out: Output,
    centered: bool = False,
    min_count: int = 1,
    test_ratio: float = 0.1,
    seed: int = 0,
    json: Json = False,
    device: Device = None,
    overwrite: Overwrite = False,
) -> None:
    """Learn to map the vectors of SOURCE into the space of TARGET, and save SOURCE with this alignment.

    SOURCE and TARGET are models with the same number of layers and dimensions: paths, URLs, published names or Hub ids.
    SOURCE_TEXTS and TARGET_TEXTS are tokenized texts in their languages, one sentence per line: a file, a directory or
    a quoted pattern. They need not be translations. DICTIONARY has a word of SOURCE_TEXTS and its translation per line,
    separated by a tab or spaces.

    The rotation of each layer is found that brings the mean vectors of translations closest to each other (Schuster et
    al. 2019). The command prints how often the nearest word of the other language is a translation, before and after.

    Args:
        out: Directory for SOURCE with its alignment.
        centered: Align the means of the two spaces, too.
        min_count: Leave out pairs with a word that occurs less often in its text.
        test_ratio: Fraction of the dictionary's words to test on instead of learning from them.
        seed: Seed that chooses the words to test on.

    Examples:
        elmokit align german-elmo english-elmo de.txt en.txt de-en.txt --out german-aligned
        elmokit embed de.txt vectors.hdf5 --model german-aligned
    """
    from elmokit.formats.save import refuse_incomplete_target, save_model
    from elmokit.training.alignment import align as learn_alignment

    refuse_incomplete_target(out, overwrite, "an alignment")
    with ProgressBar("sentences") as progress:
        result = learn_alignment(
            source,
            target,
            source_texts,
            target_texts,
            dictionary,
            centered=centered,
            min_count=min_count,
            test_ratio=test_ratio,
            seed=seed,
            device=device,
            progress=progress,
        )
    save_model(result.model, out, overwrite=overwrite)
    if json:
        echo_json(result.to_dict())
    else:
        click.echo(result.to_text())
    print_note(f"wrote {out}")
