"""What a plan costs, for people and programs: totals, by operation, and the client's own traffic."""

from __future__ import annotations

from typing import Any

from secformer.engine.ledger import Cost
from secformer.engine.tracing import Plan
from secformer.models.query import client_payload

OPERATIONS = ("embedding", "gelu", "softmax", "layernorm", "linear", "evidence", "other")


def by_operation(plan: Plan) -> dict[str, Cost]:
    """Costs by operation; an opening is charged to the operation that consumes it."""
    groups = plan.ledger.grouped()
    found = {name: groups.pop(name, Cost()) for name in OPERATIONS}
    for rest in groups.values():
        found["other"] = found["other"] + rest
    return found


def client_bytes(plan: Plan) -> int:
    """Payload the client sends to and receives from both servers: keys or shares in, shares of the result out."""
    given = {name: form for name, form in plan.program.inputs.items() if not form.is_wire}
    returned = sum(form.packed_bytes for form in plan.outputs.values() if not form.is_wire)
    return client_payload(given) + 2 * returned


def cost_dict(cost: Cost) -> dict[str, int]:
    return {"rounds": cost.rounds, "online_bytes": cost.online_bytes, "dealer_bytes": cost.dealer_bytes}


def plan_dict(plan: Plan) -> dict[str, Any]:
    """Keys as documented for `secformer plan --json`."""
    return {
        **cost_dict(plan.cost),
        "client_bytes": client_bytes(plan),
        "by_operation": {name: cost_dict(cost) for name, cost in by_operation(plan).items()},
    }
