"""The filters of expressions that take a list, or make one.

`map` and `select` name another filter or test: it is one of ours, it pays like all of them, and each item
pays for the step.
"""

from collections.abc import Callable, Mapping
from math import isfinite
from types import NoneType
from typing import Any, Final

from jinja2 import Undefined

from holdfast.playbook.evaluation import (
    BITS_READ_PER_UNIT,
    CALL_PRICE,
    ITEM_PRICE,
    STEP_PRICE,
    Evaluation,
)
from holdfast.playbook.operations import Function, finite, over_plain_data, sequence
from holdfast.playbook.plain_data import ATOMS, NUMBERS, TEXTS, Sequence, kind_of, plain

ATTRIBUTE_PARTS_MAX: Final = 10
POSITION_DIGITS_MAX: Final = 18
HASHED_APART_MAX: Final = 2**60
_NO_NUMBERS: Final = TEXTS | {bool, NoneType}


def _end(index: int) -> Function:
    @over_plain_data
    def item(evaluation: Evaluation, value: object) -> object:
        if not isinstance(value, str | list | tuple):
            raise TypeError(f"text or a list is needed, and this is {kind_of(value)}")
        if not value:
            return evaluation.environment.undefined("there is no first or last item: it is empty")
        return plain(value[index])

    return item


@over_plain_data
def _join(evaluation: Evaluation, value: object, d: object = "") -> str:
    texts = []
    for item in sequence(value):
        evaluation.pay(STEP_PRICE)
        texts.append(evaluation.text(item))
    return evaluation.join(evaluation.text(d), texts)


def _alike(evaluation: Evaluation, value: object) -> tuple[Sequence, set[type]]:
    """A list that can be summed up in one value, read and paid for, and the types of its items."""
    items = sequence(value)
    evaluation.pay_to_read(items)
    kinds = set(map(type, items))
    if not (kinds <= NUMBERS or kinds <= TEXTS):
        raise TypeError("the items of the list are neither all numbers nor all text")
    return items, kinds


def _extreme(choose: Callable[[Any], object]) -> Function:
    @over_plain_data
    def chosen(evaluation: Evaluation, value: object) -> object:
        items, _ = _alike(evaluation, value)
        return choose(items) if items else evaluation.environment.undefined("the list is empty")

    return chosen


@over_plain_data
def _sum(evaluation: Evaluation, value: object) -> float:
    items: Any
    items, kinds = _alike(evaluation, value)
    if not kinds <= NUMBERS:
        raise TypeError("only numbers can be added up, and these are text")
    return finite(sum(items))


@over_plain_data
def _list(evaluation: Evaluation, value: object) -> list[object]:
    """A copy of a list, the keys of a mapping, the characters of a text."""
    if not isinstance(value, str | list | tuple | dict):
        raise TypeError(f"{kind_of(value)} cannot become a list")
    wide = isinstance(value, str) and not value.isascii()
    evaluation.pay(len(value) * (STEP_PRICE if wide else ITEM_PRICE))
    return list(value)


@over_plain_data
def _items(evaluation: Evaluation, value: object) -> list[object]:
    """A list of key and value, for each key of a mapping."""
    if not isinstance(value, dict):
        raise TypeError(f"only a mapping has items, and this is {kind_of(value)}")
    evaluation.pay(len(value) * (STEP_PRICE + ITEM_PRICE))
    return [[key, item] for key, item in value.items()]


@over_plain_data
def _reverse(evaluation: Evaluation, value: object) -> object:
    if not isinstance(value, str | list | tuple):
        raise TypeError(f"text or a list is needed, and this is {kind_of(value)}")
    evaluation.pay_for_new(value)
    return value[::-1]


@over_plain_data
def _sort(evaluation: Evaluation, value: object, reverse: object = False, attribute: object = None) -> object:
    """By the items, or by one key of each; capitals before small letters."""
    items = sequence(value)
    keys: Any = items
    if attribute is not None:
        keys = [plain(_attribute(evaluation, item, attribute)) for item in items]
    left = evaluation.budget_left
    _alike(evaluation, keys)
    evaluation.pay(
        (left - evaluation.budget_left) * len(items).bit_length()
    )  # each item is compared so often
    order = sorted(range(len(items)), key=keys.__getitem__, reverse=bool(reverse))
    return [items[place] for place in order]


@over_plain_data
def _unique(evaluation: Evaluation, value: object) -> list[object]:
    items = sequence(value)
    evaluation.pay(STEP_PRICE * len(items))
    evaluation.pay_to_read(items)
    if not set(map(type, items)) <= ATOMS | TEXTS:
        raise TypeError("only text, numbers, true, false and none can be compared for `unique`")
    if set(map(type, items)) <= _NO_NUMBERS:
        return list(dict.fromkeys(items))
    first: dict[object, object] = {}
    for item in items:
        first.setdefault(_identity(evaluation, item), item)
    return list(first.values())


