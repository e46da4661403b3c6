"""The elmokit format: a directory of JSON and safetensors files.

=======================  ==============================================================================
``config.json``          format, storage, precision if not float32, sizes and switches of the biLM, whether there is a
                         lexicon, model card
``model.safetensors``    the biLM's tensors, as ``storage`` says; ``warm_state.hidden`` and ``.cell`` if calibrated
``softmax.safetensors``  the softmax, if there is one (only training and perplexity need it)
``whitening.safetensors``  the whitening of sentence vectors, ``mean`` and ``projection``, if one was fitted
``sentence_head.safetensors``  the map that was trained on pairs of sentences, if there is one: ``mean``,
                         ``projection``, and ``word_weights`` for the words of ``vocab.txt``; the shape of
                         ``projection`` says if it reads the row of the word table after the token vector
``alignment.safetensors``  the map into the space of another model, ``matrices`` and ``offsets``, if there is one
``vocab.txt``            the words of the softmax, one per line, if there are any
``lexicon.json``         if the model has word or character tables of its own: ``words`` and ``chars``, each null or
                         a list with the entry of each row (null: no token has this row); ``max_chars``; and
                         ``marks``, the entries that mean begin, end, padding and unknown
=======================  ==============================================================================
"""

from __future__ import annotations

import codecs
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import numpy as np

from elmokit.config import check_choice, encode_json, from_dict, read_json, to_dict
from elmokit.engine.architecture import BiLMConfig, Shape, tensor_shapes
from elmokit.engine.precision import Precision
from elmokit.engine.softmax import SoftmaxConfig, WordSoftmax
from elmokit.engine.state import Floats, State
from elmokit.errors import FormatError, ModelError, ModelNotFoundError, OutputError, TensorMismatchError, reading
from elmokit.formats.format import Format, Storage
from elmokit.formats.model import PretrainedBiLM, Weights, read_row_words
from elmokit.formats.sentence_pooling import SentenceHead, SentencePooling, Whitening
from elmokit.formats.tensor_rows import FileArrays, read_through, same_rows
from elmokit.storage.bounded import read_bounded
from elmokit.storage.tensor_file import StoredTensors, TensorFile, to_int8, write_tensor_file
from elmokit.text.vocabulary import MAX_BYTES, Vocabulary

if TYPE_CHECKING:
    from elmokit.engine.layer_selection import LayerAlignment
    from elmokit.text.lexicon import Lexicon

# Modules of parts that most models lack, and of writing, are imported where they are used: a first vector does not wait
# for them.
NAME = "elmokit"
FORMAT_VERSION = 1
DEFAULT_MODEL = "en-mini"
"""The small English model inside the package."""
RUN_MODEL = "model"
"""The subfolder in which a training run keeps its best model."""
_WARM = "warm_state."
_LEXICON = dict[str, list[str | None] | dict[str, str] | int | None]
"""The types in ``lexicon.json``."""
_WHITENING, _HEAD, _ALIGNMENT = "whitening.safetensors", "sentence_head.safetensors", "alignment.safetensors"


def included_model() -> Path:
    """Return the directory of the model inside the package."""
    return Path(__file__).parents[1] / "models" / DEFAULT_MODEL


class ElmokitFolder(Format):
    """A directory that ``save_model`` wrote, or a training run with its best model in such a directory."""

    name = NAME
    description = "an elmokit directory"
    reads_options = False
    files = (
        "config.json",
        "model.safetensors",
        "softmax.safetensors",
        _WHITENING,
        _HEAD,
        _ALIGNMENT,
        "vocab.txt",
        "lexicon.json",
    )
    is_complete = True

    def recognizes(self, path: Path) -> bool:
        return is_model_folder(path) or is_model_folder(path / RUN_MODEL)

    def load(self, path: Path, options: Path | None = None, words: Path | None = None) -> PretrainedBiLM:
        folder = path if is_model_folder(path) else path / RUN_MODEL
        model = load_folder(folder)
        if words is None:
            return model
        from elmokit.formats.sidecars import given_or_found, with_words

        if model.softmax is None and (stored := folder / "vocab.txt").exists():
            words = given_or_found(words, stored)
        return with_words(model, words)

    def guess(self, folder: Path) -> str | None:
        steps = sorted(folder.glob("checkpoints/step-*/model")) if (folder / "journal.json").is_file() else []
        return f"a training run that has not saved a model yet; its newest checkpoint is {steps[-1]}" if steps else None

    def check_target(self, path: Path, overwrite: bool) -> None:
        from elmokit.storage.atomic import check_output_path

        check_output_path(path, overwrite, folder=True, parts=self.files)
        if path.is_dir() and any(path.iterdir()) and not is_model_folder(path):
            # Directories of other programs can have files of the same names, such as config.json and vocab.txt.
            raise OutputError(f"{path} is not an elmokit directory, so it is not overwritten. Choose another name.")

    def save(self, model: PretrainedBiLM, path: Path, storage: Storage, overwrite: bool) -> list[Path]:
        save_folder(model, path, storage, overwrite)
        return [path]


