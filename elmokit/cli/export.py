"""Export a model in a form that other programs load.

Examples:
    elmokit export static en-mini-static
    elmokit export static my-static --model my-elmo --words words.txt
"""

from __future__ import annotations

from pathlib import Path

from elmokit.cli.parameters import Model, ModelOptions, Output, Overwrite, Pool
from elmokit.cli.running import print_note

COMMANDS = {
    "static": ("elmokit.cli.export:static", "Write sentence vectors as a word table, which model2vec loads."),
}


def static(
    directory: Output,
    *,
    model: Model = None,
    options: ModelOptions = None,
    pool: Pool | None = None,
    words: Path | None = None,
    overwrite: Overwrite = False,
) -> None:
    """Write sentence vectors as a word table to DIRECTORY, which model2vec loads.

    The vectors are those of `elmokit embed --pool`: the mean of a sentence's rows has the same direction as its
    vector. Words that are not in the table are left out.

    Args:
        pool: The sentence vectors: whitened or trained as stored with the model, or layer 0 with less weight for
            frequent words (sif) or without (mean).  [default: whitened if the model stores that, else sif]
        words (FILE): The words of the table, one per line.  [default: the model's vocabulary]

    Examples:
        elmokit export static en-mini-static
        elmokit export static my-static --model my-elmo --words words.txt
        elmokit export static en-mini-trained --pool trained
    """
    from elmokit.embedding.elmo import Elmo
    from elmokit.embedding.sentence_vectors import SentenceEmbedder
    from elmokit.embedding.static_table import check_table_path, export_static
    from elmokit.text.vocabulary import read_words

    check_table_path(directory, overwrite)
    listed = None if words is None else read_words(words)
    elmo = Elmo.from_pretrained(model, options=options)
    embedder = SentenceEmbedder(elmo) if pool is None else SentenceEmbedder.by_name(elmo, pool)
    print_note(f"wrote {export_static(embedder, directory, listed, overwrite=overwrite)}")
