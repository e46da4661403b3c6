"""ELMo in transformers: a config, a tokenizer, and two models that its auto classes load.

Importing this module registers the classes, so that ``AutoModel.from_pretrained`` and ``pipeline`` find them.

:class:`ElmoModel` computes token vectors. :class:`ElmoForCausalLM` is one direction of the biLM with its softmax: a
causal language model over a closed vocabulary, for libraries that score text with such models. The tokenizer returns
two kinds of ids for each token: ``char_ids``, which the biLM reads, and ``input_ids``, the words that the softmax
predicts. A word that is not in the vocabulary is ``<UNK>`` among the ``input_ids``, and is still read by its
characters.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from elmokit.config import from_dict, read_json, to_dict
from elmokit.embedding.start_state import start_state
from elmokit.engine.config import BiLMConfig
from elmokit.engine.layer_selection import select_layers
from elmokit.engine.softmax import SoftmaxConfig
from elmokit.errors import ConfigError, ModelNotFoundError, needs_extra
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.open import as_model
from elmokit.network.bilm import BiLM, BiLMState
from elmokit.network.scalar_mix import ScalarMix, selected_layers
from elmokit.network.softmax import SoftmaxModule, build_softmax, softmax_config
from elmokit.text.characters import BEGIN_SENTENCE, END_SENTENCE, UNKNOWN, encode_tokens
from elmokit.text.lexicon import Lexicon
from elmokit.text.tokenize import Tokenization, get_tokenizer
from elmokit.text.vocabulary import MAX_BYTES, SPECIALS, Vocabulary, read_words

with needs_extra("elmokit.integrations.transformers", "transformers"):
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
        AutoTokenizer,
        BatchEncoding,
        PreTrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizer,
    )
    from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput
    from transformers.tokenization_utils_base import PaddingStrategy, TruncationStrategy
    from transformers.utils import can_return_tuple

Direction = Literal["forward", "backward"]
Source = str | Path | PretrainedBiLM | None
"""A path, address or name, as in :func:`elmokit.open_model`, or an opened model. None: the small English model."""


class ElmoConfig(PreTrainedConfig):  # type: ignore[misc]
    """The sizes of an ELMo.

    Args:
        bilm: The fields of :class:`elmokit.BiLMConfig`. None: the sizes of the original English ELMo.
        output_layers: The layers that ``last_hidden_state`` is computed from: "top", "average", "mix" (a learned
            scalar mix of all layers), or a layer number.
        softmax: The kind of softmax, for :class:`ElmoForCausalLM`.
        vocab_size: Number of words that the softmax predicts.
        card: The model card, as stored with an elmokit model.
    """

    model_type = "elmo"

    bilm: dict[str, Any] | None = None
    output_layers: str | int = "top"
    softmax: dict[str, Any] | None = None
    vocab_size: int | None = None
    card: dict[str, Any] | None = None

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


class ElmoTokenizer(PreTrainedTokenizer):  # type: ignore[misc]
    """Splits texts into tokens, and converts tokens to the char ids that ELMo reads and to the ids of words.

    Create it with :meth:`from_elmokit` or ``AutoTokenizer.from_pretrained``. It pads on the right only.

    Args:
        vocab_file: The words, one per line.
        lexicon_file: The lexicon of a model with word or character tables of its own.
        max_chars: Char ids per token, if there is no lexicon.
        tokenization: How a text is split into tokens: "treebank", as the English models were trained; or "spaces" for
            text that is tokenized already, with spaces between the tokens.
        direction: None for :class:`ElmoModel`: texts get both boundaries, ``<S>`` and ``</S>``. "forward" or "backward"
            for an :class:`ElmoForCausalLM`: texts get the first boundary only, so that a continuation can follow; with
            "backward", the tokens of a text are reversed, and ``</S>`` comes first.

    Raises:
        ConfigError: An argument is not valid.
        MissingExtraError: The tokenization is "treebank", and NLTK is not installed.
    """

    vocab_files_names = {"vocab_file": "vocab.txt", "lexicon_file": "lexicon.json"}  # noqa: RUF012
    model_input_names = ["input_ids", "char_ids", "attention_mask"]  # noqa: RUF012

    def __init__(
        self,
        vocab_file: str | Path,
        lexicon_file: str | Path | None = None,
        max_chars: int = 50,
        tokenization: Tokenization = "treebank",
        direction: Direction | None = None,
        **kwargs: Any,
    ) -> None:
        if direction not in (None, "forward", "backward"):
            raise ConfigError(f"direction is {direction!r}. Choose None, 'forward' or 'backward'.")
        self.vocabulary = Vocabulary(read_words(vocab_file), strict=False)
        self.lexicon: Lexicon | None = None
        if lexicon_file is not None:
            self.lexicon = from_dict(Lexicon, read_json(Path(lexicon_file), max_bytes=MAX_BYTES), str(lexicon_file))
        self.max_chars, self.tokenization, self.direction = max_chars, tokenization, direction
        self._split = get_tokenizer(tokenization)
        boundaries = (BEGIN_SENTENCE, END_SENTENCE)
        bos, eos = boundaries[::-1] if direction == "backward" else boundaries
        special = {"bos_token": bos, "eos_token": eos, "unk_token": UNKNOWN, "pad_token": "<PAD>"}
        super().__init__(
            max_chars=max_chars,
            tokenization=tokenization,
            direction=direction,
            special_tokens_pattern="bos_eos" if direction is None else "bos",
            **(special | kwargs),
        )

    @classmethod
    def from_elmokit(
        cls,
        model: Source = None,
        *,
        direction: Direction | None = None,
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
        opened = _open(model)
        cnn = opened.config.char_cnn
        # Words matter to the softmax only, so a model without one needs no other words than the special ones.
        words = Vocabulary(SPECIALS) if opened.vocabulary is None else opened.vocabulary
        with tempfile.TemporaryDirectory() as folder:
            return cls(
                *_write_words(Path(folder), words, opened.lexicon),
                max_chars=50 if cnn is None else cnn.max_chars,
                tokenization=tokenization,
                direction=direction,
            )

    @property
    def vocab_size(self) -> int:
        """Number of words, the padding token not included."""
        return len(self.vocabulary)

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each word and special token."""
        return {**self.vocabulary.ids, **self.added_tokens_encoder}

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        """Write the words, and the lexicon if there is one, and return the paths."""
        files = _write_words(Path(save_directory), self.vocabulary, self.lexicon, filename_prefix)
        return tuple(str(file) for file in files if file is not None)

    def _tokenize(self, text: str, **kwargs: Any) -> list[str]:
        # transformers splits a text at special tokens first, and this function gets what is between them. So a boundary
        # after a text is still after it when its tokens are reversed.
        tokens = self._split(text)
        return tokens[::-1] if self.direction == "backward" else tokens

    def _convert_token_to_id(self, token: str) -> int:
        return self.vocabulary.ids.get(token, self.vocabulary.unknown_id)

    def _convert_id_to_token(self, index: int) -> str:
        return self.vocabulary.words[index]

    def _encode_plus(
        self,
        text: Any,
        text_pair: Any = None,
        add_special_tokens: bool = True,
        padding_strategy: PaddingStrategy = PaddingStrategy.DO_NOT_PAD,
        truncation_strategy: TruncationStrategy = TruncationStrategy.DO_NOT_TRUNCATE,
        max_length: int | None = None,
        stride: int = 0,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: Any = None,
        return_attention_mask: bool | None = None,
        return_overflowing_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        **kwargs: Any,
    ) -> BatchEncoding:
        # The method of the base class converts tokens to ids at once. Char ids need the tokens themselves, because all
        # unknown words have the same id.
        if text_pair is not None or return_overflowing_tokens:
            raise ValueError("ElmoTokenizer reads single texts and returns no overflowing tokens.")
        is_list = isinstance(text, list | tuple)
        is_batch = is_list and not (is_split_into_words and all(isinstance(word, str) for word in text))
        rows: dict[str, list[Any]] = {"input_ids": [], "char_ids": []}
        if return_special_tokens_mask:
            rows["special_tokens_mask"] = []
        for item in text if is_batch else [text]:
            tokens = list(item)[:: -1 if self.direction == "backward" else 1] if is_split_into_words else None
            tokens = self.tokenize(item) if tokens is None else tokens
            ends = ([self.bos_token], [self.eos_token] if self.direction is None else []) if add_special_tokens else ()
            if truncation_strategy != TruncationStrategy.DO_NOT_TRUNCATE and max_length is not None:
                kept = max(max_length - sum(map(len, ends)), 0)
                tokens = tokens[:kept] if self.truncation_side == "right" else tokens[max(len(tokens) - kept, 0) :]
            if ends:
                tokens = [*ends[0], *tokens, *ends[1]]
            rows["input_ids"].append(self.convert_tokens_to_ids(tokens))
            rows["char_ids"].append(self.encode_chars(tokens).tolist())
            if return_special_tokens_mask:
                rows["special_tokens_mask"].append([int(token in (BEGIN_SENTENCE, END_SENTENCE)) for token in tokens])
        padded = self.pad(
            rows if is_batch else {name: values[0] for name, values in rows.items()},
            padding=padding_strategy.value,
            max_length=max_length,
            pad_to_multiple_of=pad_to_multiple_of,
            padding_side=padding_side,
            return_attention_mask=return_attention_mask,
        )
        return BatchEncoding(dict(padded), tensor_type=return_tensors, prepend_batch_axis=not is_batch)

    def encode_chars(self, tokens: Sequence[str]) -> Any:
        """Return the char ids of tokens, ``(tokens, chars)``, as :meth:`elmokit.Elmo.ids` encodes them."""
        return encode_tokens(tokens, self.max_chars) if self.lexicon is None else self.lexicon.encode(tokens)

    def _pad(self, encoded_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        padded = super()._pad(encoded_inputs, *args, **kwargs)
        if "char_ids" in padded:
            rows = [list(row) for row in padded["char_ids"]]
            missing = len(padded["input_ids"]) - len(rows)
            padded["char_ids"] = rows + [[0] * self._n_char_ids] * missing
        return padded

    @property
    def _n_char_ids(self) -> int:
        return int(self.encode_chars([UNKNOWN]).shape[1])


class ElmoPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """Base class of the models."""

    config_class = ElmoConfig
    base_model_prefix = "elmo"
    main_input_name = "input_ids"

    def _init_weights(self, module: nn.Module) -> None:
        # transformers calls this for modules with parameters of their own that were not loaded. Only a mix can be new
        # in a loaded model.
        if isinstance(module, ScalarMix):
            nn.init.zeros_(module.weight)
            nn.init.ones_(module.gamma)


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
        is_mix = config.output_layers == "mix"
        self.mixes = nn.ModuleList([ScalarMix(sizes.n_layers + 1)] if is_mix else [])
        self.selection = (
            None if is_mix else select_layers(config.output_layers, sizes.n_layers + 1, None, "this model")  # type: ignore[arg-type]
        )
        start = self.bilm.zero_state(1)
        self.register_buffer("start_hidden", start.hidden)
        self.register_buffer("start_cell", start.cell)
        self.start_hidden: Tensor
        self.start_cell: Tensor
        self.post_init()

    @classmethod
    def from_elmokit(
        cls, model: Source = None, *, output_layers: Literal["top", "average", "mix"] | int = "top"
    ) -> ElmoModel:
        """Create the model from an elmokit model, whose weights are copied.

        Args:
            model: The model.
            output_layers: As in :class:`ElmoConfig`.

        Raises:
            ModelError: No model was found, or it cannot be opened.
            ConfigError: The model reads word ids instead of characters or has an alignment, or a layer does not exist.
        """
        opened = _open(model)
        if opened.alignment is not None:
            raise ConfigError(
                "The model has an alignment, which ElmoModel lacks. Set model.alignment to None to drop it."
            )
        config = ElmoConfig(bilm=to_dict(opened.config), output_layers=output_layers, card=opened.card)
        new = cls(config)
        new.bilm.load_state_dict(opened.bilm.state_dict())
        new._set_start(BiLMState.from_numpy(start_state(opened)))
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
            input_ids: Not used, because the biLM reads characters.
            attention_mask: ``(batch, time)``, 1 on a token. None: wherever a token has char ids.
            char_ids: ``(batch, time, chars)``.
            output_hidden_states: Also return all layers, layer 0 first.

        Returns:
            ``last_hidden_state`` ``(batch, time, dim)``, boundaries included and zero on padding; ``hidden_states`` if
            requested.
        """
        if char_ids is None:
            raise ValueError("ElmoModel needs char_ids. Pass all that ElmoTokenizer returns: model(**tokenizer(...)).")
        layers, mask = self._layers(char_ids, attention_mask)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        vectors = self.mixes[0](layers) if self.selection is None else selected_layers(layers, self.selection)
        return BaseModelOutput(
            last_hidden_state=vectors * mask[..., None],
            hidden_states=tuple(layers) if output_hidden_states else None,
        )

    def _layers(self, char_ids: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        mask = (char_ids > 0).any(dim=-1) if attention_mask is None else attention_mask.bool()
        if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
            raise ValueError("There is padding before or between tokens. Pad on the right: padding_side='right'.")
        state = BiLMState(self.start_hidden, self.start_cell).repeat_row(len(char_ids))
        layers, _ = self.bilm(char_ids * mask[..., None], mask, state)
        return layers, mask

    def _set_start(self, state: BiLMState) -> None:
        self.start_hidden.copy_(state.hidden)
        self.start_cell.copy_(state.cell)


class ElmoForCausalLM(ElmoPreTrainedModel):
    """One direction of a biLM with its softmax, as a causal language model over a closed vocabulary.

    It reads from left to right. For the backward direction, the tokenizer reverses the tokens. ``generate`` is not
    supported.

    Example:
        >>> model, tokenizer = ElmoForCausalLM.from_elmokit(), ElmoTokenizer.from_elmokit(direction="forward")
        >>> model(**tokenizer("The bank raised its", return_tensors="pt")).logits.shape
        torch.Size([1, 5, 30000])
    """

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        if config.softmax is None or config.vocab_size is None:
            raise ConfigError(
                "The model has no softmax, so it cannot predict words. Create an ElmoForCausalLM with "
                "ElmoForCausalLM.from_elmokit, from a model that has one."
            )
        self.elmo = ElmoModel(config)
        kind = from_dict(SoftmaxConfig, config.softmax, "softmax")
        sizes = config.bilm_config
        self.softmax = build_softmax(kind, config.vocab_size, sizes.projection_dim, self.elmo.bilm.token_layer)
        _reset_parameters(self.softmax)
        # How the words are spelled, for callers that pass input_ids alone.
        n_char_ids = sizes.char_cnn.max_chars if sizes.char_cnn is not None else 0
        shape = (config.vocab_size, n_char_ids + (sizes.word_features is not None))
        self.register_buffer("word_char_ids", torch.zeros(shape, dtype=torch.int32))
        self.word_char_ids: Tensor
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
        opened = _open(model)
        softmax = opened.softmax_module
        if softmax is None or opened.vocabulary is None:
            raise ModelNotFoundError(f"{opened.source} has no softmax and vocabulary, so it cannot predict words.")
        sizes, names = opened.config, opened.config.direction_names
        if direction not in names:
            raise ConfigError(f"direction is {direction!r}, but the model reads {' and '.join(names)}.")
        index = names.index(direction)
        config = ElmoConfig(
            bilm=to_dict(replace(sizes, bidirectional=False, backward_only=False)),
            softmax=to_dict(softmax_config(softmax)),
            vocab_size=len(opened.vocabulary),
            card=opened.card,
        )
        new = cls(config)
        new.elmo.bilm.token_layer.load_state_dict(opened.bilm.token_layer.state_dict())
        new.elmo.bilm.directions[0].load_state_dict(opened.bilm.directions[index].state_dict())
        new.softmax.load_state_dict(softmax.state_dict())
        new.word_char_ids.copy_(torch.from_numpy(opened.encode(opened.vocabulary.words)))
        state = BiLMState.from_numpy(start_state(opened))
        new.elmo._set_start(BiLMState(state.hidden[index : index + 1], state.cell[index : index + 1]))
        new.eval()
        return new

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        char_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> CausalLMOutput:
        """Compute the scores of the word after each position.

        Args:
            input_ids: Word ids, ``(batch, time)``.
            attention_mask: ``(batch, time)``, 1 on a token. None: wherever the id is that of a word.
            char_ids: ``(batch, time, chars)``. None: the characters of the words; unknown words are then read as
                ``<UNK>``, which is less exact.
            labels: ``input_ids``, or a copy with -100 where the loss is to ignore a word. Padding is always ignored.
            output_hidden_states: Also return all layers, layer 0 first.

        Returns:
            ``logits`` ``(batch, time, words)``; ``loss`` with labels; ``hidden_states`` if requested.
        """
        # Padding has an id after those of the words.
        mask = input_ids < self.config.vocab_size if attention_mask is None else attention_mask
        if char_ids is None:
            char_ids = self.word_char_ids[input_ids.clamp(max=self.config.vocab_size - 1)].long()
        layers, _ = self.elmo._layers(char_ids, mask)
        logits = self.softmax.scores(layers[-1].flatten(0, 1)).view(*input_ids.shape, -1)
        loss = None
        if labels is not None:
            labels = labels.masked_fill(mask == 0, -100)
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return CausalLMOutput(loss, logits, hidden_states=tuple(layers) if output_hidden_states else None)


def _open(model: Source) -> PretrainedBiLM:
    opened = as_model(model)
    if opened.config.n_words is not None:
        raise ConfigError(f"{opened.source} reads word ids, but the classes for transformers read characters.")
    return opened


def _write_words(
    folder: Path, words: Vocabulary, lexicon: Lexicon | None, prefix: str | None = None
) -> tuple[Path, Path | None]:
    """Write the files of a tokenizer, as in an elmokit directory, and return their paths."""
    listed, table = (folder / f"{f'{prefix}-' if prefix else ''}{name}" for name in ("vocab.txt", "lexicon.json"))
    listed.write_text(words.to_text(), encoding="utf-8", newline="\n")
    if lexicon is None:
        return listed, None
    table.write_text(json.dumps(to_dict(lexicon), ensure_ascii=False), encoding="utf-8")
    return listed, table


# The names with which the auto classes find the classes of a saved directory.
AutoConfig.register(ElmoConfig.model_type, ElmoConfig, exist_ok=True)
AutoTokenizer.register(ElmoConfig, tokenizer_class=ElmoTokenizer, exist_ok=True)
AutoModel.register(ElmoConfig, ElmoModel, exist_ok=True)
AutoModelForCausalLM.register(ElmoConfig, ElmoForCausalLM, exist_ok=True)
