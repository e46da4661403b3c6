"""What AllenNLP's ``elmo`` command is made of, for programs that keep a copy of it, or of its ``ElmoEmbedder``.

AllenNLP 1.0 removed ``allennlp.commands.elmo``, so that many programs have the file of 0.9 among their own.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TextIO, TypeVar

from torch import Tensor
from tqdm import tqdm

from elmokit.network.devices import parse_device
from elmokit.text.batching import read_ahead

Item = TypeVar("Item")
SLOW_INTERVAL = 10.0  # seconds between two lines of a progress bar in a log file


class Subcommand:
    """A command of ``allennlp``; subclasses add its options to a parser."""

    name: ClassVar[str] = ""

    @classmethod
    def register(cls, name: str, constructor: str | None = None, exist_ok: bool = False) -> Callable[[type], type]:
        """Return a decorator that gives a command its name (1.0)."""

        def named(command: type) -> type:
            command.name = name  # type: ignore[attr-defined]
            return command

        return named

    def add_subparser(self, *arguments: Any) -> argparse.ArgumentParser:
        """Add the command to a parser: ``(name, parser)`` in 0.x, ``(parser)`` in 1.0."""
        raise NotImplementedError


class Tqdm:
    """A progress bar of the package ``tqdm``."""

    default_mininterval: ClassVar[float] = 0.1

    @staticmethod
    def set_default_mininterval(value: float) -> None:
        """Set the seconds between two updates."""
        Tqdm.default_mininterval = value

    @staticmethod
    def set_slower_interval(use_slower_interval: bool) -> None:
        """Update rarely, for log files."""
        Tqdm.default_mininterval = SLOW_INTERVAL if use_slower_interval else 0.1

    @staticmethod
    def tqdm(*arguments: Any, **settings: Any) -> Any:
        """Return a progress bar over the first argument."""
        return tqdm(*arguments, **{"mininterval": Tqdm.default_mininterval, **settings})


def lazy_groups_of(iterator: Iterable[Item], group_size: int) -> Iterator[list[Item]]:
    """Yield lists of so many items, and one of the rest."""
    return read_ahead(iterator, max_items=group_size)


def pad_sequence_to_length(
    sequence: Sequence[Any],
    desired_length: int,
    default_value: Callable[[], Any] = lambda: 0,
    padding_on_right: bool = True,
) -> list[Any]:
    """Return a list of this length: the sequence, cut or padded on one side."""
    padding = [default_value() for _ in range(desired_length - len(sequence))]
    if padding_on_right:
        return [*itertools.islice(sequence, desired_length), *padding]
    return [*padding, *itertools.islice(sequence, max(0, len(sequence) - desired_length), None)]


class _Tee:
    """A stream whose text goes to a file, too."""

    def __init__(self, path: Path, stream: TextIO, separate_lines: bool) -> None:
        self.stream = stream
        self._file = path.open("a", encoding="utf-8")
        self._separate_lines = separate_lines

    def write(self, text: str) -> int:
        self._file.write(text.replace("\r", "\n") if self._separate_lines else text)
        self._file.flush()
        return self.stream.write(text)

    def close_file(self) -> TextIO:
        self._file.close()
        return self.stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def prepare_global_logging(serialization_dir: str | Path, file_friendly_logging: bool = False) -> logging.FileHandler:
    """Write what is printed to ``stdout.log`` and ``stderr.log`` in a directory, too, and log records to the first.

    Args:
        serialization_dir: The directory, which exists.
        file_friendly_logging: Update progress bars rarely and on separate lines; always if there is no terminal.
    """
    separate_lines = file_friendly_logging or not sys.stdout.isatty()
    Tqdm.set_slower_interval(separate_lines)
    folder = Path(serialization_dir)
    sys.stdout = _Tee(folder / "stdout.log", sys.stdout, separate_lines)
    sys.stderr = _Tee(folder / "stderr.log", sys.stderr, separate_lines)
    handler = logging.FileHandler(folder / "stdout.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s - %(levelname)s - %(name)s - %(message)s"))
    logging.getLogger().addHandler(handler)
    return handler


def cleanup_global_logging(stdout_handler: logging.FileHandler) -> None:
    """Undo ``prepare_global_logging``."""
    stdout_handler.close()
    logging.getLogger().removeHandler(stdout_handler)
    for name in ("stdout", "stderr"):
        if isinstance(stream := getattr(sys, name), _Tee):
            setattr(sys, name, stream.close_file())


def check_for_gpu(device_id: int | Sequence[int] | None) -> None:
    """Check that CUDA devices with these numbers exist; -1 is the CPU.

    Raises:
        ConfigurationError: One does not.
    """
    for number in [device_id] if isinstance(device_id, int) else device_id or ():
        if int(number) >= 0:
            parse_device(f"cuda:{number}")


def get_device_of(tensor: Tensor) -> int:
    """Return the number of a tensor's CUDA device; -1 for the CPU."""
    return tensor.get_device() if tensor.is_cuda else -1


def get_lengths_from_binary_sequence_mask(mask: Tensor) -> Tensor:
    """Return the number of real positions of each row of a mask."""
    return mask.long().sum(-1)
