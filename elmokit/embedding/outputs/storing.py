"""How a text is read and its vectors are stored, for commands: options with the defaults of ``embed_file``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from elmokit.config import setting
from elmokit.text.raw_lines import Wrapped


@dataclass(frozen=True)
class Storing:
    """What ``embed`` passes on to :func:`~elmokit.embedding.corpus.embed_file`."""

    documents: bool = setting(
        False,
        "Read each sentence after the sentences before it, up to a blank line or the end of the text, as "
        "Elmo.embed_documents does.",
    )
    dtype: Literal["float32", "float16"] = setting("float32", "Type of the stored numbers.")
    use_sentence_keys: bool = setting(False, "In HDF5, name the datasets by their sentences instead of line numbers.")
    forget_sentences: bool = setting(False, "Do not store the sentences (in HDF5, their map to line numbers).")
    include_sentence_indices: bool = setting(
        False, "In HDF5, store the map from sentences to numbers under its old name, sentence_indices, too."
    )
    strict: bool = setting(False, "Refuse blank lines, which otherwise become empty rows.")
    fasta: bool = setting(
        False, "The text is in FASTA format: each residue is a token, and sequences are named by identifier."
    )
    wrapped: Wrapped = setting(
        "auto",
        'Whether the lines of raw text are wrapped: "yes" joins them to paragraphs, "no" reads them one by one, and '
        '"auto" decides by the first lines, and says so.',
    )
    tokenized: bool = setting(False, "Read the text as tokenized though it looks raw, which is otherwise an error.")
    batch_tokens: int = setting(2048, "Positions per batch, unless the start is stateful.")
    batch_size: int = setting(64, "Sentences per batch if the start is stateful.")
    overwrite: bool = setting(False, "Start anew: replace an existing or partial output.")
    force: bool = setting(False, "Start even if the disk seems too small for the output.")
