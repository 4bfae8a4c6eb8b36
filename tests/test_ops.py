"""The ops folder: queries ask for what there is, commands are Holdfast's, nothing is open to others.

What needs no service is checked: with the parsers of PromQL, YAML and JSON, the real command line, and
systemd's own check where it is installed.
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from holdfast.cli import commands
from holdfast.cli.supervisor import ENDING_SECONDS
from holdfast.core.retry import parse_duration
from running import eventually
from serving import Served, on_a_server

ROOT = Path(__file__).parent.parent
OPS = ROOT / "ops"
UNITS = sorted((OPS / "systemd").glob("*.service"))
FILES = sorted(path for path in OPS.rglob("*") if path.is_file() and "secrets" not in path.parts)
# Of Prometheus itself.
OF_PROMETHEUS = {"up"}
# What a server tells of itself; all else is of its database, and the same on every server of it.
OF_A_SERVER = {
    *(
        "up",
        "holdfast_info",
        "holdfast_server_seconds",
        "holdfast_leases_waiting",
        "holdfast_stream_listeners",
    ),
    *(
        "holdfast_http_requests_total",
        "holdfast_schema_version",
        "holdfast_store_up",
        "holdfast_store_seconds",
    ),
}
# Labels that the scrape adds.
OF_A_TARGET = {"fleet", "instance", "job", "le"}
# Told only where there is such a thing: a limit that is set, a retry, a step that has run.
LABELS_OF_RARE = {
    "holdfast_limit_in_use": {"limit"},
    "holdfast_limit_max": {"limit"},
    "holdfast_retries_total": {"error_type"},
}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((OPS / "prometheus" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    board = json.loads((OPS / "grafana" / "holdfast.json").read_text())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str]]:
    """Each with where it stands, Grafana's own variables filled in as it does."""
    found = [(rule["alert"], rule["expr"]) for rule in alerts()]
    for panel in panels():
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", "5m").replace("$fleet", "main")
            found.append((panel["title"], query))
    return found


def inside(part: Any) -> Iterator[Any]:
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        inner = getattr(part, name, None)
        if inner is not None and not isinstance(inner, str | float | int):
            yield inner
    yield from getattr(part, "args", None) or []


def parts_of(expression: Any) -> Iterator[Any]:
    yield expression
    for part in inside(expression):
        yield from parts_of(part)


def selectors_of(query: str) -> list[Any]:
    found = [part for part in parts_of(promql_parser.parse(query)) if type(part).__name__ == "VectorSelector"]
    assert found, query
    return found


# ── queries ──────────────────────────────────────────────────────────────────────────────────────


def told_by(answer: str) -> dict[str, set[str]]:
    """The series of a /metrics answer: names as queries spell them, each with its labels."""
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(answer):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
        if not family.samples:
            total = "_total" if family.type == "counter" else ""
            labels.setdefault(family.name + total, set())
    return labels


def test_the_queries_ask_for_metrics_and_labels_that_a_server_tells(store_url: str) -> None:
    seen: dict[str, set[str]] = {}

    async def story(s: Served) -> None:
        await s.define()
        await s.engine.controls.set_limit("portal", 3)
        await s.start()
        await s.fail(await s.lease_one())
        await s.start()
        await s.complete(await s.lease_one())

        async def has_counted() -> bool:
            """What processes have counted reaches the store, and from there the answer, after a moment."""
            answer = await s.get("/metrics")
            assert answer.status == 200, answer
            seen.update(told_by(answer.content.decode()))
            return "holdfast_step_attempt_seconds_count" in seen and "holdfast_retries_total" in seen

        await eventually(has_counted, every=0.2)

    on_a_server(store_url, story)
    missing = {
        (where, selector.name)
        for where, query in queries()
        for selector in selectors_of(query)
        if selector.name not in seen and selector.name not in OF_PROMETHEUS
    }
    assert missing == set()
    unknown = set()
    for where, query in queries():
        for selector in selectors_of(query):
            known = OF_A_TARGET | seen.get(selector.name, set()) | LABELS_OF_RARE.get(selector.name, set())
            asked = {matcher.name for matcher in selector.matchers.matchers}
            unknown |= {(where, selector.name, label) for label in asked - known}
    assert unknown == set()


