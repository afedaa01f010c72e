"""A torch device by name, tried before anything depends on it."""

from __future__ import annotations

import torch

from secformer.errors import SettingsError


def device_named(name: str) -> torch.device:
    """The device, if this machine has it and can compute on it."""
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise RuntimeError("it holds no numbers")
        torch.zeros(1, dtype=torch.int64, device=device).add(1)
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise SettingsError(
            f"device '{name}' cannot be used ({reason}): this machine has {', '.join(_here())}"
        ) from None
    return device


def _here() -> list[str]:
    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
