"""The items of a `for_each`, counted out: what its expression yields, as the list that elements are made of.

The worker does it, as it does everything that a playbook's author wrote and that may take time.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.model import ELEMENTS_MAX
from holdfast.core.payload import a_type
from holdfast.steps.fields import refused
from holdfast.steps.interface import StepCall


async def run(call: StepCall) -> Any:
    items = call.config.get("items")
    if isinstance(items, dict):
        raise refused(
            "The items of for_each are a mapping, which has no order to rely on.",
            "Give a list; a python step before this one can make one of it.",
        )
    if not isinstance(items, list | tuple):
        raise refused(
            f"The items of for_each must be a list, not {a_type(items)}.",
            "Check what the expression yields: a step's output is often in its .data.",
        )
    if len(items) > ELEMENTS_MAX:
        raise refused(
            f"for_each has {len(items):,} items; at most {ELEMENTS_MAX:,} are allowed.",
            "Hand it lists of items, or submit a batch.",
        )
    return list(items)
