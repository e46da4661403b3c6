"""``elmokit finetune``: continue the training of a biLM on other text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from elmokit.cli.common import model_option, options_option, overwrite_option
from elmokit.cli.options import GroupedOption, SettingsCommand, name_flags, setting_options
from elmokit.cli.train import (
    PATH,
    device_option,
    given_options,
    in_run,
    out_option,
    resumable_run,
    texts_argument,
    threads_option,
)
from elmokit.errors import ConfigError


class FinetuneCommand(SettingsCommand):
    """``finetune`` with an option for each setting of the training and its text."""

    @staticmethod
    def setting_options() -> list[click.Option]:
        """Return the options, with the defaults of fine-tuning."""
        from elmokit.engine.config import BiLMConfig
        from elmokit.training.config import FINETUNING, FINETUNING_SETTINGS, BaseConfig, DataConfig, TrainingConfig
        from elmokit.training.settings import DATA_SETTINGS

        return [
            *setting_options(BaseConfig, {}, FINETUNING_SETTINGS),
            *setting_options(DataConfig, {"vocabulary": "the model's own"}, DATA_SETTINGS),
            *setting_options(BiLMConfig, {"dropout": "the model's"}, ["dropout"], "Model"),
            *setting_options(TrainingConfig, FINETUNING),
        ]


@click.command(cls=FinetuneCommand)
@texts_argument
@model_option
@options_option
@out_option(required=True, help="Directory for checkpoints, logs and the final model.")
@overwrite_option
@in_run("--config", type=PATH, help="TOML file of settings, or bilm-tf's options.json. Flags override it.")
@click.option(
    "--old-text",
    cls=GroupedOption,
    group="Text",
    multiple=True,
    type=PATH,
    help="Text from the original training domain, to measure forgetting.",
)
@device_option
@threads_option
def finetune(
    model: str | None, texts: tuple[Path, ...], out: Path, overwrite: bool, device: str, **settings: Any
) -> None:
    """Continue training a model on your own text.

    TEXT is one or more files or directories of tokenized text. The model can also be a run directory or a TensorFlow
    checkpoint. A model without a softmax, as most published ones are, gets a new one over the words of TEXT. If the
    training is interrupted, the same command continues it.

    \b
    Examples:
      elmokit finetune clinical-notes/ --held-out dev.txt --out clinical
      elmokit finetune reviews.txt.gz --model original --held-out dev.txt --epochs 3 --out reviews
      elmokit finetune notes.txt --model bilm-tf-run/ --held-out dev.txt --recipe bilm-tf --out continued
    """
    from elmokit.training import api

    _refuse_models(texts)
    given = given_options(settings)
    with name_flags(given), resumable_run(out):
        result = api.finetune(model, texts, out=out, device=device, overwrite=overwrite, **given)
    if result.is_main_process:
        click.echo(str(result))


def _refuse_models(texts: tuple[Path, ...]) -> None:
    """Check that no text is the model. A model directory has .txt files, so it would be trained on.

    Raises:
        ConfigError: One is.
    """
    from elmokit.formats.folder import DEFAULT_MODEL, FORMAT
    from elmokit.formats.published import find_published

    for text in texts:
        is_name = str(text) == DEFAULT_MODEL or find_published(str(text)) is not None
        if (is_name and not text.exists()) or FORMAT.recognizes(text):
            raise ConfigError(f"{text} is a model, but the arguments are texts. Pass the model with --model {text}.")
