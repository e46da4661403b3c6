"""A process notices that another one has taken its store, whatever is in the file of the owner."""

from __future__ import annotations

from pathlib import Path

import pytest

from elmokit.errors import LockedError
from elmokit.storage.owner import OWNER, Owner


def test_an_owner_file_of_any_size_is_not_that_of_this_process(tmp_path: Path) -> None:
    owner = Owner(tmp_path, None)
    owner.take()
    owner.check()
    with (tmp_path / OWNER).open("wb") as file:
        file.truncate(1 << 40)  # without content, it takes no room on the disk
    with pytest.raises(LockedError, match="Another process is writing"):
        owner.check()
    owner.release()
    assert (tmp_path / OWNER).exists()
