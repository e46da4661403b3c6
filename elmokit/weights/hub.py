"""Models on the Hugging Face Hub: an id to a folder on this machine, by ``huggingface_hub``."""

from __future__ import annotations

import re
from pathlib import Path

from elmokit.errors import MissingExtraError, ModelNotFoundError
from elmokit.weights.archives import MODEL_FILES

PREFIX = "hf:"
_ID = re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?$")


def is_hub_id(text: str) -> bool:
    """Whether this is ``owner/name`` or ``hf:owner/name``, a revision after ``@`` or none."""
    return _ID.match(text.removeprefix(PREFIX)) is not None


def hub_folder(hub_id: str) -> Path:
    """The folder of a model from the Hub, downloaded unless it is in the Hub's own cache.

    Raises:
        MissingExtraError: ``huggingface_hub`` is not installed.
        ModelNotFoundError: there is no such model, or the Hub cannot be reached.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtraError(f"{hub_id}, a model from the Hugging Face Hub,", "hub") from None
    name, _, revision = hub_id.removeprefix(PREFIX).partition("@")
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=list(MODEL_FILES)))
    except (OSError, ValueError, RuntimeError) as error:
        first = str(error).strip().split("\n")[0].rstrip(".")
        raise ModelNotFoundError(
            f"{hub_id} cannot be had from the Hugging Face Hub: {first}. If it stands on this machine, give its path; "
            f"if it exists there, see https://huggingface.co/{name} and download its files by hand."
        ) from None
