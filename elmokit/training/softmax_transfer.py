"""Prepare a trained model for fine-tuning: give it a softmax over the words of another text.

A softmax predicts the words of the text that it was trained on. For a new text the vocabulary usually changes, and
published models come without their softmax. Drawing a new softmax at random would let its large first gradients
damage the biLM, so as much as possible is kept:

* words that the old softmax knew keep their weights and biases;
* an inner layer of the same size is kept, and a new one changes nothing at first;
* new words start as ``<UNK>``, which is what the old softmax predicted for them, and share its probability in
  proportion to how often they occur;
* without an old softmax, biases start as the logarithms of the words' frequencies, which is the best prediction that
  does not look at the context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from elmokit.engine.softmax import SoftmaxConfig
from elmokit.errors import FormatError, ModelNotFoundError
from elmokit.formats.model import PretrainedBiLM
from elmokit.network.bilm import BiLM
from elmokit.network.softmax_module import FullSoftmax, SoftmaxModule, TiedSoftmax, build_softmax, softmax_config
from elmokit.text.vocabulary import Vocabulary

NOISE = 0.1  # of a new row, as a ratio of a fresh row's size: rows that start as copies of <UNK> must become different


def with_softmax_over(
    model: PretrainedBiLM,
    vocabulary: Vocabulary,
    counts: Mapping[str, int],
    n_sentences: int,
    softmax: SoftmaxConfig | None = None,
    seed: int = 0,
) -> PretrainedBiLM:
    """Return the model with a softmax over another vocabulary, as the module's docstring describes.

    A word-input model gets a word table by the same rules as a softmax. The biLM is used as it is, not copied.
    """
    old, bilm = model.softmax_module, model.bilm
    if model.config.word_table is not None and model.vocabulary is None:
        raise ModelNotFoundError(
            f"{model.source} reads words and has no vocabulary. Put its vocab.txt next to the weights."
        )
    if softmax is None:
        softmax = SoftmaxConfig() if old is None else softmax_config(old)
    same_words = model.vocabulary is not None and model.vocabulary.words == vocabulary.words
    if old is not None and same_words and softmax_config(old) == softmax:
        return model
    # A generator of its own, so that drawing here does not move the random numbers of the training.
    generator = torch.Generator().manual_seed(seed)
    if model.vocabulary is not None and not same_words and model.config.word_table is not None:
        # The words are also the model's input here: its table must have the rows of the new words before a tied softmax
        # uses it.
        bilm = _with_words(bilm, model.vocabulary, vocabulary, generator)
    new = build_softmax(softmax, len(vocabulary), bilm.config.projection_dim, bilm.token_layer)
    new.reset_parameters(generator)
    frequencies = _frequencies(vocabulary, counts, n_sentences, bilm.config.read_backward)
    with torch.no_grad():
        new.bias.copy_(frequencies.log())
        if old is not None and model.vocabulary is not None:
            _transfer(old, model.vocabulary, new, vocabulary, frequencies, generator)
    return model.replace(weights=bilm, softmax=new, vocabulary=vocabulary)


def describe_transfer(old: PretrainedBiLM, new: PretrainedBiLM) -> tuple[bool, str]:
    """Say whether :func:`with_softmax_over` drew any of the softmax at random, and what it did, for the user."""
    assert new.vocabulary is not None
    assert new.softmax is not None
    is_random, text = _describe_words(old, new, new.vocabulary)
    inner_dim = new.softmax.config.inner_dim
    if old.softmax is not None and old.softmax.config.inner_dim != inner_dim:
        text += f"; its inner layer of {inner_dim:,} units is new" if inner_dim else "; its inner layer is left out"
        is_random = is_random or inner_dim > 0
    return is_random, text


def _describe_words(old: PretrainedBiLM, new: PretrainedBiLM, vocabulary: Vocabulary) -> tuple[bool, str]:
    n_words = len(vocabulary)
    if new.softmax_module is old.softmax_module:
        return False, f"the softmax over {n_words:,} words is the model's own"
    if isinstance(new.softmax_module, TiedSoftmax):
        return False, f"the softmax over {n_words:,} words takes its weights from the word table"
    if old.softmax is None or old.vocabulary is None:
        return True, f"the model has no softmax: a new one over {n_words:,} words is initialized"
    n_kept = sum(word in old.vocabulary.ids for word in vocabulary.words)
    others = "; the others start as <UNK>" if n_kept < n_words else ""
    return False, f"the softmax keeps the weights of {n_kept:,} of {n_words:,} words{others}"


def softmax_words(model: PretrainedBiLM) -> Vocabulary | None:
    """Return the words of a model's softmax or word table; None if it has neither."""
    if model.vocabulary is None or (model.softmax is None and model.config.word_table is None):
        return None
    try:
        return Vocabulary(model.vocabulary.words)
    except FormatError as error:
        raise FormatError(
            f"The words of {model.source} are not a valid vocabulary: {error} Or give other words with "
            "vocabulary or max_words."
        ) from None


