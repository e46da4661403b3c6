"""The elmokit format: a directory of JSON and safetensors files.

=======================  ==============================================================================
``config.json``          format, storage, precision if not float32, sizes and switches of the biLM, whether there is a
                         lexicon, model card
``model.safetensors``    the biLM's tensors, as ``storage`` says (int8: see ``int8_storage``); ``warm_state.hidden`` and
                         ``.cell`` if calibrated
``softmax.safetensors``  the softmax, if there is one (only training and perplexity need it)
``whitening.safetensors``  the whitening of sentence vectors, ``mean`` and ``projection``, if one was fitted
``alignment.safetensors``  the map into the space of another model, ``matrices`` and ``offsets``, if there is one
``vocab.txt``            the words of the softmax, one per line, if there are any
``lexicon.json``         if the model has word or character tables of its own: ``words`` and ``chars``, each null or
                         a list with the entry of each row (null: no token has this row); ``max_chars``; and
                         ``marks``, the entries that mean begin, end, padding and unknown
=======================  ==============================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from elmokit.bilm import BiLM, BiLMState
from elmokit.config import from_dict, read_json, to_dict
from elmokit.engine.config import BiLMConfig
from elmokit.engine.precision import Precision
from elmokit.errors import FormatError, ModelError, ModelNotFoundError, TensorMismatchError
from elmokit.io.atomic import atomic_write
from elmokit.nn.alignment import LayerAlignment
from elmokit.nn.sentence_pooling import SentencePooling, Whitening
from elmokit.nn.softmax_config import SoftmaxConfig, build_softmax, softmax_config
from elmokit.text.lexicon import Lexicon
from elmokit.text.vocabulary import MAX_BYTES, Vocabulary
from elmokit.weights.int8_storage import StoredTensors, to_int8
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.table import fill, same_rows
from elmokit.weights.words import row_vocabulary

FORMAT = "elmokit"
FORMAT_VERSION = 1
Storage = Literal["float32", "float16", "int8"]
"""How tensors are stored: as floating-point numbers, or as integers with a scale for each row."""
PARTS = (
    "config.json",
    "model.safetensors",
    "softmax.safetensors",
    "whitening.safetensors",
    "alignment.safetensors",
    "vocab.txt",
    "lexicon.json",
)
"""The files of an elmokit directory."""
_WARM = "warm_state."
_WHITENING, _ALIGNMENT = "whitening.safetensors", "alignment.safetensors"


def is_folder(path: Path) -> bool:
    """Check for an elmokit directory."""
    try:
        return bool(read_json(path / "config.json").get("format") == FORMAT)
    except ModelError:
        return False


def save_folder(model: PretrainedBiLM, path: str | Path, storage: Storage = "float32", overwrite: bool = False) -> None:
    """Save a model as an elmokit directory, atomically.

    Raises:
        OutputError: The directory exists and may not be overwritten, or cannot be written.
    """
    config = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "storage": storage,
        **({} if model.precision is None else {"precision": model.precision}),
        "bilm": to_dict(model.bilm.config),
        "lexicon": model.lexicon is not None,
        **({} if model.softmax is None else {"softmax": to_dict(softmax_config(model.softmax))}),
        **({} if model.whitening is None else {"sentence_pooling": to_dict(model.whitening.pooling)}),
        **({} if model.alignment is None else {"alignment": True}),
        "card": model.card,
    }
    tensors = dict(model.bilm.state_dict())
    if model.initial_state is not None:
        tensors |= {_WARM + name: part for name, part in model.initial_state._asdict().items()}
    with atomic_write(path, overwrite, folder=True) as folder:
        (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        _save_stored(tensors, folder / "model.safetensors", storage)
        if model.softmax is not None:
            _save_stored(model.softmax.state_dict(), folder / "softmax.safetensors", storage)
        if model.whitening is not None:
            parts = {"mean": model.whitening.mean, "projection": model.whitening.projection}
            # Always float32: a direction of small variance has a large factor, which float16 would round badly.
            save_tensors({name: torch.from_numpy(part) for name, part in parts.items()}, folder / _WHITENING)
        if model.alignment is not None:
            # float32, too: vectors of float16 matrices would drift from those of the model that was aligned.
            save_tensors(model.alignment.state_dict(), folder / _ALIGNMENT)
        if model.vocabulary is not None:
            (folder / "vocab.txt").write_text(model.vocabulary.to_text(), encoding="utf-8", newline="\n")
        if model.lexicon is not None:
            lexicon = json.dumps(to_dict(model.lexicon), indent=0, ensure_ascii=False)
            (folder / "lexicon.json").write_text(lexicon + "\n", encoding="utf-8", newline="\n")


def load_folder(path: str | Path) -> PretrainedBiLM:
    """Load a model from an elmokit directory.

    Raises:
        ModelNotFoundError: A file is missing.
        FormatError, TensorMismatchError, ConfigError: The directory is damaged or of another format.
    """
    folder = Path(path)
    content = _read_config(folder)
    storage = _choice(folder, content, "storage", get_args(Storage))
    precision = _choice(folder, content, "precision", get_args(Precision)) if "precision" in content else None
    config = from_dict(BiLMConfig, content.get("bilm"), f"{folder / 'config.json'}, bilm")
    with torch.device("meta"):
        bilm = BiLM(config, precision)
        warm = _Warm(bilm.zero_state(1))
    is_warm = _fill_from(folder / "model.safetensors", bilm, warm)
    lexicon = _read_lexicon(folder / "lexicon.json", config) if content.get("lexicon") else None
    vocabulary: Vocabulary | None = None
    if (words := folder / "vocab.txt").exists():
        # The word list of a published word-input model may lack <UNK>.
        n_words = config.n_words
        vocabulary = (
            Vocabulary.from_file(words) if n_words is None else row_vocabulary(words, n_words, f"the table of {folder}")
        )
    softmax = None
    if (folder / "softmax.safetensors").exists():
        if vocabulary is None:
            raise ModelNotFoundError(f"{folder} has a softmax but no vocab.txt that names its words.")
        # Directories written before there was a choice of softmax have a full one and do not name it.
        kind = from_dict(SoftmaxConfig, content.get("softmax", {}), f"{folder / 'config.json'}, softmax")
        with torch.device("meta"):
            softmax = build_softmax(kind, len(vocabulary), config.projection_dim, bilm.token_layer)
        _fill_from(folder / "softmax.safetensors", softmax)
    return PretrainedBiLM(
        bilm,
        family=FORMAT,
        source=folder,
        softmax=softmax,
        vocabulary=vocabulary,
        initial_state=BiLMState(warm.hidden, warm.cell) if is_warm else None,
        whitening=_read_whitening(folder, content, bilm.config),
        alignment=_read_alignment(folder / _ALIGNMENT, config) if content.get("alignment") else None,
        card=content["card"],
        lexicon=lexicon,
        storage=storage,
        precision=precision,
    )


def read_card(path: str | Path) -> dict[str, Any]:
    """Read the model card of an elmokit directory, without its tensors.

    Raises:
        ModelNotFoundError: There is no ``config.json``.
        FormatError: It is damaged or of another format.
    """
    card: dict[str, Any] = _read_config(Path(path))["card"]
    return card


def _read_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json``. Its "card" is a table, which is empty if the file has none."""
    path = folder / "config.json"
    content = read_json(path, f"{folder} has no config.json, so it is not an elmokit model.")
    known = {"format": FORMAT, "format_version": FORMAT_VERSION}
    if {name: content.get(name) for name in known} != known:
        raise FormatError(
            f"{path} does not say format {FORMAT!r}, version {FORMAT_VERSION}, which is what this elmokit reads. If a "
            "newer elmokit wrote it, upgrade."
        )
    card = content.get("card")
    if not isinstance(card, dict | None):
        raise FormatError(f"{path}: the card is not a table of named values. Remove it.")
    return content | {"card": card or {}}


