"""AllenNLP's ``cached_path``: download a file once."""

from __future__ import annotations

from pathlib import Path

from elmokit.compat.allennlp_layers import ConfigurationError
from elmokit.errors import ModelNotFoundError
from elmokit.formats.fetch import local_path, normalize_url


def cached_path(
    url_or_filename: str | Path,
    cache_dir: str | Path | None = None,
    extract_archive: bool = False,
    force_extract: bool = False,
) -> str:
    """Return the path of a file on this machine, which is downloaded first if it is given as a URL.

    Args:
        url_or_filename: A path, or an http, https or file URL.
        cache_dir: Ignored; downloads are in elmokit's cache, which ``ELMOKIT_CACHE`` names.
        extract_archive, force_extract: Must be False; elmokit opens the archives of models without unpacking them
            first.

    Raises:
        ModelNotFoundError: The file does not exist or cannot be downloaded.
        ConfigurationError: An archive is to be unpacked.
    """
    if extract_archive or force_extract:
        raise ConfigurationError(
            f"cached_path cannot unpack {url_or_filename}. Pass an archive of a model as it is to the class that opens "
            "it, and unpack any other archive yourself."
        )
    path = local_path(normalize_url(url_or_filename))
    if not path.exists():
        raise ModelNotFoundError(f"There is no file {path}.")
    return str(path)
