"""The step type `playbook`: a child execution, which the step waits for without holding a slot.

The first lease of its attempt names the child's playbook and hands on its workload, which is the step's
input; the engine starts it, parks the job, and leases it again when the child has ended. The step then ends
as the child has: with its result, or with its error, of the same category, so that its own policy decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.catalogue import Category
from holdfast.core.failures import Failure
from holdfast.core.model import Deferred, ExecutionStatus, Failed
from holdfast.core.payload import a_type, encode_payload
from holdfast.steps.failing import FailedElsewhere
from holdfast.steps.fields import refused, text_field
from holdfast.steps.interface import StepCall


async def run(call: StepCall) -> Any:
    path = text_field(call.config, "path")
    if call.parked is None:
        asked = {"path": path, "version": _version(call.config.get("version")), "workload": dict(call.input)}
        return Deferred(
            child=encode_payload(asked, what="child's workload", bytes_max=call.settings.payload_bytes_max)
        )
    if (refusal := call.parked.get("refused")) is not None:
        raise refused(
            str(refusal.get("message") or f"The playbook {path} could not be started."),
            str(refusal.get("guidance") or ""),
        )
    child = call.parked["child"]
    if child["status"] == ExecutionStatus.COMPLETED:
        return {"execution_id": child["id"], "data": child.get("result")}
    raise FailedElsewhere(Failed(_failure(path, child)))


def _version(version: object) -> int | None:
    if version is None:
        return None
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise refused(f"version must be a whole number from 1, not {a_type(version)}.")
    return version


def _failure(path: str, child: Mapping[str, Any]) -> Failure:
    number = child["id"]
    if child["status"] == ExecutionStatus.CANCELLED:
        return Failure(
            message=f"Child execution {number} of playbook {path} was cancelled.",
            exception="ChildCancelled",
            error_type="child_cancelled",
            category=Category.PERMANENT,
            user_message="The step's own execution was cancelled",
            guidance="Retry it if that was not meant.",
        )
    error = child.get("error") or {}
    stage = f" at {error['stage']}" if error.get("stage") else ""
    reason = error.get("message") or "no reason is told"
    return Failure(
        message=f"Child execution {number} of playbook {path} failed{stage}: {reason}",
        exception="ChildFailed",
        error_type=error.get("error_type") or "unknown",
        category=_category(error.get("category")),
        user_message=error.get("user_message"),
        guidance=error.get("guidance"),
    )


def _category(told: object) -> Category:
    try:
        return Category(str(told))
    except ValueError:
        return Category.UNKNOWN
