"""What a plan costs, for people and programs: totals, by operation, and the client's own traffic."""

from __future__ import annotations

from typing import Any

from secformer.engine.ledger import Cost
from secformer.engine.program import InputSpec
from secformer.engine.tracing import Plan
from secformer.ring.packing import packed_bytes

OPERATIONS = ("embedding", "gelu", "softmax", "layernorm", "linear", "other")


def by_operation(plan: Plan) -> dict[str, Cost]:
    """Costs by operation; an opening is charged to the operation that consumes it."""
    groups = plan.ledger.grouped()
    found = {name: groups.pop(name, Cost()) for name in OPERATIONS}
    for rest in groups.values():
        found["other"] = found["other"] + rest
    return found


def client_bytes(plan: Plan) -> int:
    """Payload the client sends to and receives from both servers: keys or shares in, shares of the result out."""
    specs = plan.program.inputs
    given = {name: spec for name, spec in specs.items() if spec.kind in ("shared", "bits")}
    sent = sum(_key_bytes(spec) if name == "onehot" else _packed(spec) for name, spec in given.items())
    returned = sum(_packed(spec) for spec in plan.outputs.values() if spec.kind in ("shared", "bits"))
    return 2 * (sent + returned)


def _packed(spec: InputSpec) -> int:
    count = 1
    for size in spec.shape:
        count *= size
    return packed_bytes(count, spec.width)


def _key_bytes(spec: InputSpec) -> int:
    from secformer.crypto.dpf import key_bytes

    rows, columns = spec.shape
    return key_bytes(8 * columns, rows)


def cost_dict(cost: Cost) -> dict[str, int]:
    return {"rounds": cost.rounds, "online_bytes": cost.online_bytes, "dealer_bytes": cost.dealer_bytes}


def plan_dict(plan: Plan) -> dict[str, Any]:
    """Keys as documented for `secformer plan --json`."""
    return {
        **cost_dict(plan.cost),
        "client_bytes": client_bytes(plan),
        "by_operation": {name: cost_dict(cost) for name, cost in by_operation(plan).items()},
    }
