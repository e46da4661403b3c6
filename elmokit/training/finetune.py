"""A trained model made ready for further training: its softmax over the words of a new text; before and after."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from elmokit.bilm import BiLM
from elmokit.errors import ModelNotFoundError
from elmokit.nn.char_cnn import WordEmbedding
from elmokit.nn.softmax import AdaptiveSoftmax, FullSoftmax, Softmax, TiedSoftmax
from elmokit.scoring.perplexity import perplexity
from elmokit.text.vocabulary import Vocabulary
from elmokit.weights.model import PretrainedBiLM
from elmokit.weights.softmaxes import SoftmaxConfig, build_softmax, softmax_config

NOISE = 0.1  # of a new row, as a share of a fresh row's size: rows that begin as copies must part


def with_softmax_over(
    model: PretrainedBiLM,
    vocabulary: Vocabulary,
    counts: Mapping[str, int],
    n_sentences: int,
    softmax: SoftmaxConfig | None = None,
    seed: int = 0,
) -> PretrainedBiLM:
    """The model with a softmax over a vocabulary; the biLM is the same.

    Words that the old softmax knew keep their rows. The old ``<UNK>`` stood for all others; its probability is shared
    out among the new words by their counts: each begins with its weights, a little noise, and its bias plus the
    logarithm of the share. Without an old softmax (a published HDF5 file) weights are drawn as for a new model, and
    biases are the logarithms of the words' frequencies. An adaptive softmax over other words, or instead of another
    kind, is drawn anew in the same way: in its head, where alone it has biases. A word-input model gets a word table
    by the same rule.

    Args:
        counts: how often each word stands in the new text.
        n_sentences: of the new text; each ends once in every direction.
        softmax: the kind of softmax; None for the old one's, or a full one.
        seed: of what is drawn.

    Raises:
        ModelNotFoundError: a word-input model came without the words of its table.
        ConfigError: that kind of softmax does not fit the vocabulary or the biLM.
    """
    old, bilm = model.softmax, model.bilm
    if isinstance(bilm.token_layer, WordEmbedding) and model.vocabulary is None:
        raise ModelNotFoundError(
            f"{model.source} takes word ids and has no vocabulary. Put its vocab.txt beside the weights."
        )
    if softmax is None:
        softmax = SoftmaxConfig() if old is None else softmax_config(old)
    same_words = model.vocabulary is not None and model.vocabulary.words == vocabulary.words
    if old is not None and same_words and softmax_config(old) == softmax:
        return model
    generator = torch.Generator().manual_seed(seed)
    if model.vocabulary is not None and not same_words and isinstance(bilm.token_layer, WordEmbedding):
        bilm = _with_words(bilm, model.vocabulary, vocabulary, generator)
    new = build_softmax(softmax, len(vocabulary), bilm)
    new.reset_parameters(generator)
    frequencies = _frequencies(vocabulary, counts, n_sentences, bilm.config.n_directions)
    with torch.no_grad():
        if isinstance(new, AdaptiveSoftmax):
            new.stages.head.bias.copy_(_of_head(frequencies, new.stages.cutoffs).log())
        else:
            new.bias.copy_(frequencies.log())
            if old is not None and not isinstance(old, AdaptiveSoftmax) and model.vocabulary is not None:
                _carry_over(old, model.vocabulary, new, vocabulary, frequencies, generator)
    return dataclasses.replace(model, bilm=bilm, softmax=new, vocabulary=vocabulary)


def _frequencies(vocabulary: Vocabulary, counts: Mapping[str, int], n_sentences: int, n_directions: int) -> Tensor:
    """Each word's share of the predictions of all directions, one added to each count; the unlisted are ``<UNK>``."""
    listed = torch.tensor([counts.get(word, 0) for word in vocabulary.words], dtype=torch.float64)
    listed[vocabulary.unknown_id] += sum(counts.values()) - float(listed.sum())
    for boundary in (vocabulary.end_id, vocabulary.begin_id)[:n_directions]:  # each direction has its own end
        listed[boundary] += n_sentences / n_directions
    return ((listed + 1) / (listed + 1).sum()).float()


def _of_head(frequencies: Tensor, cutoffs: Sequence[int]) -> Tensor:
    """The shares of an adaptive softmax's frequent words, then of its tails; ``cutoffs`` end with all words."""
    tails = [frequencies[first:last].sum() for first, last in pairwise(cutoffs)]
    return torch.cat([frequencies[: cutoffs[0]], torch.stack(tails)])


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
    old_bias, unknown = old.bias.detach().cpu(), old_words.unknown_id
    # The old <UNK> meant the new words and what is unknown still.
    shared = ~known
    shared[new_words.unknown_id] = True
    unknown_bias = old_bias[unknown] if unknown >= 0 else old_bias.mean()
    shares = unknown_bias + (frequencies / frequencies[shared].sum()).log()
    new.bias.copy_(torch.where(shared, shares, old_bias[rows.clamp(min=0)]))
    if isinstance(new, FullSoftmax):
        new.weight.copy_(_carried_rows(old.weight.detach().cpu(), rows, unknown, generator))


def _carried_rows(table: Tensor, rows: Tensor, unknown: int, generator: torch.Generator) -> Tensor:
    """Rows of a table of words: -1 for a word that it lacks, which gets the row of ``<UNK>`` and a little noise.

    A published list of words may lack ``<UNK>``; ``unknown`` is negative then, and the mean of all rows stands for it.
    """
    of_unknown = table[unknown] if unknown >= 0 else table.mean(dim=0)
    noise = torch.randn(len(rows), table.shape[1], generator=generator) * NOISE * table.shape[1] ** -0.5
    return torch.where(rows[:, None] >= 0, table[rows.clamp(min=0)], of_unknown + noise)


def _with_words(bilm: BiLM, old_words: Vocabulary, new_words: Vocabulary, generator: torch.Generator) -> BiLM:
    """A word-input model over another list of words."""
    table = bilm.token_layer.get_submodule("embedding").get_parameter("weight").detach()
    rows = torch.tensor([old_words.ids.get(word, -1) for word in new_words.words])
    carried = _carried_rows(table[1:], rows, old_words.unknown_id, generator)
    with torch.device("meta"):
        new = BiLM(dataclasses.replace(bilm.config, n_words=len(new_words)))
    no_token = torch.zeros_like(table[:1])
    tensors = {**bilm.state_dict(), "token_layer.embedding.weight": torch.cat([no_token, carried])}
    new.load_state_dict(tensors, assign=True)
    return new.requires_grad_()


def with_dropout(model: PretrainedBiLM, dropout: float) -> PretrainedBiLM:
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


def before_and_after(
    before: PretrainedBiLM, after: PretrainedBiLM, texts: Mapping[str, Sequence[Sequence[str]]]
) -> dict[str, dict[str, list[float]]]:
    """Perplexity of each text by both models, full softmax, each direction apart; every sentence alone, from zero.

    Returns:
        by the text's name, then ``before`` and ``after``: forward, then backward.
    """
    models = {"before": before, "after": after}
    return {
        name: {when: list(perplexity(model, sentences, "zero").per_direction) for when, model in models.items()}
        for name, sentences in texts.items()
    }