def is_model_folder(path: Path) -> bool:
    """Check for an elmokit directory."""
    try:
        return bool(read_json(path / "config.json").get("format") == NAME)
    except ModelError:
        return False


def save_folder(model: PretrainedBiLM, path: str | Path, storage: Storage = "float32", overwrite: bool = False) -> None:
    """Save a model as an elmokit directory, atomically."""
    from elmokit.storage.atomic import atomic_write

    config = {
        "format": NAME,
        "format_version": FORMAT_VERSION,
        "storage": storage,
        **({} if model.precision is None else {"precision": model.precision}),
        "bilm": to_dict(model.config),
        "lexicon": model.lexicon is not None,
        **({"exact_marks": True} if model.exact_marks else {}),
        **({} if model.softmax is None else {"softmax": to_dict(model.softmax.config)}),
        **({} if model.whitening is None else {"sentence_pooling": to_dict(model.whitening.pooling)}),
        **({} if model.sentence_head is None else {"sentence_head": to_dict(model.sentence_head.pooling)}),
        **({} if model.alignment is None else {"alignment": True}),
        "card": model.card,
    }
    arrays = dict(model.arrays)
    if model.start_state is not None:
        arrays |= {_WARM + name: array for name, array in model.start_state._asdict().items()}
    with atomic_write(path, overwrite, folder=True) as folder:
        (folder / "config.json").write_text(encode_json(config), encoding="utf-8")
        _save_stored(arrays, folder / "model.safetensors", storage)
        if model.softmax is not None:
            _save_stored(model.softmax.arrays, folder / "softmax.safetensors", storage)
        for linear_map, name in ((model.whitening, _WHITENING), (model.sentence_head, _HEAD)):
            if linear_map is not None:
                # Always float32: a direction of small variance has a large factor, which float16 would round badly.
                write_tensor_file(linear_map.tensors(), folder / name)
        if model.alignment is not None:
            # float32, too: vectors of float16 matrices would drift from those of the model that was aligned.
            alignment = {"matrices": model.alignment.matrices, "offsets": model.alignment.offsets}
            write_tensor_file(alignment, folder / _ALIGNMENT)
        if model.vocabulary is not None:
            (folder / "vocab.txt").write_text(model.vocabulary.to_text(), encoding="utf-8", newline="\n")
        if model.lexicon is not None:
            lexicon = encode_json(to_dict(model.lexicon), indent=0)
            (folder / "lexicon.json").write_text(lexicon, encoding="utf-8", newline="\n")


