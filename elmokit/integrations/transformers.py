"""ELMo in transformers: models and a tokenizer for the auto classes, pipelines and the Trainer.

Importing this module registers the classes, so ``AutoModel.from_pretrained`` and ``pipeline`` find them.

:class:`ElmoModel` computes token vectors. :class:`ElmoForTokenClassification` and
:class:`ElmoForSequenceClassification` are classifiers. :class:`ElmoForMaskedLM` predicts a word from its left and right
context, over a closed vocabulary. :class:`ElmoForCausalLM` is the forward direction of the biLM as a causal language
model, for libraries that score text with such models.

:class:`ElmoTokenizer` returns two kinds of ids for each token: ``char_ids``, which the biLM reads, and ``input_ids``,
the words that the softmax predicts. A word that is not in the vocabulary is ``<UNK>`` in the ``input_ids``, but its
characters are still read.
"""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self
from unicodedata import is_normalized

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.config import check_choice, encode_json, from_dict, read_json, to_dict
from elmokit.embedding.computer import Computer
from elmokit.embedding.start_state import note_start, start_state
from elmokit.engine.architecture import BiLMConfig
from elmokit.engine.layer_selection import LayerSelection, select_layers
from elmokit.engine.softmax import SoftmaxConfig
from elmokit.errors import ConfigError, needs_extra
from elmokit.formats.open import open_to_export
from elmokit.lm.substitutes import UNIGRAM_POWER, log_unigram
from elmokit.lm.surprisal import softmax_vocabulary
from elmokit.network.bilm import BiLM, BiLMState
from elmokit.network.lstm_module import check_no_gaps
from elmokit.network.scalar_mix import ScalarMix, selected_layers
from elmokit.network.softmax_module import build_softmax
from elmokit.network.tensors import tensor_of
from elmokit.pretrained.model import PretrainedBiLM
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE, UNKNOWN, encode_tokens
from elmokit.text.lexicon import Lexicon
from elmokit.text.marks import FORMS, MARKS, MarkReader
from elmokit.text.tokenize import Spans, Tokenization, get_span_tokenizer
from elmokit.text.vocabulary import SPECIALS, Vocabulary, read_words

with needs_extra("elmokit.integrations.transformers", "transformers"):
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import PreTokenizer
    from tokenizers.processors import TemplateProcessing
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        AutoTokenizer,
        BatchEncoding,
        PreTrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizerFast,
    )
    from transformers.modeling_outputs import (
        BaseModelOutput,
        CausalLMOutput,
        MaskedLMOutput,
        SequenceClassifierOutput,
        TokenClassifierOutput,
    )
    from transformers.utils import can_return_tuple

Source = str | Path | PretrainedBiLM | None
"""A path, URL or name, as in :func:`elmokit.open_model`, or an opened model. None for the small English model."""

PADDING, MASK = "<PAD>", "<MASK>"
"""Tokens that the softmax does not predict. Their ids follow those of the words."""


