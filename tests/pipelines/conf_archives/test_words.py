"""The words that stanzas are found by."""

from __future__ import annotations

import pytest

from conf_scenario import Confs, tgz
from holdfast.core.errors import InvalidInput
from holdfast.pipelines.conf_archives.words import IndexedWords, fts_query, tsquery, words_asked

TEXT = {
    "greek": "[ΟΔΟΣ]\n",
    "spaces": "[a\u00a0x]\nkey = b\u3000y\n",
    "sharp": "[straße]\n",
    "long": "[long]\nkey = " + "w" * 5_000 + "\n",
    "number": "[1z2]\n",
}


def indexed(name: str, value: str = "") -> list[str]:
    return IndexedWords(7).of(name, [("key", value, 1)], is_short=True).split(" ")


def test_each_word_has_its_run_in_front_of_it_and_is_there_once() -> None:
    assert indexed("Web::access_log", "Access to /var/log") == [
        *("7zweb", "7zaccess", "7zlog", "7zkey", "7zto", "7zvar")
    ]
    assert IndexedWords(7).of("[]-", [], is_short=True) == ""


def test_a_stanza_of_megabytes_is_indexed_up_to_a_bound() -> None:
    entries = [("key", "x " * 300_000 + "end", 1), ("late", "word", 2)]
    assert IndexedWords(7).of("s", entries, is_short=False) == "7zs 7zkey 7zx"


def test_words_have_room_in_the_index_of_either_store(confs: Confs) -> None:
    # Each of these letters is three in small ones, of six bytes together.
    words = [f"{n:04}" + "\u0390" * 62 for n in range(2_980)]
    run = confs.run("words.conf", f"[a]\nfirst = {' '.join(words)[:199_000]}\n".encode())
    assert run.status == "COMPLETE"
    assert len(confs.stanzas(run, search="first 0000")) == 1
    assert len(IndexedWords(7).of("a", [("k", " ".join(words), 1)], is_short=False).encode()) <= 900_000


def test_words_that_others_begin_with_need_not_be_asked_for() -> None:
    assert words_asked("Val value VALUES other val") == ["values", "other"]
    assert words_asked("-- / '\" --") == []
    with pytest.raises(InvalidInput, match="21 words; the limit is 20"):
        words_asked(" ".join(f"w{n}" for n in range(21)))


def test_a_query_asks_for_words_of_its_run_alone() -> None:
    assert fts_query(12, ["a", "b"]) == '"12za" * AND "12zb" *'
    assert tsquery(12, ["a", "b"]) == "'12za':* & '12zb':*"


@pytest.mark.parametrize(
    ("search", "name"),
    [
        ("οδος", "ΟΔΟΣ"),
        ("οδοσ", "ΟΔΟΣ"),
        ("x", "a\u00a0x"),
        ("y", "a\u00a0x"),
        ("STRASSE", "straße"),
        ("w" * 900, "long"),
        ("1z", "1z2"),
    ],
)
def test_a_stanza_is_found_in_its_run_and_not_in_another(confs: Confs, search: str, name: str) -> None:
    run = confs.run("words.tgz", tgz({f"{name}.conf": text for name, text in TEXT.items()}))
    # Of numbers that could be mistaken for each other, were nothing between them and the word.
    others = [confs.run(f"{n}.conf", b"[z1]\n[11zx]\n").id for n in range(11)]
    assert [stanza.name for stanza in confs.stanzas(run, search=search)] == [name]
    assert all(confs.stanzas(other, search=search) == [] for other in others)
