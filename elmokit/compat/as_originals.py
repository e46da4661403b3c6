"""Run unchanged programs that import an older ELMo implementation, without that implementation.

From the command line, with the script's arguments after its name::

    python -m elmokit.compat.as_originals script.py ARGUMENTS

or as the first import of a program, a notebook or a test::

    import elmokit.compat.as_originals
    from simple_elmo import ElmoModel

This provides the names of ``allennlp`` (:mod:`elmokit.compat.as_allennlp`), ``bilm``, ``elmoformanylangs``,
``simple_elmo`` and ``tensorflow_hub`` that ELMo needs. Other imports from them fail like imports of missing names. If
one of these programs is installed, it is used instead, and one line on standard error says so.

The tensors are PyTorch's, and there is no session. A script that builds a TensorFlow graph around ELMo must therefore
be edited; the guides in ``docs/how-to/migrate`` explain how.
"""

from __future__ import annotations

import logging
import runpy
import sys
from pathlib import Path

from elmokit.compat import bilm, many_langs, simple_elmo, tfhub
from elmokit.compat.stand_ins import ALLENNLP, Provided, installed_path, names_of, provide

_of = names_of(bilm)
_BATCHERS = "Batcher UnicodeCharsVocabulary"
_MODEL = f"{_BATCHERS} BidirectionalLanguageModel dump_bilm_embeddings dump_token_embeddings"
_VOCABULARIES = "InvalidNumberOfCharacters UnicodeCharsVocabulary Vocabulary"
PROVIDED: dict[str, Provided] = {
    "allennlp": ALLENNLP,
    "bilm": {
        "bilm": _of(f"{_MODEL} TokenBatcher weight_layers"),
        "bilm.data": _of(f"{_VOCABULARIES} Batcher TokenBatcher BidirectionalLMDataset LMDataset"),
        "bilm.elmo": _of("weight_layers"),
        "bilm.model": _of(_MODEL),
        "bilm.training": _of(f"{_VOCABULARIES} dump_weights load_options_latest_checkpoint load_vocab test train"),
    },
    "elmoformanylangs": {
        "elmoformanylangs": {"Embedder": many_langs.Embedder, "logger": logging.getLogger("elmoformanylangs")},
        "elmoformanylangs.elmo": {"Embedder": many_langs.Embedder},
    },
    "simple_elmo": {
        "simple_elmo": {"ElmoModel": simple_elmo.ElmoModel},
        "simple_elmo.elmo_helpers": {"ElmoModel": simple_elmo.ElmoModel},
    },
    "tensorflow_hub": {"tensorflow_hub": names_of(tfhub)("KerasLayer Module load") | {"__version__": "0.16.1"}},
}
"""The modules of each program, by package name."""


def install() -> None:
    """Register the modules of every program that is not installed in ``sys.modules``."""
    for package, modules in PROVIDED.items():
        if (path := installed_path(package)) is None:
            provide(modules)
        else:
            print(
                f"elmokit: {package} itself is installed ({path}) and is used. Uninstall it to use elmokit's.",
                file=sys.stderr,
            )


def run_script(arguments: list[str]) -> None:
    """Run a script as ``python`` does, given its path and its own arguments."""
    if not arguments or not Path(arguments[0]).is_file():
        given = f"There is no file {arguments[0]}." if arguments else "No script was given."
        print(f"elmokit: {given} Usage: python -m elmokit.compat.as_originals SCRIPT.py [ARGUMENTS]", file=sys.stderr)
        sys.exit(2)
    sys.argv = list(arguments)
    sys.path[0] = str(Path(arguments[0]).resolve().parent)  # instead of the current directory, which `-m` added
    runpy.run_path(arguments[0], run_name="__main__")


install()
if __name__ == "__main__":
    run_script(sys.argv[1:])
