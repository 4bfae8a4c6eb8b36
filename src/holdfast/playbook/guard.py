"""What an expression may say: the walk over its syntax tree that refuses all the rest.

Plain expressions pass: no statements, no calls but `secret("NAME")`, nothing that begins with an underscore.
On the way, every operation whose cost depends on its operands becomes one of ours, which pays, and what the
expression reads is written down. A refusal names the line and what is allowed instead.
"""

import inspect
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from holdfast.core.errors import DefinitionInvalid
from holdfast.playbook.filters import FILTERS
from holdfast.playbook.list_filters import NAMING_FILTERS
from holdfast.playbook.operations import Function
from holdfast.playbook.plain_data import NUMBER_BITS_MAX, is_bounded
from holdfast.playbook.value_tests import TESTS

# Python's own stack bounds these two; far below it, the same source is refused wherever it is compiled.
NESTING_MAX: Final = 64
BRACKETS_MAX: Final = 20

STEPS_NAME: Final = "steps"
SECRET_FUNCTION: Final = "secret"
_CHOOSING_FILTERS: Final = frozenset({"d", "default", "first", "last"})
_SECRET_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}")


class ConditionInvalid(DefinitionInvalid):
    """The source of a condition or a template cannot be accepted: found when the playbook is registered."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What an expression reads, known before it is ever evaluated."""

    names: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset()
    steps: frozenset[str] = frozenset()  # those written as `steps.x` or `steps["x"]`
    all_steps: bool = False  # `steps` itself, or with a key that only an evaluation knows

    def __or__(self, other: "Reads") -> "Reads":
        return Reads(
            self.names | other.names,
            self.secrets | other.secrets,
            self.steps | other.steps,
            self.all_steps or other.all_steps,
        )


def invalid(message: str, *, line: int | None = None, allowed: str) -> ConditionInvalid:
    where = "" if line is None else f"line {line}: "
    return ConditionInvalid(f"{where}{message}", guidance=f"allowed: {allowed}")


def nested_too_deeply(line: int | None) -> ConditionInvalid:
    return invalid(
        "the expression is nested too deeply",
        line=line,
        allowed=f"{BRACKETS_MAX} brackets and {NESTING_MAX} operations inside each other;"
        " write `x in [1, 2]` instead of a long chain of `or`",
    )


def hands_on(node: nodes.Node) -> bool:
    """Whether its value is a part of what it reads, or a single literal: nothing is made on the way."""
    match node:
        case nodes.Name() | nodes.Const():
            return True
        case nodes.List() | nodes.Dict():
            return not node.items
        case nodes.Getattr() | nodes.Getitem():
            return not isinstance(getattr(node, "arg", None), nodes.Slice) and hands_on(node.node)
        case nodes.CondExpr():
            return hands_on(node.expr1) and (node.expr2 is None or hands_on(node.expr2))
        case nodes.And() | nodes.Or():
            return hands_on(node.left) and hands_on(node.right)
        case nodes.Filter() if node.name in _CHOOSING_FILTERS and node.node is not None:
            others = [*node.args, *(keyword.value for keyword in node.kwargs)]
            return hands_on(node.node) and all(map(hands_on, others))
    return False


