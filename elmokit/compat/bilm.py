"""bilm-tf's names for three ways to use ELMo (from characters, from cached token vectors, to a file) and for training.

bilm-tf built a TensorFlow graph once and ran it often. Here, a call computes immediately: ``model(ids)`` and
``weight_layers`` return tensors. Names, arguments, defaults, shapes, ids, file layouts and the carried LSTM state are
the same as in bilm-tf. Its bugs are fixed or raise an error, as described in each docstring. Files are always read and
written as UTF-8, text is split only at spaces and tabs, and problems with your files or text are reported as an
``ElmoError``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ConfigError, TextError, needs_torch

with needs_torch("elmokit.compat.bilm"):
    import torch
    from torch import Tensor, nn

from elmokit.compat.bilm_data import (
    Batcher,
    BidirectionalLMDataset,
    InvalidNumberOfCharacters,
    LMDataset,
    TokenBatcher,
    UnicodeCharsVocabulary,
    Vocabulary,
)
from elmokit.compat.bilm_tf_training import dump_weights, load_options_latest_checkpoint, load_vocab, test, train
from elmokit.compat.tracing import untraced
from elmokit.formats import bilm_tf
from elmokit.formats.bilm_tf_hdf5 import read_hdf5
from elmokit.formats.sidecars import find_vocabulary, given_or_found, read_embeddings
from elmokit.formats.tensor_rows import TensorRow, read_through
from elmokit.network.bilm import BiLM, BiLMState
from elmokit.network.lstm_module import has_gaps
from elmokit.network.scalar_mix import ScalarMix
from elmokit.network.torch_network import load_arrays
from elmokit.storage.atomic import atomic_write
from elmokit.storage.hdf5_files import create_hdf5
from elmokit.text.batching import read_ahead
from elmokit.text.characters import encode_tokens
from elmokit.text.text import Text

__all__ = [
    "Batcher",
    "BidirectionalLMDataset",
    "BidirectionalLanguageModel",
    "BilmOps",
    "InvalidNumberOfCharacters",
    "LMDataset",
    "TokenBatcher",
    "UnicodeCharsVocabulary",
    "Vocabulary",
    "WeightLayers",
    "dump_bilm_embeddings",
    "dump_token_embeddings",
    "dump_weights",
    "load_options_latest_checkpoint",
    "load_vocab",
    "test",
    "train",
    "weight_layers",
]

WORDS_AT_ONCE = 1024  # words whose vectors are computed together
LINES_AT_ONCE = 64  # lines that are embedded together if no state is carried


class BilmOps(dict[str, Tensor]):
    """The output of a model for one batch: ``lm_embeddings``, ``lengths``, ``token_embeddings``, ``mask``.

    ``mixes`` belongs to the model; ``weight_layers`` stores its variables there.
    """

    def __init__(self, mixes: nn.ModuleDict, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        self.mixes = mixes


class BidirectionalLanguageModel(nn.Module):
    """A biLM with fixed weights. ``model(ids)`` computes a batch and carries the LSTM state to the next call.

    Row r of a batch continues from row r of the previous batch, in ``states[stream]``. In bilm-tf, each placeholder had
    its own state; here, each stream has one: ``model(context_ids, "context")``, ``model(question_ids, "question")``.

    Fixed: exports with one layer or direction, and options without ``use_skip_connections``, can be opened. The number
    of characters is read from the weights, so options may say 261 or 262. A model trained on words uses its own table
    and needs no embedding file.

    Args:
        options_file, weight_file: The published files.
        use_character_inputs: Whether ids are characters from ``Batcher``, or words from ``TokenBatcher``.
        embedding_weight_file: For word ids, the words' vectors, as written by ``dump_token_embeddings``.
        max_batch_size: Maximum number of sentences in a batch whose state is carried.
        stateful: Carry the state; otherwise, every sentence starts from zero.

    Raises:
        ModelError, ConfigError: A file cannot be opened, files do not match, or the model reads other ids.
    """

    def __init__(
        self,
        options_file: str | Path,
        weight_file: str | Path,
        use_character_inputs: bool = True,
        embedding_weight_file: str | Path | None = None,
        max_batch_size: int = 128,
        *,
        stateful: bool = True,
    ) -> None:
        super().__init__()
        bilm = read_hdf5(options_file, weight_file).build_bilm()
        has_characters = bilm.config.char_cnn is not None
        if not use_character_inputs and embedding_weight_file is not None:
            bilm = _reading_words(bilm, embedding_weight_file)
        elif not use_character_inputs and has_characters:
            raise ConfigError(
                "use_character_inputs=False needs an embedding_weight_file, written by dump_token_embeddings."
            )
        # bilm-tf stores its arguments under these names, and programs read them.
        self._options = bilm_tf.read_options(options_file)
        self._weight_file, self._embedding_weight_file = weight_file, embedding_weight_file
        self._use_character_inputs = use_character_inputs
        self.bilm = bilm.requires_grad_(False)
        self.max_batch_size = max_batch_size
        self.stateful = stateful
        self.states: dict[str, BiLMState] = {}
        self.mixes = nn.ModuleDict()
        self.eval()

    def train(self, mode: bool = True) -> BidirectionalLanguageModel:
        """Set the training mode. The biLM's own dropout is for pre-training and stays off."""
        super().train(mode)
        self.bilm.eval()
        return self

    @property
    def _max_batch_size(self) -> int:
        return self.max_batch_size

    def reset_states(self) -> None:
        """Reset the state of every stream."""
        self.states.clear()

    @untraced
    @torch.no_grad()
    def forward(self, ids: NDArray[np.integer[Any]] | Tensor, stream: str = "") -> BilmOps:
        """Compute all layers of one batch.

        As in bilm-tf, at padded positions, layer 0 is the vector of a token without characters (not zero), and the
        other layers are 0.

        Args:
            ids: ``(sentences, time, chars)``, or ``(sentences, time)`` for words, as the batchers return them.
            stream: Name of the state to continue from.

        Returns:
            ``lm_embeddings (sentences, layers, time - 2, dim)``, layer 0 first; ``lengths (sentences,)`` without
            boundaries; ``mask (sentences, time - 2)`` bool; ``token_embeddings (sentences, time, projection_dim)``.

        Raises:
            ConfigError: There are more sentences than ``max_batch_size``.
            TextError: An id is outside the table.
            ValueError: The ids have another shape, lack boundaries, or have padding between tokens (which bilm-tf
                accepted, with wrong results).
        """
        ids = torch.as_tensor(ids, device=self.bilm.device)
        mask = self._checked_mask(ids)
        state = self.bilm.zero_state(self.max_batch_size if self.stateful else len(ids))
        if self.stateful and stream in self.states:
            state = self.states[stream].to(self.bilm.device, self.bilm.dtype)
        vectors = self.bilm.token_vectors(ids)
        layers, after = self.bilm.contextualize(vectors, mask, state.first_rows(len(ids)))
        if self.stateful:
            self.states[stream] = state.with_first_rows(after)
        layers[0] = torch.cat([vectors] * self.bilm.config.n_directions, dim=-1)  # also at padded positions
        inside = mask[:, 2:]  # without boundaries: the first and the last real position
        layers = torch.where(inside[..., None], layers[:, :, 1:-1], layers[:, :, 2:])
        tensors = {"lm_embeddings": layers.transpose(0, 1), "lengths": inside.sum(dim=1), "mask": inside}
        return BilmOps(self.mixes, {**tensors, "token_embeddings": vectors})

    def _checked_mask(self, ids: Tensor) -> Tensor:
        """Check the ids and return a mask ``(sentences, time)``, True on real tokens and boundaries."""
        self._check_shape(ids)
        if self.stateful and len(ids) > self.max_batch_size:
            raise ConfigError(f"The batch has {len(ids)} sentences, but max_batch_size is {self.max_batch_size}.")
        config = self.bilm.config
        n_ids = (config.n_words or 0) if config.char_cnn is None else config.char_cnn.n_chars
        smallest, largest = int(ids.min()), int(ids.max())
        if smallest < 0 or largest > n_ids:
            raise TextError(f"The ids range from {smallest} to {largest}, but this model knows 0 to {n_ids}.")
        mask = self.bilm.mask_of(ids)
        if not bool(mask[:, :2].all()) or has_gaps(mask):
            raise ValueError("Each row must be <S>, tokens, </S> and then zeros.")
        return mask

    def _check_shape(self, ids: Tensor) -> None:
        cnn = self.bilm.config.char_cnn
        n_axes, axes = 2, "(sentences, time)"
        if cnn is not None:
            n_axes, axes = 3, f"(sentences, time, {cnn.max_chars})"
        fits = ids.ndim == n_axes and ids.shape[0] > 0 and ids.shape[1] >= 2
        if fits and cnn is not None:
            fits = ids.shape[2] == cnn.max_chars
        if not fits:
            raise ValueError(f"Expected ids of shape {axes}, including boundaries, but got {tuple(ids.shape)}.")


