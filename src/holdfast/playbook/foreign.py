"""Words of other playbook dialects, and what is written for them here.

A playbook that comes from elsewhere is refused with the way on, not with a list of fields to guess from.
"""

from __future__ import annotations

from typing import Final

_FOR_EACH: Final = 'Give the inner step `for_each: "{{ list }}"`; its templates read `item` and `index`.'
_INLINE: Final = (
    "Write the task's fields in the step itself, or make it a playbook and call it with type: playbook."
)
_SAVE: Final = "Add a step of type sql or http behind this one; it reads this one's output by its name."
_SECRET: Final = 'Write {{ secret("NAME") }} in the field that needs the value.'
_WHEN: Final = 'Write `next: [{step: name, when: "{{ … }}"}]`.'
_ONE_CODE: Final = "Write the code in `code`, or name a function with `call: module:function`."

FOREIGN_TYPES: Final = {
    "iterator": _FOR_EACH,
    "loop": _FOR_EACH,
    "workbook": _INLINE,
    "task": _INLINE,
    "playbooks": "Write type: playbook.",
    "secrets": _SECRET,
    "secret": _SECRET,
    "save": "Write a step of type sql or http.",
    "requests": "Write type: http.",
    "bash": "Write type: shell.",
    "script": "Write type: shell or type: python.",
    "postgresql": "Write type: postgres, or type: sql.",
    "wait": "Write type: sleep.",
    "delay": "Write type: sleep.",
}

FOREIGN_FIELDS: Final = {
    "save": _SAVE,
    "sink": _SAVE,
    "case": _WHEN,
    "condition": _WHEN,
    "if": _WHEN,
    "then": _WHEN,
    "else": _WHEN,
    "loop": _FOR_EACH,
    "iterator": _FOR_EACH,
    "collection": _FOR_EACH,
    "element": _FOR_EACH,
    "task": _INLINE,
    "run": _INLINE,
    "vars": "Hand values on with `with` of the edge, or read the step's output by its name.",
    "return_step": "The child's result is the output of this step.",
    "code_b64": _ONE_CODE,
    "script": _ONE_CODE,
    "command_b64": "Write the statement in `query`.",
    "auth": _SECRET,
    "credential": _SECRET,
    "credentials": _SECRET,
    "db_host": "Write one `url: postgresql://user:password@host:port/name`; " + _SECRET,
    "depends_on": "Name the following step in `next` of the step before it.",
    "needs": "Name the following step in `next` of the step before it.",
    "workbook": _INLINE,
    "executor": "Leave it out: workers take the steps that they have handlers for.",
    "steps": "Write `workflow:`.",
}

TOOL_MAPPING: Final = "Write `type: http` (or another type) and its fields beside it, in the step itself."
