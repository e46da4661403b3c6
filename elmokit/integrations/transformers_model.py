"""The models of ``elmokit.integrations.transformers``: their config, their base class, and token vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from elmokit.config import from_dict, to_dict
from elmokit.embedding.start_state import note_start, start_state
from elmokit.engine.config import BiLMConfig
from elmokit.engine.layer_selection import select_layers
from elmokit.errors import ConfigError, needs_extra
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.open import open_to_export
from elmokit.integrations.transformers_tokenizer import (
    AUTO_MAP,
    MASK,
    PADDING,
    Source,
    token_ids,
    write_code,
)
from elmokit.network.bilm import BiLM, BiLMState
from elmokit.network.lstm import check_no_gaps
from elmokit.network.scalar_mix import ScalarMix, selected_layers
from elmokit.network.softmax import SoftmaxModule
from elmokit.text.characters import UNKNOWN
from elmokit.text.vocabulary import SPECIALS, Vocabulary

with needs_extra("elmokit.integrations.transformers", "transformers"):
    from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import BaseModelOutput
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


def reset_parameters(module: BiLM | SoftmaxModule) -> None:
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
        reset_parameters(self.bilm)
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
        opened = open_without_alignment(model)
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

    def _copy_weights(self, opened: PretrainedBiLM, direction: int | None = None) -> None:
        """Copy the weights of a model, or of one of its directions."""
        state = BiLMState.from_numpy(start_state(opened))
        note_start(opened)
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


def open_without_alignment(model: Source) -> PretrainedBiLM:
    return open_to_export(model, "ElmoModel")
