"""The variables of a step's templates, and of the conditions on the edges that leave it.

The same name may come from several places. First come the names that always mean the same, then the element
of a `for_each`, then steps, then keys of the input, then keys of the workload:

    workload input steps …  >  item index  >  fetch  >  a key of input  >  a key of workload

so nothing that is handed in from outside can hide what the playbook's author named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Final, Protocol

from holdfast.playbook.guard import STEPS_NAME, Reads
from holdfast.playbook.plain_data import StepOutput, StepOutputs, data_of

STEP_VARIABLES: Final = frozenset(
    {"workload", "input", STEPS_NAME, "execution_id", "step", "attempt", "max_attempts"}
)
EDGE_VARIABLES: Final = frozenset({"result", "data", "status_code", "success", "error"})
# A step of such a name is reached as `steps.name` only, everywhere; a `for_each` cannot use one for `as`.
RESERVED_NAMES: Final = STEP_VARIABLES | EDGE_VARIABLES

ITEM_NAME: Final = "item"
INDEX_NAME: Final = "index"


class _Compiled(Protocol):
    @property
    def reads(self) -> Reads: ...


def step_variables(
    *,
    workload: Mapping[str, object],
    input: Mapping[str, object],
    outputs: Mapping[str, object],
    execution_id: object,
    step: str,
    attempt: int = 1,
    max_attempts: int = 1,
    index: int | None = None,
    item: object = None,
    as_: str = ITEM_NAME,
) -> dict[str, object]:
    """What a step's own templates may read; `outputs` by the name of the step that gave them.

    `item`, under the name `as_`, and `index` are there where `index` is given: in a `for_each`.
    """
    workload, input = dict(workload), dict(input)
    element = {} if index is None else {INDEX_NAME: index, as_: item}
    return {
        **workload,
        **input,
        **{name: StepOutput(output) for name, output in outputs.items() if name not in RESERVED_NAMES},
        **element,
        "workload": workload,
        "input": input,
        STEPS_NAME: StepOutputs(dict(outputs)),
        "execution_id": execution_id,
        "step": step,
        "attempt": attempt,
        "max_attempts": max_attempts,
    }


def edge_variables(variables: Mapping[str, object], *, step: str, output: object) -> dict[str, object]:
    """What a step's own `next` may read once the step has completed: its variables, and its output as
    `result`, under its own name and in `steps`."""
    steps = variables.get(STEPS_NAME)
    earlier = steps.value if isinstance(steps, StepOutputs) else {}
    own_name = {} if step in RESERVED_NAMES else {step: StepOutput(output)}
    return {
        **variables,
        **own_name,
        STEPS_NAME: StepOutputs({**earlier, step: output}),
        "result": StepOutput(output),
        "data": data_of(output),
        "status_code": output.get("status_code") if isinstance(output, dict) else None,
        "success": True,
        "error": None,
    }


def step_names_read(
    compiled: _Compiled, known_steps: Iterable[str], *, hidden: Set[str] = frozenset()
) -> set[str]:
    """Which of the known steps a condition, text or value reads, by name or through `steps`.

    `hidden` are the names that mean something else where it stands: those of an element of a `for_each`.
    `steps` with a key that only an evaluation knows reads all of them.
    """
    known, reads = set(known_steps), compiled.reads
    if reads.all_steps:
        return known
    return known & ((reads.names - RESERVED_NAMES - hidden) | reads.steps)
