"""The models of ``elmokit.integrations.transformers`` that classify texts and tokens, and those that predict words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.config import check_choice, from_dict, to_dict
from elmokit.engine.softmax import SoftmaxConfig
from elmokit.errors import ConfigError, needs_extra
from elmokit.formats.model import PretrainedBiLM
from elmokit.integrations.transformers_model import (
    ElmoConfig,
    ElmoModel,
    ElmoPreTrainedModel,
    OutputLayers,
    open_without_alignment,
    reset_parameters,
)
from elmokit.integrations.transformers_tokenizer import Direction, Source, open_character_model
from elmokit.lm.substitutes import UNIGRAM_POWER, log_unigram
from elmokit.lm.surprisal import softmax_and_vocabulary
from elmokit.network.softmax import SoftmaxModule, build_softmax, softmax_config
from elmokit.text.vocabulary import Vocabulary

with needs_extra("elmokit.integrations.transformers", "transformers"):
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
    )
    from transformers.modeling_outputs import (
        CausalLMOutput,
        MaskedLMOutput,
        SequenceClassifierOutput,
        TokenClassifierOutput,
    )
    from transformers.utils import can_return_tuple


class _ElmoClassifier(ElmoPreTrainedModel):
    """What the models that classify share: the mix of the layers, dropout and a linear layer."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        if config.output_layers is None:
            config.output_layers = "mix"
        self.num_labels = config.num_labels
        self.elmo = ElmoModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @classmethod
    def from_elmokit(
        cls,
        model: Source = None,
        *,
        labels: Sequence[str] = ("LABEL_0", "LABEL_1"),
        output_layers: OutputLayers = "mix",
        trainable: bool = True,
    ) -> Any:
        """Create the model from an elmokit model, whose weights are copied. The linear layer is new.

        Args:
            model: The model.
            labels: The names of the labels.
            output_layers, trainable: As in :class:`ElmoConfig`.

        Raises:
            ModelError: No model was found, or it cannot be opened.
            ConfigError: The model reads word ids instead of characters or has an alignment, or a layer does not exist.
        """
        opened = open_without_alignment(model)
        names = dict(enumerate(labels))
        ids = {label: i for i, label in names.items()}
        new = cls(ElmoConfig.of(opened, output_layers=output_layers, trainable=trainable, id2label=names, label2id=ids))
        new.elmo._copy_weights(opened)
        new.eval()
        return new


class ElmoForTokenClassification(_ElmoClassifier):
    """Classifies tokens: a scalar mix of ELMo's layers, dropout and a linear layer.

    Example:
        >>> model = ElmoForTokenClassification.from_elmokit(labels=["O", "B-PER", "I-PER"], trainable=False)
        >>> model(**ElmoTokenizer.from_elmokit()("Ada slept.", return_tensors="pt")).logits.shape
        torch.Size([1, 5, 3])
    """

    task = "token-classification"
    auto_class = AutoModelForTokenClassification

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        char_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> TokenClassifierOutput:
        """Compute the scores of the labels.

        Args:
            input_ids, attention_mask, char_ids, output_hidden_states: As in :class:`ElmoModel`.
            labels: ``(batch, time)``, with -100 where there is none, as on the boundaries.

        Returns:
            ``logits`` ``(batch, time, labels)``; ``loss`` with labels; ``hidden_states`` if requested.
        """
        vectors, _, layers = self.elmo._vectors(input_ids, attention_mask, char_ids)
        logits = self.classifier(self.dropout(vectors))
        loss = None if labels is None else self.loss_function(logits, labels, self.config)
        return TokenClassifierOutput(loss, logits, self.elmo._hidden_states(layers, output_hidden_states))


class ElmoForSequenceClassification(_ElmoClassifier):
    """Classifies texts and pairs of texts: the mean over the tokens of a scalar mix of the layers, and a linear layer.

    As in other models of transformers, one label means regression, and ``problem_type`` in the config can be
    "multi_label_classification".

    Example:
        >>> model = ElmoForSequenceClassification.from_elmokit(labels=["bad", "good"], trainable=False)
        >>> model(**ElmoTokenizer.from_elmokit()("A lovely film.", return_tensors="pt")).logits.shape
        torch.Size([1, 2])
    """

    task = "text-classification"
    auto_class = AutoModelForSequenceClassification

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        char_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> SequenceClassifierOutput:
        """Compute the scores of the labels.

        Args:
            input_ids, attention_mask, char_ids, output_hidden_states: As in :class:`ElmoModel`.
            labels: ``(batch,)``, or ``(batch, labels)`` if a text can have several.

        Returns:
            ``logits`` ``(batch, labels)``; ``loss`` with labels; ``hidden_states`` if requested.
        """
        vectors, mask, layers = self.elmo._vectors(input_ids, attention_mask, char_ids)
        mean = vectors.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)  # vectors of padding are zero
        logits = self.classifier(self.dropout(mean))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss, logits, self.elmo._hidden_states(layers, output_hidden_states))