def _identity(evaluation: Evaluation, item: object) -> object:
    """Equal for items that are. Numbers beyond the range of Python's hashes may be chosen so that all of them
    share one: they are told apart by their digits."""
    if not isinstance(item, int | float) or abs(item) < HASHED_APART_MAX:
        return item
    if isinstance(item, float) and not isfinite(item):
        return item
    digits = int(item)
    evaluation.pay(digits.bit_length() // BITS_READ_PER_UNIT)
    return (f"{digits:x}",)  # as no item is


@over_plain_data
def _map(
    evaluation: Evaluation,
    value: object,
    filter: object = None,
    *arguments: object,
    attribute: object = None,
    default: object = None,
) -> list[object]:
    """One key of each item, or what a filter makes of each."""
    if (filter is None) == (attribute is None):
        raise TypeError("`map` takes either attribute='key' or the name of a filter")
    change = None if filter is None else _named(evaluation, "filter", filter)
    changed = []
    for item in sequence(value):
        if change is not None:
            evaluation.pay(CALL_PRICE)
            found = change(evaluation, item, *arguments)
        else:
            found = _attribute(evaluation, item, attribute)
            found = default if isinstance(found, Undefined) and default is not None else found
        changed.append(plain(found))
    return changed


def _selecting(kept: bool, *, by_attribute: bool) -> Function:
    def chosen(
        evaluation: Evaluation, value: object, attribute: object, test: object, arguments: tuple[object, ...]
    ) -> list[object]:
        holds = None if test is None else _named(evaluation, "test", test)
        found = []
        for item in sequence(value):
            evaluation.pay(STEP_PRICE if holds is None else CALL_PRICE)
            asked = _attribute(evaluation, item, attribute) if by_attribute else item
            answer = plain(asked) if holds is None else holds(evaluation, asked, *arguments)
            if bool(answer) is kept:
                found.append(plain(item))
        return found

    @over_plain_data
    def by_item(evaluation: Evaluation, value: object, test: object = None, *arguments: object) -> object:
        return chosen(evaluation, value, None, test, arguments)

    @over_plain_data
    def by_key(
        evaluation: Evaluation, value: object, attribute: object, test: object = None, *arguments: object
    ) -> object:
        return chosen(evaluation, value, attribute, test, arguments)

    return by_key if by_attribute else by_item


def _named(evaluation: Evaluation, what: str, name: object) -> Function:
    environment = evaluation.environment
    known: Mapping[str, Any] = environment.filters if what == "filter" else environment.tests
    # Those that begin with an underscore are operations, which only the guard may write.
    if not isinstance(name, str) or name.startswith("_") or name not in known:
        shown = str(name)[:50] if isinstance(name, str) else kind_of(name)
        raise TypeError(f"there is no {what} `{shown}`")
    named: Function = known[name]
    return named


def _attribute(evaluation: Evaluation, item: object, attribute: object) -> object:
    """`a.b.0`: keys and positions, one inside the other."""
    evaluation.pay(STEP_PRICE)
    if isinstance(attribute, int):
        evaluation.pay(STEP_PRICE)
        return evaluation.environment.getitem(item, attribute)
    if not isinstance(attribute, str):
        raise TypeError(f"an attribute is the name of a key, and this is {kind_of(attribute)}")
    evaluation.pay_to_read(attribute)
    found = item
    for part in attribute.split(".", ATTRIBUTE_PARTS_MAX):
        if isinstance(found, Undefined):
            return found
        evaluation.pay(STEP_PRICE)
        is_position = part.isdecimal() and len(part) <= POSITION_DIGITS_MAX
        found = evaluation.environment.getitem(found, int(part) if is_position else part)
    return found


# Their arguments name keys, filters and tests; errors repeat a name that is not found.
NAMING_FILTERS: Final = frozenset({"map", "reject", "rejectattr", "select", "selectattr", "sort"})

LIST_FILTERS: Final[Mapping[str, Function]] = {
    "first": _end(0),
    "items": _items,
    "join": _join,
    "last": _end(-1),
    "list": _list,
    "map": _map,
    "max": _extreme(max),
    "min": _extreme(min),
    "reject": _selecting(False, by_attribute=False),
    "rejectattr": _selecting(False, by_attribute=True),
    "reverse": _reverse,
    "select": _selecting(True, by_attribute=False),
    "selectattr": _selecting(True, by_attribute=True),
    "sort": _sort,
    "sum": _sum,
    "unique": _unique,
}
