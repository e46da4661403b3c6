"""Named entity recognition: words and characters, bidirectional LSTMs, and a CRF over tags.

Peters et al. 2018, section 4 and supplement. The sizes are from AllenNLP's configuration for CoNLL-2003. The
encoders and feed-forward layers of AllenNLP's other taggers are in ``allennlp/variants.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from elmokit.config import check_fraction, setting
from elmokit.errors import TextError
from elmokit.storage.progress import count_of
from elmokit.storage.text_files import read_lines
from elmokit.tasks.inputs import InputLayer, Inputs, TokenBatch
from elmokit.tasks.nn.crf import CRF
from elmokit.tasks.nn.layers import VariationalDropout, run_packed
from elmokit.tasks.scores import chunk_f1, chunk_f1_per_label, f1_scores
from elmokit.tasks.tags import (
    Chunk,
    Scheme,
    TagError,
    all_tags,
    chunk_records,
    chunks_in,
    mark_chunks,
    read_chunks,
    rules_of,
    tag_ids,
    tags_of,
    types_in,
)
from elmokit.tasks.task import Labels, Task, TaskModel, Tokenize, check_known, check_learnable, read_sentence
from elmokit.tasks.task_config import (
    CharsConfig,
    ElmoConfig,
    MixConfig,
    OptimizerConfig,
    TaskDataConfig,
    TaskTrainingConfig,
    WordsConfig,
    check_sizes,
)
from elmokit.text.columns import read_column_sentences
from elmokit.text.first_lines import JSON


@dataclass(frozen=True)
class NerData(TaskDataConfig):
    """Files with one token per line and its tag in a column."""

    tags: Scheme = setting("IOB1", "Tagging scheme of the files. IOB1 also reads valid IOB2.")
    token_column: int = setting(0, "Column of the token, from 0.")
    tag_column: int = setting(-1, "Column of the tag, counted from the end if negative.")


@dataclass(frozen=True)
class NerModelConfig:
    """Sizes of the tagger."""

    hidden: tuple[int, ...] = setting((200, 200), "Units per direction of each layer. The paper used 200 and 100.")
    dropout: float = setting(0.5, "Dropout before, between and after the layers.")
    variational: bool = setting(
        False,
        "Drop the same features at all tokens of a sentence, as in the paper, or independently, as in AllenNLP.",
    )
    tags: Scheme = setting("BIOUL", "Tagging scheme of the model.")
    constraints: Literal["decoding", "both", "none"] = setting(
        "decoding", "When to exclude invalid tag sequences: only in decoding, as in AllenNLP, or also in training."
    )
    learn_ends: bool = setting(False, "Learn scores for each tag at the start and end of a sentence.")

    def __post_init__(self) -> None:
        check_sizes("hidden", self.hidden)
        check_fraction("dropout", self.dropout)


@dataclass(frozen=True)
class NerConfig:
    """The configuration of the task. The defaults are the published values, without ELMo."""

    data: NerData = NerData()
    words: WordsConfig | None = WordsConfig(dim=50, lowercase=True)
    chars: CharsConfig | None = CharsConfig()
    elmo: ElmoConfig | None = None
    model: NerModelConfig = NerModelConfig()
    train: TaskTrainingConfig = TaskTrainingConfig(
        batch_size=64, bucketed=False, epochs=75, patience=25, max_grad_norm=5.0
    )


# For about a thousand sentences. Vectors of words that occur fewer than five times would overfit, and averaged weights
# vary less between epochs.
SMALL = NerConfig(
    words=WordsConfig(dim=50, lowercase=True, min_count=5),
    chars=CharsConfig(filters=((3, 50),)),
    model=NerModelConfig(hidden=(100,), variational=True),
    train=TaskTrainingConfig(
        optimizer=OptimizerConfig(learning_rate=3e-3),
        batch_size=32,
        epochs=20,
        patience=6,
        max_grad_norm=5.0,
        average=0.98,
    ),
)


@dataclass(frozen=True)
class NerExample:
    """A sentence and its entities."""

    tokens: list[str]
    chunks: list[Chunk] | None
    """None if they are unknown."""
    where: str
    """File and line, for error messages."""

    def tags(self, scheme: Scheme) -> list[str] | None:
        """Return the tags of the entities; None if they are unknown."""
        return None if self.chunks is None else tags_of(self.chunks, len(self.tokens), scheme)


@dataclass(frozen=True)
class NerBatch:
    """Sentences and their tags as tensors."""

    tokens: TokenBatch
    tags: Tensor | None  # (batch, time); None if they are unknown


class NerModel(TaskModel[NerBatch, list[Chunk]]):
    """The tagger.

    Its loss is the CRF's negative log-likelihood, summed over the batch as in AllenNLP. Because it is not a mean, the
    penalty on the mix weights (lambda) has less effect than in other tasks.
    """

    def __init__(self, config: NerModelConfig, inputs: InputLayer, tags: Sequence[str]) -> None:
        super().__init__()
        self.inputs = inputs
        self.tags = list(tags)
        dim = self.add_layers(config, inputs.output_dim)
        self.dropout = VariationalDropout(config.dropout) if config.variational else nn.Dropout(config.dropout)
        self.to_tags = nn.Linear(dim + inputs.elmo_output_dim, len(self.tags))
        rules = None
        if config.constraints != "none":
            rules = rules_of(self.tags, config.tags)
        rules_in_training = config.constraints == "both"
        self.crf = CRF(len(self.tags), rules, rules_in_training, config.learn_ends)

    def add_layers(self, config: NerModelConfig, input_dim: int) -> int:
        """Add the layers between the inputs and the tags, and return the size of their output."""
        self.layers = nn.ModuleList()
        dim = input_dim
        for units in config.hidden:
            self.layers.append(nn.LSTM(dim, units, batch_first=True, bidirectional=True))
            dim = 2 * units
        return dim

    def encode(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Run these layers.

        Args:
            hidden: The inputs after dropout, ``(batch, time, input_dim)``.
            mask: ``(batch, time)`` bool, True on a token.

        Returns:
            ``(batch, time, dim)``, with the size that ``add_layers`` returned.
        """
        for layer in self.layers:
            assert isinstance(layer, nn.LSTM)
            hidden = self.dropout(run_packed(layer, hidden, mask))
        return hidden

    def emissions(self, tokens: TokenBatch) -> Tensor:
        """Return the score of each tag at each token, ``(batch, time, tags)``."""
        vectors = self.dropout(self.inputs(tokens))
        hidden = self.encode(vectors, tokens.mask)
        scores: Tensor = self.to_tags(self.inputs.at_output(hidden, tokens))
        return scores

    def loss(self, batch: NerBatch) -> Tensor:
        assert batch.tags is not None
        losses = self.crf.loss(self.emissions(batch.tokens), batch.tags, batch.tokens.mask)
        return losses.sum()

    def predict(self, batch: NerBatch) -> list[list[Chunk]]:
        """Return the entities of each sentence."""
        paths = self.crf.decode(self.emissions(batch.tokens), batch.tokens.mask)
        sentences = []
        for path in paths:
            tags = [self.tags[tag] for tag in path]
            sentences.append(read_chunks(tags))
        return sentences


