"""Let programs that import AllenNLP's ELMo run unchanged, without AllenNLP.

Importing this module registers elmokit's classes in ``sys.modules`` under AllenNLP's module names::

    import elmokit.compat.as_allennlp
    from allennlp.commands.elmo import ElmoEmbedder  # or a library that does so, such as flair 0.15's ELMoEmbeddings

Only ELMo's names exist (``ALLENNLP``); any other import from ``allennlp`` fails like an import of a missing name. If
AllenNLP itself is installed, this module raises an error instead of mixing two implementations in one process.
:mod:`elmokit.compat.as_originals` does the same for other programs, and runs scripts.

Pickles written afterwards refer to the classes in ``elmokit.compat`` and can be read without this module.
"""

from __future__ import annotations

from elmokit.compat.stand_ins import ALLENNLP, installed_path, provide


def install() -> None:
    """Register the modules in ``sys.modules``, unless AllenNLP itself is installed or imported."""
    if (path := installed_path("allennlp")) is not None:
        raise ImportError(
            f"elmokit.compat.as_allennlp replaces AllenNLP, but AllenNLP itself is installed ({path}). Uninstall it "
            "or import the classes from elmokit.compat.allennlp instead."
        )
    provide(ALLENNLP)


install()
