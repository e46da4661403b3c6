"""Tags of chunks (IOB1, IOB2, BIOUL), the rules on their order, and the best sequence: Viterbi's algorithm and a CRF.

IOB2, also called BIO, starts every chunk with B. IOB1, the scheme of CoNLL-2003, starts a chunk with I, and with B only
directly after another chunk of the same type. BIOUL ends chunks of several tokens with L and marks chunks of one token
with U. The CRF is the linear-chain conditional random field of Lafferty et al. 2001.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from elmokit.tasks.scores import OUTSIDE, Chunk, Counts

Scheme = Literal["IOB1", "IOB2", "BIOUL"]
PREFIXES: dict[Scheme, str] = {"IOB1": "BI", "IOB2": "BI", "BIOUL": "BILU"}
# AllenNLP's value. It is not -inf, so that a sentence for which the rules allow no path still has a best one, and the
# log-sum-exp of forbidden paths alone is not NaN.
FORBIDDEN = -10_000.0


class TagError(ValueError):
    """A sequence of tags that is not valid in its scheme."""

    def __init__(self, token: int, reason: str) -> None:
        super().__init__(reason)
        self.token = token
        """Index of the token, from 0."""


def chunks_in(tags: Sequence[str], scheme: Scheme) -> list[Chunk]:
    """Return the chunks of a sentence from its tags.

    IOB1 is read like conlleval does, where a chunk starts at B, at I after O, and at any change of type. That reading
    is correct for valid IOB2 as well.
    """
    chunks: list[Chunk] = []
    start, label = -1, ""  # of the open chunk
    for token, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, kind = tag.partition("-")
        is_open = start >= 0
        continues = is_open and kind == label and prefix in ("I", "L")
        if not _is_valid(tag, scheme, is_open, continues):
            raise _invalid_tag(tags, token, scheme)
        if is_open and continues and prefix == "L":
            chunks.append(Chunk(start, token + 1, label))
            start = -1
        elif is_open and not continues:
            chunks.append(Chunk(start, token, label))
            start = -1
        if prefix == "U":
            chunks.append(Chunk(token, token + 1, kind))
        elif tag != OUTSIDE and not continues:
            start, label = token, kind
    return chunks


def _is_valid(tag: str, scheme: Scheme, is_open: bool, continues: bool) -> bool:
    """Check a tag of a scheme.

    Args:
        tag: The tag.
        scheme: Its scheme.
        is_open: Whether a chunk has begun and may have to go on.
        continues: Whether the tag continues it.
    """
    prefix, _, kind = tag.partition("-")
    if tag != OUTSIDE and (not kind or len(prefix) != 1 or prefix not in PREFIXES[scheme]):
        return False
    if scheme == "BIOUL" and is_open:
        return continues
    if scheme != "IOB1" and prefix in ("I", "L"):
        return continues
    return True


def _invalid_tag(tags: Sequence[str], token: int, scheme: Scheme) -> TagError:
    """Return the error about a tag, or about the end of the sentence."""
    after = repr(tags[token - 1]) if token else "the start of the sentence"
    what = "the end of the sentence" if token == len(tags) else repr(tags[token])
    names = ", ".join(f"{letter}-TYPE" for letter in PREFIXES[scheme])
    problem = f"{what} after {after} is not valid in {scheme}, whose tags are {OUTSIDE}, {names}"
    return TagError(min(token, len(tags) - 1), problem)


def tags_of(chunks: Iterable[Chunk], n_tokens: int, scheme: Scheme) -> list[str]:
    """Return one tag per token. The chunks must not overlap."""
    tags = [OUTSIDE] * n_tokens
    previous: Chunk | None = None
    for chunk in sorted(chunks):
        first, end = "B", "I"
        if scheme == "BIOUL":
            first, end = ("U", "U") if chunk.start + 1 == chunk.stop else ("B", "L")
        elif scheme == "IOB1":
            is_adjacent = previous is not None and previous.stop == chunk.start and previous.label == chunk.label
            first = "B" if is_adjacent else "I"
        for token in range(chunk.start, chunk.stop):
            letter = first if token == chunk.start else end if token + 1 == chunk.stop else "I"
            tags[token] = f"{letter}-{chunk.label}"
        previous = chunk
    return tags


def all_tags(types: Sequence[str], scheme: Scheme) -> list[str]:
    """Return ``O`` and every tag of the types."""
    return [OUTSIDE, *(f"{prefix}-{kind}" for kind in types for prefix in PREFIXES[scheme])]


def types_in(tags: Iterable[str]) -> list[str]:
    """Return the types that occur in tags, sorted."""
    return sorted({tag.partition("-")[2] for tag in tags} - {""})


class TagRules(NamedTuple):
    """Which tags are allowed where; all bool."""

    follow: Tensor  # (tags, tags): the tag of the column may come directly after the tag of the row
    start: Tensor  # (tags,): the tag may be the first of a sentence
    end: Tensor  # (tags,): the tag may be the last


def rules_of(tags: Sequence[str], scheme: Scheme) -> TagRules:
    """Return which tags may follow each other, start and end a sentence.

    The rules allow exactly the sequences that ``tags_of`` returns. BIOUL: after O, L and U comes O, B or U; after B and
    I comes I or L of the same type. IOB2: I-X comes only after B-X or I-X. IOB1: B-X comes only after B-X or I-X.
    """
    n_tags = len(tags)
    follow = torch.ones(n_tags, n_tags, dtype=torch.bool)
    start, end = torch.ones(n_tags, dtype=torch.bool), torch.ones(n_tags, dtype=torch.bool)
    if scheme == "IOB1":
        kinds = [tag.partition("-")[2] for tag in tags]
        for column, tag in enumerate(tags):
            if tag.startswith("B-"):
                start[column] = False
                follow[:, column] = torch.tensor([kind == kinds[column] for kind in kinds])
        return TagRules(follow, start, end)
    for row, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        is_open = prefix in ("B", "I")  # the chunk may continue
        must_continue = scheme == "BIOUL" and is_open
        start[row] = prefix not in ("I", "L")
        end[row] = not must_continue
        for column, next_tag in enumerate(tags):
            next_prefix, _, next_kind = next_tag.partition("-")
            continues = next_prefix in ("I", "L")
            follow[row, column] = is_open and kind == next_kind if continues else not must_continue
    return TagRules(follow, start, end)


def tag_ids(sentences: Iterable[Sequence[str]], tags: Sequence[str], mask: Tensor, padding: int) -> Tensor:
    """Return the number of each token's tag, ``(batch, time)`` like ``mask``, with ``padding`` after the tokens."""
    ids = {tag: number for number, tag in enumerate(tags)}
    numbers = torch.full(mask.shape, padding, dtype=torch.int64)
    for row, sentence in zip(numbers, sentences, strict=True):
        row[: len(sentence)] = torch.tensor([ids[tag] for tag in sentence], dtype=torch.int64)
    return numbers