def load_folder(path: str | Path) -> PretrainedBiLM:
    """Load a model from an elmokit directory."""
    folder = Path(path)
    content = _read_config(folder)
    storage = _choice(folder, content, "storage", get_args(Storage))
    precision = _choice(folder, content, "precision", get_args(Precision)) if "precision" in content else None
    config = _read_sizes(folder, content.get("bilm"))
    arrays, start_state = _read_model(folder / "model.safetensors", config)
    lexicon = _read_lexicon(folder / "lexicon.json", config) if content.get("lexicon") else None
    vocabulary: Vocabulary | None = None
    if (words := folder / "vocab.txt").exists():
        vocabulary = read_row_words(words, config, lexicon, f"the table of {folder}") or Vocabulary.from_file(words)
    softmax = _read_softmax(folder, content.get("softmax"), vocabulary, config, arrays)
    n_words = 0 if vocabulary is None else len(vocabulary)
    whitening = _read_map(folder, content, "sentence_pooling", _WHITENING, config)
    head = _read_map(folder, content, "sentence_head", _HEAD, config, word_weights=(n_words,))
    return PretrainedBiLM(
        Weights(config, arrays),
        family=NAME,
        source=folder,
        softmax=softmax,
        vocabulary=vocabulary,
        start_state=start_state,
        whitening=None if whitening is None else Whitening(whitening[0], **whitening[1]),
        sentence_head=None if head is None else SentenceHead(head[0], **head[1]),
        alignment=_read_alignment(folder / _ALIGNMENT, config) if content.get("alignment") else None,
        card=content["card"],
        lexicon=lexicon,
        storage=storage,
        precision=precision,
        exact_marks=content.get("exact_marks") is True,
    )


def read_card(path: str | Path) -> dict[str, Any]:
    """Read the model card of an elmokit directory, without its tensors."""
    card: dict[str, Any] = _read_config(Path(path))["card"]
    return card


def _read_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json``. Its "card" is a table, which is empty if the file has none."""
    path = folder / "config.json"
    content = read_json(path)
    known = {"format": NAME, "format_version": FORMAT_VERSION}
    if {name: content.get(name) for name in known} != known:
        raise FormatError(
            f"{path} does not say format {NAME!r}, version {FORMAT_VERSION}, which this elmokit reads. If a newer one "
            "wrote it, upgrade."
        )
    card = content.get("card")
    return content | {"card": card if isinstance(card, dict) else {}}


def _read_sizes(folder: Path, table: Any) -> BiLMConfig:
    """Read the sizes and switches of the biLM."""
    path = folder / "config.json"
    if isinstance(table, dict) and table.get("backward_only"):
        raise FormatError(
            f"{path} describes a model that reads backward alone (train --backward-only of version 0.2). Only version "
            "0.2 reads it so: without the key backward_only, it would read forward, with other vectors."
        )
    return from_dict(BiLMConfig, _without(table, "backward_only"), f"{path}, bilm")


def _read_softmax(
    folder: Path, table: Any, vocabulary: Vocabulary | None, config: BiLMConfig, arrays: FileArrays
) -> WordSoftmax | None:
    """Read the softmax; None if there is none, or one of a kind that is no longer computed."""
    # Vectors need none of what is missing.
    if isinstance(table, dict) and table.get("kind") == "adaptive":
        warnings.warn(
            f"{folder} has the adaptive softmax of version 0.2, which is left out: it gives vectors but cannot predict "
            "words. elmokit finetune trains a new softmax.",
            stacklevel=3,
        )
        return None
    if not (folder / "softmax.safetensors").exists():
        if table is not None:
            # It may have been removed to save space.
            warnings.warn(
                f"{folder} has no softmax.safetensors, which its config.json describes, so it gives vectors but cannot "
                "predict words. Copy that file, too; or, if it was removed on purpose, remove softmax from "
                "config.json.",
                stacklevel=3,
            )
        return None
    if vocabulary is None:
        raise ModelNotFoundError(f"{folder / 'vocab.txt'} is missing: {folder} has a softmax, whose words it names.")
    kind = from_dict(SoftmaxConfig, _without(table, "cutoffs", "shrink"), f"{folder / 'config.json'}, softmax")
    kind.check_sizes(len(vocabulary), config.projection_dim, config.n_table_words)
    shapes = kind.tensor_shapes(len(vocabulary), config.projection_dim)
    own_arrays = _read_stored(folder / "softmax.safetensors", shapes)
    word_table = (arrays, config.word_table) if kind.kind == "tied" and config.word_table is not None else None
    return WordSoftmax(kind, own_arrays, len(vocabulary), word_table)


def _without(table: Any, *former: str) -> Any:
    """Leave out settings of version 0.2 that have no effect on this model."""
    if not isinstance(table, dict):
        return table
    return {name: value for name, value in table.items() if name not in former}


def _choice(folder: Path, content: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> Any:
    """Return a setting of ``config.json`` that has few possible values."""
    return check_choice(f"{folder / 'config.json'}: {name}", content.get(name), choices)


def _read_map(
    folder: Path, content: Mapping[str, Any], key: str, file: str, config: BiLMConfig, **more: Shape
) -> tuple[SentencePooling, FileArrays] | None:
    """Read a linear map of sentence vectors, if there is one: its pooling, and its numbers by name."""
    if key not in content:
        return None
    pooling = from_dict(SentencePooling, content[key], f"{folder / 'config.json'}, {key}")
    dim = pooling.dim(config.n_layers + 1, config.output_dim)
    in_file = TensorFile(folder / file).shapes.get("projection", ())
    if more and config.word_features is not None and in_file[:1] == (dim + config.word_features.word_dim,):
        dim = in_file[0]  # a head that also reads the word table
    n_components = (0, *in_file)[-1]  # any number of them
    return pooling, _read_stored(folder / file, {"mean": (dim,), "projection": (dim, n_components), **more})


def _read_alignment(path: Path, config: BiLMConfig) -> LayerAlignment:
    """Read the alignment and check its sizes."""
    from elmokit.engine.layer_selection import LayerAlignment

    n_layers, dim = config.n_layers + 1, config.output_dim
    arrays = _read_stored(path, {"matrices": (n_layers, dim, dim), "offsets": (n_layers, dim)})
    return LayerAlignment(*(arrays[name].copy() for name in ("matrices", "offsets")))


def _read_lexicon(path: Path, config: BiLMConfig) -> Lexicon:
    """Read a lexicon and check it against the model's tables."""
    from elmokit.text.lexicon import Lexicon

    with reading(path, "lexicon", FormatError):
        # It may be as large as a word list, and lists inside of lists would take twenty times its size.
        content = msgspec.json.decode(read_bounded(path, MAX_BYTES).removeprefix(codecs.BOM_UTF8), type=_LEXICON)
        lexicon = from_dict(Lexicon, content, str(path))
    words, cnn = config.word_features, config.char_cnn
    given = (len(lexicon.words or ()), len(lexicon.chars or ()), lexicon.max_chars)
    expected = (words.n_words if words else 0, cnn.n_chars if cnn else 0, cnn.max_chars if cnn else lexicon.max_chars)
    if given != expected:
        raise TensorMismatchError(
            f"{path} holds {given[0]} words and {given[1]} characters, tokens cut to {given[2]}; config.json says "
            f"{expected[0]}, {expected[1]} and {expected[2]}."
        )
    return lexicon


