"""The exact functions of one variable that the servers approximate, in float64, and the activations that models use.

Each form keeps its *relative* accuracy where the textbook form cancels: GeLU's left tail uses erfc
(1 + erf(x/√2) has no correct digit below x = -8), SiLU and sigmoid use torch's stable logistic.
They are references and the targets of fits; no secret passes through them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

from secformer.errors import ModelError

Function = Callable[[Tensor], Tensor]


def gelu(x: Tensor) -> Tensor:
    """Return x·Φ(x), the GeLU of BERT."""
    return 0.5 * x * torch.special.erfc(x * -math.sqrt(0.5))


def gelu_new(x: Tensor) -> Tensor:
    """Return GPT-2's tanh form of GeLU, 0.5·x·(1 + tanh u) with u = √(2/π)·(x + 0.044715·x³), as x·sigmoid(2u)."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return x * torch.sigmoid(2 * inner)


def silu(x: Tensor) -> Tensor:
    """Return x·sigmoid(x)."""
    return x * torch.sigmoid(x)


def reciprocal(v: Tensor) -> Tensor:
    """Return 1/v."""
    return 1 / v


def inverse_sqrt(v: Tensor) -> Tensor:
    """Return 1/√v."""
    return 1 / torch.sqrt(v)


FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "gelu": gelu,
        "gelu_new": gelu_new,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "silu": silu,
        "exp": torch.exp,
        "exp2": torch.exp2,
        "reciprocal": reciprocal,
        "inverse_sqrt": inverse_sqrt,
    }
)


@dataclass(frozen=True)
class Activation:
    """A model's activation: its function, as torch computes it, and its names in checkpoints.

    It is evaluated by a Fourier series on the windows of menu.py, which must have its fits. With `rectifies` it is evaluated
    by ReLU's protocol instead.
    """

    name: str
    function: Function
    hub_names: tuple[str, ...]
    rectifies: bool = False


_ACTIVATIONS: dict[str, Activation] = {}


def add_activation(activation: Activation) -> None:
    """Register an activation. Its fits go into the menu (menu.add_fits) or into fits.json (`python -m secformer_lab.fits`)."""
    _ACTIVATIONS[activation.name] = activation


def activation_named(name: str, by_checkpoint: bool = False) -> Activation:
    """Return the activation of that name: ours, or (`by_checkpoint`) the name in a checkpoint's config.json.

    Raises ModelError for an unknown name.
    """
    for activation in _ACTIVATIONS.values():
        if name in (activation.hub_names if by_checkpoint else (activation.name,)):
            return activation
    raise ModelError(f"activation '{name}' is not supported; supported: {', '.join(_ACTIVATIONS)}")


def fitted_activations() -> list[Activation]:
    """List the activations that need fits."""
    return [activation for activation in _ACTIVATIONS.values() if not activation.rectifies]


for _activation in (
    Activation("gelu", functional.gelu, ("gelu", "gelu_python")),
    Activation("gelu_new", partial(functional.gelu, approximate="tanh"), ("gelu_new", "gelu_pytorch_tanh")),
    Activation("relu", torch.relu, ("relu",), rectifies=True),
    Activation("silu", functional.silu, ("silu", "swish")),
):
    add_activation(_activation)
