"""``elmokit allennlp-elmo`` and ``allennlp-vocab``: drop-in replacements for two commands of AllenNLP."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click

from elmokit.cli.command import with_underscores
from elmokit.cli.parameters import OutputPath
from elmokit.cli.running import print_note

if TYPE_CHECKING:
    from elmokit.embedding.elmo import Elmo

Output = Annotated[Path, OutputPath(parent_must_exist=False)]  # AllenNLP created missing directories


@dataclass(frozen=True)
class LayerFlags:
    """The layers to write; exactly one flag."""

    all_: bool = False
    top: bool = False
    average: bool = False

    def chosen(self) -> Literal["all", "top", "average"]:
        """Return the chosen layers."""
        modes: dict[Literal["all", "top", "average"], bool]
        modes = {"all": self.all_, "top": self.top, "average": self.average}
        chosen = [mode for mode, is_given in modes.items() if is_given]
        if len(chosen) != 1:
            raise click.UsageError(f"Pass exactly one of --all, --top and --average; got {len(chosen)}.")
        return chosen[0]


@dataclass(frozen=True)
class CommandModel:
    """The model, with the names of AllenNLP's command."""

    options_file: str | None = None
    weight_file: str = "original"
    cuda_device: int = -1

    def open(self) -> Elmo:
        """Open the model as AllenNLP did, with a state carried from batch to batch."""
        from elmokit.embedding.elmo import Elmo

        device = None if self.cuda_device < 0 else f"cuda:{self.cuda_device}"
        return Elmo.from_pretrained(
            self.weight_file, options=self.options_file, start="stateful", device=device, exact_marks=True
        )


@dataclass(frozen=True)
class SentenceNames:
    """How sentences are stored: fields of :class:`~elmokit.embedding.outputs.layout.Layout`."""

    forget_sentences: bool = False
    use_sentence_keys: bool = False
    include_sentence_indices: bool = False


@dataclass(frozen=True)
class Ignored:
    """Options of AllenNLP's command that elmokit does not need."""

    vocab_path: str | None = None
    include_package: tuple[str, ...] = ()


def allennlp_elmo(
    input: Path,
    output: Output,
    *,
    layers: LayerFlags,
    model: CommandModel,
    batch_size: int = 64,
    file_friendly_logging: bool = False,
    names: SentenceNames,
    ignored: Ignored,
) -> None:
    """Embed INPUT, one tokenized sentence per line, into the HDF5 file OUTPUT, like `allennlp elmo`.

    The LSTM state is carried from batch to batch, so vectors depend on preceding lines (unlike those of `elmokit
    embed`). An existing OUTPUT is replaced once the new one is complete. Blank lines are refused.

    Args:
        all_: All layers: (layers, tokens, dim).
        top: The top layer: (tokens, dim).
        average: The mean of all layers: (tokens, dim).
        options_file: Options file of an HDF5 file, if it is not next to the weights.
        weight_file: HDF5 file, directory or name of a model.
        vocab_path: Accepted and ignored, as in AllenNLP.
        batch_size: Lines per batch. Vectors depend on it.
        cuda_device: Number of the CUDA device; -1 for the CPU.
        file_friendly_logging: Print progress as separate lines, even on a terminal.
        forget_sentences: Do not store sentence_to_index.
        use_sentence_keys: Name datasets by their sentences. Implies --forget-sentences.
        include_sentence_indices: Also store sentence_to_index as sentence_indices.
        include_package: Accepted and ignored: elmokit has no plugins.

    Examples:
        elmokit allennlp-elmo sentences.txt elmo_layers.hdf5 --all
        elmokit allennlp-elmo sentences.txt top.hdf5 --top --weight-file weights.hdf5 --options-file options.json
    """
    from elmokit.embedding.corpus import check_files, embed_file
    from elmokit.embedding.outputs.layout import Layout
    from elmokit.storage.progress import ProgressBar, count_of
    from elmokit.text.text import Text

    chosen = layers.chosen()
    text = Text(input, kind="allennlp")
    check_files(text, output, overwrite=True)
    layout = Layout(layers=chosen, batch_size=batch_size, **vars(names))
    elmo = model.open()
    with ProgressBar("tokens", lines=file_friendly_logging) as progress:
        summary = embed_file(elmo, text, output, layout, overwrite=True, force=True, progress=progress)
    print_note(f"{output}: {count_of(summary.n_sentences, 'sentence')}, {count_of(summary.n_tokens, 'token')}")


@with_underscores
def allennlp_vocab(
    *,
    vocab_path: Path,
    elmo_config: str | None = None,
    elmo_weights: str,
    output_dir: Output,
    use_custom_oov_token: Annotated[bool, click.BOOL] = False,
    batch_size: int = 64,
    device: int = -1,
) -> None:
    """Write a vocabulary's context-free vectors as text, like AllenNLP's create_elmo_embeddings_from_vocab.py.

    Args:
        vocab_path: Word list, one word per line.
        elmo_config: Options file, if it is not next to the weights.
        elmo_weights: HDF5 file, directory or name of a model.
        output_dir: Output directory, created if missing.
        batch_size: Words per batch, in units of 50.
        device: Number of a CUDA device, or -1 for the CPU.
        use_custom_oov_token: True allows a first word other than @@UNKNOWN@@.

    Examples:
        elmokit allennlp-vocab --vocab_path vocab.txt --elmo_weights weights.hdf5 --output_dir vectors
        elmokit allennlp-vocab --vocab_path vocab.txt --elmo_weights original --output_dir vectors --device 0
    """
    from elmokit.compat.allennlp import create_elmo_embeddings_from_vocab

    create_elmo_embeddings_from_vocab(
        vocab_path,
        elmo_config,
        elmo_weights,
        output_dir,
        batch_size=batch_size,
        device=device,
        use_custom_oov_token=use_custom_oov_token,
    )
    print_note(f"Wrote {output_dir}")
