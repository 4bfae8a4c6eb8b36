"""JSON values with texts inside: the fields of a step, what is handed on along an edge.

Lists and mappings are walked, every text in them may hold `{{ expressions }}`; keys are not templates. What
holds none is passed through as it is, without being copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.playbook.expression import Budget, Secrets
from holdfast.playbook.guard import ConditionInvalid, Reads, invalid
from holdfast.playbook.text import Setting, Text, compile_text
from holdfast.playbook.text_parts import has_marks
from holdfast.playbook.unfolding import Given

VALUE_DEPTH_MAX: Final = 50
VALUE_ITEMS_MAX: Final = 10_000
VALUE_EXPRESSION_CHARS_MAX: Final = 50_000
KEY_SHOWN_CHARS_MAX: Final = 50


class Value:
    """A checked value. `is_constant`: no text in it holds an expression, and its value is itself."""

    __slots__ = ("_compiled", "is_constant", "reads", "source")

    def __init__(self, source: object, compiled: _Node, reads: Reads) -> None:
        self.source = source
        self._compiled = compiled
        self.reads = reads
        self.is_constant = isinstance(compiled, _Constant)

    def __repr__(self) -> str:
        return f"Value({self.source!r})"

    @property
    def names(self) -> frozenset[str]:
        """The variables that it reads."""
        return self.reads.names

    @property
    def secrets(self) -> frozenset[str]:
        """The names of the secrets that it needs."""
        return self.reads.secrets

    def evaluate(
        self, variables: Mapping[str, object], secrets: Secrets | None = None, budget: Budget | None = None
    ) -> Any:
        """Its value for these variables, or TemplateFailed, which names the place. One budget covers it all;
        it may be shared with others.

        The result may share lists and mappings with the source and the variables: copy before you change.
        """
        return self._compiled.evaluate(Setting(variables, secrets, budget or Budget(), Given()), "")


class _Constant:
    def __init__(self, value: object) -> None:
        self._value = value

    def evaluate(self, setting: Setting, place: str) -> object:
        return self._value


class _Template:
    def __init__(self, text: Text) -> None:
        self._text = text

    def evaluate(self, setting: Setting, place: str) -> object:
        return self._text.evaluate_in(setting, place)


class _List:
    def __init__(self, items: list[_Node]) -> None:
        self._items = items

    def evaluate(self, setting: Setting, place: str) -> object:
        return [item.evaluate(setting, _place(place, number)) for number, item in enumerate(self._items)]


class _Mapping:
    def __init__(self, items: dict[object, _Node]) -> None:
        self._items = items

    def evaluate(self, setting: Setting, place: str) -> object:
        return {key: item.evaluate(setting, _place(place, key)) for key, item in self._items.items()}


_Node = _Constant | _Template | _List | _Mapping


def _place(outer: str, key: object) -> str:
    """`headers.Authorization`, `items[2].id`."""
    if isinstance(key, int):
        return f"{outer}[{key}]"
    name = str(key)[:KEY_SHOWN_CHARS_MAX]
    return f"{outer}.{name}" if outer else name


def compile_value(value: object, *, compile_text: Callable[[str], Text] = compile_text) -> Value:
    """Check a value and make it ready to evaluate; ConditionInvalid names the place, the line in the text
    there, and what is allowed. `compile_text` may be one that keeps what it has compiled."""
    compiler = _Compiler(compile_text)
    compiled = compiler.compile(value, "", 0)
    return Value(value, compiled, compiler.reads)


class _Compiler:
    def __init__(self, compile_text: Callable[[str], Text]) -> None:
        self._compile_text = compile_text
        self.reads = Reads()
        self._items = 0
        self._expression_chars = 0

    def compile(self, value: object, place: str, depth: int) -> _Node:
        self._items += 1
        if self._items > VALUE_ITEMS_MAX:
            raise _at(place, "the value has too many items", f"at most {VALUE_ITEMS_MAX} with templates")
        if depth > VALUE_DEPTH_MAX:
            raise _at(place, "the value is nested too deeply", f"at most {VALUE_DEPTH_MAX} levels")
        if isinstance(value, str):
            return self._text(value, place)
        if isinstance(value, list | tuple):
            items = [
                self.compile(item, _place(place, number), depth + 1) for number, item in enumerate(value)
            ]
            return _Constant(value) if all(isinstance(item, _Constant) for item in items) else _List(items)
        if isinstance(value, dict):
            pairs = {key: self.compile(item, _place(place, key), depth + 1) for key, item in value.items()}
            if all(isinstance(item, _Constant) for item in pairs.values()):
                return _Constant(value)
            return _Mapping(pairs)
        if value is not None and not isinstance(value, bool | int | float):
            raise _at(
                place,
                f"a {type(value).__name__} cannot stand in a value",
                "text, numbers, true, false, null, lists and mappings",
            )
        return _Constant(value)

    def _text(self, source: str, place: str) -> _Node:
        if not has_marks(source):
            return _Constant(source)  # of any length: nothing is done with it
        try:
            text = self._compile_text(source)
        except ConditionInvalid as error:
            where = f"{place}: " if place else ""
            raise ConditionInvalid(f"{where}{error}", guidance=error.guidance) from error
        self._expression_chars += text.expression_chars
        if self._expression_chars > VALUE_EXPRESSION_CHARS_MAX:
            allowed = f"expressions of at most {VALUE_EXPRESSION_CHARS_MAX} characters together"
            raise _at(place, "the expressions of the value are too long", allowed)
        self.reads |= text.reads
        # Also where it is constant: without its comments it is another text.
        return _Template(text)


def _at(place: str, message: str, allowed: str) -> ConditionInvalid:
    return invalid(f"{place}: {message}" if place else message, allowed=allowed)
