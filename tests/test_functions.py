"""Functions that playbooks call: how a program registers them, and how they are found by name."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.core.errors import DefinitionInvalid, InvalidInput
from holdfast.functions import functions_of, imported_functions


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with modules, and a path and modules as before afterwards."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def module(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(textwrap.dedent(text))


def test_a_program_registers_functions_under_their_own_or_another_name(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)

    @hf.function(name="shop:tax")
    def tax(amount: float) -> float:
        return amount * 0.2

    hf.function(_helper)
    assert tax(10) == 2
    assert set(hf._functions) == {"shop:tax", f"{__name__}:_helper"}
    assert "python/shop:tax" in hf._offered(allow_code=False, allow_shell=False)


def _helper() -> None: ...


def test_what_cannot_be_called_is_refused(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)
    with pytest.raises(DefinitionInvalid, match="no name that a playbook could call"):
        hf.function(lambda: 1)
    with pytest.raises(DefinitionInvalid, match="is a generator"):
        hf.function(name="m:g")(_generator)
    with pytest.raises(DefinitionInvalid, match="must be a function"):
        hf.function(name="m:c")(dict)
    hf.function(name="m:f")(print)
    hf.function(name="m:f")(print)  # the same again changes nothing
    with pytest.raises(DefinitionInvalid, match="Another function is registered as m:f"):
        hf.function(name="m:f")(len)


def _generator() -> Iterator[int]:
    yield 1


def test_a_module_offers_the_public_functions_that_it_defines(folder: Path) -> None:
    module(
        folder,
        "shop_handlers",
        """
        from json import dumps
        LIMIT = 3
        class Thing: pass
        def store(rows): return len(rows)
        async def fetch(url): return url
        def _private(): pass
        """,
    )
    sys.path.insert(0, str(folder))
    assert set(functions_of("shop_handlers")) == {"shop_handlers:store", "shop_handlers:fetch"}
    assert set(functions_of("shop_handlers:store")) == {"shop_handlers:store"}
    assert functions_of("shop_handlers:dumps")["shop_handlers:dumps"]([1]) == "[1]"


def test_a_module_that_lists_its_names_offers_those(folder: Path) -> None:
    module(folder, "listed_handlers", "from json import dumps\n__all__ = ['dumps']\ndef other(): pass")
    sys.path.insert(0, str(folder))
    assert set(functions_of("listed_handlers")) == {"listed_handlers:dumps"}


def test_the_functions_of_a_playbook_are_found_beside_it(folder: Path) -> None:
    module(
        folder,
        "beside_handlers",
        "class Group:\n    @staticmethod\n    def store(): return 1\ndef f(): return 2",
    )
    found = imported_functions(["beside_handlers:f", "beside_handlers:Group.store"], folder)
    assert [function() for function in found.values()] == [2, 1]


def test_a_step_of_a_pipeline_can_be_called_too(folder: Path) -> None:
    module(
        folder,
        "step_handlers",
        """
        from holdfast import Holdfast
        hf = Holdfast("sqlite:///unused.db")
        @hf.step
        def work(ctx): return ctx
        """,
    )
    [function] = imported_functions(["step_handlers:work"], folder).values()
    assert function(5) == 5


@pytest.mark.parametrize(
    ("name", "message", "guidance"),
    [
        (
            "absent_handlers:f",
            "There is no module absent_handlers, which absent_handlers:f names",
            "beside the",
        ),
        ("broken_handlers:f", "cannot be imported: ZeroDivisionError", "Correct the module"),
        (
            "needy_handlers:f",
            "it needs no_such_module_here, which is not there",
            "Install no_such_module_here",
        ),
        ("fine_handlers:g", "The module fine_handlers has no g", "Define g in"),
        ("fine_handlers:LIMIT", "must be a function, not 3", ""),
        ("fine_handlers", "no name of a function", "module:function"),
        (":f", "no name of a function", "module:function"),
    ],
)
def test_what_cannot_be_found_is_told_clearly(name: str, message: str, guidance: str, folder: Path) -> None:
    module(folder, "broken_handlers", "1 / 0")
    module(folder, "needy_handlers", "import no_such_module_here")
    module(folder, "fine_handlers", "LIMIT = 3\ndef f(): pass")
    with pytest.raises(InvalidInput, match=message) as raised:
        imported_functions([name], folder)
    assert guidance in raised.value.guidance


def test_a_module_without_functions_is_refused(folder: Path) -> None:
    module(folder, "empty_handlers", "LIMIT = 3")
    sys.path.insert(0, str(folder))
    with pytest.raises(InvalidInput, match="has no public functions"):
        functions_of("empty_handlers")