def counted_twice(query: str) -> set[str]:
    """What it adds up, or compares, as often as there are servers that tell it."""
    found: set[str] = set()

    def look(part: Any, joined: bool) -> None:
        kind = type(part).__name__
        if kind == "VectorSelector" and not joined and part.name not in OF_A_SERVER:
            found.add(part.name)
        is_maximum = kind == "AggregateExpr" and str(part.op) == "max"
        for inner in inside(part):
            look(inner, joined or is_maximum)

    look(promql_parser.parse(query), joined=False)
    return found


@pytest.mark.parametrize("query", [query for _, query in queries()])
def test_a_query_counts_nothing_twice_that_every_server_tells(query: str) -> None:
    """Several servers of one database tell the same of it: only their maximum is true."""
    assert counted_twice(query) == set()


def test_the_check_of_queries_finds_wrong_ones() -> None:
    wrong = "sum by (lane) (holdfast_jobs) + on (lane) rate(holdfast_dead_total[5m]) / max(holdfast_workers)"
    assert counted_twice(wrong) == {"holdfast_jobs", "holdfast_dead_total"}
    assert {selector.name for selector in selectors_of(wrong)} == {
        *("holdfast_jobs", "holdfast_dead_total", "holdfast_workers"),
    }


def test_an_alert_says_what_it_is_and_what_to_do() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names)) >= 10
    for rule in alerts():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule
        assert re.fullmatch(r"Holdfast[A-Za-z]+", rule["alert"])
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description", "action"}, rule["alert"]
        assert all(len(text) > 20 for text in rule["annotations"].values()), rule["alert"]
        assert commands_in(rule["annotations"]["action"]), f"{rule['alert']} names no command"
        if "for" in rule:
            assert promql_parser.parse_duration(rule["for"]).total_seconds() > 0


def test_the_alerts_cover_what_must_not_go_unseen() -> None:
    asked = {selector.name for rule in alerts() for selector in selectors_of(rule["expr"])}
    assert asked >= {
        *("up", "holdfast_store_up", "holdfast_oldest_ready_seconds", "holdfast_unoffered_jobs"),
        *("holdfast_workers", "holdfast_dead_total", "holdfast_attempts_total", "holdfast_server_seconds"),
        *("holdfast_lease_latency_seconds_bucket", "holdfast_store_transaction_seconds_bucket"),
    }


def test_every_panel_of_the_dashboard_has_its_place_and_its_queries() -> None:
    board = json.loads((OPS / "grafana" / "holdfast.json").read_text())
    assert board["uid"] == "holdfast" and board["templating"]["list"][0]["type"] == "datasource"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    for panel in panels():
        assert panel["title"] and panel["targets"] and panel["datasource"]["uid"] == "${datasource}"
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


# ── commands ─────────────────────────────────────────────────────────────────────────────────────


def commands_in(text: str) -> list[list[str]]:
    """The `holdfast …` commands that a text tells people to type, and those of its code blocks."""
    quoted = re.findall(r"`(holdfast [^`]+)`", text)
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    typed = [line for block in blocks for line in block.splitlines()]
    typed += [line.lstrip("# ") for line in text.splitlines() if re.match(r"#\s+holdfast ", line)]
    found = []
    for line in (*quoted, *typed):
        words = shlex.split(line, comments=True)
        if "holdfast" in words[:-1]:  # behind it: a user of that name
            found.append(words[words.index("holdfast") + 1 :])
    return found


