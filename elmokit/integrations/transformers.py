"""ELMo in transformers: models and a tokenizer that its auto classes and pipelines load, and that its trainer trains.

Importing this module registers the classes, so that ``AutoModel.from_pretrained`` and ``pipeline`` find them.

:class:`ElmoModel` computes token vectors. :class:`ElmoForTokenClassification` and
:class:`ElmoForSequenceClassification` classify with them. :class:`ElmoForMaskedLM` predicts a word from both of its
sides, over a closed vocabulary. :class:`ElmoForCausalLM` is the forward direction of the biLM as a causal language
model, for libraries that score text with such models.

The tokenizer (``transformers_tokenizer.py``) returns two kinds of ids for each token: ``char_ids``, which the biLM
reads, and ``input_ids``, the words that the softmax predicts. A word that is not in the vocabulary is ``<UNK>`` among
the ``input_ids``, and is still read by its characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.config import from_dict, to_dict
from elmokit.embedding.start_state import note_start, start_state
from elmokit.engine.config import BiLMConfig
from elmokit.engine.layer_selection import select_layers
from elmokit.engine.softmax import SoftmaxConfig
from elmokit.errors import ConfigError, needs_extra
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.open import open_to_export
from elmokit.integrations.transformers_tokenizer import MASK, PADDING, ElmoTokenizer, Source, token_ids
from elmokit.lm.substitutes import UNIGRAM_POWER, log_unigram
from elmokit.lm.surprisal import softmax_and_vocabulary
from elmokit.network.bilm import BiLM, BiLMState
from elmokit.network.lstm_module import check_no_gaps
from elmokit.network.scalar_mix import ScalarMix, selected_layers
from elmokit.network.softmax_module import build_softmax, softmax_config
from elmokit.text.characters import UNKNOWN
from elmokit.text.vocabulary import SPECIALS, Vocabulary

with needs_extra("elmokit.integrations.transformers", "transformers"):
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        AutoTokenizer,
        PreTrainedConfig,
        PreTrainedModel,
    )
    from transformers.modeling_outputs import (
        BaseModelOutput,
        CausalLMOutput,
        MaskedLMOutput,
        SequenceClassifierOutput,
        TokenClassifierOutput,
    )
    from transformers.utils import can_return_tuple

__all__ = [
    "ElmoConfig",
    "ElmoForCausalLM",
    "ElmoForMaskedLM",
    "ElmoForSequenceClassification",
    "ElmoForTokenClassification",
    "ElmoModel",
    "ElmoPreTrainedModel",
    "ElmoTokenizer",
]


class ElmoConfig(PreTrainedConfig):
    """The sizes of an ELMo.

    Args:
        bilm: The fields of :class:`elmokit.BiLMConfig`. None: the sizes of the original English ELMo.
        output_layers: The layers that ``last_hidden_state`` is computed from: "top", "average", "mix" (a learned
            scalar mix of all layers), or a layer number. None: "mix" in the models that classify, "top" in others.
        trainable: Train the biLM. If False, only what is above it is trained, which is much faster.
        classifier_dropout: The dropout ratio of the vectors in the models that classify.
        special_words: Let :class:`ElmoForMaskedLM` predict ``<S>``, ``</S>`` and ``<UNK>`` for a mask.
        softmax: The kind of softmax, for the language models.
        vocab_size: Number of words that the softmax predicts; None without a vocabulary.
        padding_id, mask_id: Ids of the tokenizer. They follow those of the words, which transformers does not allow for
            its own ``pad_token_id`` and ``mask_token_id``.
        special_ids: The ids of the special words.
    """

    model_type = "elmo"

    bilm: dict[str, Any] | None = None
    output_layers: str | int | None = None
    trainable: bool = True
    classifier_dropout: float = 0.5
    special_words: bool = False
    softmax: dict[str, Any] | None = None
    vocab_size: int | None = None
    padding_id: int = -1
    mask_id: int = -1
    special_ids: list[int] | None = None

    @classmethod
    def of(cls, model: PretrainedBiLM, **fields: Any) -> ElmoConfig:
        """Describe an elmokit model, with other values for some fields."""
        words = Vocabulary(SPECIALS) if model.vocabulary is None else model.vocabulary
        ids = token_ids(words)
        own = {
            "bilm": to_dict(model.config),
            "vocab_size": None if model.vocabulary is None else len(model.vocabulary),
            "padding_id": ids[PADDING],
            "mask_id": ids[MASK],
            "special_ids": [words.ids[word] for word in SPECIALS if word in words.ids],
            "bos_token_id": words.begin_id,
            "eos_token_id": words.end_id,
        }
        return cls(**(own | fields))

    @property
    def bilm_config(self) -> BiLMConfig:
        """The sizes of the biLM."""
        return from_dict(BiLMConfig, self.bilm or {}, "bilm")

    @property
    def hidden_size(self) -> int:
        """Number of dimensions of a token vector."""
        return self.bilm_config.output_dim

    @property
    def num_hidden_layers(self) -> int:
        """Number of LSTM layers."""
        return self.bilm_config.n_layers

    @property
    def n_token_ids(self) -> int:
        """Number of ids of the tokenizer, those of padding and masks included; 0 without a vocabulary."""
        if self.vocab_size is None:
            return 0
        return max(self.vocab_size, self.padding_id + 1, self.mask_id + 1)


class ElmoPreTrainedModel(PreTrainedModel):
    """Base class of the models."""

    config_class = ElmoConfig
    base_model_prefix = "elmo"
    main_input_name = "input_ids"

    @classmethod
    def from_elmokit(cls, model: Source = None, *, labels: Sequence[str] | None = None, **settings: Any) -> Self:
        """Create the model from an elmokit model, whose weights are copied. A classifier's linear layer is new.

        Args:
            model: The model; for a language model, with its softmax and vocabulary.
            labels: The names of a classifier's labels. None: as in transformers, "LABEL_0" and "LABEL_1".
            **settings: Fields of :class:`ElmoConfig`: ``output_layers``, ``trainable``, ``classifier_dropout``,
                ``special_words``.

        Raises:
            ModelError: No model was found, it cannot be opened, or a language model has no softmax or no vocabulary.
            ConfigError: The model reads word ids instead of characters, reads in one direction and this class in both,
                or has an alignment, which only language models ignore; or a layer does not exist.
        """
        opened = open_to_export(model, cls.__name__, can_align=issubclass(cls, _ElmoLM))
        if labels is not None:
            settings["id2label"] = dict(enumerate(labels))
            settings["label2id"] = {label: i for i, label in enumerate(labels)}
        new = cls(ElmoConfig.of(opened, **cls._config_of(opened), **settings))
        new._copy_weights(opened)
        new.eval()
        return new

    @classmethod
    def _config_of(cls, opened: PretrainedBiLM) -> dict[str, Any]:
        """Return the fields of the config in which this class differs from the model."""
        return {}

    def _copy_weights(self, opened: PretrainedBiLM) -> None:
        self.elmo._copy_weights(opened)

    def _init_weights(self, module: nn.Module) -> None:
        # transformers calls this for modules with parameters of their own that were not loaded. Only a mix and a
        # classifier can be new in a loaded model.
        if isinstance(module, ScalarMix):
            nn.init.zeros_(module.weight)
            nn.init.ones_(module.gamma)
        elif module is getattr(self, "classifier", None):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)


class ElmoModel(ElmoPreTrainedModel):
    """Contextual token vectors from a biLM.

    A text starts from the model's start state, as with ``start="warm"`` in elmokit.

    Example:
        >>> model, tokenizer = ElmoModel.from_elmokit(), ElmoTokenizer.from_elmokit()
        >>> output = model(**tokenizer("The bank raised its rate.", return_tensors="pt"), output_hidden_states=True)
        >>> len(output.hidden_states), output.last_hidden_state.shape  # <S>, six tokens and </S>
        (3, torch.Size([1, 8, 384]))
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        sizes = config.bilm_config
        self.bilm = BiLM(sizes)
        _reset_parameters(self.bilm)
        self.bilm.requires_grad_(config.trainable)
        is_mix = config.output_layers == "mix"
        self.mixes = nn.ModuleList([ScalarMix(sizes.n_layers + 1)] if is_mix else [])
        layers: Any = "top" if config.output_layers is None else config.output_layers
        self.selection = None if is_mix else select_layers(layers, sizes.n_layers + 1, None, "this model")
        if self.selection is not None and isinstance(self.selection.returned, tuple):
            raise ConfigError(
                f"output_layers is {layers!r}, but a model returns one vector per token. For those of several layers, "
                "pass output_hidden_states=True."
            )
        start = self.bilm.zero_state(1)
        self.register_buffer("start_hidden", start.hidden)
        self.register_buffer("start_cell", start.cell)
        self.start_hidden: Tensor
        self.start_cell: Tensor
        # How the words are spelled, for callers that pass input_ids alone.
        n_char_ids = sizes.char_cnn.max_chars if sizes.char_cnn is not None else 0
        shape = (config.n_token_ids, sizes.ids_per_token or n_char_ids)
        self.register_buffer("word_char_ids", torch.zeros(shape, dtype=torch.int32))
        self.word_char_ids: Tensor
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        char_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        """Compute the vectors of a batch.

        Args:
            input_ids: Word ids, ``(batch, time)``. With ``char_ids``, only the ids of padding and masks matter.
            attention_mask: ``(batch, time)``, 1 on a token. None: wherever there is no padding.
            char_ids: ``(batch, time, chars)``. None: the characters of the words; unknown words are then read as
                ``<UNK>``, which is less exact.
            output_hidden_states: Also return all layers, layer 0 first.

        Returns:
            ``last_hidden_state`` ``(batch, time, dim)``, boundaries included and zero on padding; ``hidden_states`` if
            requested.
        """
        layers, mask = self._layers(input_ids, attention_mask, char_ids)
        return BaseModelOutput(
            self._vectors(layers, mask), hidden_states=self._hidden_states(layers, output_hidden_states)
        )

    def _vectors(self, layers: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors of the output layers, ``(batch, time, dim)``."""
        vectors = self.mixes[0](layers) if self.selection is None else selected_layers(layers, self.selection)
        return vectors * mask[..., None]

    def _layers(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, char_ids: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return all layers ``(layers, batch, time, dim)``, and the mask of the tokens ``(batch, time)``."""
        width = self.bilm.config.ids_per_token
        if char_ids is not None and width is not None and char_ids.shape[-1] != width:
            raise ValueError(
                f"char_ids has {char_ids.shape[-1]} numbers per token, and this model reads {width}. Use its tokenizer."
            )
        if char_ids is None:
            char_ids = self.word_char_ids[input_ids].long()
        elif input_ids is not None and self.config.n_token_ids:
            # A mask may have been put over a token whose characters are still there.
            is_masked = (input_ids == self.config.mask_id)[..., None]
            char_ids = torch.where(is_masked, self.word_char_ids[self.config.mask_id].to(char_ids), char_ids)
        mask = self.bilm.mask_of(char_ids) if attention_mask is None else attention_mask.bool()
        check_no_gaps(mask)
        state = BiLMState(self.start_hidden, self.start_cell).repeat_row(len(char_ids))
        # Not only by the parameters' own flag, which loading a model resets. If they differ, an adapter is trained.
        is_trained = self.config.trainable or len({weight.requires_grad for weight in self.bilm.parameters()}) > 1
        with torch.set_grad_enabled(torch.is_grad_enabled() and is_trained):
            layers, _ = self.bilm(char_ids * mask[..., None], mask, state)
        return layers, mask

    def _hidden_states(self, layers: Tensor, is_wanted: bool | None) -> tuple[Tensor, ...] | None:
        is_wanted = self.config.output_hidden_states if is_wanted is None else is_wanted
        return tuple(layers) if is_wanted else None

    def _copy_weights(self, opened: PretrainedBiLM) -> None:
        """Copy the weights of a model, or of its forward direction if this one has no other."""
        note_start(opened)
        self.bilm.token_layer.load_state_dict(opened.bilm.token_layer.state_dict())
        for own, theirs in zip(self.bilm.directions, opened.bilm.directions, strict=False):
            own.load_state_dict(theirs.state_dict())
        state = BiLMState.from_numpy(start_state(opened))
        self.start_hidden.copy_(state.hidden[: len(self.bilm.directions)])
        self.start_cell.copy_(state.cell[: len(self.bilm.directions)])
        if opened.vocabulary is not None:
            words = [*opened.vocabulary.words, *[UNKNOWN] * (self.config.n_token_ids - len(opened.vocabulary))]
            self.word_char_ids.copy_(torch.from_numpy(opened.encode(words)))
            self.word_char_ids[self.config.padding_id] = 0


class _ElmoHead(ElmoPreTrainedModel):
    """What the models above a biLM share: they compute scores, and with labels a loss."""

    output_class: ClassVar[Any]

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        char_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> Any:
        """Compute the scores of a batch.

        Args:
            input_ids, attention_mask, char_ids, output_hidden_states: As in :class:`ElmoModel`.
            labels: What the scores should have been, as the class says.

        Returns:
            ``logits``; ``loss`` with labels; ``hidden_states`` if requested.
        """
        layers, mask = self.elmo._layers(input_ids, attention_mask, char_ids)
        logits = self._scores(layers, mask)
        loss = None if labels is None else self._loss(logits, labels, mask)
        states = self.elmo._hidden_states(layers, output_hidden_states)
        return self.output_class(loss, self._answers(logits, input_ids), hidden_states=states)

    def _scores(self, layers: Tensor, mask: Tensor) -> Tensor:
        raise NotImplementedError

    def _loss(self, logits: Tensor, labels: Tensor, mask: Tensor) -> Any:
        raise NotImplementedError

    def _answers(self, logits: Tensor, input_ids: Tensor | None) -> Tensor:
        """Return the scores that a caller sees."""
        return logits


class _ElmoClassifier(_ElmoHead):
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


class ElmoForTokenClassification(_ElmoClassifier):
    """Classifies tokens: a scalar mix of ELMo's layers, dropout and a linear layer.

    ``logits`` are ``(batch, time, labels)``, and ``labels`` ``(batch, time)``, with -100 where there is none, as on the
    boundaries.

    Example:
        >>> model = ElmoForTokenClassification.from_elmokit(labels=["O", "B-PER", "I-PER"], trainable=False)
        >>> model(**ElmoTokenizer.from_elmokit()("Ada slept.", return_tensors="pt")).logits.shape
        torch.Size([1, 5, 3])
    """

    output_class = TokenClassifierOutput

    def _scores(self, layers: Tensor, mask: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.dropout(self.elmo._vectors(layers, mask)))
        return scores

    def _loss(self, logits: Tensor, labels: Tensor, mask: Tensor) -> Any:
        return self.loss_function(logits, labels, self.config)


class ElmoForSequenceClassification(_ElmoClassifier):
    """Classifies texts and pairs of texts: the mean over the tokens of a scalar mix of the layers, and a linear layer.

    ``logits`` are ``(batch, labels)``, and ``labels`` ``(batch,)``, or ``(batch, labels)`` if a text can have several.
    As in other models of transformers, one label means regression, and ``problem_type`` in the config can be
    "multi_label_classification".

    Example:
        >>> model = ElmoForSequenceClassification.from_elmokit(labels=["bad", "good"], trainable=False)
        >>> model(**ElmoTokenizer.from_elmokit()("A lovely film.", return_tensors="pt")).logits.shape
        torch.Size([1, 2])
    """

    output_class = SequenceClassifierOutput

    def _scores(self, layers: Tensor, mask: Tensor) -> Tensor:
        vectors = self.elmo._vectors(layers, mask)
        mean = vectors.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)  # vectors of padding are zero
        scores: Tensor = self.classifier(self.dropout(mean))
        return scores

    def _loss(self, logits: Tensor, labels: Tensor, mask: Tensor) -> Any:
        return self.loss_function(labels=labels, pooled_logits=logits, config=self.config)