class _ElmoLM(ElmoPreTrainedModel):
    """What the language models share: a biLM and its softmax."""

    reads_both: bool

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        if config.softmax is None or config.vocab_size is None:
            raise ConfigError(f"The model has no softmax, which {type(self).__name__} needs.")
        if config.bilm_config.bidirectional != self.reads_both:
            wanted, other = ("both directions", "CausalLM") if self.reads_both else ("one direction", "MaskedLM")
            raise ConfigError(
                f"{type(self).__name__} reads {wanted}. Create it with from_elmokit, or use ElmoFor{other}."
            )
        self.elmo = ElmoModel(config)
        kind = from_dict(SoftmaxConfig, config.softmax, "softmax")
        projection_dim = config.bilm_config.projection_dim
        self.softmax = build_softmax(kind, config.vocab_size, projection_dim, self.elmo.bilm.token_layer)
        reset_parameters(self.softmax)

    @classmethod
    def _with_weights(
        cls, opened: PretrainedBiLM, softmax: SoftmaxModule, direction: int | None = None, **fields: Any
    ) -> Self:
        """Create the model with the weights of an elmokit model, or of one direction, and some fields of the config."""
        new = cls(ElmoConfig.of(opened, softmax=to_dict(softmax_config(softmax)), **fields))
        new.elmo._copy_weights(opened, direction)
        new.softmax.load_state_dict(softmax.state_dict())
        new.eval()
        return new

    def _scores(self, hidden: Tensor) -> Tensor:
        """Return the scores of all words, ``(batch, time, words)``, for the outputs of a direction."""
        scores: Tensor = self.softmax.scores(hidden.flatten(0, 1))
        return scores.view(*hidden.shape[:2], -1)

    def _loss(self, logits: Tensor, labels: Tensor, mask: Tensor) -> Any:
        """Compute the loss of the words among the labels."""
        labels = labels.masked_fill(~mask | (labels >= self.config.vocab_size), -100)
        return self.loss_function(logits, labels, vocab_size=self.config.vocab_size)


