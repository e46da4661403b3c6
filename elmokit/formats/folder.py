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
``letters.safetensors``    the model of the letters of unknown words, if there is one (``LetterModel``)
``alignment.safetensors``  the map into the space of another model, ``matrices`` and ``offsets``, if there is one
``vocab.txt``            the words of the softmax, one per line, if there are any
``lexicon.json``         if the model has word or character tables of its own: ``words`` and ``chars``, each null or
                         a list with the entry of each row (null: no token has this row); ``max_chars``; and
                         ``marks``, the entries that mean begin, end, padding and unknown
=======================  ==============================================================================
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import msgspec
import numpy as np

from elmokit.config import check_choice, encode_json, from_dict, read_json, to_dict
from elmokit.engine.architecture import BiLMConfig, Shape, tensor_shapes
from elmokit.engine.precision import Precision
from elmokit.engine.softmax import SoftmaxConfig, WordSoftmax
from elmokit.engine.state import Floats, State
from elmokit.errors import (
    FormatError,
    ModelError,
    ModelNotFoundError,
    OutputError,
    TensorMismatchError,
    reading,
    warn_caller,
)
from elmokit.formats.format import Format, Storage
from elmokit.formats.tensor_rows import FileArrays, read_through, same_rows
from elmokit.pretrained.model import PretrainedBiLM, Weights, read_row_words
from elmokit.pretrained.sentence_pooling import SentenceHead, SentencePooling, Whitening
from elmokit.storage.tensor_file import StoredTensors, to_int8, write_tensor_file
from elmokit.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from elmokit.engine.layer_selection import LayerAlignment
    from elmokit.pretrained.letter_model import LetterModel
    from elmokit.text.lexicon import Lexicon

# Modules for writing, and for parts that most models do not have, are imported where they are used, so opening a model
# is fast.
NAME = "elmokit"
FORMAT_VERSION = 1
DEFAULT_MODEL = "en-mini"
"""The small English model included in the package."""
RUN_MODEL = "model"
"""The subdirectory of a training run with its best model."""
_WARM = "warm_state."
_LEXICON = dict[str, list[str | None] | dict[str, str] | int | None]
"""The types in ``lexicon.json``."""
_WHITENING, _HEAD, _ALIGNMENT = "whitening.safetensors", "sentence_head.safetensors", "alignment.safetensors"
_LETTERS = "letters.safetensors"


def included_model() -> Path:
    """Return the directory of the included model."""
    return Path(__file__).parents[1] / "models" / DEFAULT_MODEL


