"""bilm-tf's names for bilm-tf's three flows: characters in, cached token vectors in, everything written to a file.

Where a TensorFlow graph was built once and run often, a call here computes at once: what ``model(ids)``
and ``weight_layers`` return are tensors. Names, arguments, defaults, shapes, id numbers and file layouts
are bilm-tf's, and so is the carried LSTM state. What was a defect there is mended or refused, as each
docstring says. Everywhere: files are read and written as UTF-8 whatever the locale, text is cut at blanks and
tabs only, and whatever a user's file or text can cause is an ``ElmoError``.
"""

from __future__ import annotations

import dataclasses
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.bilm import BiLM, BiLMState
from elmokit.compat.bilm_data import Batcher, TokenBatcher, UnicodeCharsVocabulary, Vocabulary
from elmokit.errors import ConfigError, TextError
from elmokit.io.atomic import atomic_write
from elmokit.io.hdf5 import create_hdf5
from elmokit.io.text_files import read_lines, split_tokens
from elmokit.nn.scalar_mix import ScalarMix
from elmokit.text.characters import encode_tokens
from elmokit.weights import bilm_tf
from elmokit.weights.table import TensorRow, fill
from elmokit.weights.words import read_embeddings

__all__ = [
    "Batcher",
    "BidirectionalLanguageModel",
    "BilmOps",
    "TokenBatcher",
    "UnicodeCharsVocabulary",
    "Vocabulary",
    "WeightLayers",
    "dump_bilm_embeddings",
    "dump_token_embeddings",
    "weight_layers",
]

WORDS_AT_ONCE = 1024  # words whose vectors are dumped in one pass
LINES_AT_ONCE = 64  # lines embedded in one pass where no state is carried


