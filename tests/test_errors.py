"""What turns the errors of other libraries into ours."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from elmokit.errors import ElmoError, RaisedAgain, needs_extra, needs_torch, reading
from elmokit.formats.bilm_tf import config_errors
from elmokit.training.training_run import damage_errors


class Model:
    """What a call holds, such as an open file or weights."""


@pytest.mark.parametrize(
    ("errors", "make_error"),
    [
        (reading("meta.json", "JSON file"), FileNotFoundError),
        (reading("meta.json", "JSON file"), ValueError),
        (needs_extra("A chart", "plot"), ImportError),
        (needs_torch("Training"), lambda: ModuleNotFoundError(name="torch")),
        (config_errors("options.json"), KeyError),
        (damage_errors("The checkpoint"), OSError),
    ],
)
def test_a_caught_error_keeps_nothing_in_memory_that_the_calls_before_it_held(
    errors: RaisedAgain, make_error: Callable[[], Exception]
) -> None:
    def fail() -> None:
        with errors:
            raise make_error()

    def call(model: Model) -> None:
        with pytest.raises(ElmoError):
            fail()

    model = Model()
    reference = weakref.ref(model)
    gc.disable()
    try:
        call(model)
        del model
        assert reference() is None
    finally:
        gc.enable()
