from __future__ import annotations

import pytest

from secformer.engine.program import InputSpec, Program
from secformer.errors import InputError, ShapeError, WidthError
from secformer.parties.catalogue import PLANS_KEPT, Planner, caller_forms, default_catalogue, result_forms, used_wires
from secformer.parties.messages import Job

WEIGHT = {"weight": InputSpec("masked", (4, 5), 54, 16)}


def counting(built):
    def build(given, stored):
        built.append(given)
        form = InputSpec("shared", (given["n"],))
        return Program("same", lambda runtime, values: {"y": values["x"]}, {"x": form})

    return Planner({"same": build})


def test_queries_of_one_shape_share_a_plan():
    built: list = []
    planner = counting(built)
    first = planner.plan(Job("same", {"n": 1}), {})
    assert planner.plan(Job("same", {"n": 1}, uses="a", stores="b"), {}) is first
    assert len(built) == 1
    assert planner.plan(Job("same", {"n": 1}), WEIGHT) is not first
    assert planner.plan(Job("same", {"n": 2}), {}) is not first


def test_old_plans_are_forgotten():
    built: list = []
    planner = counting(built)
    for n in range(1, PLANS_KEPT + 2):
        planner.plan(Job("same", {"n": n}), {})
    planner.plan(Job("same", {"n": PLANS_KEPT + 1}), {})
    planner.plan(Job("same", {"n": 1}), {})
    assert len(built) == PLANS_KEPT + 2


@pytest.mark.parametrize("kind", [KeyError, TypeError, ZeroDivisionError, RuntimeError, AttributeError, OverflowError])
def test_a_builder_that_stumbles_blames_the_parameters(kind):
    def build(given, stored):
        raise kind("a text that may quote anything")

    with pytest.raises(InputError, match=rf"p cannot be built from these parameters \({kind.__name__}\)"):
        Planner({"p": build}).plan(Job("p"), {})


def test_errors_of_ours_pass():
    def build(given, stored):
        raise WidthError("too narrow")

    with pytest.raises(WidthError):
        Planner({"p": build}).plan(Job("p"), {})


def test_what_the_caller_brings_and_gets_and_what_is_stored():
    planner = Planner(default_catalogue())
    query = planner.plan(Job("dense", {"rows": 3}), {**WEIGHT, "other": WEIGHT["weight"]})
    assert caller_forms(query) == {"x": InputSpec("shared", (3, 4), 54, 12)}
    assert result_forms(query) == {"y": InputSpec("shared", (3, 5), 32, 12)}
    assert list(used_wires(query, {"weight": 1, "other": 2})) == ["weight"]  # type: ignore[dict-item]
    upload = planner.plan(Job("upload", {"tensors": {"w": {"shape": [2]}, "b": {"shape": [3], "kind": "bits"}}}), {})
    assert set(caller_forms(upload)) == {"w", "b"}
    assert result_forms(upload) == {}
    assert {name: form.kind for name, form in upload.outputs.items()} == {"w": "masked", "b": "masked_bits"}
    assert upload.cost.rounds == 1


@pytest.mark.parametrize(
    ("job", "stored", "kind"),
    [
        (Job("upload", {"tensors": {}}), {}, InputError),
        (Job("upload", {"tensors": {"w": {"shape": []}}}), {}, InputError),
        (Job("upload", {"tensors": {"w": {"shape": [2], "width": 65}}}), {}, InputError),
        (Job("upload", {"tensors": {"w": {"shape": [1 << 24, 1 << 24]}}}), {}, ShapeError),
        (Job("upload", {"tensors": {"w": {"shape": [2], "kind": "masked"}}}), {}, InputError),
        (Job("dense", {"rows": 1}), {"weight": InputSpec("masked", (4,))}, InputError),
        (Job("dense", {"rows": True}), WEIGHT, InputError),
        (Job("dense", {"rows": 2, "low": float("nan")}), WEIGHT, InputError),
        (Job("lookup", {"tokens": 2, "columns": 9, "bits": 16, "scale": 4}), WEIGHT, InputError),
        (
            Job("lookup", {"tokens": 2, "columns": 9, "bits": 16, "scale": 4}),
            {"table": InputSpec("masked_bits", (10, 9))},
            ShapeError,
        ),
    ],
)
def test_parameters_that_make_no_program(job, stored, kind):
    with pytest.raises(kind):
        Planner(default_catalogue()).plan(job, stored)