def _choice(folder: Path, content: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> Any:
    """Return a setting of ``config.json`` that has few possible values, of which the first is the default."""
    value = content.get(name, choices[0])
    if value not in choices:
        raise FormatError(
            f"{folder / 'config.json'} says {name} {value!r}; expected one of {', '.join(choices)}. If a newer elmokit "
            "wrote it, upgrade."
        )
    return value


def _read_whitening(folder: Path, content: Mapping[str, Any], config: BiLMConfig) -> Whitening | None:
    """Read the whitening of sentence vectors, if there is one, and check its sizes."""
    path = folder / _WHITENING
    if "sentence_pooling" not in content:
        return None
    pooling = from_dict(SentencePooling, content["sentence_pooling"], f"{folder / 'config.json'}, sentence_pooling")
    with _opened(path) as tensors:
        shapes = {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118 (no dict)
        mean, projection = shapes.get("mean", ()), shapes.get("projection", ())
        dim = pooling.dim(config.n_layers + 1, config.output_dim)
        if mean != (dim,) or len(projection) != 2 or projection[0] != dim:
            raise TensorMismatchError(
                f"{path} has mean {mean} and projection {projection}; expected ({dim},) and ({dim}, n). Restore the "
                "file that belongs to the model, or fit a whitening again."
            )
        parts = [tensors.get_tensor(name).float().numpy() for name in ("mean", "projection")]
    return Whitening(pooling, *parts)


def _read_alignment(path: Path, config: BiLMConfig) -> LayerAlignment:
    """Read the alignment and check its sizes."""
    n_layers, dim = config.n_layers + 1, config.output_dim
    with torch.device("meta"):
        alignment = LayerAlignment(torch.empty(n_layers, dim, dim))
    _fill_from(path, alignment)
    return alignment


def _read_lexicon(path: Path, config: BiLMConfig) -> Lexicon:
    """Read a lexicon and check it against the model's tables."""
    missing = f"{path} is missing; without it, the words of the rows are unknown."
    content = read_json(path, missing, MAX_BYTES)  # it may be as large as a word list
    try:
        lexicon = from_dict(Lexicon, content, str(path))
    except FormatError as error:
        raise FormatError(f"{path} is not a readable lexicon: {error}") from None
    words, cnn = config.word_features, config.char_cnn
    given = (len(lexicon.words or ()), len(lexicon.chars or ()), lexicon.max_chars)
    expected = (words.n_words if words else 0, cnn.n_chars if cnn else 0, cnn.max_chars if cnn else lexicon.max_chars)
    if given != expected:
        raise TensorMismatchError(
            f"{path} holds {given[0]} words and {given[1]} characters, tokens cut to {given[2]}; config.json says "
            f"{expected[0]}, {expected[1]} and {expected[2]}. Restore the lexicon that belongs to the model."
        )
    return lexicon


def save_tensors(tensors: Mapping[str, Tensor], path: Path, dtype: torch.dtype | None = None) -> None:
    """Write a safetensors file, converted to a dtype if one is given.

    Raises:
        OSError: The file cannot be written.
    """
    path.touch()
    mode = path.stat().st_mode  # safetensors replaces the file with one that only its owner can read
    try:
        save_file({name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(mode)


def _save_stored(tensors: Mapping[str, Tensor], path: Path, storage: Storage) -> None:
    if storage == "int8":
        save_tensors(to_int8(tensors, _WARM), path)
    else:
        save_tensors(tensors, path, torch.float16 if storage == "float16" else torch.float32)


class _Warm(nn.Module):
    """The fixed initial state as a module, so that it is loaded and checked like any other tensor."""

    def __init__(self, state: BiLMState) -> None:
        super().__init__()
        self.register_buffer("hidden", state.hidden)
        self.register_buffer("cell", state.cell)
        self.hidden: Tensor
        self.cell: Tensor


def _fill_from(path: Path, module: nn.Module, warm: _Warm | None = None) -> bool:
    """Load a module from a safetensors file, and the initial state if the file has one. Return whether it has."""
    with _opened(path) as file:
        tensors = StoredTensors(file, str(path))
        shapes = dict(tensors.shapes)
        of_warm = {name: shapes.pop(name) for name in list(shapes) if warm is not None and name.startswith(_WARM)}
        fill(module, same_rows(module), shapes, tensors.read, str(path))
        if warm is not None and of_warm:
            fill(warm, same_rows(warm, _WARM), of_warm, tensors.read, str(path))
    return bool(of_warm)


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path} is missing.") from None
    except (SafetensorError, OSError) as error:
        raise FormatError(
            f"{path} is not a readable safetensors file ({error}). It may be truncated: copy it again."
        ) from None
