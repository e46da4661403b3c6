"""The layers of a frozen biLM, computed once for each distinct sentence and kept on disk.

A cache is a folder with one sub-folder per model and number type, named by a fingerprint of all that the layers depend
on. Inside, each shard is a folder that appears whole or not at all: ``layers.npy``, the vectors of its sentences one
after the other, ``(tokens, layers, dim)``, and ``keys.npy``, ``ends.npy``, which sentence stands where. Shards are only
ever added, so that processes can share a cache without locks: at worst two of them compute the same sentence.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from elmokit.embedder import Elmo
from elmokit.errors import FormatError
from elmokit.fingerprint import fingerprint
from elmokit.io.atomic import atomic_write, remove_abandoned
from elmokit.tasks.inputs import ElmoShape, mask_of, padded_layers
from elmokit.text.batching import check_sentence

KEY_BYTES = 16
SHARD_BYTES = 256 << 20  # how much a kill can cost
SHARDS_OPEN = 256  # mapped at a time: each holds a file open


class LayerCache:
    """The layers of sentences, from disk where they stand there.

    Args:
        folder: of the cache; many models may share it.
        elmo: computes what is missing. It starts sentences "warm" or "zero", so that layers depend on nothing else.
        dtype: on disk, and so of what is given; layers that were just computed are rounded to it too.
        shard_bytes: how much is computed before it is put on disk.
    """

    def __init__(
        self,
        folder: str | Path,
        elmo: Elmo,
        dtype: Literal["float16", "float32"] = "float16",
        shard_bytes: int = SHARD_BYTES,
    ) -> None:
        if elmo.start == "stateful":
            raise ValueError("Layers that depend on the sentences before cannot be cached; start 'warm' or 'zero'.")
        self.elmo, self.dtype, self.shard_bytes = elmo, np.dtype(dtype), shard_bytes
        self.folder = Path(folder) / f"{fingerprint(elmo.model, elmo.start)}-{dtype}"
        self._places: dict[bytes, tuple[str, int, int]] = {}  # key -> shard, first row, row after the last
        self._known: set[str] = set()
        self._open: dict[str, NDArray[Any]] = {}
        self._look()

    def __contains__(self, sentence: Sequence[str]) -> bool:
        return _key(sentence) in self._places

    def layers(self, sentences: Sequence[Sequence[str]]) -> list[NDArray[Any]]:
        """One array per sentence, ``(layers, tokens, dim)``; what is not on disk is computed, and not kept."""
        keys = [_key(sentence) for sentence in sentences]
        if not all(key in self._places for key in keys):
            self._look()
        missing = {key: sentence for key, sentence in zip(keys, sentences, strict=True) if key not in self._places}
        computed = dict(zip(missing, self.elmo.embed(list(missing.values())), strict=True)) if missing else {}
        return [computed[key].astype(self.dtype) if key in computed else self._stored(key) for key in keys]

    def batch(self, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """As ``layers``, padded: what a ``ScalarMix`` takes.

        Returns:
            layers: ``(layers, batch, time, dim)`` float32 on the CPU, layer 0 first, zero on padding.
            mask: ``(batch, time)`` bool, True on a token.
        """
        mask = mask_of(sentences)
        shape = ElmoShape(self.elmo.n_layers, self.elmo.output_dim)
        return padded_layers(self.layers(sentences), mask.shape[1], shape), mask

    def fill(
        self, sentences: Iterable[Sequence[str]], report: Callable[[int, int], None] = lambda done, total: None
    ) -> int:
        """Compute the layers of all sentences that are not on disk, and put them there, shard by shard.

        Killed and called again it goes on after the last shard, with the same numbers: what shares a shard does not
        depend on where it was interrupted.

        Args:
            report: called with the tokens done and to be done.

        Returns:
            tokens computed.

        Raises:
            OutputError: the disk is full, or the folder cannot be written.
        """
        remove_abandoned(self.folder)
        self._look()
        missing = {_key(sentence): sentence for sentence in sentences}
        missing = {key: sentence for key, sentence in missing.items() if key not in self._places}
        total = sum(map(len, missing.values()))
        done = 0
        for shard in self._shards(missing):
            fresh = {key: sentence for key, sentence in shard.items() if key not in self._places}
            for n_tokens in self._write(fresh) if fresh else ():
                done += n_tokens
                report(done, total)
            self._look()  # what another process has put there meanwhile
        return done

    def _shards(self, missing: dict[bytes, Sequence[str]]) -> Iterator[dict[bytes, Sequence[str]]]:
        token_bytes = self.elmo.n_layers * self.elmo.output_dim * self.dtype.itemsize
        shard: dict[bytes, Sequence[str]] = {}
        n_bytes = 0
        for key, sentence in missing.items():
            shard[key] = sentence
            n_bytes += token_bytes * len(sentence)
            if n_bytes >= self.shard_bytes:
                yield shard
                shard, n_bytes = {}, 0
        if shard:
            yield shard

    def _write(self, shard: dict[bytes, Sequence[str]]) -> Iterator[int]:
        """Put a shard on disk; yields the tokens of each sentence as it is done."""
        ends = np.cumsum([len(sentence) for sentence in shard.values()], dtype=np.int64)
        shape = (int(ends[-1]), self.elmo.n_layers, self.elmo.output_dim)
        with atomic_write(self.folder / f"shard-{uuid.uuid4().hex}", folder=True) as folder:
            header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": shape}
            with (folder / "layers.npy").open("wb") as file:  # no memory map: on a full disk that would crash
                np.lib.format.write_array_header_1_0(file, header)
                for layers in self.elmo.embed(iter(shard.values())):
                    file.write(np.ascontiguousarray(layers.swapaxes(0, 1).astype(self.dtype)).tobytes())
                    yield layers.shape[1]
            keys = np.frombuffer(b"".join(shard), dtype=np.uint8).reshape(-1, KEY_BYTES)
            np.save(folder / "keys.npy", keys)
            np.save(folder / "ends.npy", ends)

    def _look(self) -> None:
        """Take notice of shards that have come; where a sentence stands twice, the first shard by name counts."""
        for path in sorted(self.folder.glob("shard-*")):
            if path.name in self._known:
                continue
            try:
                keys = np.load(path / "keys.npy", allow_pickle=False)
                ends = np.load(path / "ends.npy", allow_pickle=False)
                if keys.shape != (len(ends), KEY_BYTES) or keys.dtype != np.uint8:
                    raise ValueError("the list of sentences does not fit")
            except (OSError, ValueError, EOFError) as error:
                raise self._damaged(path, error) from None
            start = 0
            for key, end in zip(keys, ends.tolist(), strict=True):
                self._places.setdefault(key.tobytes(), (path.name, start, end))
                start = end
            self._known.add(path.name)

    def _stored(self, key: bytes) -> NDArray[Any]:
        name, start, end = self._places[key]
        if name not in self._open:
            if len(self._open) >= SHARDS_OPEN:
                self._open.pop(next(iter(self._open)))
            path = self.folder / name
            try:
                self._open[name] = np.load(path / "layers.npy", mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                raise self._damaged(path, error) from None
            if self._open[name].shape[1:] != (self.elmo.n_layers, self.elmo.output_dim):
                raise self._damaged(path, ValueError("sizes of another model"))
        rows: NDArray[Any] = self._open[name][start:end]
        return rows.swapaxes(0, 1)

    @staticmethod
    def _damaged(path: Path, error: Exception) -> FormatError:
        return FormatError(f"{path} is damaged ({error}). Remove it; its sentences will be computed again.")


def _key(sentence: Sequence[str]) -> bytes:
    """Of the tokens; no two lists of tokens share one, whatever characters they hold."""
    content = json.dumps(list(check_sentence(sentence))).encode("ascii")
    return hashlib.blake2b(content, digest_size=KEY_BYTES).digest()
