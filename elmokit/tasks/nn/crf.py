"""The best sequence of tags under rules on their order: Viterbi's algorithm, and a conditional random field (CRF).

The CRF is the linear-chain one of Lafferty et al. 2001.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

# AllenNLP's value. It is not -inf, so that a sentence for which the rules allow no path still has a best one, and the
# log-sum-exp of forbidden paths alone is not NaN.
FORBIDDEN = -10_000.0


class TagRules(NamedTuple):
    """Which tags are allowed where; all bool."""

    follow: Tensor  # (tags, tags): the tag of the column may come directly after the tag of the row
    start: Tensor  # (tags,): the tag may be the first of a sentence
    end: Tensor  # (tags,): the tag may be the last


class RulePenalties(nn.Module):
    """Rules as numbers to add to scores: 0 for what is allowed, ``FORBIDDEN`` for what is not.

    They are buffers, so that they move to a device with the model, but are not part of its state: they follow from the
    names of the tags.
    """

    follow: Tensor
    start: Tensor
    end: Tensor

    def __init__(self, n_tags: int, rules: TagRules | None) -> None:
        super().__init__()
        if rules is None:
            shapes = ((n_tags, n_tags), (n_tags,), (n_tags,))
            rules = TagRules(*(torch.ones(shape, dtype=torch.bool) for shape in shapes))
        for name, allowed in rules._asdict().items():
            self.register_buffer(name, FORBIDDEN * (~allowed).float(), persistent=False)

    def add_to(self, follow: Tensor, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return learned scores of transitions, first tags and last tags with the penalties added."""
        return follow + self.follow, start + self.start, end + self.end

    def forward(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the penalties alone, for ``viterbi``."""
        return self.follow, self.start, self.end


@torch.no_grad()
def viterbi(emissions: Tensor, mask: Tensor, follow: Tensor, start: Tensor, end: Tensor) -> list[list[int]]:
    """Return the tags with the highest sum of scores for each sentence (Viterbi 1967). Ties go to the lower tag.

    Args:
        emissions: Scores of each tag at each token, ``(batch, time, tags)``.
        mask: ``(batch, time)`` bool, without gaps. A row may be empty.
        follow: ``(tags, tags)``, added if the tag of the column comes directly after the tag of the row.
        start, end: ``(tags,)``, added for the first and for the last tag.
    """
    best = emissions[:, 0] + start  # (batch, tags): the best score of a path that ends in each tag
    origins = []
    for step in range(1, emissions.shape[1]):
        # (batch, previous tag, tag): the best previous tag for each tag.
        candidates, origin = (best[:, :, None] + follow).max(dim=1)
        best = torch.where(mask[:, step, None], candidates + emissions[:, step], best)
        origins.append(origin)
    return follow_back((best + end).argmax(dim=1, keepdim=True), origins, mask)


def follow_back(last: Tensor, origins: list[Tensor], mask: Tensor) -> list[list[int]]:
    """Return the tags of each sentence from the last one, by the best previous tag of each tag.

    Args:
        last: The last tag, ``(batch, 1)``.
        origins: For each token but the first, the best previous tag of each tag, ``(batch, tags)``.
        mask: ``(batch, time)`` bool. A row may be empty.
    """
    tags = [last]
    for step in range(len(origins), 0, -1):
        # `tags` is in reverse order. Padding keeps the tag, so that the path of a shorter sentence ends at its last
        # token.
        before = origins[step - 1].gather(1, tags[-1])
        tags.append(torch.where(mask[:, step, None], before, tags[-1]))
    paths = torch.cat(tags[::-1], dim=1).tolist()
    lengths = mask.sum(dim=1).tolist()
    return [path[:length] for path, length in zip(paths, lengths, strict=True)]


class CRF(nn.Module):
    """Scores of tag sequences: emissions, transitions, and optionally learned scores of the first and the last tag.

    Args:
        n_tags: Number of tags.
        rules: Hard rules that ``decode`` obeys; None for none.
        rules_in_training: Obey the rules in the partition function too, so that no probability is spent on sequences
            that ``decode`` never returns. AllenNLP does not.
        learn_ends: Learn a score for each tag at the start and at the end. AllenNLP's NER does not.
    """

    def __init__(
        self, n_tags: int, rules: TagRules | None = None, rules_in_training: bool = False, learn_ends: bool = False
    ) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.empty(n_tags, n_tags))  # from the row's tag to the column's
        # Initialized as AllenNLP's ConditionalRandomField: Glorot normal transitions, and ends from N(0, 1).
        nn.init.xavier_normal_(self.transitions)
        self.start = nn.Parameter(torch.randn(n_tags)) if learn_ends else None
        self.end = nn.Parameter(torch.randn(n_tags)) if learn_ends else None
        self.rules_in_training = rules_in_training
        self.penalties = RulePenalties(n_tags, rules)

    def loss(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """Return the negative log-likelihood of each sentence's tags in nats, ``(batch,)``.

        Args:
            emissions: ``(batch, time, tags)``.
            tags: ``(batch, time)``. Any tag may be given where the mask is False.
            mask: ``(batch, time)`` bool, without gaps. A row may be empty; its loss is 0.
        """
        scores = self._scores(self.rules_in_training)
        # Both terms get the same scores: with the rules in the partition alone, the loss of a forbidden gold sequence
        # could be negative.
        cost = self._partition(emissions, mask, *scores) - self._gold(emissions, tags, mask, *scores)
        return torch.where(mask[:, 0], cost, torch.zeros_like(cost))

    def decode(self, emissions: Tensor, mask: Tensor) -> list[list[int]]:
        """Return the best tags of each sentence that obey the rules. Ties go to the lower tag."""
        return viterbi(emissions, mask, *self._scores(with_rules=True))

    def _scores(self, with_rules: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return the scores of transitions, of first tags and of last tags."""
        follow = self.transitions
        start = torch.zeros_like(follow[0]) if self.start is None else self.start
        end = torch.zeros_like(follow[0]) if self.end is None else self.end
        return self.penalties.add_to(follow, start, end) if with_rules else (follow, start, end)

    @staticmethod
    def _partition(emissions: Tensor, mask: Tensor, follow: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """Return the log of the sum over all sequences, ``(batch,)``, by the forward algorithm."""
        alpha = emissions[:, 0] + start
        for step in range(1, emissions.shape[1]):
            # alpha[b, t]: log of the sum over all sequences that end in tag t at this step. Padding leaves it as it
            # was.
            reached = (alpha[:, :, None] + follow).logsumexp(dim=1) + emissions[:, step]
            alpha = torch.where(mask[:, step, None], reached, alpha)
        return (alpha + end).logsumexp(dim=1)

    @staticmethod
    def _gold(emissions: Tensor, tags: Tensor, mask: Tensor, follow: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """Return the score of the given sequences, ``(batch,)``."""
        of_tags = emissions.gather(2, tags[..., None])[..., 0]
        emitted = (of_tags * mask).sum(dim=1)
        before, after = tags[:, :-1], tags[:, 1:]
        transitions = (follow[before, after] * mask[:, 1:]).sum(dim=1)
        # The clamp is for empty rows, whose loss `loss` discards.
        last_token = (mask.sum(dim=1, keepdim=True) - 1).clamp(min=0)
        last = tags.gather(1, last_token)[:, 0]
        return emitted + transitions + start[tags[:, 0]] + end[last]