def _save_stored(arrays: Mapping[str, Floats], path: Path, storage: Storage) -> None:
    if storage == "int8":
        write_tensor_file(to_int8(arrays, _WARM), path)
        return
    dtype = np.float16 if storage == "float16" else np.float32
    with np.errstate(over="ignore"):  # the reader says which tensor has numbers that float16 cannot hold
        write_tensor_file({name: array.astype(dtype, copy=False) for name, array in arrays.items()}, path)


def _read_model(path: Path, config: BiLMConfig) -> tuple[FileArrays, State | None]:
    """Read the biLM's tensors, and its start state if there is one."""
    tensors = StoredTensors(TensorFile(path), str(path))
    shapes = {name: shape for name, shape in tensors.shapes.items() if not name.startswith(_WARM)}
    wanted = tensor_shapes(config)
    arrays = read_through(same_rows(wanted), wanted, shapes, tensors.read, str(path), tensors.integers)
    of_state = {name: shape for name, shape in tensors.shapes.items() if name not in shapes}
    if not of_state:
        return arrays, None
    wanted = {name: array.shape for name, array in State.zero(config, 1)._asdict().items()}
    state = read_through(same_rows(wanted, _WARM), wanted, of_state, tensors.read, str(path))
    return arrays, State(state["hidden"].copy(), state["cell"].copy())


def _read_stored(path: Path, wanted: Mapping[str, Shape]) -> FileArrays:
    """Read tensors of these shapes, of which the file must have all and no others."""
    tensors = StoredTensors(TensorFile(path), str(path))
    return read_through(same_rows(wanted), wanted, tensors.shapes, tensors.read, str(path))


FORMAT = ElmokitFolder()
