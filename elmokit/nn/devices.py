"""Where to compute."""

from __future__ import annotations

import torch

from elmokit.errors import ConfigError


def usable_device(device: str | torch.device) -> torch.device:
    """A device by its name, once it has shown that it can hold a number.

    Raises:
        ConfigError: it cannot be used.
    """
    try:
        torch.zeros(1, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError) as error:  # torch says "not compiled with CUDA" by an assertion
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {str(device)!r} cannot be used: {reason}. Leave it out to use the CPU.") from None