class WeightLayers(nn.Module):
    """The variables of one ``weight_layers`` name, as a module for your own model.

    Args:
        n_layers: Number of layers to mix, layer 0 included.
        use_top_only: Return gamma times the last layer, without weights and never normalized.
        do_layer_norm: First normalize each layer, with one mean and one variance over all real positions.
    """

    def __init__(self, n_layers: int, use_top_only: bool = False, do_layer_norm: bool = False) -> None:
        super().__init__()
        self.use_top_only = use_top_only
        self.do_layer_norm = do_layer_norm
        self.mix = ScalarMix(1 if use_top_only else n_layers, do_layer_norm and not use_top_only)
        self.mix.weight.requires_grad_(not use_top_only)  # the softmax of one weight is 1, so there is no variable

    @property
    def W(self) -> nn.Parameter:
        """``<name>_ELMo_W``: the weights before the softmax, ``(layers,)``, initially 0."""
        return self.mix.weight

    @property
    def gamma(self) -> nn.Parameter:
        """``<name>_ELMo_gamma``: the factor, a scalar, initially 1."""
        return self.mix.gamma

    def forward(self, bilm_ops: dict[str, Tensor], l2_coef: float | None = None) -> dict[str, Any]:
        """Mix ``bilm_ops["lm_embeddings"]``; see ``weight_layers``."""
        layers = bilm_ops["lm_embeddings"].transpose(0, 1)  # (layers, sentences, time, dim)
        weighted = self.mix(layers[-1:] if self.use_top_only else layers, bilm_ops["mask"])
        regularization = 0.0 if self.use_top_only else [(l2_coef or 0.0) * self.W.square().sum()]
        return {"weighted_op": weighted, "regularization_op": regularization}


