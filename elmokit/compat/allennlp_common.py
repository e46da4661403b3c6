"""The parts of ``allennlp.common`` that ELMo uses: its error, objects from configs (``from_params``), and files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from torch import nn

from elmokit.config import check_choice
from elmokit.errors import ConfigError, ModelNotFoundError
from elmokit.formats.fetch import local_path, normalize_url
from elmokit.formats.open import open_model
from elmokit.network.tensors import parse_device
from elmokit.pretrained.model import PretrainedBiLM

ConfigurationError = ConfigError  # AllenNLP's name

Source = str | Path | None
Module = TypeVar("Module", bound=nn.Module)


def open_files(options_file: Source, weight_file: Source) -> PretrainedBiLM:
    """Open a model from AllenNLP's two arguments; the weights may be any model that elmokit opens."""
    # Tutorials use an empty string as a placeholder for the reader's file.
    if weight_file in (None, "") or options_file == "":
        missing = "options_file" if weight_file else "weight_file"
        raise ConfigurationError(
            f"{missing} is empty. Pass the two files of a model, or options_file=None and a model as weight_file."
        )
    return open_model(weight_file, options=options_file, exact_marks=True)


def on_cuda_device(module: Module, number: int) -> Module:
    """Move a module to the CUDA device with this number; -1 means the CPU."""
    return module if number < 0 else module.to(parse_device(f"cuda:{number}"))


class Params(dict[str, Any]):
    """Replaces AllenNLP's ``Params``, a section of a config: a dict whose argument has the old name."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)


class FromParams:
    """Adds the method ``from_params`` to a class."""

    registered_name: ClassVar[str] = ""
    """The ``type`` that selects the class in AllenNLP's configs."""

    @classmethod
    def from_params(cls, params: Any, vocab: Any = None) -> Self:
        """Create an object from a section of a config.

        Args:
            params: The constructor's arguments by name: a dict or AllenNLP's ``Params``, which is not modified. A
                ``type`` must be the registered name.
            vocab: AllenNLP's ``Vocabulary``. Only required for ``namespace_to_cache`` in 0.9, whose words become
                ``vocab_to_cache``.

        Raises:
            ConfigurationError: ``type`` names a different class.
        """
        if isinstance(vocab, Mapping):  # the argument order of 0.9: (vocab, params)
            params, vocab = vocab, params
        arguments = {name: dict(value) if isinstance(value, Mapping) else value for name, value in params.items()}
        check_choice("type", arguments.pop("type", cls.registered_name), [cls.registered_name])
        if (namespace := arguments.pop("namespace_to_cache", None)) is not None:
            arguments["vocab_to_cache"] = list(vocab.get_token_to_index_vocabulary(namespace))
        return cls(**arguments)


def cached_path(
    url_or_filename: str | Path,
    cache_dir: str | Path | None = None,
    extract_archive: bool = False,
    force_extract: bool = False,
) -> str:
    """Return the local path of a file, downloading it first if it is given as a URL.

    Args:
        url_or_filename: A path, or an http, https or file URL.
        cache_dir: Ignored; downloads are stored in elmokit's cache (``ELMOKIT_CACHE``).
        extract_archive, force_extract: Must be False; elmokit opens model archives without unpacking them.

    Raises:
        ModelNotFoundError: The file does not exist or cannot be downloaded.
        ConfigurationError: Unpacking is requested.
    """
    if extract_archive or force_extract:
        raise ConfigurationError(f"cached_path cannot unpack {url_or_filename}. Model archives can be opened directly.")
    path = local_path(normalize_url(url_or_filename))
    if not path.exists():
        raise ModelNotFoundError(f"There is no file {path}.")
    return str(path)
