"""The layers of a frozen biLM, computed once per distinct sentence and stored on disk.

A cache is a directory with one :class:`~elmokit.storage.workspace.Workspace` per number format, model and computation
(precision, instruction set, device), named by a hash of everything that the layers depend on. A workspace has three
growing files: ``layers``, the vectors of all sentences, ``(tokens, layers, dim)``; ``keys``, a hash of each sentence's
tokens; and ``ends``, the row after each sentence's last row. Any number of processes can read the committed part while
one of them appends.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from elmokit.config import check_choice
from elmokit.embedding.elmo import Elmo
from elmokit.embedding.fingerprint import vector_settings
from elmokit.embedding.outputs.output_format import as_stored, stored_dtype
from elmokit.errors import OutputError
from elmokit.storage.progress import ProgressCallback, StageCounter
from elmokit.storage.workspace import Committed, OtherVersionError, Workspace, read_workspace
from elmokit.tasks.inputs import ElmoLayers, ElmoShape, Sentences, Texts, mask_of, pad_layers
from elmokit.text.batching import READ_AHEAD_BATCHES, check_sentence, read_ahead

KEY_BYTES = 16
BATCH_TOKENS = 2048
# The number of tokens that Elmo.embed reads ahead: the batches, and so the numbers, are then the same as if it got all
# sentences in one call.
CHUNK_TOKENS = READ_AHEAD_BATCHES * BATCH_TOKENS


class LayerCache(ElmoLayers):
    """A cache on disk for the layers of sentences.

    Args:
        folder: The directory of the cache. Several models can share it.
        elmo: Computes missing layers. It must start sentences "warm" or "zero", because a sentence's layers must not
            depend on other sentences.
        dtype: The number format on disk. Layers that are computed but not stored are rounded to it, too.

    Example:
        >>> cache = LayerCache("layers", Elmo.from_pretrained())
        >>> cache.fill(sentences)  # once
        >>> layers, mask = cache.batch(sentences[:32])  # in every epoch
    """

    def __init__(self, folder: str | Path, elmo: Elmo, dtype: Literal["float16", "float32"] = "float16") -> None:
        super().__init__(ElmoShape.of(elmo))
        check_choice("start", elmo.start, ("warm", "zero"))  # with others, sentences depend on each other
        self.elmo = elmo
        self.dtype = np.dtype(stored_dtype(dtype))
        self._settings = vector_settings(elmo.computer, elmo.start)
        digest = hashlib.blake2b(json.dumps(self._settings).encode("ascii"), digest_size=16).hexdigest()
        self.folder = Path(folder) / f"{self.dtype}-{digest}"
        self._rows: dict[bytes, tuple[int, int]] = {}  # each sentence's first row, and the row after its last
        self._layers = np.zeros((0, 0), self.dtype)
        self._read_committed()

    def __contains__(self, sentence: Sequence[str]) -> bool:
        return _key(sentence) in self._rows

    def layers(self, sentences: Sentences) -> list[NDArray[Any]]:
        """Return one array per sentence, ``(layers, tokens, dim)``. Missing layers are computed, but not stored."""
        keys = [_key(sentence) for sentence in sentences]
        if not self._rows.keys() >= set(keys):
            self._read_committed()
        missing = self._missing(sentences)
        computed: dict[bytes, NDArray[Any]] = {}
        if missing:
            vectors = self.elmo.embed(list(missing.values()))
            for key, layers in zip(missing, vectors, strict=True):
                computed[key] = self._rounded(layers)
        results = []
        for key in keys:
            if key in computed:
                results.append(computed[key])
            else:
                results.append(self._stored(key))
        return results

    def _missing(self, sentences: Iterable[Sequence[str]]) -> dict[bytes, Sequence[str]]:
        """Return the distinct sentences that are not stored, by key."""
        missing: dict[bytes, Sequence[str]] = {}
        for sentence in sentences:
            key = _key(sentence)
            if key not in self._rows:
                missing[key] = sentence
        return missing

    def of_texts(self, texts: Texts) -> list[list[NDArray[Any]]]:
        return [self.layers(sentences) for sentences in texts]

    def _rounded(self, layers: NDArray[Any]) -> NDArray[Any]:
        advice = 'Choose float32 (dtype="float32"; for a task, elmo.cache_dtype, and restart the run with --overwrite).'
        return as_stored(layers, self.dtype, advice)

    def batch(self, sentences: Sentences) -> tuple[Tensor, Tensor]:
        """Return the padded layers of sentences, as input for a ``ScalarMix``.

        Returns:
            layers: ``(layers, batch, time, dim)`` float32 on the CPU, layer 0 first, zero on padding.
            mask: ``(batch, time)`` bool, True on a token.
        """
        mask = mask_of(sentences)
        return pad_layers(self.layers(sentences), mask.shape[1], self.shape), mask

    def fill(self, sentences: Iterable[Sequence[str]], progress: ProgressCallback | None = None) -> int:
        """Compute and store the layers of all missing sentences.

        After an interruption, the next call continues from the last commit and gives the same numbers. If another
        process is filling the cache of the same model, the call waits for it.

        Args:
            sentences: The sentences; repeated ones are computed once.
            progress: Called with the stage ``"layers"`` and the number of tokens.

        Returns:
            The number of tokens computed.

        Raises:
            OutputError: The disk is full, or the directory cannot be written.
        """
        self._read_committed()
        missing = self._missing(sentences)
        if not missing:
            return 0
        sizes = {"dtype": str(self.dtype), "n_layers": self.shape.n_layers, "dim": self.shape.dim}
        with Workspace(self.folder, self._settings | sizes, wait=True) as store:
            self._read_committed(store.committed)  # another process may have added sentences in the meantime
            missing = self._missing(missing.values())
            count = StageCounter(progress, "layers", sum(map(len, missing.values())))
            n_sentences = len(self._rows)
            end = len(self._layers)
            for chunk in read_ahead(missing.values(), max_tokens=CHUNK_TOKENS):
                vectors = self.elmo.embed(iter(chunk), batch_tokens=BATCH_TOKENS)
                for sentence, layers in zip(chunk, vectors, strict=True):
                    # (layers, tokens, dim) becomes (tokens, layers, dim), so that a sentence's rows are consecutive in
                    # the file.
                    end += len(sentence)
                    store.append("layers", self._rounded(layers.swapaxes(0, 1)))
                    store.append("ends", np.array([end], np.int64))
                    store.append("keys", _key(sentence))
                    count(len(sentence))
                n_sentences += len(chunk)
                # Commits are between chunks, so a resumed call has the same batches, and so the same numbers to the
                # last bit, as an uninterrupted one.
                if store.commit_is_due():
                    store.commit({"n_sentences": n_sentences})
            # A second commit of the same sentences must not happen: if it were interrupted, nothing would be missing,
            # so no later call would open the store and clean up.
            if store.progress.get("n_sentences", 0) != n_sentences:
                store.commit({"n_sentences": n_sentences})
            self._read_committed(store.committed)
        return count.done

    def _read_committed(self, contents: Committed | None = None) -> None:
        """Update the list of stored sentences if it has grown. Layers stored by another version are ignored."""
        if contents is None:
            with contextlib.suppress(OtherVersionError):
                contents = read_workspace(self.folder)
        if contents is None or contents.progress.get("n_sentences", 0) == len(self._rows):
            return
        width = self.shape.n_layers * self.shape.dim
        self._layers = contents.memory_map("layers", self.dtype, width)
        keys = contents.memory_map("keys", np.uint8, KEY_BYTES)
        ends = contents.memory_map("ends", np.int64).tolist()
        if ends != sorted(ends) or ends[-1:] != [len(self._layers)]:
            raise OutputError(f"{self.folder / 'ends'} is damaged: delete the directory to compute the layers again.")
        rows: dict[bytes, tuple[int, int]] = {}
        start = 0
        for key, end in zip(keys, ends, strict=True):
            rows[key.tobytes()] = (start, end)
            start = end
        self._rows = rows

    def _stored(self, key: bytes) -> NDArray[Any]:
        start, end = self._rows[key]
        rows: NDArray[Any] = self._layers[start:end]
        return rows.reshape(end - start, self.shape.n_layers, self.shape.dim).swapaxes(0, 1)


def _key(sentence: Sequence[str]) -> bytes:
    """Return a hash of the tokens. Different token lists have different hashes, whatever characters they contain."""
    # JSON separates tokens unambiguously; joining them with a character would not. With 128 bits, a collision of two
    # sentences is practically impossible.
    content = json.dumps(list(check_sentence(sentence))).encode("ascii")
    return hashlib.blake2b(content, digest_size=KEY_BYTES).digest()
