"""Every expression that a playbook's author writes is evaluated behind this door, and nowhere else.

    condition   `status_code >= 500`                    compile_condition   yes or no
    text        `{{ workload.url }}/items`              compile_text        text, or one expression's value
    value       `{"url": "{{ workload.url }}"}`         compile_value       JSON with texts inside

An expression passes through three gates. The parser is Jinja2's. The `guard` then walks the syntax tree: it
lets through plain expressions only and turns every operation whose cost depends on its operands into one
of our `operations`. Last, the `evaluation` runs in the `sandbox` over `plain_data`, and pays for all that
it reads and makes out of one budget, so that no expression, however written, holds a worker for long or
grows its memory.

Nothing here reads a clock, a file or the network; the value of a secret comes from a function that only a
worker hands in.
"""

from holdfast.playbook.condition import Combined, Condition, ConditionFailed, compile_condition
from holdfast.playbook.evaluation import BUDGET
from holdfast.playbook.expression import EXPRESSION_CHARS_MAX, Budget, Secrets
from holdfast.playbook.guard import ConditionInvalid, Reads
from holdfast.playbook.plain_data import error_value
from holdfast.playbook.text import TEXT_CHARS_MAX, TemplateFailed, Text, compile_text
from holdfast.playbook.value import Value, compile_value

__all__ = [
    "BUDGET",
    "EXPRESSION_CHARS_MAX",
    "TEXT_CHARS_MAX",
    "Budget",
    "Combined",
    "Condition",
    "ConditionFailed",
    "ConditionInvalid",
    "Reads",
    "Secrets",
    "TemplateFailed",
    "Text",
    "Value",
    "compile_condition",
    "compile_text",
    "compile_value",
    "error_value",
]
