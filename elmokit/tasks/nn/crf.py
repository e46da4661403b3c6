"""A linear-chain conditional random field over tags (Lafferty et al. 2001), with hard rules on what may follow what."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

FORBIDDEN = -10_000.0  # AllenNLP's; added to a score, so that a sentence without any allowed path still has a best one


class Rules(NamedTuple):
    """What tags may stand where; all bool."""

    follow: Tensor  # (tags, tags): may the second stand right after the first
    start: Tensor  # (tags,)
    end: Tensor  # (tags,)


def penalties_of(rules: Rules) -> tuple[Tensor, Tensor, Tensor]:
    """What ``viterbi`` adds: 0 where the rules allow, else so little that only a sentence without a way breaks them."""
    follow, start, end = (FORBIDDEN * (~allowed).float() for allowed in rules)
    return follow, start, end


@torch.no_grad()
def viterbi(emissions: Tensor, mask: Tensor, follow: Tensor, start: Tensor, end: Tensor) -> list[list[int]]:
    """The tags of the highest summed score for each sentence (Viterbi 1967); ties go to the lower tag.

    Args:
        emissions: ``(batch, time, tags)``.
        mask: ``(batch, time)`` bool, no holes; a row may be empty.
        follow: ``(tags, tags)``, added where the column's tag comes right after the row's.
        start, end: ``(tags,)``, added for the first and the last tag.
    """
    best = emissions[:, 0] + start  # (batch, tags)
    stay = torch.arange(len(start), device=emissions.device).expand_as(best)
    origins = []
    for step in range(1, emissions.shape[1]):
        candidates, origin = (best[:, :, None] + follow).max(dim=1)
        real = mask[:, step, None]
        best = torch.where(real, candidates + emissions[:, step], best)
        origins.append(torch.where(real, origin, stay))
    tags = [(best + end).argmax(dim=1, keepdim=True)]
    for origin in reversed(origins):
        tags.append(origin.gather(1, tags[-1]))
    paths = torch.cat(tags[::-1], dim=1).tolist()
    return [path[:length] for path, length in zip(paths, mask.sum(dim=1).tolist(), strict=True)]


class CRF(nn.Module):
    """Scores of whole tag sequences: emissions, transitions, and optionally learned starts and ends.

    Args:
        n_tags: how many tags.
        rules: hard rules for ``decode``; None for none.
        rules_in_training: obey them in the partition function too, so that no probability is spent on sequences that
            ``decode`` would never give. AllenNLP does not.
        learn_ends: learn a score for each tag at the start and at the end. AllenNLP's NER does not.
    """

    def __init__(
        self, n_tags: int, rules: Rules | None = None, rules_in_training: bool = False, learn_ends: bool = False
    ) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.empty(n_tags, n_tags))  # from the row's tag to the column's
        nn.init.xavier_normal_(self.transitions)
        self.start = nn.Parameter(torch.randn(n_tags)) if learn_ends else None
        self.end = nn.Parameter(torch.randn(n_tags)) if learn_ends else None
        self.rules_in_training = rules_in_training
        if rules is None:
            rules = Rules(*(torch.ones(shape, dtype=torch.bool) for shape in ((n_tags, n_tags), (n_tags,), (n_tags,))))
        for name, penalty in zip(("follow_penalty", "start_penalty", "end_penalty"), penalties_of(rules), strict=True):
            self.register_buffer(name, penalty, persistent=False)  # derived from the tags' names
        self.follow_penalty: Tensor
        self.start_penalty: Tensor
        self.end_penalty: Tensor

    def loss(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """The negative log-likelihood of each sentence's tags, in nats: ``(batch,)``.

        Args:
            emissions: ``(batch, time, tags)``.
            tags: ``(batch, time)``; any tag where the mask is False.
            mask: ``(batch, time)`` bool, no holes; a row may be empty and then costs nothing.
        """
        follow, start, end = self._scores(self.rules_in_training)
        cost = self._partition(emissions, mask, follow, start, end) - self._gold(
            emissions, tags, mask, follow, start, end
        )
        return torch.where(mask[:, 0], cost, torch.zeros_like(cost))

    def decode(self, emissions: Tensor, mask: Tensor) -> list[list[int]]:
        """The best tags of each sentence under the rules, by Viterbi's algorithm; ties go to the lower tag."""
        return viterbi(emissions, mask, *self._scores(with_rules=True))

    def _scores(self, with_rules: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Of transitions, starts and ends, with the rules' penalties or without."""
        follow = self.transitions
        start = torch.zeros_like(follow[0]) if self.start is None else self.start
        end = torch.zeros_like(follow[0]) if self.end is None else self.end
        if not with_rules:
            return follow, start, end
        return follow + self.follow_penalty, start + self.start_penalty, end + self.end_penalty

    @staticmethod
    def _partition(emissions: Tensor, mask: Tensor, follow: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """The log of the sum over all sequences: the forward algorithm, ``(batch,)``."""
        alpha = emissions[:, 0] + start
        for step in range(1, emissions.shape[1]):
            reached = (alpha[:, :, None] + follow).logsumexp(dim=1) + emissions[:, step]
            alpha = torch.where(mask[:, step, None], reached, alpha)
        return (alpha + end).logsumexp(dim=1)

    @staticmethod
    def _gold(emissions: Tensor, tags: Tensor, mask: Tensor, follow: Tensor, start: Tensor, end: Tensor) -> Tensor:
        """The score of the given sequences, ``(batch,)``."""
        emitted = (emissions.gather(2, tags[..., None])[..., 0] * mask).sum(dim=1)
        moved = (follow[tags[:, :-1], tags[:, 1:]] * mask[:, 1:]).sum(dim=1)
        last = tags.gather(1, (mask.sum(dim=1, keepdim=True) - 1).clamp(min=0))[:, 0]
        return emitted + moved + start[tags[:, 0]] + end[last]