def check_command(words: list[str]) -> None:
    """As if it were typed, up to where it would begin."""
    command: click.Command = commands
    name = "holdfast"
    while isinstance(command, click.Group):
        assert words and words[0] in command.commands, f"{name} has no {words[:1]}"
        name, command, words = words[0], command.commands[words[0]], words[1:]
    try:
        command.make_context(name, list(words))
    except click.UsageError as error:
        pytest.fail(f"{name} {words}: {error.format_message()}")


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix != ".json"], ids=name_of)
def test_every_command_that_is_told_can_be_typed(path: Path) -> None:
    texts = [path.read_text()]
    if path.name == "alerts.yml":
        texts = [text for rule in alerts() for text in rule["annotations"].values()]
    for text in texts:
        for words in commands_in(text):
            check_command(words)


def test_the_check_of_commands_finds_wrong_ones() -> None:
    assert commands_in(
        "Ask `holdfast doctor --server http://x`.\n```sh\nX=1 holdfast status  # now\n```\n"
    ) == [
        ["doctor", "--server", "http://x"],
        ["status"],
    ]
    for wrong in (
        ["nothing"],
        ["token"],
        ["doctor", "--no-such"],
        ["pause", "everything", "x"],
        ["serve", "x"],
    ):
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            check_command(wrong)


# ── systemd ──────────────────────────────────────────────────────────────────────────────────────


def unit(path: Path) -> configparser.ConfigParser:
    read = configparser.RawConfigParser(strict=True, comment_prefixes=("#",), delimiters=("=",))
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(path.read_text())
    return read


