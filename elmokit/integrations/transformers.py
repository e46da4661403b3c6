"""ELMo in transformers: models and a tokenizer that its auto classes and pipelines load, and that its trainer trains.

Importing this module registers the classes, so that ``AutoModel.from_pretrained`` and ``pipeline`` find them. A saved
model also has a Python file that imports this module (``REMOTE_CODE``), for programs that pass
``trust_remote_code=True`` instead.

:class:`ElmoModel` computes token vectors. :class:`ElmoForTokenClassification` and
:class:`ElmoForSequenceClassification` classify with them. :class:`ElmoForMaskedLM` predicts a word from both of its
sides, over a closed vocabulary. :class:`ElmoForCausalLM` is one direction of the biLM as a causal language model, for
libraries that score text with such models.

The tokenizer (``transformers_tokenizer.py``) returns two kinds of ids for each token: ``char_ids``, which the biLM
reads, and ``input_ids``, the words that the softmax predicts. A word that is not in the vocabulary is ``<UNK>`` among
the ``input_ids``, and is still read by its characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit.config import from_dict, to_dict
from elmokit.embedding.start_state import start_state
from elmokit.engine.config import BiLMConfig
from elmokit.engine.layer_selection import select_layers
from elmokit.engine.softmax import SoftmaxConfig
from elmokit.errors import ConfigError, needs_extra
from elmokit.formats.model import PretrainedBiLM
from elmokit.integrations.transformers_tokenizer import (
    MASK,
    PADDING,
    Direction,
    ElmoTokenizer,
    Source,
    open_character_model,
    remote_class,
    token_ids,
    write_code,
)
from elmokit.lm.substitutes import UNIGRAM_POWER, log_unigram
from elmokit.lm.surprisal import softmax_and_vocabulary
from elmokit.network.bilm import BiLM, BiLMState
from elmokit.network.scalar_mix import ScalarMix, selected_layers
from elmokit.network.softmax import SoftmaxModule, build_softmax, softmax_config
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

    from elmokit.integrations.huggingface_hub import model_card  # transformers depends on huggingface_hub

OutputLayers = Literal["top", "average", "mix"] | int
USE = """```python
# pip install 'elmokit[transformers]'
from transformers import AutoTokenizer, {auto}

import elmokit.integrations.transformers  # tells the auto classes about ELMo

tokenizer = AutoTokenizer.from_pretrained("owner/name")  # the id of this repository
model = {auto}.from_pretrained("owner/name")
print(model(**tokenizer("The bank raised its rate.", return_tensors="pt")))
```"""


class ElmoConfig(PreTrainedConfig):  # type: ignore[misc]
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
        card: The model card, as stored with an elmokit model.
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
    card: dict[str, Any] | None = None

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
            "card": model.card,
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

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Do nothing: the code that is saved with a model imports elmokit (``REMOTE_CODE``)."""


class ElmoPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """Base class of the models."""

    config_class = ElmoConfig
    base_model_prefix = "elmo"
    main_input_name = "input_ids"
    task = "feature-extraction"
    """The task of the model on the Hub."""
    auto_class = AutoModel
    """The auto class that opens the model."""

    def _init_weights(self, module: nn.Module) -> None:
        # transformers calls this for modules with parameters of their own that were not loaded. Only a mix and a
        # classifier can be new in a loaded model.
        if isinstance(module, ScalarMix):
            nn.init.zeros_(module.weight)
            nn.init.ones_(module.gamma)
        elif module is getattr(self, "classifier", None):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Do nothing: the code that is saved with a model imports elmokit (``REMOTE_CODE``)."""

    def save_pretrained(self, save_directory: str | Path, *, is_main_process: bool = True, **kwargs: Any) -> Any:
        """Save the model, with a model card (``README.md``, unless there is one) and the code that imports elmokit.

        Args:
            save_directory: A directory, which is created if there is none.
            is_main_process: Write the files that every process of a training has.
            **kwargs: As in transformers.
        """
        if is_main_process:
            folder = Path(save_directory)
            folder.mkdir(parents=True, exist_ok=True)
            write_code(folder)
            readme = folder / "README.md"
            if not readme.exists():
                readme.write_text(str(self._model_card()), encoding="utf-8")
        self.config.auto_map = AUTO_MAP
        return super().save_pretrained(save_directory, is_main_process=is_main_process, **kwargs)

    def _model_card(self) -> Any:
        sizes = self.config.bilm_config
        facts = {
            "class": type(self).__name__,
            "parameters": f"{sum(parameter.numel() for parameter in self.parameters()):,}",
            "layers": sizes.n_layers + 1,
            "dimensions": sizes.output_dim,
            "words": self.config.vocab_size,
        }
        header = {"library_name": "transformers", "tags": ["elmo", "elmokit"], "pipeline_tag": self.task}
        use = USE.format(auto=self.auto_class.__name__)
        return model_card(self.config.card or {}, facts, use, sizes.direction_names, header)


def _reset_parameters(module: BiLM | SoftmaxModule) -> None:
    """Initialize a module, unless transformers builds a model without memory to load its weights afterwards."""
    if next(module.parameters()).device.type != "meta":
        module.reset_parameters()


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
        self.selection = (
            None
            if is_mix
            else select_layers(
                "top" if config.output_layers is None else config.output_layers,  # type: ignore[arg-type]
                sizes.n_layers + 1,
                None,
                "this model",
            )
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

    @classmethod
    def from_elmokit(
        cls, model: Source = None, *, output_layers: OutputLayers | None = None, trainable: bool = True
    ) -> ElmoModel:
        """Create the model from an elmokit model, whose weights are copied.

        Args:
            model: The model.
            output_layers, trainable: As in :class:`ElmoConfig`.

        Raises:
            ModelError: No model was found, or it cannot be opened.
            ConfigError: The model reads word ids instead of characters or has an alignment, or a layer does not exist.
        """
        opened = _open_without_alignment(model)
        new = cls(ElmoConfig.of(opened, output_layers=output_layers, trainable=trainable))
        new._copy_weights(opened)
        new.eval()
        return new

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
        vectors, _, layers = self._vectors(input_ids, attention_mask, char_ids)
        return BaseModelOutput(vectors, hidden_states=self._hidden_states(layers, output_hidden_states))

    def _vectors(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, char_ids: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the vectors of the output layers ``(batch, time, dim)``, and what :meth:`_layers` returns."""
        layers, mask = self._layers(input_ids, attention_mask, char_ids)
        vectors = self.mixes[0](layers) if self.selection is None else selected_layers(layers, self.selection)
        return vectors * mask[..., None], mask, layers

    def _layers(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, char_ids: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return all layers ``(layers, batch, time, dim)``, and the mask of the tokens ``(batch, time)``."""
        width = self.bilm.config.ids_per_token
        if char_ids is not None and width is not None and char_ids.shape[-1] != width:
            raise ValueError(
                f"char_ids has {char_ids.shape[-1]} numbers per token, and this model reads {width}: a word and its "
                "characters. Use the tokenizer of this model: ElmoTokenizer.from_elmokit, or save it beside the model."
            )
        if char_ids is None:
            if input_ids is None or not self.config.n_token_ids:
                raise ValueError(
                    "A model without a vocabulary needs char_ids. Pass all that ElmoTokenizer returns: "
                    "model(**tokenizer(...))."
                )
            char_ids = self.word_char_ids[input_ids].long()
        elif input_ids is not None and self.config.n_token_ids:
            # A mask may have been put over a token whose characters are still there.
            is_masked = (input_ids == self.config.mask_id)[..., None]
            char_ids = torch.where(is_masked, self.word_char_ids[self.config.mask_id].to(char_ids), char_ids)
        mask = (char_ids > 0).any(dim=-1) if attention_mask is None else attention_mask.bool()
        if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
            raise ValueError("There is padding before or between tokens. Pad on the right: padding_side='right'.")
        state = BiLMState(self.start_hidden, self.start_cell).repeat_row(len(char_ids))
        # Not only by the parameters' own flag, which loading a model resets.
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.config.trainable):
            layers, _ = self.bilm(char_ids * mask[..., None], mask, state)
        return layers, mask

    def _hidden_states(self, layers: Tensor, is_wanted: bool | None) -> tuple[Tensor, ...] | None:
        is_wanted = self.config.output_hidden_states if is_wanted is None else is_wanted
        return tuple(layers) if is_wanted else None

    def _copy_weights(self, opened: PretrainedBiLM, direction: int | None = None) -> None:
        """Copy the weights of a model, or of one of its directions."""
        state = BiLMState.from_numpy(start_state(opened))
        if direction is None:
            self.bilm.load_state_dict(opened.bilm.state_dict())
        else:
            self.bilm.token_layer.load_state_dict(opened.bilm.token_layer.state_dict())
            self.bilm.directions[0].load_state_dict(opened.bilm.directions[direction].state_dict())
            state = BiLMState(*(part[direction : direction + 1] for part in (state.hidden, state.cell)))
        self.start_hidden.copy_(state.hidden)
        self.start_cell.copy_(state.cell)
        if opened.vocabulary is not None:
            words = [*opened.vocabulary.words, *[UNKNOWN] * (self.config.n_token_ids - len(opened.vocabulary))]
            self.word_char_ids.copy_(torch.from_numpy(opened.encode(words)))
            self.word_char_ids[self.config.padding_id] = 0


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
        opened = _open_without_alignment(model)
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

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        if config.softmax is None or config.vocab_size is None:
            raise ConfigError(
                "The model has no softmax, so it cannot predict words. Create it with from_elmokit of "
                f"{type(self).__name__}, from a model that has one."
            )
        self.elmo = ElmoModel(config)
        kind = from_dict(SoftmaxConfig, config.softmax, "softmax")
        projection_dim = config.bilm_config.projection_dim
        self.softmax = build_softmax(kind, config.vocab_size, projection_dim, self.elmo.bilm.token_layer)
        _reset_parameters(self.softmax)

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

    task = "fill-mask"
    auto_class = AutoModelForMaskedLM

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        if not config.bilm_config.bidirectional:
            raise ConfigError("The model reads one direction, but ElmoForMaskedLM needs both. Use ElmoForCausalLM.")
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
        if direction not in names:
            raise ConfigError(f"direction is {direction!r}, but the model reads {' and '.join(names)}.")
        bilm = to_dict(replace(sizes, bidirectional=False, backward_only=False))
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


def _open_without_alignment(model: Source) -> PretrainedBiLM:
    opened = open_character_model(model)
    if opened.alignment is not None:
        raise ConfigError("The model has an alignment, which ElmoModel lacks. Set model.alignment to None to drop it.")
    return opened


def _open_with_softmax(model: Source) -> tuple[PretrainedBiLM, SoftmaxModule, Vocabulary]:
    opened = open_character_model(model)
    _, vocabulary = softmax_and_vocabulary(opened)
    softmax = opened.softmax_module
    assert softmax is not None
    return opened, softmax, vocabulary


MODELS: tuple[type[ElmoPreTrainedModel], ...] = (
    ElmoModel,
    ElmoForMaskedLM,
    ElmoForTokenClassification,
    ElmoForSequenceClassification,
    ElmoForCausalLM,
)
AUTO_MAP = {"AutoConfig": remote_class("ElmoConfig")}
AUTO_MAP |= {model.auto_class.__name__: remote_class(model.__name__) for model in MODELS}
"""The classes in the file that is saved with a model, by the auto class that opens them."""

# The names with which the auto classes find the classes of a saved directory.
AutoConfig.register(ElmoConfig.model_type, ElmoConfig, exist_ok=True)
AutoTokenizer.register(ElmoConfig, tokenizer_class=ElmoTokenizer, exist_ok=True)
for _model in MODELS:
    _model.auto_class.register(ElmoConfig, _model, exist_ok=True)