def f1_scores(overall: Counts, by_type: Mapping[str, Counts], **others: float) -> dict[str, float]:
    """Return F1, precision, recall, any other scores, and the F1 of each type that the gold data contains."""
    per_type = {f"f1-{kind}": counts.f1 for kind, counts in by_type.items() if counts.gold}
    return {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall, **others, **per_type}


def chunk_records(tokens: Sequence[str], chunks: Iterable[Chunk]) -> list[dict[str, Any]]:
    """Return chunks as plain values for JSON, with their text."""
    return [{**chunk._asdict(), "text": " ".join(tokens[chunk.start : chunk.stop])} for chunk in chunks]


def mark_chunks(tokens: Iterable[str], chunks: Iterable[Chunk]) -> str:
    """Return the sentence with its chunks in brackets, such as ``[PER Mira] visits [LOC Oslo] .``"""
    words = list(tokens)
    for chunk in chunks:
        words[chunk.start] = f"[{chunk.label} {words[chunk.start]}"
        words[chunk.stop - 1] += "]"
    return " ".join(words)


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
    return [path[:length] for path, length in zip(paths, mask.sum(dim=1).tolist(), strict=True)]


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
        emitted = (emissions.gather(2, tags[..., None])[..., 0] * mask).sum(dim=1)
        transitions = (follow[tags[:, :-1], tags[:, 1:]] * mask[:, 1:]).sum(dim=1)
        # The clamp is for empty rows, whose loss `loss` discards.
        last = tags.gather(1, (mask.sum(dim=1, keepdim=True) - 1).clamp(min=0))[:, 0]
        return emitted + transitions + start[tags[:, 0]] + end[last]
