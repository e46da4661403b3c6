"""Find the best tag sequence that obeys given rules: Viterbi's algorithm, and a conditional random field (CRF).

The CRF is the linear-chain CRF of Lafferty et al. 2001.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

# AllenNLP's value. It is finite, so that a sentence for which the rules allow no path still has a best one, and the
# log-sum-exp of forbidden paths alone is not NaN.
FORBIDDEN = -10_000.0


class TagRules(NamedTuple):
    """Which tags are allowed where; all bool."""

    follow: Tensor  # (tags, tags): the column's tag may come directly after the row's tag
    start: Tensor  # (tags,): the tag may be the first of a sentence
    end: Tensor  # (tags,): the tag may be the last


class TagScores(NamedTuple):
    """Scores of tags by their order, which are added to the scores of tags at each token."""

    follow: Tensor  # (tags, tags): added if the column's tag comes directly after the row's tag
    start: Tensor  # (tags,): added for the first tag
    end: Tensor  # (tags,): added for the last tag


class RulePenalties(nn.Module):
    """Rules as numbers to add to scores: 0 for allowed tags, ``FORBIDDEN`` for others.

    They are buffers, so they move to a device with the model, but they are not saved with it, because they follow from
    the tag names.
    """

    follow: Tensor
    start: Tensor
    end: Tensor

    def __init__(self, n_tags: int, rules: TagRules | None) -> None:
        super().__init__()
        if rules is None:
            any_tag = torch.ones(n_tags, dtype=torch.bool)
            rules = TagRules(any_tag.repeat(n_tags, 1), any_tag, any_tag)
        for name, allowed in rules._asdict().items():
            penalties = FORBIDDEN * (~allowed).float()
            self.register_buffer(name, penalties, persistent=False)

    def add_to(self, scores: TagScores) -> TagScores:
        """Add the penalties to learned scores."""
        return TagScores(scores.follow + self.follow, scores.start + self.start, scores.end + self.end)

    def forward(self) -> TagScores:
        """Return the penalties alone, for ``viterbi``."""
        return TagScores(self.follow, self.start, self.end)


@torch.no_grad()
def viterbi(emissions: Tensor, mask: Tensor, scores: TagScores) -> list[list[int]]:
    """Return the tags with the highest sum of scores for each sentence (Viterbi 1967). Ties go to the lower tag.

    Args:
        emissions: Scores of each tag at each token, ``(batch, time, tags)``.
        mask: ``(batch, time)`` bool, without gaps. A row may be empty.
        scores: Scores of the order of tags.
    """
    best = emissions[:, 0] + scores.start  # (batch, tags): the score of the best path that ends in each tag
    origins = []
    for step in range(1, emissions.shape[1]):
        # (batch, previous tag, tag): the best previous tag for each tag.
        candidates, origin = (best[:, :, None] + scores.follow).max(dim=1)
        best = torch.where(mask[:, step, None], candidates + emissions[:, step], best)
        origins.append(origin)
    last = (best + scores.end).argmax(dim=1, keepdim=True)
    return follow_back(last, origins, mask)


def follow_back(last: Tensor, origins: list[Tensor], mask: Tensor) -> list[list[int]]:
    """Return each sentence's best tags: start at the last tag, and follow the best previous tags backward.

    Args:
        last: The last tag, ``(batch, 1)``.
        origins: For each token except the first, the best previous tag of each tag, ``(batch, tags)``.
        mask: ``(batch, time)`` bool. A row may be empty.
    """
    tags = [last]
    for step in range(len(origins), 0, -1):
        # Padding keeps the tag, so the path of a shorter sentence ends at its last token.
        before = origins[step - 1].gather(1, tags[-1])
        tags.append(torch.where(mask[:, step, None], before, tags[-1]))
    tags.reverse()
    paths = torch.cat(tags, dim=1).tolist()
    lengths = mask.sum(dim=1).tolist()
    return [path[:length] for path, length in zip(paths, lengths, strict=True)]


class CRF(nn.Module):
    """Scores of tag sequences: emissions, transitions, and optionally learned scores of the first and last tag.

    Args:
        n_tags: Number of tags.
        rules: Hard rules that ``decode`` obeys; None for none.
        rules_in_training: Also obey the rules in the partition function, so no probability is assigned to sequences
            that ``decode`` never returns. AllenNLP does not.
        learn_ends: Learn a score for each tag at the start and at the end. AllenNLP's NER does not.
    """

    def __init__(
        self, n_tags: int, rules: TagRules | None = None, rules_in_training: bool = False, learn_ends: bool = False
    ) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.empty(n_tags, n_tags))  # from the row's tag to the column's
        # Initialized like AllenNLP's ConditionalRandomField: Glorot normal transitions, and ends from N(0, 1).
        nn.init.xavier_normal_(self.transitions)
        self.start = nn.Parameter(torch.randn(n_tags)) if learn_ends else None
        self.end = nn.Parameter(torch.randn(n_tags)) if learn_ends else None
        self.rules_in_training = rules_in_training
        self.penalties = RulePenalties(n_tags, rules)

    def loss(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Return the negative log-likelihood of each sentence's tags in nats, ``(batch,)``.

        Args:
            emissions: ``(batch, time, tags)``.
            tags: ``(batch, time)``. Tags of padding are ignored.
            mask: ``(batch, time)`` bool, without gaps. A row may be empty; its loss is 0.
        """
        scores = self._scores(self.rules_in_training)
        # Both terms use the same scores: with the rules in the partition alone, the loss of a forbidden gold sequence
        # could be negative.
        cost = _partition(emissions, mask, scores) - _gold(emissions, tags, mask, scores)
        return torch.where(mask[:, 0], cost, torch.zeros_like(cost))

    def decode(self, emissions: Tensor, mask: Tensor) -> list[list[int]]:
        """Return the best tags of each sentence under the rules. Ties go to the lower tag."""
        return viterbi(emissions, mask, self._scores(with_rules=True))

    def _scores(self, with_rules: bool) -> TagScores:
        """Return the learned scores, with the penalties of the rules added or not."""
        zeros = torch.zeros_like(self.transitions[0])
        start = zeros if self.start is None else self.start
        end = zeros if self.end is None else self.end
        scores = TagScores(self.transitions, start, end)
        return self.penalties.add_to(scores) if with_rules else scores


def _partition(emissions: Tensor, mask: Tensor, scores: TagScores) -> Tensor:
    """Return the log of the sum over all sequences, ``(batch,)``, by the forward algorithm."""
    alpha = emissions[:, 0] + scores.start
    for step in range(1, emissions.shape[1]):
        # alpha[b, t]: log of the sum over all sequences that end in tag t at this step. Padding does not change it.
        reached = (alpha[:, :, None] + scores.follow).logsumexp(dim=1) + emissions[:, step]
        alpha = torch.where(mask[:, step, None], reached, alpha)
    return (alpha + scores.end).logsumexp(dim=1)


def _gold(emissions: Tensor, tags: Tensor, mask: Tensor, scores: TagScores) -> Tensor:
    """Return the scores of the given sequences, ``(batch,)``."""
    of_tags = emissions.gather(2, tags[..., None])[..., 0]
    emitted = (of_tags * mask).sum(dim=1)
    before, after = tags[:, :-1], tags[:, 1:]
    transitions = (scores.follow[before, after] * mask[:, 1:]).sum(dim=1)
    # The clamp is for empty rows, whose result `loss` discards.
    last_token = (mask.sum(dim=1, keepdim=True) - 1).clamp(min=0)
    last = tags.gather(1, last_token)[:, 0]
    return emitted + transitions + scores.start[tags[:, 0]] + scores.end[last]