class _ElmoLM(_ElmoHead):
    """What the language models share: a biLM and its softmax."""

    reads_both: bool

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        name = type(self).__name__
        if config.softmax is None or config.vocab_size is None:
            raise ConfigError(f"The model has no softmax, which {name} needs.")
        if config.bilm_config.bidirectional != self.reads_both:
            wanted = "both directions" if self.reads_both else "one direction"
            raise ConfigError(f"{name} reads {wanted}, and the model does not. Create it with {name}.from_elmokit.")
        self.elmo = ElmoModel(config)
        kind = from_dict(SoftmaxConfig, config.softmax, "softmax")
        projection_dim = config.bilm_config.projection_dim
        self.softmax = build_softmax(kind, config.vocab_size, projection_dim, self.elmo.bilm.token_layer)
        _reset_parameters(self.softmax)
        self.register_buffer("log_unigram", torch.zeros(config.vocab_size) if self.reads_both else None)
        self.log_unigram: Tensor
        self.post_init()

    @classmethod
    def _config_of(cls, opened: PretrainedBiLM) -> dict[str, Any]:
        softmax_and_vocabulary(opened)  # refuses a model without them
        assert opened.softmax_module is not None
        return {"softmax": to_dict(softmax_config(opened.softmax_module))}

    def _copy_weights(self, opened: PretrainedBiLM) -> None:
        super()._copy_weights(opened)
        assert opened.softmax_module is not None
        assert opened.vocabulary is not None
        self.softmax.load_state_dict(opened.softmax_module.state_dict())
        if self.reads_both:
            self.log_unigram.copy_(torch.from_numpy(log_unigram(opened.vocabulary)))

    def _word_scores(self, hidden: Tensor) -> Tensor:
        """Return the scores of all words, ``(batch, time, words)``, for the outputs of a direction."""
        scores: Tensor = self.softmax.scores(hidden.flatten(0, 1))
        return scores.view(*hidden.shape[:2], -1)

    def _loss(self, logits: Tensor, labels: Tensor, mask: Tensor) -> Any:
        labels = labels.masked_fill(~mask | (labels >= self.config.vocab_size), -100)
        return self.loss_function(logits, labels, vocab_size=self.config.vocab_size)