class NerTask(Task[NerConfig, NerExample, NerBatch, list[Chunk]]):
    """Named entity recognition: find and label the names in a sentence."""

    name = "ner"
    text_formats = (JSON,)
    presets: ClassVar[Mapping[str, NerConfig]] = {"published": NerConfig(), "small": SMALL}
    metric = "f1"
    elmo = ElmoConfig(input=MixConfig(penalty=0.1))

    def read(self, path: str, config: NerConfig) -> Iterator[NerExample]:
        """Read sentences from columns."""
        data = config.data
        lines = enumerate(read_lines(path), start=1)
        for sentence in read_column_sentences(path, lines):
            try:
                tokens = [row[data.token_column] for row in sentence.rows]
                tags = [row[data.tag_column] for row in sentence.rows]
            except IndexError:
                raise TextError(
                    f"{sentence.where()}: {count_of(len(sentence.rows[0]), 'column')}, but data.token_column is "
                    f"{data.token_column} and data.tag_column is {data.tag_column}. Columns are counted from 0."
                ) from None
            try:
                chunks = chunks_in(tags, data.tags)
            except TagError as error:
                raise TextError(f"{sentence.where(error.token)}: {error} (data.tags).") from None
            yield NerExample(tokens, chunks, sentence.where())

    def read_line(self, line: str, where: str, tokenize: Tokenize, config: NerConfig) -> NerExample:
        """Read a sentence or a JSON object."""
        return NerExample(read_sentence(line, where, tokenize), None, where)

    def labels(self, examples: Sequence[NerExample], config: NerConfig) -> Labels:
        """Return the tags of all entity types that occur."""
        types: set[str] = set()
        for example in examples:
            types.update(chunk.label for chunk in example.chunks or ())
        check_learnable(types, "entity")
        return {"tags": all_tags(sorted(types), config.model.tags)}

    def check(self, example: NerExample, known: Labels) -> None:
        """Raise an error for an entity type that is unknown to the run."""
        types = types_in(known["tags"])
        for chunk in example.chunks or ():
            check_known(chunk.label, types, example.where, f"token {chunk.start + 1} of the sentence has the type")

    def build(self, config: NerConfig, inputs: InputLayer, known: Labels) -> NerModel:
        return NerModel(config.model, inputs, known["tags"])

    def collate(self, examples: Sequence[NerExample], inputs: Inputs, known: Labels, config: NerConfig) -> NerBatch:
        """Build a batch, without tags if a sentence has none or an unknown tag."""
        tokens = inputs.batch([example.tokens for example in examples])
        # The vocabulary of a model trained by AllenNLP may lack some tags of a known type.
        tags = (example.tags(config.model.tags) for example in examples)
        return NerBatch(tokens, tag_ids(tags, known["tags"], tokens.mask, padding=0))

    def score(
        self, examples: Sequence[NerExample], predictions: Sequence[list[Chunk]], config: NerConfig
    ) -> dict[str, float]:
        """Return precision, recall and F1 of entities as in conlleval, and the F1 of each type in the gold data."""
        gold = [example.chunks or [] for example in examples]
        return f1_scores(chunk_f1(gold, predictions), chunk_f1_per_label(gold, predictions))

    def to_record(self, example: NerExample, chunks: list[Chunk]) -> dict[str, Any]:
        """Return the tokens, IOB2 tags, and entities, each from token ``start`` to token ``stop - 1``."""
        return {
            "tokens": example.tokens,
            "tags": tags_of(chunks, len(example.tokens), "IOB2"),
            "entities": chunk_records(example.tokens, chunks),
        }

    def to_text(self, example: NerExample, chunks: list[Chunk]) -> str:
        """Return the sentence with its entities in brackets."""
        return mark_chunks(example.tokens, chunks)
