"""What leaves an evaluation is as large as it is written out, however little it is in memory."""

from __future__ import annotations

import pytest

from holdfast.playbook.evaluation import BUDGET
from holdfast.playbook.expression import Budget
from holdfast.playbook.template import TemplateFailed, compile_text, compile_value
from holdfast.playbook.unfolding import CHARS_UNFOLDED_PER_UNIT

ROWS = [{"id": number, "name": "x" * 20} for number in range(1_000)]
LONG = "a" * 1_000_000


def cost(value: object, **variables: object) -> int:
    """In units of the budget."""
    budget = Budget()
    compile_value(value).evaluate(variables, budget=budget)
    return BUDGET - budget.left


@pytest.mark.parametrize(
    "source",
    [
        "[[[[[1]*100]*100]*100]*100]*100",
        "[[[[{'a': 1}]*100]*100]*100]*100",
        "[('a'*10000)]*10000",
        "[long]*10000",
        "[[long, 1]]*10000",
        "[{long: 1}]*10000",
        "[rows]*10000",
        "{'a': [rows]*5000, 'b': [rows]*5000}",
        "[[2**1000]*10000]*10000",
        "[rows + rows]*10000",
        "[[rows]|first]*10000",
        "[rows]*10000 if true else rows",
        "none|default([rows]*10000, true)",
    ],
)
def test_an_expression_that_repeats_references_pays_for_copies(source: str) -> None:
    variables = {"long": LONG, "rows": ROWS}
    with pytest.raises(TemplateFailed, match="too much data"):
        compile_text("{{ " + source + " }}").evaluate(variables)
    with pytest.raises(TemplateFailed, match="too much data") as caught:
        compile_value({"with": ["{{ " + source + " }}"]}).evaluate(variables)
    assert caught.value.place == "with[0]"


def test_texts_of_a_value_that_hand_on_the_same_pay_for_all_but_the_first() -> None:
    once = cost({"a": "{{ rows }}"}, rows=ROWS)
    twice = cost({"a": "{{ rows }}", "b": ["{{ rows }}"]}, rows=ROWS)
    chars = len(str(ROWS)) // 2  # at least
    assert twice - 2 * once > chars // CHARS_UNFOLDED_PER_UNIT
    for same in ("{{ rows }}", "{{ long }}", "{{ data.rows }}", "{{ rows if long else 1 }}"):
        with pytest.raises(TemplateFailed, match="the same stands in it so often"):
            compile_value([same] * 1_000).evaluate({"rows": ROWS, "long": LONG, "data": {"rows": ROWS}})


def test_what_is_handed_on_once_costs_nothing_whatever_its_size() -> None:
    number = cost("{{ n }}", n=1)
    assert cost("{{ rows }}", rows=ROWS * 1_000) == number
    assert cost("{{ data.rows|default([]) }}", data={"rows": ROWS * 1_000}) == number
    different = {name: [{"id": number} for number in range(20_000)] for name in "abcd"}
    assert cost({name: f"{{{{ {name} }}}}" for name in "abcd"}, **different) == 4 * number


def test_what_an_expression_makes_without_repeating_passes_as_it_did() -> None:
    rows = [{"id": number, "name": f"customer number {number}", "ok": True} for number in range(8_000)]
    assert len(compile_text("{{ rows|selectattr('ok') }}").evaluate({"rows": rows})) == 8_000
    assert len(compile_text("{{ rows|map(attribute='name') }}").evaluate({"rows": rows * 2})) == 16_000
    assert compile_text("{{ [a, a, {'b': a}] }}").evaluate({"a": [1]}) == [[1], [1], {"b": [1]}]


def test_made_data_that_holds_itself_has_no_value() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(TemplateFailed, match="it holds itself"):
        compile_text("{{ [x] }}").evaluate({"x": loop})