class ElmoConfig(PreTrainedConfig):
    """The sizes of an ELMo.

    Args:
        bilm: The fields of :class:`elmokit.BiLMConfig`. None for the sizes of the original English ELMo.
        output_layers: The layers that ``last_hidden_state`` is computed from: "top", "average", "mix" (a learned scalar
            mix of all layers), or a layer number. None means "mix" for classifiers and "top" for other models.
        trainable: Train the biLM. If False, only the layers above it are trained, which is much faster.
        classifier_dropout: Dropout probability for the vectors in classifiers.
        special_words: Let :class:`ElmoForMaskedLM` predict ``<S>``, ``</S>`` and ``<UNK>`` for a mask.
        softmax: The kind of softmax, for the language models.
        vocab_size: Number of words that the softmax predicts; None without a vocabulary.
        padding_id, mask_id: The tokenizer's ids. They follow the words' ids, which transformers does not allow for its
            own ``pad_token_id`` and ``mask_token_id``.
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
        """Describe an elmokit model, overriding some fields."""
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
        """Number of the tokenizer's ids, including padding and masks; 0 without a vocabulary."""
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
        """Create the model from an elmokit model, copying its weights. A classifier's linear layer is new.

        Args:
            model: The model; for a language model, with its softmax and vocabulary.
            labels: The names of a classifier's labels. None means "LABEL_0" and "LABEL_1", as in transformers.
            **settings: Fields of :class:`ElmoConfig`: ``output_layers``, ``trainable``, ``classifier_dropout``,
                ``special_words``.

        Raises:
            ModelError: No model was found, it cannot be opened, or a language model has no softmax or no vocabulary.
            ConfigError: The model reads word ids instead of characters, has only one direction although this class
                needs both, or has an alignment, which only language models ignore; or a layer does not exist.
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
        """Return the config fields in which this class differs from the model."""
        return {}

    def _copy_weights(self, opened: PretrainedBiLM) -> None:
        self.elmo._copy_weights(opened)

    def _init_weights(self, module: nn.Module) -> None:
        # transformers calls this for modules whose own parameters were not loaded. In a loaded model, only a mix and a
        # classifier can be new.
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
        self.mixes = nn.ModuleList()
        self.selection: LayerSelection | None = None
        if config.output_layers == "mix":
            self.mixes.append(ScalarMix(sizes.n_layers + 1))
        else:
            self.selection = _select_one(config.output_layers, sizes.n_layers + 1)
        start = self.bilm.zero_state(1)
        self.register_buffer("start_hidden", start.hidden)
        self.register_buffer("start_cell", start.cell)
        self.start_hidden: Tensor
        self.start_cell: Tensor
        # The characters of the words, for callers that only pass input_ids.
        n_char_ids = 0 if sizes.char_cnn is None else sizes.char_cnn.max_chars
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
            input_ids: Word ids, ``(batch, time)``. With ``char_ids``, only padding and masks matter.
            attention_mask: ``(batch, time)``, 1 on a token. None means everything except padding.
            char_ids: ``(batch, time, chars)``. None for the characters of the words; unknown words are then read as
                ``<UNK>``, which is less accurate.
            output_hidden_states: Also return all layers, layer 0 first.

        Returns:
            ``last_hidden_state`` ``(batch, time, dim)``, including boundaries and zero on padding; ``hidden_states`` if
            requested.
        """
        layers, mask = self._layers(input_ids, attention_mask, char_ids)
        return BaseModelOutput(
            self._vectors(layers, mask), hidden_states=self._hidden_states(layers, output_hidden_states)
        )

    def _vectors(self, layers: Tensor, mask: Tensor) -> Tensor:
        """Compute the output vectors, ``(batch, time, dim)``, from all layers."""
        vectors = self.mixes[0](layers) if self.selection is None else selected_layers(layers, self.selection)
        return vectors * mask[..., None]

    def _layers(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, char_ids: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute all layers ``(layers, batch, time, dim)`` and the mask of tokens ``(batch, time)``."""
        char_ids = self._read_ids(input_ids, char_ids)
        mask = self.bilm.mask_of(char_ids) if attention_mask is None else attention_mask.bool()
        check_no_gaps(mask)
        state = BiLMState(self.start_hidden, self.start_cell).repeat_row(len(char_ids))
        # The parameters' own flags are not enough, because loading a model resets them. If they differ, an adapter is
        # trained.
        is_trained = self.config.trainable or len({weight.requires_grad for weight in self.bilm.parameters()}) > 1
        with torch.set_grad_enabled(torch.is_grad_enabled() and is_trained):
            layers, _ = self.bilm(char_ids * mask[..., None], mask, state)
        return layers, mask

    def _read_ids(self, input_ids: Tensor | None, char_ids: Tensor | None) -> Tensor:
        """Return the char ids of a batch: the given ones, or those of its words."""
        if char_ids is None:
            return self.word_char_ids[input_ids].long()
        width = self.bilm.config.ids_per_token
        if width is not None and char_ids.shape[-1] != width:
            raise ValueError(
                f"char_ids has {char_ids.shape[-1]} numbers per token, but this model reads {width}. Use its tokenizer."
            )
        if input_ids is None or not self.config.n_token_ids:
            return char_ids
        # A token may be masked in input_ids although its characters are still in char_ids.
        is_masked = (input_ids == self.config.mask_id)[..., None]
        return torch.where(is_masked, self.word_char_ids[self.config.mask_id].to(char_ids), char_ids)

    def _hidden_states(self, layers: Tensor, is_wanted: bool | None) -> tuple[Tensor, ...] | None:
        if is_wanted is None:
            is_wanted = self.config.output_hidden_states
        return tuple(layers) if is_wanted else None

    def _copy_weights(self, opened: PretrainedBiLM) -> None:
        """Copy the weights of a model, or only of its forward direction if this model has no other."""
        note_start(opened)
        bilm = opened.build_bilm()
        self.bilm.token_layer.load_state_dict(bilm.token_layer.state_dict())
        for own, theirs in zip(self.bilm.directions, bilm.directions, strict=False):
            own.load_state_dict(theirs.state_dict())
        state = BiLMState.from_numpy(start_state(Computer(opened)))
        self.start_hidden.copy_(state.hidden[: len(self.bilm.directions)])
        self.start_cell.copy_(state.cell[: len(self.bilm.directions)])
        if opened.vocabulary is not None:
            n_added = self.config.n_token_ids - len(opened.vocabulary)
            words = opened.vocabulary.words + n_added * [UNKNOWN]
            self.word_char_ids.copy_(torch.from_numpy(opened.encode(words)))
            self.word_char_ids[self.config.padding_id] = 0


class _ElmoHead(ElmoPreTrainedModel):
    """Base class of models that compute scores from a biLM, and with labels, a loss."""

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
            labels: The correct answers; see the class.

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
        """Convert scores to the logits that are returned."""
        return logits


class _ElmoClassifier(_ElmoHead):
    """Base class of classifiers: a mix of the layers, dropout and a linear layer."""

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

    ``logits`` are ``(batch, time, labels)``, and ``labels`` are ``(batch, time)``, with -100 at positions without a
    label, such as boundaries.

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
    """Classifies texts and pairs of texts: a scalar mix of the layers, its mean over tokens, and a linear layer.

    ``logits`` are ``(batch, labels)``, and ``labels`` are ``(batch,)``, or ``(batch, labels)`` if a text can have
    several. As in other transformers models, one label means regression, and ``problem_type`` in the config can be
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
    """Base class of language models: a biLM and its softmax."""

    reads_both: bool

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        name = type(self).__name__
        if config.softmax is None or config.vocab_size is None:
            raise ConfigError(f"The model has no softmax, which {name} needs.")
        if config.bilm_config.bidirectional != self.reads_both:
            wanted = "both directions" if self.reads_both else "one direction"
            raise ConfigError(f"{name} reads {wanted}, but the model does not. Create it with {name}.from_elmokit.")
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
        softmax_vocabulary(opened)  # raises an error without a softmax
        assert opened.softmax is not None
        return {"softmax": to_dict(opened.softmax.config)}

    def _copy_weights(self, opened: PretrainedBiLM) -> None:
        super()._copy_weights(opened)
        assert opened.softmax is not None
        assert opened.vocabulary is not None
        self.softmax.load_state_dict({name: tensor_of(array) for name, array in opened.softmax.arrays.items()})
        if self.reads_both:
            self.log_unigram.copy_(torch.from_numpy(log_unigram(opened.vocabulary)))

    def _word_scores(self, hidden: Tensor) -> Tensor:
        """Compute the scores of all words, ``(batch, time, words)``, from one direction's outputs."""
        scores: Tensor = self.softmax.scores(hidden.flatten(0, 1))
        return scores.view(*hidden.shape[:2], -1)

    def _loss(self, logits: Tensor, labels: Tensor, mask: Tensor) -> Any:
        labels = labels.masked_fill(~mask | (labels >= self.config.vocab_size), -100)
        return self.loss_function(logits, labels, vocab_size=self.config.vocab_size)


class ElmoForMaskedLM(_ElmoLM):
    """Predicts each word from the words on both sides, with both directions of a biLM and its softmax.

    A word's score is the sum of its log probabilities in both directions, minus 0.75 times the log of its frequency,
    which both directions have learned (as in :meth:`elmokit.LanguageModel.substitutes`). Neither direction reads the
    word that it predicts, so one pass predicts all words of a text, with or without masks. ``logits`` are
    ``(batch, time, words)``, 0 on padding, and ``labels`` are ``input_ids``, or a copy with -100 for words that the
    loss should ignore.

    For a mask, ``<S>``, ``</S>`` and ``<UNK>`` have probability zero. ``special_words=True`` in the config keeps their
    probabilities, for libraries that score a text by masking each word.

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
        # The forward direction predicts the next word, the backward direction the previous one.
        from_left = F.pad(self._word_scores(forward[:, :-1]).log_softmax(dim=-1), (0, 0, 1, 0))
        from_right = F.pad(self._word_scores(backward[:, 1:]).log_softmax(dim=-1), (0, 0, 0, 1))
        # The last token has no right context, and the first token has no left context.
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
    with -100 for words that the loss should ignore. ``generate`` is not supported.

    Example:
        >>> model, tokenizer = ElmoForCausalLM.from_elmokit(), ElmoTokenizer.from_elmokit(direction="forward")
        >>> model(**tokenizer("The bank raised its", return_tensors="pt")).logits.shape
        torch.Size([1, 5, 40000])
    """

    reads_both = False
    output_class = CausalLMOutput

    @classmethod
    def _config_of(cls, opened: PretrainedBiLM) -> dict[str, Any]:
        return super()._config_of(opened) | {"bilm": to_dict(replace(opened.config, bidirectional=False))}

    def _scores(self, layers: Tensor, mask: Tensor) -> Tensor:
        return self._word_scores(layers[-1])


def _reset_parameters(module: Any) -> None:
    """Initialize a module, unless it has no memory because transformers will load its weights later."""
    if next(module.parameters()).device.type != "meta":
        module.reset_parameters()


def _select_one(layers: Any, n_layers: int) -> LayerSelection:
    """Select the output layers, which must give one vector per token; None means the top layer."""
    selection = select_layers("top" if layers is None else layers, n_layers, None, "this model")
    if isinstance(selection.returned, tuple):
        raise ConfigError(
            f"output_layers is {layers!r}, but a model returns one vector per token. For several layers, "
            "pass output_hidden_states=True."
        )
    return selection


class ElmoTokenizer(PreTrainedTokenizerFast):
    """Splits texts into tokens, and converts tokens to ELMo's char ids and to word ids.

    Create it with :meth:`from_elmokit` or ``AutoTokenizer.from_pretrained``. It has the methods of transformers' fast
    tokenizers, with character offsets, word ids and text pairs. A pair is read as two sentences of one text:
    ``<S> first </S> <S> second </S>``. ``<MASK>`` marks a word for :class:`ElmoForMaskedLM` to predict.

    It only pads on the right. A word that is not in the vocabulary has the id of ``<UNK>`` and its own characters.

    Args:
        vocab_file: The words, one per line.
        lexicon_file: The lexicon of a model with its own word or character tables.
        max_chars: Char ids per token, if there is no lexicon.
        word_table: For a model that also reads vocabulary words, like the included model. The first of a token's char
            ids is then its word's id.
        tokenization: How to split a text into tokens: "treebank", as for the training of the English models; or
            "spaces" for tokenized text, with spaces between the tokens.
        direction: None for models with both directions: texts get both boundaries, ``<S>`` and ``</S>``. "forward" for
            an :class:`ElmoForCausalLM`: texts only get the first boundary, so they can be continued.

    Raises:
        ConfigError: An argument is not valid.

    Example:
        >>> encoded = ElmoTokenizer.from_elmokit()("It's raining.", return_offsets_mapping=True)
        >>> encoded.tokens(), encoded["offset_mapping"]
        (['<S>', 'It', "'s", 'raining', '.', '</S>'], [(0, 0), (0, 2), (2, 4), (5, 12), (12, 13), (0, 0)])
    """

    vocab_files_names = {"vocab_file": "vocab.txt", "lexicon_file": "lexicon.json"}  # noqa: RUF012
    model_input_names = ["input_ids", "char_ids", "attention_mask"]  # noqa: RUF012

    def __init__(
        self,
        vocab_file: str | Path,
        lexicon_file: str | Path | None = None,
        max_chars: int = 50,
        tokenization: Tokenization = "treebank",
        direction: Literal["forward"] | None = None,
        word_table: bool = False,
        **kwargs: Any,
    ) -> None:
        if direction is not None:
            check_choice("direction", direction, ("forward",))
        self.vocabulary = Vocabulary(read_words(vocab_file), strict=False)
        self.lexicon: Lexicon | None = None
        if lexicon_file is not None:
            self.lexicon = from_dict(Lexicon, read_json(Path(lexicon_file)), str(lexicon_file))
        self.max_chars, self.tokenization, self.direction = max_chars, tokenization, direction
        self.word_table = word_table
        ids = token_ids(self.vocabulary)
        # Words are never split into pieces, because none starts with this prefix. But pipelines need the prefix:
        # without one, they guess from spaces that a period belongs to the previous word.
        words = WordPiece(
            ids,
            unk_token=UNKNOWN,
            continuing_subword_prefix="\ue000",
            max_input_chars_per_word=max(map(len, ids)),
        )
        backend = Tokenizer(words)
        bos, eos = BEGIN_SENTENCE, END_SENTENCE
        backend.post_processor = TemplateProcessing(
            single=f"{bos} $A" if direction else f"{bos} $A {eos}",
            pair=f"{bos}:0 $A:0 {eos}:0 {bos}:1 $B:1 {eos}:1",
            special_tokens=[(word, self.vocabulary.ids[word]) for word in (bos, eos)],
        )
        special = {"bos_token": bos, "eos_token": eos, "unk_token": UNKNOWN, "pad_token": PADDING}
        if direction is None:
            # As in BERT, for libraries that score text with masked language models.
            special |= {"cls_token": bos, "sep_token": eos, "mask_token": MASK}
        super().__init__(
            tokenizer_object=backend,
            max_chars=max_chars,
            tokenization=tokenization,
            direction=direction,
            word_table=word_table,
            **(special | kwargs),
        )
        self._add_splitter()

    @classmethod
    def from_elmokit(
        cls,
        model: Source = None,
        *,
        direction: Literal["forward"] | None = None,
        tokenization: Tokenization = "treebank",
    ) -> ElmoTokenizer:
        """Create the tokenizer of an elmokit model.

        Args:
            model: The model.
            direction, tokenization: As in the class.

        Raises:
            ModelError: No model was found, or it cannot be opened.
            ConfigError: The model reads word ids instead of characters, or an argument is not valid.
        """
        opened = open_to_export(model, "ElmoTokenizer", can_align=True)
        assert opened.config.char_cnn is not None
        # Only the softmax needs words, so a model without one only needs the special words.
        words = Vocabulary(SPECIALS) if opened.vocabulary is None else opened.vocabulary
        with tempfile.TemporaryDirectory() as folder:
            return cls(
                *_write_words(Path(folder), words, opened.lexicon),
                max_chars=opened.config.char_cnn.max_chars,
                tokenization=tokenization,
                direction=direction,
                word_table=opened.config.word_features is not None and opened.lexicon is None,
            )

    @classmethod
    def convert_to_native_format(cls, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments unchanged: a saved tokenizer is a word list, not a file of the Rust library."""
        return kwargs

    @property
    def _read(self) -> MarkReader:
        return self.vocabulary.read if self.lexicon is None else self.lexicon.read

    @property
    def vocab_size(self) -> int:
        """Number of words, excluding the padding token and the mask."""
        return len(self.vocabulary)

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        """Write the words and the lexicon, if any, and return the paths."""
        files = _write_words(Path(save_directory), self.vocabulary, self.lexicon, filename_prefix)
        return tuple(str(file) for file in files if file is not None)

    def encode_chars(self, tokens: Sequence[str]) -> Any:
        """Encode tokens as char ids, ``(tokens, chars)``, like :meth:`elmokit.Elmo.ids`.

        The mask is read like an unknown word.
        """
        words = [UNKNOWN if token == MASK else self._read(token) for token in tokens]
        if self.lexicon is not None:
            return self.lexicon.encode(words)
        if self.word_table:
            return self.vocabulary.encode_with_chars(words, self.max_chars)
        return encode_tokens(words, self.max_chars)

    def _encode_plus(
        self,
        text: Any,
        text_pair: Any = None,
        is_split_into_words: bool = False,
        return_tensors: Any = None,
        split_special_tokens: bool | None = None,
        **kwargs: Any,
    ) -> BatchEncoding:
        """Encode texts as the base class does, and add the char ids."""
        if text_pair is not None and self.direction is not None:
            raise ValueError(
                "An ElmoTokenizer with a direction only reads single texts. For pairs, create it without one."
            )
        if split_special_tokens is None:
            split_special_tokens = self.split_special_tokens
        self._splitter.is_split, self._splitter.reads_specials = is_split_into_words, not split_special_tokens
        # The splitter finds special tokens itself. The Rust library would split the text at them first, but the rules
        # for words need their neighbors: a period before a mask does not end a sentence.
        encoded = super()._encode_plus(
            text, text_pair, is_split_into_words=is_split_into_words, split_special_tokens=True, **kwargs
        )
        is_single = _is_one_text(text, is_split_into_words)
        samples = _samples([text] if is_single else text, [text_pair] if is_single else text_pair, is_split_into_words)
        sample_of_row = encoded.get("overflow_to_sample_mapping", range(len(samples)))
        char_ids = []
        for number, encoding in zip(sample_of_row, encoded.encodings, strict=True):
            char_ids.append(self._char_ids(encoding, samples[number], is_split_into_words).tolist())
        has_one_row = is_single and "overflow_to_sample_mapping" not in encoded
        encoded["char_ids"] = char_ids[0] if has_one_row else char_ids
        return BatchEncoding(
            dict(encoded), encoded.encodings, tensor_type=return_tensors, prepend_batch_axis=has_one_row
        )

    def _char_ids(self, encoding: Any, sides: Sequence[Any], is_split: bool) -> Any:
        """Return the char ids of one encoded text or pair of texts, ``(tokens, chars)``."""
        is_padding = [mask == 0 for mask in encoding.attention_mask]
        tokens = []
        for token, side, word, (start, stop) in zip(
            encoding.tokens, encoding.sequence_ids, encoding.word_ids, encoding.offsets, strict=True
        ):
            if side is None:  # a boundary or padding
                tokens.append(UNKNOWN if token == PADDING else token)
            else:  # use the text, because the encoding only has <UNK> for an unknown word
                tokens.append(sides[side][word] if is_split else sides[side][start:stop])
        ids = self.encode_chars(tokens)
        ids[is_padding] = 0
        return ids

    def _pad(self, encoded_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        padded = super()._pad(encoded_inputs, *args, **kwargs)
        if "char_ids" in padded:
            rows = [list(row) for row in padded["char_ids"]]
            n_missing = len(padded["input_ids"]) - len(rows)
            zeros = n_missing * [[0] * self.encode_chars([UNKNOWN]).shape[1]]
            side = kwargs.get("padding_side") or self.padding_side
            padded["char_ids"] = rows + zeros if side == "right" else zeros + rows
        return padded

    def _add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Accept words that have an id, which the base class marks as special, and reject others."""
        new = [token for token in map(str, new_tokens) if self._tokenizer.token_to_id(token) is None]
        if new and hasattr(self, "_splitter"):  # not set while the base class adds special tokens
            raise ValueError(f"{new[0]!r} is not a word of this model, and no words can be added.")
        return int(super()._add_tokens(new_tokens, special_tokens))

    def _save_pretrained(
        self, save_directory: Any, file_names: tuple[str, ...], legacy_format: Any = None, filename_prefix: Any = None
    ) -> tuple[str, ...]:
        return (*file_names, *self.save_vocabulary(str(save_directory), filename_prefix))

    def _add_splitter(self) -> None:
        """Let the Rust library call our rules for splitting a text. They cannot be copied or stored with it."""
        self._splitter = _Splitter(get_span_tokenizer(self.tokenization), self._read)
        self._tokenizer.pre_tokenizer = PreTokenizer.custom(self._splitter)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_splitter"]
        self._tokenizer.pre_tokenizer = None
        state["_tokenizer"] = self._tokenizer.to_str()
        self._tokenizer.pre_tokenizer = PreTokenizer.custom(self._splitter)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _tokenizer=Tokenizer.from_str(state["_tokenizer"]))
        self._add_splitter()


class _Splitter:
    """Splits texts into words and special tokens, for the Rust library."""

    boundaries = re.compile("|".join((BEGIN_SENTENCE, END_SENTENCE, PADDING)))
    words = re.compile("|".join((UNKNOWN, MASK)))

    def __init__(self, spans: Spans, read: MarkReader) -> None:
        self._spans, self._read = spans, read
        self.is_split = False
        """Whether texts are already split into words."""
        self.reads_specials = True
        """Whether ``<S>``, ``<MASK>`` and so on in a text are special tokens."""

    def pre_tokenize(self, text: Any) -> None:
        """Split a text; the interface is the Rust library's."""
        text.split(self._pieces)

    def _pieces(self, number: int, piece: Any) -> list[Any]:
        if self.is_split:
            return [self._as_read(piece)]
        return [self._as_read(piece[start:stop]) for start, stop in self.spans(str(piece))]

    def _as_read(self, piece: Any) -> Any:
        """Normalize a token for lookup, keeping its offsets in the text."""
        token = str(piece)
        read = self._read(token)
        if read == token:
            return piece
        if self.is_split:
            piece.replace(token, read)
            return piece
        # In steps that keep the offsets: a replacement of several characters would only keep the last one's.
        plain = MARKS | FORMS
        for char in set(token) - set(read):
            if ord(char) in plain:
                piece.replace(char, plain[ord(char)])
        if is_normalized("NFC", read):
            piece.nfc()
        else:
            piece.nfd()
        return piece

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the character offsets of the tokens of a text."""
        boundaries = [match.span() for match in self.boundaries.finditer(text)] if self.reads_specials else []
        result: list[tuple[int, int]] = []
        end = 0
        for start, stop in [*boundaries, (len(text), len(text))]:
            for first, last in self._words(text[end:start]):
                result.append((end + first, end + last))
            result.append((start, stop))
            end = stop
        return [(start, stop) for start, stop in result if start < stop]

    def _words(self, text: str) -> list[tuple[int, int]]:
        """Return the offsets of words, including masks and ``<UNK>``."""
        edges: set[int] = set()
        if self.reads_specials:
            for match in self.words.finditer(text):
                edges.update(match.span())
        if edges:
            # They are split like the words that they replace.
            text = self.words.sub(lambda match: "x" * len(match[0]), text)
        result: list[tuple[int, int]] = []
        for start, stop in self._spans(text):
            inner = sorted(edge for edge in edges if start < edge < stop)
            result += itertools.pairwise([start, *inner, stop])
        return result


def token_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the ids of words and special tokens. Special tokens missing from the vocabulary follow its words."""
    ids = dict(vocabulary.ids)
    next_id = len(vocabulary)
    for word in (PADDING, MASK, UNKNOWN):
        if word not in ids:
            ids[word] = next_id
            next_id += 1
    return ids


def _is_one_text(text: Any, is_split_into_words: bool) -> bool:
    """Check whether this is one text, or its words, rather than several texts or a pair."""
    return isinstance(text, str) or (is_split_into_words and all(isinstance(word, str) for word in text))


def _samples(texts: Sequence[Any], pairs: Sequence[Any] | None, is_split_into_words: bool) -> list[Any]:
    """Return the two texts of each sample; the second may be None."""
    samples = []
    for text, pair in zip(texts, pairs or [None] * len(texts), strict=True):
        # Several texts may come as a list of pairs.
        samples.append((text, pair) if _is_one_text(text, is_split_into_words) else text)
    return samples


def _write_words(
    folder: Path, words: Vocabulary, lexicon: Lexicon | None, prefix: str | None = None
) -> tuple[Path, Path | None]:
    """Write the files of a tokenizer, as in an elmokit directory, and return their paths."""
    start = f"{prefix}-" if prefix else ""
    listed, table = folder / f"{start}vocab.txt", folder / f"{start}lexicon.json"
    listed.write_text(words.to_text(), encoding="utf-8", newline="\n")
    if lexicon is None:
        return listed, None
    table.write_text(encode_json(to_dict(lexicon), indent=None), encoding="utf-8")
    return listed, table


# The names by which the auto classes find the classes of a saved directory.
AutoConfig.register(ElmoConfig.model_type, ElmoConfig, exist_ok=True)
AutoTokenizer.register(ElmoConfig, tokenizer_class=ElmoTokenizer, exist_ok=True)
AutoModel.register(ElmoConfig, ElmoModel, exist_ok=True)
AutoModelForMaskedLM.register(ElmoConfig, ElmoForMaskedLM, exist_ok=True)
AutoModelForTokenClassification.register(ElmoConfig, ElmoForTokenClassification, exist_ok=True)
AutoModelForSequenceClassification.register(ElmoConfig, ElmoForSequenceClassification, exist_ok=True)
AutoModelForCausalLM.register(ElmoConfig, ElmoForCausalLM, exist_ok=True)
