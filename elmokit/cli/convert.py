"""``elmokit convert``: convert a model to another format."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Literal

import click

from elmokit.cli.parameters import ModelOptions, ModelPrecision, Output, Overwrite, StartName
from elmokit.cli.running import check_apart, print_note
from elmokit.storage.progress import count_of


def convert(
    source: str,
    target: Output,
    *,
    options: ModelOptions = None,
    storage: Literal["float32", "float16", "int8"] = "float32",
    precision: ModelPrecision = None,
    start: StartName | None = None,
    calibrate: Path | None = None,
    whiten: Path | None = None,
    alignment: tuple[str, ...] = (),
    overwrite: Overwrite = False,
) -> None:
    """Convert the model SOURCE to TARGET.

    SOURCE is a path, a URL, a published name or a Hub id; of a training run, the best model is converted.

    If TARGET ends in .hdf5 or .h5, HDF5 weights for AllenNLP and bilm-tf are written, and an options file of the same
    name next to them: X_options.json for X.hdf5 and X_weights.hdf5. A TARGET without an extension becomes an elmokit
    directory, the only format that also keeps the softmax, its words, the start state, the whitening and the
    trained head of sentence vectors, and the alignment. If TARGET ends in .onnx, a graph from char ids to the vectors
    of all layers is written, which ONNX Runtime runs.

    Args:
        storage: Dtype of the tensors in an elmokit directory. int8 takes a quarter of the space of float32.
        precision: Precision in which an elmokit directory is computed unless its user requests another.  [default: that
            of SOURCE]
        start: Store the state that sentences start from. warm: the model's own, or else the state after an empty
            sentence. zero: as in TF-Hub's ELMo. (AllenNLP and bilm-tf carry the state from sentence to sentence, as
            embed does with --start stateful.)
        calibrate (TEXT): Tokenized sentences in the model's language: store the mean state after a sentence as the
            start state.
        whiten (TEXT): Tokenized sentences like those to be compared: fit a whitening of sentence vectors and store it.
        alignment (FILE): Alignment matrix saved with torch.save, such as those published for AllenNLP's
            ElmoTokenEmbedderMultiLang: one for all layers; or repeat the option, layer 0 first.

    Examples:
        elmokit convert elmo_weights.hdf5 my-elmo
        elmokit convert my-elmo back_weights.hdf5
        elmokit convert en-mini en-mini.onnx
    """
    from elmokit.embedding.start_state import calibrate_start_state, note_start, store_start_state
    from elmokit.formats.open import open_model
    from elmokit.formats.save import format_to_write, save_model
    from elmokit.storage.text_files import read_sentences

    if target.suffix == ".onnx":
        stored = {"--storage": storage != "float32", "--precision": precision, "--calibrate": calibrate}
        check_apart("A target named .onnx", True, {**stored, "--whiten": whiten, "--alignment": alignment})
        _export_onnx(source, target, options, start or "warm", overwrite)
        return
    check_apart("--start", start, {"--calibrate": calibrate})  # each stores a start state
    target_format = format_to_write(target, [".onnx"])
    if not target_format.is_complete:
        check_apart(f"A target named {target.suffix}", True, {f"--storage {storage}": storage != "float32"})
    target_format.check_target(target, overwrite)
    model = open_model(source, options=options)
    if precision is not None:
        model.precision = precision
    if start is not None:
        store_start_state(model, start)
    if calibrate is not None:
        calibrate_start_state(model, list(read_sentences(calibrate)), calibrate.name)
    if alignment:
        from elmokit.formats.torch_save import read_alignment

        if model.fitted_maps:
            print_note(f"left out: {', '.join(model.fitted_maps)}; they fit the vectors before the alignment")
        model = model.without_fitted_maps()
        model.alignment = read_alignment(alignment, model.config)
        model.card["alignment"] = {"matrices": [Path(matrix).name for matrix in alignment]}
    if whiten is not None:
        from elmokit.embedding.elmo import Elmo
        from elmokit.embedding.sentence_vectors import SentenceEmbedder
        from elmokit.formats.sentence_pooling import SentencePooling

        numbers = count(1)
        sentences = (sentence for _, sentence in zip(numbers, read_sentences(whiten), strict=False))
        SentenceEmbedder(Elmo(model), SentencePooling()).fit(sentences)
        n_sentences = next(numbers) - 2  # one number was taken for the end of the text
        assert model.whitening is not None
        if (n_kept := model.whitening.projection.shape[1]) >= n_sentences - 1:
            click.echo(
                f"The whitening keeps {count_of(n_kept, 'dimension')}, as many as {n_sentences:,} sentences allow. "
                "Some thousands of sentences are better.",
                err=True,
            )
        model.card["whitening"] = f"sentence vectors of {whiten.name}"
    if target_format.is_complete:
        note_start(model)
    for path in save_model(model, target, storage, overwrite):
        print_note(f"wrote {path}")
    parts = {
        "softmax, vocabulary": model.softmax,
        "start state": model.start_state,
        "whitening": model.whitening,
        "sentence head": model.sentence_head,
        "alignment": model.alignment,
        "precision": model.precision,
    }
    lost = [name for name, part in parts.items() if part is not None]
    if lost and not target_format.is_complete:
        click.echo(f"Not saved ({target.suffix} files cannot hold it): {', '.join(lost)}", err=True)


def _export_onnx(source: str, target: Path, options: str | None, start: StartName, overwrite: bool) -> None:
    from elmokit.formats.open import open_model
    from elmokit.integrations.onnx import export_onnx
    from elmokit.storage.atomic import check_output_path

    check_output_path(target, overwrite)
    print_note(f"wrote {export_onnx(open_model(source, options=options), target, start=start, overwrite=overwrite)}")
