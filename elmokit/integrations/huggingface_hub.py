"""Share models on the Hugging Face Hub: :class:`HubModel` has the methods of huggingface_hub's ``ModelHubMixin``.

A repository on the Hub is an elmokit model directory with a model card. :func:`elmokit.open_model` also opens
"owner/name"; this module adds uploads, and options for downloads, such as a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elmokit.errors import OutputError, needs_extra
from elmokit.formats.folder import save_folder
from elmokit.formats.format import model_files
from elmokit.formats.open import open_model
from elmokit.formats.save import refuse_target
from elmokit.lm.perplexity import unknown_words_warning
from elmokit.pretrained.model import PretrainedBiLM, describe
from elmokit.storage.text_files import expand_user
from elmokit.version import __version__

with needs_extra("elmokit.integrations.huggingface_hub", "huggingface-hub"):
    from huggingface_hub import EvalResult, ModelCard, ModelCardData, ModelHubMixin, snapshot_download

USE = """```python
from elmokit import Elmo

elmo = Elmo.from_pretrained("owner/name")  # the id of this repository
sentence = {sentence}
vectors = elmo.embed([sentence.split()])
```"""
ENGLISH_SENTENCE = '"The bank raised its rate ."'
ANY_SENTENCE = '"..."  # in the language of the model, with spaces between tokens'
ENGLISH = ("en", "eng", "english")


class HubModel(ModelHubMixin):
    """A model that can be uploaded to and downloaded from the Hugging Face Hub.

    ``push_to_hub("owner/name")`` uploads the model with a model card, which is generated from the model's metadata.
    ``from_pretrained("owner/name")`` downloads it. The arguments are those of ``ModelHubMixin``.

    Args:
        model: The model, from :func:`elmokit.open_model`. It is available as the attribute ``model``.

    Example:
        >>> HubModel(open_model("my-run")).push_to_hub("owner/name", model_card_kwargs={"license": "mit"})
        >>> model = HubModel.from_pretrained("owner/name", token="hf_...").model
        >>> elmo = Elmo(model)
    """

    # Not None: otherwise, the mixin would make a config of the arguments and copy the whole model for it. A model
    # directory has its own config.json.
    _hub_mixin_config: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, model: PretrainedBiLM) -> None:
        self.model = model

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> str | None:
        """Save the model as an elmokit directory with a model card, ``README.md``.

        Args:
            save_directory: A directory that does not exist yet.
            **kwargs: As in ``ModelHubMixin``. ``push_to_hub=True`` also uploads the model.

        Raises:
            OutputError: The directory already exists or cannot be written.
        """
        # The mixin deletes an existing directory's config.json before it writes anything.
        path = expand_user(save_directory, OutputError)
        refuse_target(path, overwrite=False)
        url: str | None = super().save_pretrained(path, **kwargs)
        return url

    def generate_model_card(self, **kwargs: Any) -> ModelCard:
        """Write the model card.

        Args:
            **kwargs: Entries of the card's header, such as ``license`` and ``language`` (codes such as "en"). The
                mixin passes ``model_card_kwargs``.
        """
        card = dict(self.model.card)
        name = str(card.pop("name", "An ELMo"))
        about = [str(card[key]) for key in ("description", "about", "text") if card.get(key)]
        entries: dict[str, Any] = {"tags": ["elmo"], "library_name": "elmokit", "pipeline_tag": "feature-extraction"}
        results = _results(card, self.model.config.direction_names)
        if results:
            # A model index: the Hub displays these results and sorts models by them.
            entries = {"model_name": name, "eval_results": results, **entries}
        example = _example(kwargs.get("language", card.get("language")))
        parts = [
            f"---\n{ModelCardData(**(entries | kwargs)).to_yaml()}\n---",
            f"# {name}",
            *about,
            f"This is an ELMo (Peters et al. 2018), saved by elmokit {__version__}.",
            USE.format(sentence=example),
            self._facts_table(card, about),
        ]
        return ModelCard("\n\n".join(parts) + "\n")

    def _facts_table(self, card: Mapping[str, Any], about: list[str]) -> str:
        """Format facts about the model as a table, omitting those in the text above it."""
        rows = describe(self.model)
        # The original model may be stored in another precision; the saved model is float32.
        for name in ("path", "storage", "card"):
            del rows[name]
        for name, value in card.items():
            if str(value) not in about:
                rows[name] = value
        rows |= _unknown_words(card)
        lines = ["| | |", "|---|---|"]
        for name, value in rows.items():
            cell = _cell(value)
            if cell:
                lines.append(f"| {name} | {cell} |")
        return "\n".join(lines)

    def _save_pretrained(self, save_directory: Path) -> None:
        save_folder(self.model, save_directory, overwrite=True)  # the mixin has already created the directory

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        **model_kwargs: Any,
    ) -> HubModel:
        # huggingface_hub before 1.0 passes two more arguments, which its download also accepts.
        older = {name: model_kwargs.pop(name) for name in ("proxies", "resume_download") if name in model_kwargs}
        folder = Path(model_id)
        if not folder.is_dir():
            downloaded = snapshot_download(
                model_id,
                revision=revision,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
                token=token,
                allow_patterns=model_files(),
                **older,
            )
            folder = Path(downloaded)
        return cls(open_model(folder), **model_kwargs)


def _example(language: Any) -> str:
    """Return an example sentence as code: English if that is the language, otherwise a placeholder."""
    return ENGLISH_SENTENCE if str(language).lower() in ENGLISH else ANY_SENTENCE


def _unknown_words(card: Mapping[str, Any]) -> dict[str, str]:
    """Return the table row with the held-out text's unknown words, if training has counted them."""
    unknown_ratio = _unknown_ratio(card)
    if unknown_ratio is None:
        return {}
    count = f"{unknown_ratio:.1%} of the words, which the perplexity counts as <UNK>."
    told = unknown_words_warning(unknown_ratio) or count
    return {"unknown words in the held-out text": told.replace("<UNK>", "`<UNK>`")}


def _unknown_ratio(card: Mapping[str, Any]) -> float | None:
    """Return the fraction of held-out words that are not in the vocabulary, if training has stored it."""
    held_out = card.get("held_out")
    if not isinstance(held_out, dict):
        return None
    unknown_ratio = held_out.get("unknown_ratio")
    return float(unknown_ratio) if isinstance(unknown_ratio, int | float) else None


def _results(card: Mapping[str, Any], directions: Sequence[str]) -> list[EvalResult]:
    """Return the results on the validation text, if training has stored them in the card."""
    perplexities = card.get("held_out_perplexity")
    if not isinstance(perplexities, list) or len(perplexities) != len(directions):
        return []
    # Part of the name, because many unknown words lower the perplexity, and the Hub only displays the perplexity.
    unknown_ratio = _unknown_ratio(card)
    with_unknown = "" if unknown_ratio is None else f" ({unknown_ratio:.1%} unknown words)"
    return [
        EvalResult(
            task_type="text-generation",
            task_name="Language modeling",
            dataset_type="text",
            dataset_name="validation text of the training",
            dataset_split="validation",
            metric_type="perplexity",
            metric_name=f"perplexity per token, {direction}{with_unknown}",
            metric_value=round(float(perplexity), 2),
        )
        for direction, perplexity in zip(directions, perplexities, strict=True)
    ]


def _cell(value: Any) -> str:
    """Format a value as a table cell; empty if the value is a table itself."""
    if isinstance(value, list) and all(isinstance(item, int | float | str) for item in value):
        return ", ".join(map(_cell, value))
    if isinstance(value, dict | list) or value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.split()).replace("|", "\\|")