def weight_layers(
    name: str,
    bilm_ops: dict[str, Tensor],
    l2_coef: float | None = None,
    use_top_only: bool = False,
    do_layer_norm: bool = False,
    *,
    mixes: nn.ModuleDict | None = None,
) -> dict[str, Any]:
    """Compute a learned weighted sum of layers: ``gamma * sum_k softmax(W)_k * layer_k``.

    The first call with a name creates its variables, and later calls reuse them: in the next training step, or for the
    question after the context. They are the ``WeightLayers`` at ``mixes[name + "_ELMo"]``, by default in the model's
    own ``mixes``: train ``model.mixes.parameters()``, save ``model.mixes.state_dict()``. Create the optimizer after the
    first call, or fill ``mixes`` before it.

    Fixed: ``l2_coef=None`` means no penalty, and one name may end with another.

    Args:
        name: Name of the variables.
        bilm_ops: The output of ``BidirectionalLanguageModel``, or any dict with ``lm_embeddings`` and ``mask``.
        l2_coef: The penalty is this number times the sum of the squared ``W``.
        use_top_only, do_layer_norm: As in ``WeightLayers``.
        mixes: Where to store the variables; required if ``bilm_ops`` is a plain dict.

    Returns:
        ``weighted_op (sentences, time, dim)``; ``regularization_op``, a list of one scalar, or 0.0 for the top only.

    Raises:
        ConfigError: The name was used before with different arguments.
    """
    if mixes is None:
        mixes = cast(BilmOps, bilm_ops).mixes
    key = f"{name}_ELMo"
    embeddings = bilm_ops["lm_embeddings"]
    if key not in mixes:
        mixes[key] = WeightLayers(embeddings.shape[1], use_top_only, do_layer_norm).to(embeddings.device)
    module = mixes[key]
    assert isinstance(module, WeightLayers)
    if (module.use_top_only, module.do_layer_norm) != (use_top_only, do_layer_norm):
        raise ConfigError(f"The name {name!r} was used before with different arguments.")
    result: dict[str, Any] = module(bilm_ops, l2_coef)
    return result


