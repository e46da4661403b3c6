"""A trained model made ready for further training: its softmax over the words of a new text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from elmokit.bilm import BiLM
from elmokit.nn.char_cnn import WordEmbedding
from elmokit.nn.softmax import AdaptiveSoftmax, FullSoftmax, Softmax, TiedSoftmax
from elmokit.text.vocabulary import Vocabulary
from elmokit.weights.model import StoredModel
from elmokit.weights.softmaxes import SoftmaxConfig, build_softmax, softmax_config

NOISE = 0.1  # of a new row, as a share of a fresh row's size: rows that begin as copies must part


def with_softmax_over(
    model: StoredModel,
    vocabulary: Vocabulary,
    counts: Mapping[str, int],
    softmax: SoftmaxConfig | None = None,
    seed: int = 0,
) -> StoredModel:
    """The model with a softmax over a vocabulary; the biLM is the same.

    Words that the old softmax knew keep their rows. The old ``<UNK>`` stood for all others; its probability is shared
    out among the new words by their counts: each begins with its weights, a little noise, and its bias plus the
    logarithm of the share. Without an old softmax (a published HDF5 file) weights are drawn as for a new model, and
    biases are the logarithms of the words' frequencies. The same holds for an adaptive softmax over other words. A
    word-input model gets a word table in the same way.

    Args:
        counts: how often each word stands in the new text.
        softmax: the kind of softmax; None for the old one's, or a full one.
        seed: of what is drawn.
    """
    old = model.softmax
    if softmax is None:
        softmax = SoftmaxConfig() if old is None else softmax_config(old)
    same_words = model.vocabulary is not None and model.vocabulary.words == vocabulary.words
    if old is not None and same_words and softmax_config(old) == softmax:
        return model
    generator = torch.Generator().manual_seed(seed)
    bilm = model.bilm
    if model.vocabulary is not None and not same_words and isinstance(bilm.token_layer, WordEmbedding):
        bilm = _with_words(bilm, model.vocabulary, vocabulary, generator)
    new = build_softmax(softmax, len(vocabulary), bilm)
    new.reset_parameters(generator)
    if not isinstance(new, AdaptiveSoftmax):
        frequencies = _frequencies(vocabulary, counts)
        with torch.no_grad():
            new.bias.copy_(frequencies.log())
        if old is not None and not isinstance(old, AdaptiveSoftmax) and model.vocabulary is not None:
            _carry_over(old, model.vocabulary, new, vocabulary, frequencies, generator)
    return dataclasses.replace(model, bilm=bilm, softmax=new, vocabulary=vocabulary, warm_state=None)


def _frequencies(vocabulary: Vocabulary, counts: Mapping[str, int]) -> Tensor:
    """Each word's share of the predictions, one added to each count; what is not listed counts as ``<UNK>``."""
    listed = torch.tensor([counts.get(word, 0) for word in vocabulary.words], dtype=torch.float64)
    listed[vocabulary.unknown_id] += sum(counts.values()) - float(listed.sum())
    return ((listed + 1) / (listed + 1).sum()).float()


@torch.no_grad()
def _carry_over(
    old: Softmax,
    old_words: Vocabulary,
    new: Softmax,
    new_words: Vocabulary,
    frequencies: Tensor,
    generator: torch.Generator,
) -> None:
    assert not isinstance(old, AdaptiveSoftmax)
    assert not isinstance(new, AdaptiveSoftmax)
    rows = torch.tensor([old_words.ids.get(word, -1) for word in new_words.words])
    known = rows >= 0
    unknown = torch.full_like(rows, old_words.unknown_id)
    bias = old.bias.cpu()[torch.where(known, rows, unknown)]
    # The old <UNK> meant the new words and what is unknown still.
    shared = ~known
    shared[new_words.unknown_id] = True
    bias[shared] = old.bias.cpu()[old_words.unknown_id] + (frequencies[shared] / frequencies[shared].sum()).log()
    new.bias.copy_(bias)
    if isinstance(new, FullSoftmax):
        weight = old.weight.detach().cpu()[torch.where(known, rows, unknown)]
        noise = torch.randn(weight.shape, generator=generator) * NOISE * weight.shape[1] ** -0.5
        new.weight.copy_(torch.where(known[:, None], weight, weight + noise))


def _with_words(bilm: BiLM, old_words: Vocabulary, new_words: Vocabulary, generator: torch.Generator) -> BiLM:
    """A word-input model over another list of words: new ones begin as ``<UNK>`` with a little noise."""
    table = bilm.token_layer.get_submodule("embedding").get_parameter("weight").detach()
    rows = torch.tensor([old_words.ids.get(word, -1) for word in new_words.words])
    known = rows >= 0
    if old_words.unknown_id >= 0:
        base = table[1 + torch.where(known, rows, torch.full_like(rows, old_words.unknown_id))]
    else:
        base = torch.where(known[:, None], table[1 + rows.clamp(min=0)], torch.zeros_like(table[:1]))
    noise = torch.randn(base.shape, generator=generator) * NOISE * base.shape[1] ** -0.5
    new_table = torch.cat([torch.zeros_like(table[:1]), torch.where(known[:, None], base, base + noise)])
    with torch.device("meta"):
        new = BiLM(dataclasses.replace(bilm.config, n_words=len(new_words)))
    tensors = {**bilm.state_dict(), "token_layer.embedding.weight": new_table}
    new.load_state_dict(tensors, assign=True)
    return new.requires_grad_()


def with_dropout(model: StoredModel, dropout: float) -> StoredModel:
    """The model with another dropout; the weights are the same tensors."""
    with torch.device("meta"):
        bilm = BiLM(dataclasses.replace(model.bilm.config, dropout=dropout))
    bilm.load_state_dict(model.bilm.state_dict(), assign=True)
    softmax = model.softmax
    if isinstance(softmax, TiedSoftmax):
        bias = softmax.bias
        softmax = build_softmax(SoftmaxConfig("tied"), len(bias), bilm)
        softmax.load_state_dict({"bias": bias.detach()})
    return dataclasses.replace(model, bilm=bilm.requires_grad_(), softmax=softmax)
