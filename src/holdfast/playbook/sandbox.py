"""Where a guarded expression runs: Jinja2's immutable sandbox, over plain data and our operations alone.

There are no globals, no calls and no attributes: a name after a dot is a key of a mapping.
"""

from typing import Final

from jinja2 import StrictUndefined, Undefined
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

from holdfast.playbook.evaluation import Evaluation
from holdfast.playbook.filters import FILTERS
from holdfast.playbook.operations import ARITHMETIC, OPERATIONS, operate, sign
from holdfast.playbook.plain_data import ErrorValue, StepOutput, StepOutputs, kind_of, plain
from holdfast.playbook.value_tests import TESTS

KEY_SHOWN_CHARS_MAX: Final = 80


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox without its globals, and with data in place of attributes."""

    context_class = Evaluation
    intercepted_binops = frozenset(ARITHMETIC)
    intercepted_unops = frozenset({"+", "-"})

    def __init__(self) -> None:
        # Unoptimized: folding constants would run operations at compile time, where nothing is paid.
        super().__init__(undefined=StrictUndefined, optimized=False, autoescape=False)
        self.globals.clear()
        self.filters = {**FILTERS, **OPERATIONS}
        self.tests = dict(TESTS)

    def is_safe_callable(self, obj: object) -> bool:
        return False

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        assert isinstance(context, Evaluation)
        return operate(context, operator, plain(left), plain(right))

    def call_unop(self, context: Context, operator: str, arg: object) -> object:
        return sign(operator, plain(arg))

    def getattr(self, obj: object, attribute: str) -> object:
        return self.getitem(obj, attribute)

    def getitem(self, obj: object, argument: object) -> object:
        """Keys of mappings, positions in lists and text, three names of an error, the data of an output:
        there are no attributes."""
        argument = plain(argument)
        if isinstance(obj, Undefined):
            # Still an error where it is used; but `skipped.data.rows|default([])` means all of it.
            return obj
        marked, obj = obj, plain(obj)
        if isinstance(argument, list | tuple | dict):
            raise TypeError(f"{kind_of(argument)} cannot be a key")
        if isinstance(argument, str) and argument.startswith("_"):
            raise TypeError("keys that begin with an underscore cannot be read")
        found: object = missing
        if isinstance(obj, dict):
            found = obj.get(argument, missing)
        elif isinstance(obj, ErrorValue) and argument in ("type", "category", "message"):
            found = getattr(obj, str(argument))
        elif isinstance(obj, str | list | tuple) and isinstance(argument, int):
            found = obj[argument] if -len(obj) <= argument < len(obj) else missing
        if found is missing and argument == "data" and type(marked) is StepOutput:
            found = obj
        if found is missing:
            # Cut, because many of these may be alive at once and a key can be as long as any text.
            return self.undefined(f"{kind_of(obj)} has no `{str(argument)[:KEY_SHOWN_CHARS_MAX]}`")
        known_plain = plain(found)
        return StepOutput(known_plain) if isinstance(marked, StepOutputs) else known_plain


ENVIRONMENT: Final = _Environment()
