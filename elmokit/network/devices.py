"""Check the device that a user names."""

from __future__ import annotations

import torch

from elmokit.errors import ConfigError


def parse_device(device: str | torch.device) -> torch.device:
    """Return a device by its name, after checking that a tensor can be created on it.

    Raises:
        ConfigError: The device does not exist or cannot be used.
    """
    named = name_device(device)
    try:
        torch.zeros(1, device=named).item()  # tensors of the device "meta" have no numbers
        return named
    except (RuntimeError, AssertionError) as error:  # PyTorch built without CUDA raises an AssertionError
        reason = str(error).splitlines()[0]
        if isinstance(error, NotImplementedError):  # its message is a list of what else there is
            reason = "PyTorch has nothing here that computes on it"
        raise ConfigError(f"device {str(device)!r} cannot be used: {reason}. Omit it to use the CPU.") from None


def name_device(device: str | torch.device) -> torch.device:
    """Return a device by its name, whether or not this machine has one.

    Raises:
        ConfigError: PyTorch knows no device of this name.
    """
    try:
        return torch.device(device)
    except RuntimeError:  # its message is a list of 20 kinds of hardware
        raise ConfigError(
            f"There is no device {device!r}. Choose 'cpu' or 'cuda', or 'cuda:1' for a second GPU."
        ) from None