class Guard(NodeTransformer):
    """Refuses what an expression may not say, and makes each operation with a variable cost one that pays.

    A condition is yes or no, which may be told to anyone: it takes no secrets. The value of a template is
    JSON, which knows lists only: its tuples become lists.
    """

    _LET_THROUGH: Final = (
        *(nodes.And, nodes.Or, nodes.Not, nodes.CondExpr, nodes.Compare, nodes.Concat, nodes.Neg, nodes.Pos),
        *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow),
        *(nodes.Name, nodes.Const, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair),
        *(nodes.Getattr, nodes.Getitem, nodes.Filter, nodes.Test, nodes.Keyword),
    )

    def __init__(self, *, of_condition: bool) -> None:
        self._of_condition = of_condition
        self._depth = 0
        self._names: set[str] = set()
        self._secrets: set[str] = set()
        self._steps: set[str] = set()
        self._all_steps = False

    @property
    def reads(self) -> Reads:
        return Reads(
            frozenset(self._names), frozenset(self._secrets), frozenset(self._steps), self._all_steps
        )

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if isinstance(node, nodes.Call):
            return self._secret(node)
        if not isinstance(node, self._LET_THROUGH):
            raise invalid(
                f"`{type(node).__name__.lower()}` cannot stand here",
                line=node.lineno,
                allowed="names, literals, operators, comparisons, filters and tests",
            )
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise nested_too_deeply(node.lineno)
        visited = super().visit(node, *args, **kwargs)
        self._depth -= 1
        return visited

    def visit_Name(self, node: nodes.Name) -> nodes.Node:
        self._refuse_private(node.name, node.lineno)
        # Jinja2 binds `self` to the template itself. Names become Python identifiers, which Python folds to
        # their compatible form: two names that differ here could become one there.
        if node.name == "self" or unicodedata.normalize("NFKC", node.name) != node.name:
            raise invalid(f"the name `{node.name}` is reserved", line=node.lineno, allowed="any other name")
        self._names.add(node.name)
        self._all_steps |= node.name == STEPS_NAME
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Node:
        value = node.value
        if isinstance(value, int | float) and not is_bounded(value):
            raise invalid(
                "the number is too large", line=node.lineno, allowed=f"numbers of {NUMBER_BITS_MAX} bits"
            )
        return node

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:
        self._refuse_private(node.attr, node.lineno)
        return self._step_read(node, node.attr) or self.generic_visit(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            self._refuse_private(node.arg.value, node.lineno)
            return self._step_read(node, node.arg.value) or self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            self._refuse_secret_key(node.arg)
            return self.generic_visit(node)
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        parts = [nodes.Const(None, lineno=node.lineno) if bound is None else bound for bound in bounds]
        return self._operation("_slice", [node.node, *parts])

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self._check_use("filter", node, FILTERS)
        if node.name in NAMING_FILTERS:
            for argument in (*node.args, *node.kwargs):
                self._refuse_secret_key(argument)
        return self.generic_visit(node)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        self._check_use("test", node, TESTS)
        return self.generic_visit(node)

    def visit_CondExpr(self, node: nodes.CondExpr) -> nodes.Node:
        # Jinja2 fills a missing `else` with an undefined value that is silently false.
        if node.expr2 is None:
            raise invalid("an `if` has no `else`", line=node.lineno, allowed="`a if condition else b`")
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return self._operation("_concat", list(node.nodes))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        operands: list[nodes.Expr] = [node.expr]
        for step in node.ops:
            operands += [nodes.Const(step.op, lineno=node.lineno), step.expr]
        return self._operation("_compare", operands)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._literal(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._literal(node if self._of_condition else nodes.List(node.items, lineno=node.lineno))

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._literal(node)

    def _step_read(self, node: nodes.Getattr | nodes.Getitem, step: str) -> nodes.Node | None:
        """`steps.x` and `steps["x"]` read one step; any other use of `steps` may read all of them."""
        if not isinstance(node.node, nodes.Name) or node.node.name != STEPS_NAME:
            return None
        self._names.add(STEPS_NAME)
        self._steps.add(step)
        return node

    def _secret(self, call: nodes.Call) -> nodes.Node:
        if not isinstance(call.node, nodes.Name) or call.node.name != SECRET_FUNCTION:
            raise invalid(
                "calls are not allowed",
                line=call.lineno,
                allowed=f"filters: {_listed(FILTERS)}" + ("" if self._of_condition else '; secret("NAME")'),
            )
        if self._of_condition:
            raise invalid(
                "a condition cannot use a secret",
                line=call.lineno,
                allowed="secrets in the fields of a step, which are resolved on the worker that runs it",
            )
        name = call.args[0].value if len(call.args) == 1 and isinstance(call.args[0], nodes.Const) else None
        if call.kwargs or call.dyn_args or call.dyn_kwargs or not isinstance(name, str):
            raise invalid(
                "`secret` takes the name of one secret, written out",
                line=call.lineno,
                allowed='secret("NAME")',
            )
        # It may be the name of a file in a folder, and never one outside of it.
        if not _SECRET_NAME.fullmatch(name) or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise invalid(
                f"`{name[:80]}` cannot be the name of a secret",
                line=call.lineno,
                allowed="letters (a-z, A-Z), digits, '_', '-', dots and slashes; 200 characters at most",
            )
        self._secrets.add(name)
        value = nodes.Const(name, lineno=call.lineno)
        return nodes.Filter(value, "_secret", [], [], None, None, lineno=call.lineno)

    def _refuse_secret_key(self, key: nodes.Node) -> None:
        # A key that is not found is named in the error.
        if isinstance(key, nodes.Call) or key.find(nodes.Call) is not None:
            raise invalid("a secret cannot be a key or a name", line=key.lineno, allowed="any other value")

    def _literal(self, node: nodes.Literal) -> nodes.Node:
        self.generic_visit(node)
        return nodes.Filter(node, "_literal", [], [], None, None, lineno=node.lineno)

    def _operation(self, name: str, operands: list[nodes.Expr]) -> nodes.Node:
        first, *others = (self.visit(operand) for operand in operands)
        return nodes.Filter(first, name, others, [], None, None, lineno=first.lineno)

    def _check_use(self, what: str, node: nodes.Filter | nodes.Test, known: Mapping[str, Function]) -> None:
        if node.name not in known:
            raise invalid(f"unknown {what} `{node.name}`", line=node.lineno, allowed=_listed(known))
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise invalid("`*` and `**` arguments", line=node.lineno, allowed="arguments written out")
        keywords = {str(keyword.key): None for keyword in node.kwargs}
        signature = inspect.signature(known[node.name])
        try:
            signature.bind(None, None, *node.args, **keywords)
            if len(keywords) < len(node.kwargs):
                raise TypeError("an argument is given twice")
        except TypeError as error:
            parameters = list(signature.parameters.values())[2:]
            arguments = [str(parameter.replace(annotation=parameter.empty)) for parameter in parameters]
            raise invalid(
                f"{what} `{node.name}`: {error}",
                line=node.lineno,
                allowed=f"{node.name}({', '.join(arguments)})",
            ) from None

    def _refuse_private(self, name: str, line: int) -> None:
        if name.startswith("_"):
            raise invalid(
                f"`{name}` begins with an underscore",
                line=line,
                allowed="names, attributes and keys that do not",
            )


def _listed(known: Mapping[str, object]) -> str:
    return ", ".join(sorted(known))
