"""AllenNLP's ``from_params``: create an object from a table of a config."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from elmokit.compat.allennlp_layers import ConfigurationError


class Params(dict[str, Any]):
    """A table of a config, in place of AllenNLP's ``Params``: a dict whose argument has the old name."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__(params)


class FromParams:
    """Gives a class the method ``from_params``."""

    registered_name: ClassVar[str] = ""
    """The ``type`` that selects the class in AllenNLP's configs."""

    @classmethod
    def from_params(cls, params: Mapping[str, Any], vocab: Any = None) -> Self:
        """Create an object from a table of a config.

        Args:
            params: The constructor's arguments by their names: a dict or AllenNLP's ``Params``, which is not changed.
                A ``type`` must be the registered name.
            vocab: AllenNLP's ``Vocabulary``. Only needed for ``namespace_to_cache`` of 0.9, whose words become
                ``vocab_to_cache``.

        Raises:
            ConfigurationError: The constructor has no argument of a name, ``type`` is another class, or ``vocab`` is
                missing.
        """
        arguments = {name: dict(value) if isinstance(value, Mapping) else value for name, value in params.items()}
        if (kind := arguments.pop("type", cls.registered_name)) != cls.registered_name:
            raise ConfigurationError(f"type is {kind!r}; {cls.__name__} is registered as {cls.registered_name!r}.")
        if (namespace := arguments.pop("namespace_to_cache", None)) is not None:
            if vocab is None:
                raise ConfigurationError("namespace_to_cache needs the words of a vocabulary. Pass vocab too.")
            arguments["vocab_to_cache"] = list(vocab.get_token_to_index_vocabulary(namespace))
        if unknown := arguments.keys() - inspect.signature(cls).parameters:
            raise ConfigurationError(f"{cls.__name__} has no parameters named {', '.join(sorted(unknown))}.")
        return cls(**arguments)
