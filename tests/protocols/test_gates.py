"""Every gate on real wires: what it gives and is dealt has the forms it states, and other kinds of wire are refused."""

from __future__ import annotations

import inspect

import pytest
import torch
from case import RESULT, revealing

from secformer.engine.computing import Computing
from secformer.engine.dealing import Dealing
from secformer.engine.gate import Gate
from secformer.engine.local import run_locally
from secformer.engine.sharing import Encoded
from secformer.engine.simulating import Simulating
from secformer.engine.values import Lifted, Masked, MaskedBits, form_of
from secformer.errors import TapeError
from secformer.protocols.evidence import Outside
from secformer.protocols.fourier import gated_fourier, to_period
from secformer.protocols.menu import activation
from secformer_lab.bench.cases import catalogue
from secformer_lab.paper.function_cases import function_cases

FUNCTIONS = {("relu", "exact"), ("softmax", "exact"), ("2quad", "fast")}
ELEMENTS = 128


def gate_classes(parent=Gate):
    """All that the package has; tests may have made others."""
    for found in parent.__subclasses__():
        yield from gate_classes(found)
        if found.__module__.startswith("secformer.") and not inspect.isabstract(found):
            yield found


def gated():
    """A function times a secret bit."""
    fit = activation("gelu", "tight")

    def body(runtime, values):
        wire, keep = runtime.open(to_period(runtime, values["x"], fit, 17), values["keep"])
        return {RESULT: gated_fourier(runtime, wire, keep, fit, 16, 14)}

    secrets = {
        "x": Encoded.numbers(torch.linspace(-4, 4, 15, dtype=torch.float64).reshape(3, 5), 16),
        "keep": Encoded.ring_elements((torch.arange(15) % 2).reshape(3, 5), width=1, kind="bits"),
    }
    return body, secrets


def watched():
    """Which rows have an element outside."""

    def body(runtime, values):
        (wire,) = runtime.open(values["x"])
        return {RESULT: runtime.apply(Outside(4, 0, 2), wire)}

    return body, {"x": Encoded.ring_elements((torch.arange(15) * 273).reshape(3, 5), width=12)}


def programs():
    for case in catalogue(3, 5):
        yield case.program, case.inputs(1)
    bodies = [gated(), watched()]
    for case in function_cases():
        if (case.function, case.suite) in FUNCTIONS:
            built = case.build(ELEMENTS)
            bodies.append((lambda runtime, values, body=built.body: {RESULT: body(runtime, values)}, built.inputs))
    for body, secrets in bodies:
        yield revealing("gates", body, {name: secret.form for name, secret in secrets.items()}), secrets


@pytest.fixture(scope="module")
def applied():
    """Each application of a gate: (reading, gate, wires, result), in shares and in simulation."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for reading in (Computing, Dealing, Simulating):
            patch.setattr(reading, "_apply", recording(reading, found))
        for program, secrets in programs():
            run_locally(program, secrets)
            Simulating().run(program, {name: secret.plain() for name, secret in secrets.items()})
    return found


def recording(reading, found):
    original = reading._apply

    def apply(self, gate, wires):
        result = original(self, gate, wires)
        found.append((reading, gate, wires, result))
        return result

    return apply


def test_results_have_the_stated_form_in_every_reading(applied):
    for reading, gate, wires, result in applied:
        assert form_of(result) == gate.result(*wires), (reading.__name__, gate.describe())
        assert result.share.dtype == torch.int64, (reading.__name__, gate.describe())


def test_what_is_dealt_has_the_stated_forms(applied):
    for _, gate, wires, _ in (each for each in applied if each[0] is Dealing):
        stated, dealt = gate.materials(*wires), gate.deal(*wires)
        assert [form.shape for form in stated] == [tuple(value.shape) for value in dealt], gate.describe()
        assert all(value.dtype == torch.int64 for value in dealt), gate.describe()
        assert all(1 <= form.width <= 64 for form in stated), gate.describe()


def test_every_gate_was_applied_in_every_reading(applied):
    for reading in (Computing, Dealing, Simulating):
        assert {type(gate) for each, gate, _, _ in applied if each is reading} == set(gate_classes())


KINDS = {
    Masked: lambda: Masked(torch.zeros(2).long(), torch.zeros(2).long(), 20),
    MaskedBits: lambda: MaskedBits(torch.zeros(2).long(), torch.zeros(2).long(), 8),
    Lifted: lambda: Lifted(*[torch.zeros(2).long()] * 3, 40, 0, 20),
}


def test_other_kinds_of_wire_are_refused(applied):
    gates = {type(gate): (gate, wires) for _, gate, wires, _ in applied}
    for gate, wires in gates.values():
        gate.check(wires)
        for wrong in ([], [*wires, wires[0]]):
            with pytest.raises(TapeError):
                gate.check(wrong)
        for place, taken in enumerate(gate.takes):
            for kind in KINDS.keys() - set(taken if isinstance(taken, tuple) else (taken,)):
                with pytest.raises(TapeError, match=kind.__name__):
                    gate.check([*wires[:place], KINDS[kind](), *wires[place + 1 :]])
