"""The format of ELMoForManyLangs (Che et al. 2018): a directory with two lexicons and two pickled state dicts.

======================  ==================================================================================
``config.json``         the arguments of a training run. Only ``config_path`` is used, the file with the sizes,
                        which is often a path on the author's machine
``word.dic``            ``word<TAB>row`` per line; absent if ``word_dim`` is 0
``char.dic``            ``character<TAB>row`` per line; absent if ``char_dim`` is 0
``token_embedder.pkl``  word table, char CNN, projection
``encoder.pkl``         the LSTMs
``classifier.pkl``      the softmax over the training words; not read
``meta.json``           in the NLPL repository: corpus and author; copied to the model card
======================  ==================================================================================

Differences from our network: gates are in the order i, f, g, o, and the forget bias includes the 1 that our network
adds itself; input and recurrent weights are two matrices, and the two branches of a highway layer are one; the
highway's gate opens for the carried branch instead of the transformed one; and the names of the marks for the begin and
end of a token are swapped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from elmokit.engine.config import BiLMConfig, tensor_shapes
from elmokit.errors import FormatError, TensorMismatchError, reading
from elmokit.formats.bilm_tf import WITHOUT_ZERO_ROW
from elmokit.formats.format import Format
from elmokit.formats.many_langs_config import CHAR_TABLE, FAMILY, WORD_TABLE, bilm_config, read_settings
from elmokit.formats.model import PretrainedBiLM, Weights
from elmokit.formats.tensor_rows import GATE_BIAS, GATES, Array, Layout, TensorRow, read_through, same_shape
from elmokit.formats.torch_save import read_state_dict
from elmokit.formats.words import with_meta, with_words
from elmokit.storage.bounded import read_bounded
from elmokit.text.lexicon import Lexicon, Marks
from elmokit.text.vocabulary import MAX_BYTES

# The code that trained these models put <eow> before a token and <bow> after it, so a reader must do the same.
MARKS = Marks(
    unknown="<oov>",
    begin_sentence="<bos>",
    end_sentence="<eos>",
    begin_token="<eow>",
    end_token="<bow>",
    padding="<pad>",
)
_NAMELESS = "\u3000"  # a .dic line without a token means the ideographic space


NEGATED = Layout(np.negative, np.negative, same_shape)


class ManyLangs(Format):
    """A directory of ELMoForManyLangs."""

    name = FAMILY
    description = "a directory of ELMoForManyLangs"
    reads_options = False
    files = ("*.json", "*.dic", "*.pkl")

    def recognizes(self, path: Path) -> bool:
        companions = ("token_embedder.pkl", "word.dic", "char.dic")  # some of them may be missing
        return (path / "encoder.pkl").is_file() and any((path / name).is_file() for name in companions)

    def guess(self, folder: Path) -> str | None:
        return "an ELMoForManyLangs model" if (folder / "encoder.pkl").is_file() else None

    def load(self, path: Path, options: Path | None = None, words: Path | None = None) -> PretrainedBiLM:
        settings = read_settings(path)
        tensors = parts_by_name(
            {
                f"{stem}.{name}": tensor.numpy()
                for stem in ("token_embedder", "encoder")
                for name, tensor in read_state_dict(path / f"{stem}.pkl").items()
            }
        )
        shapes = {name: array.shape for name, array in tensors.items()}
        config = bilm_config(settings, shapes)
        what = f"{path} (sizes from {settings.where})"
        arrays = read_through(many_langs_rows(config), tensor_shapes(config), shapes, tensors.__getitem__, what)
        features, cnn = config.word_features, config.char_cnn
        lexicon = Lexicon(
            MARKS,
            settings.max_chars,
            words=read_entries(path / "word.dic", features.n_words) if features is not None else None,
            chars=read_entries(path / "char.dic", cnn.n_chars) if cnn is not None else None,
        )
        card: dict[str, Any] = {}
        if settings.is_stock:
            card["sizes"] = settings.where
        if (path / "classifier.pkl").is_file():
            card["left out"] = (
                "classifier.pkl, the softmax: it has a column for all unlisted words, which our softmax does not have"
            )
        model = PretrainedBiLM(Weights(config, arrays), self.name, source=path, card=card, lexicon=lexicon)
        return with_words(with_meta(model, path), words)


def many_langs_rows(config: BiLMConfig) -> list[TensorRow]:
    """List the tensors of a biLM by our names and theirs. See ``parts_by_name`` for joined and split tensors."""
    rows: list[TensorRow] = []
    cnn, prefix = config.char_cnn, "token_layer"
    if config.word_features is not None:
        rows.append(TensorRow("token_layer.word_embedding.weight", WORD_TABLE, WITHOUT_ZERO_ROW))
        prefix = "token_layer.chars"
    if cnn is not None:
        rows.append(TensorRow(f"{prefix}.char_embedding.weight", CHAR_TABLE, WITHOUT_ZERO_ROW))
        for k in range(len(cnn.filters)):
            for kind in ("weight", "bias"):
                rows.append(TensorRow(f"{prefix}.convolutions.{k}.{kind}", f"token_embedder.convolutions.{k}.{kind}"))
        for k in range(cnn.n_highway):
            theirs = f"token_embedder.highways._layers.{k}"
            for kind in ("weight", "bias"):
                rows.append(TensorRow(f"{prefix}.highways.{k}.transform.{kind}", f"{theirs}.{kind}[first half]"))
                rows.append(TensorRow(f"{prefix}.highways.{k}.gate.{kind}", f"{theirs}.{kind}[second half]", NEGATED))
    for kind in ("weight", "bias"):
        rows.append(TensorRow(f"token_layer.projection.{kind}", f"token_embedder.projection.{kind}"))
    for d, direction in enumerate(("forward", "backward")):
        for k in range(config.n_layers):
            ours, theirs = f"directions.{d}.layers.{k}", f"encoder.{direction}_layer_{k}"
            rows.append(TensorRow(f"{ours}.weight", f"{theirs}.[input|state]_linearity.weight", GATES))
            rows.append(TensorRow(f"{ours}.bias", f"{theirs}.state_linearity.bias", GATE_BIAS))
            rows.append(TensorRow(f"{ours}.projection", f"{theirs}.state_projection.weight"))
    return rows


def parts_by_name(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Split and join their tensors to match ours: ``x[first half]``, ``[input|state]_linearity``."""
    # Tensors that do not fit together keep their names, so that they are reported as unexpected.
    parts = dict(tensors)
    for name, array in tensors.items():
        if re.fullmatch(r"token_embedder\.highways\._layers\.\d+\.(weight|bias)", name) and array.ndim:
            halves = np.array_split(parts.pop(name), 2)
            parts |= zip((f"{name}[first half]", f"{name}[second half]"), halves, strict=True)
        elif name.endswith(".input_linearity.weight"):
            state_name = name.replace(".input_linearity.", ".state_linearity.")
            state = tensors.get(state_name)
            if state is not None and array.ndim == state.ndim == 2 and len(array) == len(state):
                joined = np.concatenate([parts.pop(name), parts.pop(state_name)], axis=1)
                parts[name.replace(".input_linearity.", ".[input|state]_linearity.")] = joined
    return parts


def read_entries(path: Path, n_rows: int) -> tuple[str | None, ...]:
    """Read the entry of each row of a table from a .dic file."""
    # A line is stripped and split at tabs as in the code that trained the models. So several tokens that differ only in
    # surrounding white space become one; the last of them counts, and no token has the rows of the others.
    rows: dict[str, int] = {}
    named: set[int] = set()
    with reading(path, "list of words or characters"):
        lines = read_bounded(path, MAX_BYTES).decode("utf-8").split("\n")
    if not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, 1):
        *token, row = line.strip().split("\t")
        if len(token) > 1 or not re.fullmatch(r"[0-9]{1,9}", row):
            raise FormatError(f"{path}, line {number}: expected a token, a tab and its row; found {line[:40]!r}.")
        named.add(int(row))
        rows[token[0] if token else _NAMELESS] = int(row)
    if named != set(range(n_rows)):
        raise TensorMismatchError(
            f"{path} names {len(named)} rows, the last of them {max(named, default=-1)}; the table in "
            f"token_embedder.pkl has {n_rows}, from 0 to {n_rows - 1}."
        )
    by_row = {row: token for token, row in rows.items()}
    return tuple(by_row.get(row) for row in range(n_rows))


FORMAT = ManyLangs()