class BilmOps(dict[str, Tensor]):
    """What a model made of one batch: ``lm_embeddings``, ``lengths``, ``token_embeddings``, ``mask``.

    ``mixes`` is its model's, where ``weight_layers`` keeps its variables.
    """

    def __init__(self, mixes: nn.ModuleDict, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        self.mixes = mixes


class BidirectionalLanguageModel(nn.Module):
    """A biLM with fixed weights that answers ``model(ids)``, carrying its LSTM state from call to call.

    Row r of a batch goes on from row r of the batch before, in ``states[stream]``. As each placeholder had its own
    state, so has each stream: ``model(context_ids, "context")``, ``model(question_ids, "question")``.

    Mended: one-layer and one-direction exports and options without ``use_skip_connections`` open;
    ``n_characters`` is read off the weights, so that options with 261 and with 262 both do; a model trained on
    words needs no embedding file, its own table serves.

    Args:
        options_file, weight_file: as published.
        use_character_inputs: ids are characters from ``Batcher``; else words from ``TokenBatcher``.
        embedding_weight_file: the words' vectors from ``dump_token_embeddings``, for word ids.
        max_batch_size: rows of state.
        stateful: carry the state; else every sentence starts from zero.

    Raises:
        ModelError, ConfigError: a file cannot be opened, files do not fit together, or the model reads other ids.
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
        bilm = bilm_tf.load(options_file, weight_file).bilm
        has_characters = bilm.config.char_cnn is not None
        if use_character_inputs and not has_characters:
            raise ConfigError(f"{options_file} describes a model that reads words; pass use_character_inputs=False.")
        if not use_character_inputs and embedding_weight_file is not None:
            bilm = _reading_words(bilm, embedding_weight_file)
        elif not use_character_inputs and has_characters:
            raise ConfigError(
                "Reading words needs their vectors: pass embedding_weight_file, as dump_token_embeddings writes it."
            )
        self.bilm = bilm.requires_grad_(False)
        self.max_batch_size = max_batch_size
        self.stateful = stateful
        self.states: dict[str, BiLMState] = {}
        self.mixes = nn.ModuleDict()
        self.eval()

    def train(self, mode: bool = True) -> BidirectionalLanguageModel:
        """As of any module, but the biLM's own dropout was for its training and stays off."""
        super().train(mode)
        self.bilm.eval()
        return self

    def reset_states(self) -> None:
        """Forget what was read, in every stream."""
        self.states.clear()

    @torch.no_grad()
    def forward(self, ids: NDArray[np.integer[Any]] | Tensor, stream: str = "") -> BilmOps:
        """All layers of one batch; the state goes on, whatever of the result is used.

        At padded positions layer 0 is the vector of no characters (not zero) and the others are 0, as there.

        Args:
            ids: ``(sentences, time, chars)``, or ``(sentences, time)`` for words, as the batchers give them.

        Returns:
            ``lm_embeddings (sentences, layers, time - 2, dim)``, layer 0 first; ``lengths (sentences,)`` without
            boundaries; ``mask (sentences, time - 2)`` bool; ``token_embeddings (sentences, time, projection_dim)``.

        Raises:
            ConfigError: there are more sentences than ``max_batch_size``, or tokens of another length than the model's.
            TextError: an id is beyond the table.
            ValueError: the ids are of another shape, lack boundaries, or have padding between tokens (which there
                went through and spoiled the sentence).
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
        layers[0] = torch.cat([vectors] * self.bilm.config.n_directions, dim=-1)  # at padded positions too
        inside = mask[:, 2:]  # boundaries off: the first position, and the last real one
        layers = torch.where(inside[..., None], layers[:, :, 1:-1], layers[:, :, 2:])
        tensors = {"lm_embeddings": layers.transpose(0, 1), "lengths": inside.sum(dim=1), "mask": inside}
        return BilmOps(self.mixes, {**tensors, "token_embeddings": vectors})

    def _checked_mask(self, ids: Tensor) -> Tensor:
        """``(sentences, time)`` bool, True on a real token, boundaries included."""
        cnn = self.bilm.config.char_cnn
        axes = "(sentences, time)" if cnn is None else "(sentences, time, chars)"
        if ids.ndim != (2 if cnn is None else 3) or ids.shape[0] == 0 or ids.shape[1] < 2:
            raise ValueError(f"ids are {axes}, one sentence and its two boundaries at least; given {tuple(ids.shape)}.")
        if cnn is not None and ids.shape[2] != cnn.max_chars:
            raise ConfigError(
                f"Tokens of {ids.shape[2]} characters, but this model reads {cnn.max_chars}. "
                f"Build the batcher as Batcher(vocab_file, {cnn.max_chars})."
            )
        if self.stateful and len(ids) > self.max_batch_size:
            raise ConfigError(f"{len(ids)} sentences, but state for {self.max_batch_size}: raise max_batch_size.")
        n_ids = self.bilm.config.n_words if cnn is None else cnn.n_chars
        if int(ids.max()) > (n_ids or 0) or int(ids.min()) < 0:
            raise TextError(
                f"Ids run from {int(ids.min())} to {int(ids.max())}, but this model knows 0 to {n_ids}. "
                "Use the vocabulary file that the embedding file was dumped from."
            )
        mask = ids > 0 if cnn is None else (ids > 0).any(dim=-1)
        if not bool(mask[:, :2].all()) or bool((mask[:, 1:] & ~mask[:, :-1]).any()):
            raise ValueError("Each row is <S>, tokens, </S>, and then padding of 0; make ids with batch_sentences.")
        return mask


class WeightLayers(nn.Module):
    """The variables of one ``weight_layers`` name, for a model of your own to hold.

    Args:
        n_layers: layers mixed, layer 0 included.
        use_top_only: no weights, only gamma times the last layer, never normalised.
        do_layer_norm: normalise each layer first, by one mean and one variance over all real positions.
    """

    def __init__(self, n_layers: int, use_top_only: bool = False, do_layer_norm: bool = False) -> None:
        super().__init__()
        self.use_top_only = use_top_only
        self.do_layer_norm = do_layer_norm
        self.mix = ScalarMix(1 if use_top_only else n_layers, do_layer_norm and not use_top_only)
        self.mix.weight.requires_grad_(not use_top_only)  # the softmax of one weight is 1: no variable

    @property
    def W(self) -> nn.Parameter:
        """``<name>_ELMo_W``: the weights before their softmax, ``(layers,)``, at first 0."""
        return self.mix.weight

    @property
    def gamma(self) -> nn.Parameter:
        """``<name>_ELMo_gamma``: the factor, a scalar, at first 1."""
        return self.mix.gamma

    def forward(self, bilm_ops: dict[str, Tensor], l2_coef: float | None = None) -> dict[str, Any]:
        """As ``weight_layers``; of ``bilm_ops`` the ``lm_embeddings`` and the ``mask`` are read."""
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
    """A learned weighted sum of layers: ``gamma * sum_k softmax(W)_k * layer_k``.

    The variables are made at a name's first call and used again at every later one: in the next
    training step, and for the question after the context. They are the ``WeightLayers`` at ``mixes[name + "_ELMo"]``,
    by default in the model's own ``mixes``: train ``model.mixes.parameters()``, save ``model.mixes.state_dict()``.
    Make an optimiser after the first call, or fill ``mixes`` before it.

    Mended: ``l2_coef`` None is no penalty, and names may end alike.

    Args:
        bilm_ops: what ``BidirectionalLanguageModel`` returned, or any dict of ``lm_embeddings`` and ``mask``.
        l2_coef: the penalty is this times the sum of the squared ``W``.
        use_top_only, do_layer_norm: as in ``WeightLayers``.
        mixes: where the variables live; must be given for a plain dict.

    Returns:
        ``weighted_op (sentences, time, dim)``; ``regularization_op``, a list of one scalar, or 0.0 for the top only.

    Raises:
        ConfigError: the name holds a dot, or was used before with other switches.
    """
    if mixes is None:
        if not isinstance(bilm_ops, BilmOps):
            raise ValueError("A plain dict of tensors belongs to no model: pass mixes, a torch.nn.ModuleDict.")
        mixes = bilm_ops.mixes
    if "." in name:
        raise ConfigError(f"The name {name!r} holds a dot, which would part it in a state dict. Choose another.")
    key = f"{name}_ELMo"
    embeddings = bilm_ops["lm_embeddings"]
    if key not in mixes:
        mixes[key] = WeightLayers(embeddings.shape[1], use_top_only, do_layer_norm).to(embeddings.device)
    module = mixes[key]
    assert isinstance(module, WeightLayers)
    if (module.use_top_only, module.do_layer_norm) != (use_top_only, do_layer_norm):
        raise ConfigError(f"The name {name!r} was used before with other switches. Choose another name.")
    result: dict[str, Any] = module(bilm_ops, l2_coef)
    return result


@torch.no_grad()
def dump_token_embeddings(
    vocab_file: str | Path, options_file: str | Path, weight_file: str | Path, outfile: str | Path
) -> None:
    """Write the context-free vector of every word of a vocabulary, for the token flow.

    The file: one dataset ``embedding``, ``(words, projection_dim)`` float32, in the order of the vocabulary.
    Words go through the char CNN many at a time. The file appears when it is complete, over an old one.

    Raises:
        ModelError, TextError, OutputError: a file cannot be opened or written.
        ConfigError: the model reads words, so there is nothing to compute: its weight file is such a file itself.
    """
    bilm = bilm_tf.load(options_file, weight_file).bilm.eval()
    cnn = bilm.config.char_cnn
    if cnn is None:
        raise ConfigError(f"{weight_file} holds its words' vectors already: pass it itself as embedding_weight_file.")
    vocabulary = UnicodeCharsVocabulary(vocab_file, cnn.max_chars)
    words = [vocabulary.id_to_word(index) for index in range(vocabulary.size)]
    with atomic_write(outfile, overwrite=True) as beside, create_hdf5(beside) as (file, check):
        table = file.create_dataset("embedding", (len(words), bilm.config.projection_dim), dtype="float32")
        for start in range(0, len(words), WORDS_AT_ONCE):
            some = words[start : start + WORDS_AT_ONCE]
            vectors = bilm.token_layer(torch.from_numpy(encode_tokens(some, cnn.max_chars)))
            table[start : start + len(some)] = vectors.numpy()
            check()


def dump_bilm_embeddings(
    vocab_file: str | Path,
    dataset_file: str | Path,
    options_file: str | Path,
    weight_file: str | Path,
    outfile: str | Path,
    *,
    stateful: bool = True,
) -> None:
    """Write all layers of a file of one tokenised sentence per line, for the cached flow.

    The file: one dataset per line, named by its number from 0, ``(layers, tokens, dim)`` float32; a blank line has
    0 tokens. The file appears when it is complete, over an old one.

    Mended: a model that reads words will do, with its vocabulary.

    Args:
        stateful: every line goes on from the state after the line before, as there, so that results depend on the
            order of lines; else each starts from zero, and lines go together in batches.

    Raises:
        ModelError, ConfigError, TextError, OutputError: a file cannot be opened, read or written.
    """
    by_characters = "char_cnn" in bilm_tf.read_options(options_file)
    model = BidirectionalLanguageModel(options_file, weight_file, by_characters, max_batch_size=1, stateful=stateful)
    cnn = model.bilm.config.char_cnn
    batcher = TokenBatcher(vocab_file) if cnn is None else Batcher(vocab_file, cnn.max_chars)
    lines = enumerate(read_lines(dataset_file))
    with atomic_write(outfile, overwrite=True) as beside, create_hdf5(beside) as (file, check):
        while some := list(islice(lines, 1 if stateful else LINES_AT_ONCE)):
            ops = model(batcher.batch_sentences([split_tokens(line) for _, line in some]))
            for (number, _), layers, length in zip(some, ops["lm_embeddings"], ops["lengths"].tolist(), strict=True):
                file.create_dataset(str(number), data=layers[:, :length].numpy())
            check()


def _reading_words(bilm: BiLM, path: str | Path) -> BiLM:
    """The same LSTMs over a table of word vectors from an HDF5 file."""
    table = torch.from_numpy(read_embeddings(path, bilm.config.projection_dim))
    with torch.device("meta"):
        reader = BiLM(dataclasses.replace(bilm.config, char_cnn=None, n_words=len(table)))
    rows = [TensorRow("embedding.weight", "embedding", bilm_tf.WITHOUT_ZERO_ROW)]
    fill(reader.token_layer, rows, {"embedding": tuple(table.shape)}, lambda _: table, str(path))
    reader.directions = bilm.directions
    return reader