class ElmoForMaskedLM(_ElmoLM):
    """Both directions of a biLM with its softmax, which predict each word from the words on both of its sides.

    The score of a word is the sum of its log probabilities in the two directions, minus 0.75 times that of its
    frequency, which both directions expect (as :meth:`elmokit.LanguageModel.substitutes` does). Neither direction has
    read the word that it predicts. So one pass predicts all words of a text, with masks or without them: ``logits`` are
    ``(batch, time, words)``, 0 on padding, and ``labels`` are ``input_ids``, or a copy with -100 where the loss is to
    ignore a word.

    For a mask, ``<S>``, ``</S>`` and ``<UNK>`` have no probability; ``special_words=True`` in the config gives them
    theirs, for libraries that mask each word of a text to score it.

    Example:
        >>> model, tokenizer = ElmoForMaskedLM.from_elmokit(), ElmoTokenizer.from_elmokit()
        >>> logits = model(**tokenizer("She sat on the <MASK> of the river.", return_tensors="pt")).logits
        >>> tokenizer.decode(logits[0, 5].argmax())
        'edge'
    """

    reads_both = True
    output_class = MaskedLMOutput

    def _scores(self, layers: Tensor, mask: Tensor) -> Tensor:
        forward, backward = layers[-1].chunk(2, dim=-1)
        # The forward direction predicts the next word, the backward direction the one before.
        from_left = F.pad(self._word_scores(forward[:, :-1]).log_softmax(dim=-1), (0, 0, 1, 0))
        from_right = F.pad(self._word_scores(backward[:, 1:]).log_softmax(dim=-1), (0, 0, 0, 1))
        # The last token has nothing on its right, and the first one nothing on its left.
        has_right = F.pad(mask[:, 1:], (0, 1))[..., None]
        has_left = F.pad(mask[:, 1:], (1, 0))[..., None]
        frequency = UNIGRAM_POWER * self.log_unigram * (has_left & has_right)
        return (from_left + from_right * has_right - frequency) * mask[..., None]

    def _answers(self, logits: Tensor, input_ids: Tensor | None) -> Tensor:
        if input_ids is None or self.config.special_words:
            return logits
        special = torch.zeros_like(self.log_unigram, dtype=torch.bool)
        special[self.config.special_ids or []] = True
        is_masked = input_ids == self.config.mask_id
        return logits.masked_fill(is_masked[..., None] & special, -torch.inf)


