"""`holdfast catalog` and `holdfast validate`: playbooks from files, kept or refused with all their faults."""

import re
from pathlib import Path

from command_scenario import holdfast, on_a_terminal, told
from engine_scenario import Scenario, stage
from playbook_files import BROKEN, CHAIN, written

PATH = "tests/flow"
OTHER = CHAIN.replace("who: ann", "who: bob")


def test_a_playbook_is_added_once_and_says_so_the_second_time(store_url: str, tmp_path: Path) -> None:
    file = written(tmp_path, CHAIN)
    said = holdfast(store_url, "catalog", "add", file)
    assert said.code == 0 and said.out == f"{PATH}: version 1 (2 steps) is new.\n", said
    said = holdfast(store_url, "catalog", "add", file)
    assert said.out == f"{PATH}: version 1 (2 steps) is known, and the current one already.\n"
    said = holdfast(store_url, "catalog", "add", written(tmp_path, OTHER))
    assert "version 2 (2 steps) is new" in said.out
    assert f"holdfast catalog diff {PATH} 1 2" in said.err
    said = holdfast(store_url, "catalog", "add", written(tmp_path, CHAIN))
    assert "version 1 (2 steps) was known and is the current one again" in said.out


def test_a_file_of_the_database_is_made_for_the_first_playbook(sqlite_url: str, tmp_path: Path) -> None:
    assert holdfast(sqlite_url, "catalog", "list").code == 3
    assert holdfast(sqlite_url, "catalog", "add", written(tmp_path, CHAIN)).code == 0
    assert holdfast(sqlite_url, "catalog", "list").code == 0


def test_the_record_of_what_was_added(sqlite_url: str, tmp_path: Path) -> None:
    file = written(tmp_path, CHAIN)
    [added] = holdfast(sqlite_url, "catalog", "add", file, "--json").json["items"]
    assert (added["file"], added["path"], added["version"], added["change"]) == (file, PATH, 1, "new")
    assert added["kind"] == "yaml" and added["replaces"] is None and len(added["hash"]) == 64
    [added] = holdfast(sqlite_url, "catalog", "add", "-", "--json", stdin=OTHER).json["items"]
    assert (added["version"], added["replaces"]) == (2, 1)


def test_of_several_files_all_are_added_or_none(sqlite_url: str, tmp_path: Path) -> None:
    good, bad = written(tmp_path, CHAIN), written(tmp_path, BROKEN, "bad.yaml")
    said = holdfast(sqlite_url, "catalog", "add", good, bad, tmp_path / "missing.yaml", tmp_path)
    assert said.code == 2 and said.out == ""
    assert f"{bad}:6: " in said.err and f"{bad}:8: " in said.err
    assert "missing.yaml: There is no such file." in said.err and f"{tmp_path}: This is a folder." in said.err
    assert not Path(sqlite_url.removeprefix("sqlite:///")).exists()
    other = written(tmp_path, OTHER.replace("tests/flow", "tests/other"), "other.yaml")
    assert holdfast(sqlite_url, "catalog", "add", good, other).out.count("is new") == 2


def test_the_list_has_playbooks_and_pipelines(store_url: str, tmp_path: Path) -> None:
    async def program(s: Scenario) -> None:
        await s.define(stage("parse"), stage("send"), path="mail")

    told(store_url, program)
    for source in (CHAIN, OTHER):
        holdfast(store_url, "catalog", "add", written(tmp_path, source))
    said = holdfast(store_url, "catalog", "list")
    assert re.search(r"^mail +1 of 1 +python +2 ", said.out, re.M), said
    assert re.search(rf"^{PATH} +2 of 2 +yaml +2 ", said.out, re.M), said
    listed = holdfast(store_url, "catalog", "list", "--json").json
    assert [(item["path"], item["kind"], item["versions"]) for item in listed["items"]] == [
        ("mail", "python", 1),
        (PATH, "yaml", 2),
    ]
    first = holdfast(store_url, "catalog", "list", "--limit", 1)
    assert PATH not in first.out and "--cursor mail" in first.err
    assert PATH in holdfast(store_url, "catalog", "list", "--cursor", "mail").out
    versions = holdfast(store_url, "catalog", "list", PATH)
    assert re.search(rf"^{PATH} +2 .* current$", versions.out, re.M)
    assert re.search(rf"^{PATH} +1 .*[0-9a-f]{{12}}$", versions.out, re.M)
    assert [
        item["version"] for item in holdfast(store_url, "catalog", "list", PATH, "--json").json["items"]
    ] == [2, 1]


def test_an_empty_catalog_says_how_to_fill_it(store_url: str) -> None:
    holdfast(store_url, "migrate")
    said = holdfast(store_url, "catalog", "list")
    assert said.code == 0 and said.out == "The catalog is empty.\n" and "holdfast catalog add" in said.err