class ElmokitFolder(Format):
    """A directory written by ``save_model``, or a training run that has its best model in such a directory."""

    name = NAME
    description = "an elmokit directory"
    reads_options = False
    files = (
        "config.json",
        "model.safetensors",
        "softmax.safetensors",
        _WHITENING,
        _HEAD,
        _LETTERS,
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

        stored = folder / "vocab.txt"
        if model.softmax is None and stored.exists():
            words = given_or_found(words, stored)
        return with_words(model, words)

    def guess(self, folder: Path) -> str | None:
        if not (folder / "journal.json").is_file():
            return None
        steps = sorted(folder.glob("checkpoints/step-*/model"))
        if not steps:
            return None
        return f"a training run that has not saved a model yet; its newest checkpoint is {steps[-1]}"

    def check_target(self, path: Path, overwrite: bool) -> None:
        from elmokit.storage.atomic import check_output_path

        check_output_path(path, overwrite, folder=True, parts=self.files)
        if path.is_dir() and any(path.iterdir()) and not is_model_folder(path):
            # Directories of other programs can have files with the same names, such as config.json and vocab.txt.
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


class ModelPart(NamedTuple):
    """The tensors of a model in one file of its directory."""

    file: str
    tensors: Mapping[str, Floats]
    has_storage: bool = True
    """Whether they have the storage of the directory; otherwise, they are float32."""


def model_parts(model: PretrainedBiLM) -> Iterator[ModelPart]:
    """Yield the files of a model's tensors."""
    tensors = dict(model.arrays)
    if model.start_state is not None:
        for name, array in model.start_state._asdict().items():
            tensors[_WARM + name] = array
    yield ModelPart("model.safetensors", tensors)
    if model.softmax is not None:
        yield ModelPart("softmax.safetensors", model.softmax.arrays)
    if model.letters is not None:
        yield ModelPart(_LETTERS, model.letters.tensors())
    # The maps are always float32: float16 would round the large factors of directions with small variance badly, and
    # rounded matrices would move vectors away from those of the aligned model.
    if model.whitening is not None:
        yield ModelPart(_WHITENING, model.whitening.tensors(), False)
    if model.sentence_head is not None:
        yield ModelPart(_HEAD, model.sentence_head.tensors(), False)
    if model.alignment is not None:
        yield ModelPart(_ALIGNMENT, vars(model.alignment), False)


def save_folder(model: PretrainedBiLM, path: str | Path, storage: Storage = "float32", overwrite: bool = False) -> None:
    """Save a model as an elmokit directory, atomically."""
    from elmokit.storage.atomic import atomic_write

    with atomic_write(path, overwrite, folder=True) as folder:
        (folder / "config.json").write_text(encode_json(_content(model, storage)), encoding="utf-8")
        for part in model_parts(model):
            _save_tensors(part.tensors, folder / part.file, storage if part.has_storage else "float32")
        if model.vocabulary is not None:
            (folder / "vocab.txt").write_text(model.vocabulary.to_text(), encoding="utf-8", newline="\n")
        if model.lexicon is not None:
            lexicon = encode_json(to_dict(model.lexicon), indent=0)
            (folder / "lexicon.json").write_text(lexicon, encoding="utf-8", newline="\n")


def _content(model: PretrainedBiLM, storage: Storage) -> dict[str, Any]:
    """Return the content of ``config.json``."""
    content: dict[str, Any] = {"format": NAME, "format_version": FORMAT_VERSION, "storage": storage}
    if model.precision is not None:
        content["precision"] = model.precision
    content["bilm"] = to_dict(model.config)
    content["lexicon"] = model.lexicon is not None
    if model.exact_marks:
        content["exact_marks"] = True
    if model.softmax is not None:
        content["softmax"] = to_dict(model.softmax.config)
    if model.whitening is not None:
        content["sentence_pooling"] = to_dict(model.whitening.pooling)
    if model.sentence_head is not None:
        content["sentence_head"] = to_dict(model.sentence_head.pooling)
    if model.letters is not None:
        content["letters"] = True
    if model.alignment is not None:
        content["alignment"] = True
    content["card"] = model.card
    return content


def load_folder(path: str | Path) -> PretrainedBiLM:
    """Load a model from an elmokit directory."""
    folder = Path(path)
    content = _read_config(folder)
    storage = _choice(folder, content, "storage", get_args(Storage))
    precision = None
    if "precision" in content:
        precision = _choice(folder, content, "precision", get_args(Precision))
    config = _read_sizes(folder, content.get("bilm"))
    arrays, start_state = _read_model(folder / "model.safetensors", config)
    lexicon = None
    if content.get("lexicon"):
        lexicon = _read_lexicon(folder / "lexicon.json", config)
    vocabulary = _read_vocabulary(folder, config, lexicon)
    softmax = _read_softmax(folder, content.get("softmax"), vocabulary, config, arrays)
    letters = None
    if content.get("letters"):
        letters = _read_letters(folder / _LETTERS)
    alignment = None
    if content.get("alignment"):
        alignment = _read_alignment(folder / _ALIGNMENT, config)
    return PretrainedBiLM(
        Weights(config, arrays),
        family=NAME,
        source=folder,
        softmax=softmax,
        vocabulary=vocabulary,
        start_state=start_state,
        whitening=_read_whitening(folder, content, config),
        sentence_head=_read_head(folder, content, config, vocabulary),
        letters=letters,
        alignment=alignment,
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
    if content.get("format") != NAME or content.get("format_version") != FORMAT_VERSION:
        raise FormatError(
            f"{path} is not in format {NAME!r}, version {FORMAT_VERSION}, which this version of elmokit reads. If a "
            "newer version wrote it, upgrade."
        )
    if not isinstance(content.get("card"), dict):
        content["card"] = {}
    return content


def _read_sizes(folder: Path, table: Any) -> BiLMConfig:
    """Read the sizes and switches of the biLM."""
    path = folder / "config.json"
    if isinstance(table, dict) and table.get("backward_only"):
        raise FormatError(
            f"{path} describes a backward-only model (train --backward-only of version 0.2). Only version 0.2 can open "
            "it: without the key backward_only, it would read forward, and its vectors would be wrong."
        )
    return from_dict(BiLMConfig, _without(table, "backward_only"), f"{path}, bilm")


def _read_vocabulary(folder: Path, config: BiLMConfig, lexicon: Lexicon | None) -> Vocabulary | None:
    """Read the words of the model's table or softmax; None if there are none."""
    path = folder / "vocab.txt"
    if not path.exists():
        return None
    return read_row_words(path, config, lexicon, f"the table of {folder}") or Vocabulary.from_file(path)


def _read_softmax(
    folder: Path, table: Any, vocabulary: Vocabulary | None, config: BiLMConfig, arrays: FileArrays
) -> WordSoftmax | None:
    """Read the softmax; None if there is none, or if its kind is no longer supported."""
    # Vectors do not need the missing part.
    if isinstance(table, dict) and table.get("kind") == "adaptive":
        warn_caller(
            f"{folder} has the adaptive softmax of version 0.2, which is ignored: the model gives vectors but cannot "
            "predict words. elmokit finetune trains a new softmax.",
        )
        return None
    if not (folder / "softmax.safetensors").exists():
        if table is not None:
            # It may have been removed to save space.
            warn_caller(
                f"{folder} has no softmax.safetensors, although its config.json describes it, so it gives vectors but "
                "cannot predict words. Copy that file, too; or, if it was removed on purpose, remove softmax from "
                "config.json.",
            )
        return None
    if vocabulary is None:
        raise ModelNotFoundError(f"{folder / 'vocab.txt'} is missing, which has the words of the softmax in {folder}.")
    sizes = from_dict(SoftmaxConfig, _without(table, "cutoffs", "shrink"), f"{folder / 'config.json'}, softmax")
    sizes.check_sizes(len(vocabulary), config.projection_dim, config.n_table_words)
    shapes = sizes.tensor_shapes(len(vocabulary), config.projection_dim)
    own_arrays = _read_stored(folder / "softmax.safetensors", shapes)
    word_table = None
    if sizes.kind == "tied" and config.word_table is not None:
        word_table = (arrays, config.word_table)
    return WordSoftmax(sizes, own_arrays, len(vocabulary), word_table)


def _without(table: Any, *former: str) -> Any:
    """Drop settings of version 0.2 that have no effect on this model."""
    if not isinstance(table, dict):
        return table
    return {name: value for name, value in table.items() if name not in former}


def _choice(folder: Path, content: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> Any:
    """Return a setting of ``config.json`` with a fixed set of values."""
    return check_choice(f"{folder / 'config.json'}: {name}", content.get(name), choices)


def _read_whitening(folder: Path, content: Mapping[str, Any], config: BiLMConfig) -> Whitening | None:
    """Read the whitening of sentence vectors, if any."""
    if "sentence_pooling" not in content:
        return None
    pooling = _read_pooling(folder, content, "sentence_pooling")
    tensors = StoredTensors(folder / _WHITENING)
    dim = pooling.dim(config.n_layers + 1, config.output_dim)
    return Whitening(pooling, **_read_all(tensors, _map_shapes(dim, tensors)))


def _read_head(
    folder: Path, content: Mapping[str, Any], config: BiLMConfig, vocabulary: Vocabulary | None
) -> SentenceHead | None:
    """Read the trained map of sentence vectors, if any."""
    if "sentence_head" not in content:
        return None
    pooling = _read_pooling(folder, content, "sentence_head")
    tensors = StoredTensors(folder / _HEAD)
    dim = pooling.dim(config.n_layers + 1, config.output_dim)
    words = config.word_features
    if words is not None and tensors.shapes.get("projection", ())[:1] == (dim + words.word_dim,):
        dim += words.word_dim  # it also reads the word table
    n_words = 0 if vocabulary is None else len(vocabulary)
    return SentenceHead(pooling, **_read_all(tensors, _map_shapes(dim, tensors) | {"word_weights": (n_words,)}))


def _read_pooling(folder: Path, content: Mapping[str, Any], key: str) -> SentencePooling:
    return from_dict(SentencePooling, content[key], f"{folder / 'config.json'}, {key}")


def _map_shapes(dim: int, tensors: StoredTensors) -> dict[str, Shape]:
    """Return the shapes of a map for vectors of this size. It can have any number of components."""
    in_file = tensors.shapes.get("projection", ())
    n_components = in_file[-1] if in_file else 0
    return {"mean": (dim,), "projection": (dim, n_components)}


def _read_letters(path: Path) -> LetterModel:
    """Read the letter model for unknown words, and check its sizes."""
    from elmokit.pretrained.letter_model import LetterModel, letter_shapes

    tensors = StoredTensors(path)
    shapes = letter_shapes(tensors.shapes)
    arrays = _read_all(tensors, shapes)
    return LetterModel(**{name: arrays[name].copy() for name in shapes})


def _read_alignment(path: Path, config: BiLMConfig) -> LayerAlignment:
    """Read the alignment and check its sizes."""
    from elmokit.engine.layer_selection import LayerAlignment

    n_layers, dim = config.n_layers + 1, config.output_dim
    arrays = _read_stored(path, {"matrices": (n_layers, dim, dim), "offsets": (n_layers, dim)})
    return LayerAlignment(arrays["matrices"].copy(), arrays["offsets"].copy())


def _read_lexicon(path: Path, config: BiLMConfig) -> Lexicon:
    """Read a lexicon and check it against the model's tables."""
    from elmokit.text.lexicon import Lexicon

    with reading(path, "lexicon", FormatError):
        # Lists inside of lists would take twenty times its size.
        content = msgspec.json.decode(path.read_bytes().removeprefix(codecs.BOM_UTF8), type=_LEXICON)
        lexicon = from_dict(Lexicon, content, str(path))
    words, cnn = config.word_features, config.char_cnn
    n_words = 0 if words is None else words.n_words
    n_chars, max_chars = (0, lexicon.max_chars) if cnn is None else (cnn.n_chars, cnn.max_chars)
    given = (len(lexicon.words or ()), len(lexicon.chars or ()), lexicon.max_chars)
    if given != (n_words, n_chars, max_chars):
        raise TensorMismatchError(
            f"{path} holds {given[0]} words, {given[1]} characters and max_chars {given[2]}; config.json says "
            f"{n_words}, {n_chars} and {max_chars}."
        )
    return lexicon


def _save_tensors(arrays: Mapping[str, Floats], path: Path, storage: Storage) -> None:
    if storage == "int8":
        write_tensor_file(to_int8(arrays, _WARM), path)
        return
    dtype = np.float16 if storage == "float16" else np.float32
    with np.errstate(over="ignore"):  # the reader reports tensors with numbers that float16 cannot hold
        converted = {name: array.astype(dtype, copy=False) for name, array in arrays.items()}
    write_tensor_file(converted, path)


def _read_model(path: Path, config: BiLMConfig) -> tuple[FileArrays, State | None]:
    """Read the biLM's tensors, and its start state, if any."""
    tensors = StoredTensors(path)
    own_shapes: dict[str, Shape] = {}
    state_shapes: dict[str, Shape] = {}
    for name, shape in tensors.shapes.items():
        shapes = state_shapes if name.startswith(_WARM) else own_shapes
        shapes[name] = shape
    wanted = tensor_shapes(config)
    arrays = read_through(same_rows(wanted), wanted, own_shapes, tensors.read, str(path), tensors.integers)
    if not state_shapes:
        return arrays, None
    wanted = {name: array.shape for name, array in State.zero(config, 1)._asdict().items()}
    state = read_through(same_rows(wanted, _WARM), wanted, state_shapes, tensors.read, str(path))
    return arrays, State(state["hidden"].copy(), state["cell"].copy())


def _read_stored(path: Path, wanted: Mapping[str, Shape]) -> FileArrays:
    """Read tensors of these shapes; the file must have exactly these."""
    return _read_all(StoredTensors(path), wanted)


def _read_all(tensors: StoredTensors, wanted: Mapping[str, Shape]) -> FileArrays:
    """Read tensors of these shapes, which must be all tensors in the file."""
    return read_through(same_rows(wanted), wanted, tensors.shapes, tensors.read, str(tensors.path))


FORMAT = ElmokitFolder()
