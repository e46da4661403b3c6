"""Put elmokit's classes into ``sys.modules`` under the names of another program.

:mod:`elmokit.compat.as_allennlp` and :mod:`elmokit.compat.as_originals` use it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType

Provided = Mapping[str, Mapping[str, object]]
"""The names in each module of a program; a package comes before its modules."""


def installed_path(package: str) -> str | None:
    """Find the path of an installed package; None if it is not installed."""
    # A package that is imported already counts as installed, unless `provide` made it.
    if isinstance(sys.modules.get(package), StandIn):
        return None
    spec = importlib.util.find_spec(package)
    return None if spec is None else spec.origin or ", ".join(spec.submodule_search_locations or [])


def provide(modules: Provided) -> None:
    """Put modules with these names into ``sys.modules``. Any other name fails as usual for one that is missing."""
    for name, members in modules.items():
        package, _, child = name.rpartition(".")
        module = StandIn(name, f"{name}, as far as ELMo needs it, provided by elmokit.")
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []  # makes it a package, in which the import system then finds no other module
        module.__file__ = __file__  # named in the message about a name that is missing
        vars(module).update(members)
        sys.modules[name] = module
        if package:
            setattr(sys.modules[package], child, module)


class StandIn(ModuleType):
    """A module that :func:`provide` made."""