def _frequencies(
    vocabulary: Vocabulary, counts: Mapping[str, int], n_sentences: int, read_backward: Sequence[bool]
) -> Tensor:
    """Estimate how often each word is predicted, over all directions, with one added to each count."""
    listed = torch.tensor([counts.get(word, 0) for word in vocabulary.words], dtype=torch.float64)
    # Every token outside the list is a prediction of <UNK>.
    listed[vocabulary.unknown_id] += sum(counts.values()) - float(listed.sum())
    for backward in read_backward:  # each direction has its own end
        listed[vocabulary.begin_id if backward else vocabulary.end_id] += n_sentences / len(read_backward)
    # One is added, because the bias of a word that does not occur would be log 0.
    return ((listed + 1) / (listed + 1).sum()).float()


@torch.no_grad()
def _transfer(
    old: SoftmaxModule,
    old_words: Vocabulary,
    new: SoftmaxModule,
    new_words: Vocabulary,
    frequencies: Tensor,
    generator: torch.Generator,
) -> None:
    """Copy weights and biases by word."""
    old_ids = torch.tensor([old_words.ids.get(word, -1) for word in new_words.words])
    old_bias, old_unknown = old.bias.detach().cpu(), old_words.unknown_id
    # The old <UNK> represented the new words and those that are still unknown. Split its probability among them:
    # in logits, add the logarithm of each word's ratio.
    shares_unknown = old_ids < 0
    shares_unknown[new_words.unknown_id] = True
    # A list of words without <UNK> has no better estimate than the mean.
    unknown_bias = old_bias[old_unknown] if old_unknown >= 0 else old_bias.mean()
    shared_bias = unknown_bias + (frequencies / frequencies[shares_unknown].sum()).log()
    new.bias.copy_(torch.where(shares_unknown, shared_bias, old_bias[old_ids.clamp(min=0)]))
    same_inner = softmax_config(old).inner_dim == softmax_config(new).inner_dim
    if same_inner and old.inner is not None and new.inner is not None:
        new.inner.load_state_dict(old.inner.state_dict())
    if isinstance(new, FullSoftmax):
        new.weight.copy_(_transferred_rows(old.weight.detach().cpu(), old_ids, old_unknown, generator))


def _transferred_rows(table: Tensor, old_ids: Tensor, unknown: int, generator: torch.Generator) -> Tensor:
    """Return the rows of known words; words with id -1 get the row of ``<UNK>`` plus noise."""
    unknown_row = table[unknown] if unknown >= 0 else table.mean(dim=0)
    # Drawn for all rows, so that a row's noise does not depend on which other words are known.
    noise = torch.randn(len(old_ids), table.shape[1], generator=generator) * NOISE * table.shape[1] ** -0.5
    return torch.where(old_ids[:, None] >= 0, table[old_ids.clamp(min=0)], unknown_row + noise)


def _with_words(bilm: BiLM, old_words: Vocabulary, new_words: Vocabulary, generator: torch.Generator) -> BiLM:
    """Return a model that reads words over another list of words."""
    name = bilm.config.word_table
    assert name is not None
    table = bilm.state_dict()[name]
    old_ids = torch.tensor([old_words.ids.get(word, -1) for word in new_words.words])
    rows = _transferred_rows(table[1:], old_ids, old_words.unknown_id, generator)  # row 0 means "no token"
    with torch.device("meta"):
        new = BiLM(bilm.config.with_table_words(len(new_words)))
    # Row 0 of the table is "no token" and belongs to no word.
    no_token = torch.zeros_like(table[:1])
    tensors = {**bilm.state_dict(), name: torch.cat([no_token, rows])}
    new.load_state_dict(tensors, assign=True)
    return new.requires_grad_()


def with_dropout(model: PretrainedBiLM, dropout: float) -> PretrainedBiLM:
    """Return the model with another dropout; the weights are the same tensors."""
    bilm = model.bilm.with_config(dropout=dropout)
    softmax = model.softmax_module
    if isinstance(softmax, TiedSoftmax):  # it refers to the word table, which is now another module's
        tensors, config = softmax.state_dict(), softmax_config(softmax)
        softmax = build_softmax(config, len(softmax.bias), bilm.config.projection_dim, bilm.token_layer)
        softmax.load_state_dict(tensors)
    return model.replace(weights=bilm.requires_grad_(), softmax=softmax)
