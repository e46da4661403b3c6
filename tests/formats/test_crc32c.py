from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elmokit.formats import crc32c as module
from elmokit.formats.crc32c import crc32c, masked_crc32c
from tests.helpers.tf_bundle_writer import masked, slow_crc32c


def test_crc32c_of_the_published_check_strings() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, appendix B.4
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(b"") == 0


@pytest.mark.parametrize("size", [1, 3, 4095, 4096, 4097, 20_000, 65_536])
def test_the_fast_way_equals_the_bit_by_bit_way(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert crc32c(data.tobytes()) == slow_crc32c(data.tobytes())
    assert crc32c(data) == slow_crc32c(data.tobytes())
    assert masked_crc32c(data).to_bytes(4, "little") == masked(slow_crc32c(data.tobytes()))


@pytest.mark.parametrize("max_lanes", [64, 1024, 1 << 14])
def test_the_number_of_lanes_does_not_matter(max_lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(0).integers(0, 256, (1 << 20) + 4321, dtype=np.uint8)
    state = module._advance_plain(0xFFFFFFFF, data.tobytes())
    monkeypatch.setattr(module, "_MAX_LANES", max_lanes)
    assert crc32c(data) == state ^ 0xFFFFFFFF


def test_a_mapped_file_is_read_at_any_offset(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 30_000, dtype=np.uint8).tobytes()
    (tmp_path / "data").write_bytes(data)
    mapped = np.memmap(tmp_path / "data", np.uint8, "r", 4099, (20_001,))
    assert crc32c(mapped) == slow_crc32c(data[4099:24_100])