class ElmoForMaskedLM(_ElmoLM):
    """Both directions of a biLM with its softmax, which predict each word from the words on both of its sides.

    The score of a word is the sum of its log probabilities in the two directions, minus 0.75 times that of its
    frequency, which both directions expect (as :meth:`elmokit.LanguageModel.substitutes` does). Neither direction has
    read the word that it predicts. So one pass predicts all words of a text, with masks or without them.

    For a mask, ``<S>``, ``</S>`` and ``<UNK>`` have no probability; ``special_words=True`` in the config gives them
    theirs, for libraries that mask each word of a text to score it.

    Example:
        >>> model, tokenizer = ElmoForMaskedLM.from_elmokit(), ElmoTokenizer.from_elmokit()
        >>> logits = model(**tokenizer("She sat on the <MASK> of the river.", return_tensors="pt")).logits
        >>> tokenizer.decode(logits[0, 5].argmax())
        'edge'
    """

    reads_both = True
    task = "fill-mask"
    auto_class = AutoModelForMaskedLM

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.register_buffer("log_unigram", torch.zeros(config.vocab_size or 0))
        self.log_unigram: Tensor
        self.post_init()

    @classmethod
    def from_elmokit(cls, model: Source = None, *, special_words: bool = False) -> ElmoForMaskedLM:
        """Create the language model from an elmokit model, whose weights are copied.

        Args:
            model: The model, with its softmax and vocabulary.
            special_words: As in :class:`ElmoConfig`.

        Raises:
            ModelError: No model was found, it cannot be opened, or it has no softmax or no vocabulary.
            ConfigError: The model reads word ids instead of characters, or only one direction.
        """
        opened, softmax, vocabulary = _open_with_softmax(model)
        new = cls._with_weights(opened, softmax, special_words=special_words)
        new.log_unigram.copy_(torch.from_numpy(log_unigram(vocabulary)))
        return new

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        char_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> MaskedLMOutput:
        """Compute the scores of the word at each position, from the words at all others.

        Args:
            input_ids, attention_mask, char_ids, output_hidden_states: As in :class:`ElmoModel`.
            labels: ``input_ids``, or a copy with -100 where the loss is to ignore a word. Padding is always ignored.

        Returns:
            ``logits`` ``(batch, time, words)``, 0 on padding; ``loss`` with labels; ``hidden_states`` if requested.
        """
        layers, mask = self.elmo._layers(input_ids, attention_mask, char_ids)
        forward, backward = layers[-1].chunk(2, dim=-1)
        # The forward direction predicts the next word, the backward direction the one before.
        from_left = F.pad(self._scores(forward[:, :-1]).log_softmax(dim=-1), (0, 0, 1, 0))
        from_right = F.pad(self._scores(backward[:, 1:]).log_softmax(dim=-1), (0, 0, 0, 1))
        # The last token has nothing on its right, and the first one nothing on its left.
        has_right = F.pad(mask[:, 1:], (0, 1))[..., None]
        has_left = F.pad(mask[:, 1:], (1, 0))[..., None]
        frequency = UNIGRAM_POWER * self.log_unigram * (has_left & has_right)
        logits = (from_left + from_right * has_right - frequency) * mask[..., None]
        loss = None if labels is None else self._loss(logits, labels, mask)
        if input_ids is not None and not self.config.special_words:
            special = torch.zeros_like(self.log_unigram, dtype=torch.bool)
            special[self.config.special_ids or []] = True
            is_masked = input_ids == self.config.mask_id
            logits = logits.masked_fill(is_masked[..., None] & special, -torch.inf)
        return MaskedLMOutput(loss, logits, self.elmo._hidden_states(layers, output_hidden_states))


class ElmoForCausalLM(_ElmoLM):
    """One direction of a biLM with its softmax, as a causal language model over a closed vocabulary.

    It reads from left to right. For the backward direction, the tokenizer reverses the tokens. ``generate`` is not
    supported.

    Example:
        >>> model, tokenizer = ElmoForCausalLM.from_elmokit(), ElmoTokenizer.from_elmokit(direction="forward")
        >>> model(**tokenizer("The bank raised its", return_tensors="pt")).logits.shape
        torch.Size([1, 5, 30000])
    """

    reads_both = False
    task = "text-generation"
    auto_class = AutoModelForCausalLM

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.post_init()

    @classmethod
    def from_elmokit(cls, model: Source = None, *, direction: Direction = "forward") -> ElmoForCausalLM:
        """Create the language model from an elmokit model, whose weights are copied.

        Args:
            model: The model, with its softmax and vocabulary.
            direction: The direction to use. The tokenizer needs the same one.

        Raises:
            ModelError: No model was found, it cannot be opened, or it has no softmax or no vocabulary.
            ConfigError: The model reads word ids instead of characters, or does not read in this direction.
        """
        opened, softmax, _ = _open_with_softmax(model)
        sizes, names = opened.config, opened.config.direction_names
        check_choice("direction", direction, names)
        bilm = to_dict(replace(sizes, bidirectional=False))
        return cls._with_weights(opened, softmax, names.index(direction), bilm=bilm)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        char_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> CausalLMOutput:
        """Compute the scores of the word after each position.

        Args:
            input_ids, attention_mask, char_ids, output_hidden_states: As in :class:`ElmoModel`.
            labels: ``input_ids``, or a copy with -100 where the loss is to ignore a word. Padding is always ignored.

        Returns:
            ``logits`` ``(batch, time, words)``; ``loss`` with labels; ``hidden_states`` if requested.
        """
        layers, mask = self.elmo._layers(input_ids, attention_mask, char_ids)
        logits = self._scores(layers[-1])
        loss = None if labels is None else self._loss(logits, labels, mask)
        return CausalLMOutput(loss, logits, hidden_states=self.elmo._hidden_states(layers, output_hidden_states))


def _open_with_softmax(model: Source) -> tuple[PretrainedBiLM, SoftmaxModule, Vocabulary]:
    opened = open_character_model(model)
    _, vocabulary = softmax_and_vocabulary(opened)
    softmax = opened.softmax_module
    assert softmax is not None
    return opened, softmax, vocabulary