def environment_of(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def seconds(text: str) -> float:
    return parse_duration(text, field="duration")


@pytest.mark.parametrize("path", UNITS, ids=name_of)
def test_a_unit_starts_a_command_that_can_be_typed_and_stops_it_in_time(path: Path) -> None:
    service = unit(path)["Service"]
    example = "worker" if "worker" in path.name else "server"
    environment = environment_of(OPS / "systemd" / f"{example}.env.example")
    program, *words = service["ExecStart"].split()
    assert program == "/opt/holdfast/bin/holdfast"
    words = [re.sub(r"\$\{(\w+)\}", lambda found: environment[found[1]], word) for word in words]
    check_command(words)
    [name, *given] = words
    options = commands.commands[name].make_context(name, given).params
    assert options["log_format"] == "json"
    if name == "worker" or not options["no_worker"]:
        # The supervisor waits for so long before it kills what is left.
        assert seconds(service["TimeoutStopSec"]) > seconds(options["grace"]) + ENDING_SECONDS
    assert seconds(service["TimeoutStopSec"]) > ENDING_SECONDS


@pytest.mark.parametrize("path", UNITS, ids=name_of)
def test_a_unit_is_restarted_and_may_do_little(path: Path) -> None:
    read = unit(path)
    service = read["Service"]
    assert service["Restart"] == "always" and read["Unit"]["StartLimitIntervalSec"] == "0"
    assert service["User"] == "holdfast" and service["KillMode"] == "mixed"
    assert service["EnvironmentFile"].startswith("/etc/holdfast/")
    assert service["CapabilityBoundingSet"] == "" and service["ProtectSystem"] == "strict"
    for setting in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "RestrictSUIDSGID"):
        assert service[setting] == "yes", setting


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
@pytest.mark.parametrize("path", UNITS, ids=name_of)
def test_systemd_finds_nothing_wrong_with_a_unit(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name.replace("@.", "@shop.")
    # It wants the program to be there.
    copy.write_text(path.read_text().replace("/opt/holdfast/bin/holdfast", shutil.which("true") or ""))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", copy],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0 and str(copy) not in done.stderr, done.stderr


# ── compose ──────────────────────────────────────────────────────────────────────────────────────


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((OPS / "compose.yaml").read_text())
    return found


def test_compose_has_an_installation_and_those_who_watch_it() -> None:
    services = compose()["services"]
    assert set(services) == {"postgres", "server", "worker", "prometheus", "grafana"}
    assert {name for name in services if services[name].get("profiles")} == {"prometheus", "grafana"}
    assert "/readyz" in " ".join(services["server"]["healthcheck"]["test"])
    assert services["server"]["depends_on"]["postgres"] == {"condition": "service_healthy"}
    assert services["worker"]["depends_on"]["server"] == {"condition": "service_healthy"}
    assert all(service["restart"] == "always" for service in services.values())


def test_compose_publishes_nothing_beyond_this_machine() -> None:
    services = compose()["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) == 3 and all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in ports)
    assert "ports" not in services["postgres"]
    assert all("network_mode" not in service for service in services.values())


def test_compose_gives_a_stop_the_time_it_takes() -> None:
    services = compose()["services"]
    for name in ("server", "worker"):
        command, *given = services[name]["command"]
        check_command([command, *given])
        options = commands.commands[command].make_context(command, given).params
        runs_handlers = command == "worker" or not options["no_worker"]
        needed = ENDING_SECONDS + (seconds(options["grace"]) if runs_handlers else 0)
        assert seconds(services[name]["stop_grace_period"]) > needed


def test_no_secret_is_in_any_file() -> None:
    """Passwords and tokens come from the environment, or from files that are not here."""
    for service in compose()["services"].values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN", name):
                assert value.startswith(("${", "/run/secrets/")), (name, value)
            assert "://" not in value or "@" not in value or ":${" in value, (name, value)
    for path in (OPS / ".env.example", *(OPS / "systemd").glob("*.example")):
        for name, value in environment_of(path).items():
            if re.search("PASSWORD|TOKEN", name):
                assert value == "", (path.name, name)
    for path in FILES:
        text = path.read_text()
        passwords = re.findall(r"://[^/\s:@]+:([^@\s]+)@", text)
        assert all(word.startswith(("${", "CHANGE-ME", "…")) for word in passwords), (path.name, passwords)
        assert not re.search(r"\b(?=\w*[0-9])(?=\w*[a-z])\w{32,}\b", text), path.name
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/ops/.env", "/ops/secrets/"} <= set(ignored)


def test_what_compose_mounts_is_there() -> None:
    for service in compose()["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (OPS / source).exists(), volume
            else:
                assert source in compose()["volumes"], volume
        for secret in service.get("secrets", []):
            assert secret in compose()["secrets"]


def test_prometheus_reads_the_servers_of_compose_by_a_token_from_a_file() -> None:
    config = yaml.safe_load((OPS / "prometheus" / "prometheus.yml").read_text())
    [job] = config["scrape_configs"]
    assert job["job_name"] == "holdfast" and job["metrics_path"] == "/metrics"
    assert job["static_configs"] == [{"targets": ["server:8083"], "labels": {"fleet": "main"}}]
    [secret] = compose()["services"]["prometheus"]["secrets"]
    assert job["authorization"] == {"type": "Bearer", "credentials_file": f"/run/secrets/{secret}"}
    assert [(OPS / "prometheus" / name).exists() for name in config["rule_files"]] == [True]


# ── the image ────────────────────────────────────────────────────────────────────────────────────


def test_the_image_has_the_versions_of_the_lock(tmp_path: Path) -> None:
    """Its line that makes constraints of the lock, as the build runs it."""
    [line] = re.findall(r"sed -n .*requirements\.lock", (OPS / "Dockerfile").read_text())
    done = subprocess.run(
        ["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    made = done.stdout.splitlines()
    locked = re.findall(
        r"^([a-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)", (ROOT / "requirements.lock").read_text(), re.M
    )
    assert made == [f"{name}=={version}" for name, version in locked] and len(made) > 50


def test_the_image_runs_as_nobody_special_and_copies_what_there_is() -> None:
    text = (OPS / "Dockerfile").read_text()
    assert "\nUSER holdfast\n" in text
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in copied.split()), copied
    for field, start in (("CMD", "holdfast"), ("ENTRYPOINT", "")):
        [words] = re.findall(rf"^{field} (\[.*\])$", text, re.MULTILINE)
        if start:
            check_command(json.loads(words))
    ignored = (OPS / "Dockerfile.dockerignore").read_text().splitlines()
    needed = {
        name for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M) for name in copied.split()
    }
    assert ignored[0] == "*" and {line[1:] for line in ignored if line.startswith("!")} == needed
