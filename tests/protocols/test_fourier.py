"""Functions by Fourier series on shares: the error that was promised, everywhere on the window."""

import pytest
import torch
from case import revealing
from simulation import simulation

from secformer.engine.form import shared
from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded
from secformer.engine.tracing import trace
from secformer.errors import RangeError, WidthError
from secformer.protocols import functions
from secformer.protocols.fourier import fourier, to_period
from secformer_lab.fits.search import fit

GELU = fit(functions.gelu, -10, 10, error=1e-4, name="gelu")


def gelu_program(shape, scale=16, width=64, bits=17, dealt_scale=16):
    def body(runtime, values):
        (wire,) = runtime.open(to_period(runtime, values["x"], GELU, bits))
        return {"y": fourier(runtime, wire, GELU, dealt_scale, 14)}

    return revealing("gelu", body, {"x": shared(shape, width, scale)})


def test_gelu_on_its_whole_window():
    x = torch.linspace(-10, 10, 40001, dtype=torch.float64)
    result = run_locally(gelu_program((40001,)), {"x": Encoded.numbers(x, 16)}).value("y")
    error = (result - functions.gelu(x)).abs()
    assert error.mean() <= 2e-4
    assert error.max() <= 1e-3


def test_one_opening_of_17_bits():
    cost = trace(gelu_program((10,))).cost
    assert (cost.rounds, cost.opened_bits) == (1, 170)


def test_large_tensors_are_dealt_in_blocks():
    """More than 2^22 dealt values: the blocks must fit together again."""
    x = torch.linspace(-9, 9, (1 << 22) // (2 * GELU.terms) + 3, dtype=torch.float64)
    run = run_locally(gelu_program((len(x),)), {"x": Encoded.numbers(x, 16)})
    assert len(run.plan.tape.dealt) == 2
    assert (run.value("y") - functions.gelu(x)).abs().max() <= 1e-3


def test_simulation_refuses_what_leaves_the_window():
    outside = Encoded.numbers(torch.tensor([0.0, 11.0]), 16)
    with pytest.raises(RangeError, match="leave the range -10 to 10"):
        simulation(gelu_program((2,)), {"x": outside}, strict=True)


def test_widths_and_scales_are_checked_while_tracing():
    with pytest.raises(WidthError):
        trace(gelu_program((2,), width=18))
    with pytest.raises(WidthError):
        trace(gelu_program((2,), dealt_scale=30))