class ElmoForCausalLM(_ElmoLM):
    """The forward direction of a biLM with its softmax, as a causal language model over a closed vocabulary.

    ``logits`` are ``(batch, time, words)``, for the word after each position. ``labels`` are ``input_ids``, or a copy
    with -100 where the loss is to ignore a word. ``generate`` is not supported.

    Example:
        >>> model, tokenizer = ElmoForCausalLM.from_elmokit(), ElmoTokenizer.from_elmokit(direction="forward")
        >>> model(**tokenizer("The bank raised its", return_tensors="pt")).logits.shape
        torch.Size([1, 5, 30000])
    """

    reads_both = False
    output_class = CausalLMOutput

    @classmethod
    def _config_of(cls, opened: PretrainedBiLM) -> dict[str, Any]:
        return super()._config_of(opened) | {"bilm": to_dict(replace(opened.config, bidirectional=False))}

    def _scores(self, layers: Tensor, mask: Tensor) -> Tensor:
        return self._word_scores(layers[-1])


def _reset_parameters(module: Any) -> None:
    """Initialize a module, unless transformers builds a model without memory to load its weights afterwards."""
    if next(module.parameters()).device.type != "meta":
        module.reset_parameters()


# The names with which the auto classes find the classes of a saved directory.
AutoConfig.register(ElmoConfig.model_type, ElmoConfig, exist_ok=True)
AutoTokenizer.register(ElmoConfig, tokenizer_class=ElmoTokenizer, exist_ok=True)
AutoModel.register(ElmoConfig, ElmoModel, exist_ok=True)
AutoModelForMaskedLM.register(ElmoConfig, ElmoForMaskedLM, exist_ok=True)
AutoModelForTokenClassification.register(ElmoConfig, ElmoForTokenClassification, exist_ok=True)
AutoModelForSequenceClassification.register(ElmoConfig, ElmoForSequenceClassification, exist_ok=True)
AutoModelForCausalLM.register(ElmoConfig, ElmoForCausalLM, exist_ok=True)