@torch.no_grad()
def dump_token_embeddings(
    vocab_file: str | Path, options_file: str | Path, weight_file: str | Path, outfile: str | Path
) -> None:
    """Write the context-free vector of every vocabulary word, for models that read word ids.

    The file has one dataset ``embedding``, ``(words, projection_dim)`` float32, in vocabulary order. It appears once it
    is complete, and replaces an existing file.

    Raises:
        ModelError, TextError, OutputError: A file cannot be opened or written.
        ConfigError: The model reads word ids, so its weight file already contains the vectors.
    """
    bilm = read_hdf5(options_file, weight_file).build_bilm().eval()
    cnn = bilm.config.char_cnn
    if cnn is None:
        raise ConfigError(f"{weight_file} already contains word vectors: pass it as embedding_weight_file.")
    vocabulary = UnicodeCharsVocabulary(vocab_file, cnn.max_chars)
    words = [vocabulary.id_to_word(index) for index in range(vocabulary.size)]
    shape = (len(words), bilm.config.projection_dim)
    with atomic_write(outfile, overwrite=True) as path, create_hdf5(path, 4 * prod(shape), 1) as file:
        table = file.create_dataset("embedding", shape, dtype="float32")
        for start in range(0, len(words), WORDS_AT_ONCE):
            ids = torch.from_numpy(encode_tokens(words[start : start + WORDS_AT_ONCE], cnn.max_chars))
            table[start : start + len(ids)] = bilm.token_layer(ids).numpy()


def dump_bilm_embeddings(
    vocab_file: str | Path,
    dataset_file: str | Path,
    options_file: str | Path,
    weight_file: str | Path,
    outfile: str | Path,
    *,
    stateful: bool = True,
) -> None:
    """Write all layers of a file with one tokenized sentence per line.

    The output has one dataset per line, named by the line number from 0, ``(layers, tokens, dim)`` float32; a blank
    line has 0 tokens. It appears once it is complete, and replaces an existing file.

    Fixed: models that read word ids also work, with their vocabulary.

    Args:
        vocab_file: A word list; only required by models that read word ids.
        dataset_file: The sentences.
        options_file, weight_file: The model.
        outfile: The HDF5 file to write.
        stateful: Start every line from the state after the previous line, as in bilm-tf, so results depend on the order
            of lines. Otherwise, every line starts from zero, and lines are computed in batches.

    Raises:
        ModelError, ConfigError, TextError, OutputError: A file cannot be opened, read or written.
    """
    by_characters = "char_cnn" in bilm_tf.read_options(options_file)
    model = BidirectionalLanguageModel(options_file, weight_file, by_characters, max_batch_size=1, stateful=stateful)
    cnn = model.bilm.config.char_cnn
    if cnn is None:  # warns if the word list differs from the model's
        given_or_found(Path(vocab_file), find_vocabulary(Path(weight_file)))
    batcher = TokenBatcher(vocab_file) if cnn is None else Batcher(vocab_file, cnn.max_chars)
    text = Text(dataset_file, kind="bilm-tf")
    # A file is read twice, the first time for the size of the output. A pipe can only be read once.
    sentences: Iterable[list[str]] = text.token_lists() if text.can_reread else list(text.token_lists())
    lengths = list(map(len, sentences))
    if text.can_reread:
        sentences = text.token_lists()
    config = model.bilm.config
    n_bytes = 4 * (config.n_layers + 1) * config.output_dim * sum(lengths)
    with (
        atomic_write(outfile, overwrite=True) as path,
        create_hdf5(path, n_bytes, len(lengths), 16 * len(lengths)) as file,
    ):
        number = 0
        for batch in read_ahead(sentences, max_items=1 if stateful else LINES_AT_ONCE):
            ops = model(batcher.batch_sentences(batch))
            for layers, length in zip(ops["lm_embeddings"], ops["lengths"].tolist(), strict=True):
                file.create_dataset(str(number), data=layers[:, :length].numpy())
                number += 1


def _reading_words(bilm: BiLM, path: str | Path) -> BiLM:
    """Return a biLM with the same LSTMs and a table of word vectors from an HDF5 file."""
    table = read_embeddings(path, bilm.config.projection_dim)
    with torch.device("meta"):
        reader = BiLM(dataclasses.replace(bilm.config, char_cnn=None, n_words=len(table)))
    rows = [TensorRow("embedding.weight", "embedding", bilm_tf.WITHOUT_ZERO_ROW)]
    wanted = {name: tuple(tensor.shape) for name, tensor in reader.token_layer.state_dict().items()}
    arrays = read_through(rows, wanted, {"embedding": table.shape}, lambda _: table, str(path))
    load_arrays(reader.token_layer, arrays)
    reader.directions = bilm.directions
    return reader