def test_a_playbook_is_shown_as_it_was_written(store_url: str, tmp_path: Path) -> None:
    source = f"# what for: caf\u00e9\n{CHAIN}"
    holdfast(store_url, "catalog", "add", written(tmp_path, source))
    holdfast(store_url, "catalog", "add", written(tmp_path, OTHER))
    said = holdfast(store_url, "catalog", "show", PATH, "--version", 1)
    assert said.out == source and "version 1 of 2, not the current one" in said.err
    assert holdfast(store_url, "catalog", "show", PATH).out == OTHER
    shown = holdfast(store_url, "catalog", "show", PATH, "--json").json
    assert (shown["version"], shown["text"], shown["is_current"]) == (2, OTHER, True)
    assert holdfast(store_url, "catalog", "show", PATH, "--version", 3).code == 2
    said = holdfast(store_url, "catalog", "show", "nothing")
    assert said.code == 2 and PATH in said.err


def test_a_pipeline_is_shown_in_words(sqlite_url: str) -> None:
    async def program(s: Scenario) -> None:
        await s.define(stage("parse", attempts=1, path="mail"), stage("send", path="mail"), path="mail")

    told(sqlite_url, program)
    said = holdfast(sqlite_url, "catalog", "show", "mail")
    assert said.out.startswith("parse\n    ●  one attempt\n") and "\nsend\n    ● ─" in said.out


def test_versions_are_compared(store_url: str, tmp_path: Path) -> None:
    for source in (CHAIN, OTHER):
        holdfast(store_url, "catalog", "add", written(tmp_path, source))
    said = holdfast(store_url, "catalog", "diff", PATH)
    assert "-workload: {who: ann," in said.out and "+workload: {who: bob," in said.out
    assert "+workload: {who: ann," in holdfast(store_url, "catalog", "diff", PATH, 2, 1).out
    assert "read the same" in holdfast(store_url, "catalog", "diff", PATH, 2).out
    record = holdfast(store_url, "catalog", "diff", PATH, 1, 2, "--json").json
    assert (record["old"]["version"], record["new"]["version"]) == (1, 2)
    assert record["diff"] == said.out


def test_a_terminal_gets_a_diff_in_colours_and_no_foreign_commands(sqlite_url: str, tmp_path: Path) -> None:
    for source in (CHAIN, OTHER):
        holdfast(sqlite_url, "catalog", "add", written(tmp_path, source))
    code, shown = on_a_terminal(sqlite_url, "catalog", "diff", PATH)
    assert code == 0 and "\x1b[32m+workload" in shown and "\x1b[31m-workload" in shown
    code, shown = on_a_terminal(sqlite_url, "catalog", "show", PATH)
    assert code == 0 and "version 2 of 2" in shown and "def main(input_data):" in shown


# validate


def test_right_playbooks_are_told_in_a_line_each(tmp_path: Path) -> None:
    file = written(tmp_path, CHAIN)
    said = holdfast(None, "validate", file, "-", stdin=OTHER)
    assert said.code == 0
    assert re.fullmatch(
        rf"{re.escape(file)}: {PATH}, 2 steps, [0-9a-f]{{12}}: right\n"
        rf"<stdin>: {PATH}, 2 steps, [0-9a-f]{{12}}: right\n",
        said.out,
    ), said


def test_all_faults_of_all_files_are_told_with_their_lines(tmp_path: Path) -> None:
    files = [written(tmp_path, BROKEN, f"bad{n}.yaml") for n in (1, 2)]
    said = holdfast(None, "validate", *files, written(tmp_path, CHAIN), tmp_path / "missing.yaml")
    assert said.code == 2
    for file in files:
        assert all(f"{file}:{line}: " in said.out for line in (6, 8, 9)), said
    assert "htpp" in said.out and "Did you mean 'http'?" in said.out and "nowhere" in said.out
    assert said.out.count(": right") == 1 and "missing.yaml: There is no such file." in said.out
    assert said.out.endswith("3 files of 4 are refused.\n")


def test_the_record_of_a_check(tmp_path: Path) -> None:
    bad, good = written(tmp_path, BROKEN, "bad.yaml"), written(tmp_path, CHAIN)
    said = holdfast(None, "validate", bad, good, tmp_path / "missing", "--json")
    assert said.code == 2 and said.json["ok"] is False
    wrong, right, missing = said.json["files"]
    assert (wrong["file"], wrong["ok"]) == (bad, False)
    assert {6, 8, 9} <= {fault["line"] for fault in wrong["faults"]}
    assert all(fault["message"] for fault in wrong["faults"])
    assert (right["ok"], right["path"], right["steps"], right["faults"]) == (True, PATH, 2, [])
    assert missing["ok"] is False and "no such file" in missing["faults"][0]["message"]
    [added] = holdfast(f"sqlite:///{tmp_path}/h.db", "catalog", "add", good, "--json").json["items"]
    assert right["hash"] == added["hash"]


def test_hostile_files_are_refused_at_once(tmp_path: Path) -> None:
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(10**9)  # a hole: it costs nothing to have, and must cost nothing to refuse
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(bytes(range(256)) * 10)
    empty = tmp_path / "empty.yaml"
    empty.write_bytes(b"")
    for path in (huge, binary, empty):
        said = holdfast(None, "validate", path)
        assert said.code == 2 and said.out.startswith(f"{path}:"), said
        assert len(said.out) < 2_000
    assert holdfast(None, "validate", f"odd{chr(0)}name").code == 2
    assert holdfast(None, "validate").code == 2
