from __future__ import annotations

import pytest
import torch

from elmokit.errors import ConfigError
from elmokit.nn.kernels import backends as choose
from elmokit.nn.kernels import compiler as compiled
from elmokit.nn.kernels import products

CPU = torch.device("cpu")


def only(monkeypatch: pytest.MonkeyPatch, *offered: str) -> None:
    monkeypatch.setattr(compiled, "library", lambda: object() if "compiled" in offered else None)
    monkeypatch.setattr(products, "offers", lambda kernels: kernels in offered)


def test_what_a_processor_lacks_is_replaced_by_what_is_more_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "fbgemm-int8", "onednn-bf16", "fbgemm-float16", "compiled", "onednn", "library")
    assert [choose.choose(CPU, asked) for asked in ("int8", "bf16", "float32", "auto", "plain")] == [
        "fbgemm-int8",
        "onednn-bf16",
        "compiled",
        "compiled",
        "plain",
    ]
    only(monkeypatch, "fbgemm-float16", "onednn")
    assert choose.choose(CPU, "int8") == choose.choose(CPU, "bf16") == "fbgemm-float16"
    assert choose.choose(CPU, "auto") == "onednn"
    only(monkeypatch)
    assert choose.choose(CPU, "int8") == choose.choose(CPU, "auto") == "plain"


def test_nothing_asked_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(choose.VARIABLE, raising=False)
    assert choose.asked() == "auto"
    assert choose.ON_CPU["auto"] == choose.ON_CPU["float32"]
    assert not {"fbgemm-int8", "fbgemm-float16", "onednn-bf16", "library-bf16"} & set(choose.ON_CPU["auto"])


def test_a_graphics_card_gets_no_kernel_of_the_processor() -> None:
    assert {kernels for row in choose.ON_GPU.values() for kernels in row} == {"plain", "library", "library-bf16"}


def test_a_slip_in_the_switch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(choose.VARIABLE, "in8")
    with pytest.raises(ConfigError, match="ELMOKIT_KERNELS is 'in8'; it is one of plain, auto, float32, bf16, int8"):
        choose.asked()
