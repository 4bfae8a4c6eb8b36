"""Secrets: where a worker finds them, and that nothing that leaves an attempt has one in it."""

from __future__ import annotations

import base64
import html
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core.catalogue import Category
from holdfast.core.errors import PermanentError
from holdfast.core.model import Completed, Failed, Outcome
from holdfast.worker import secrets
from holdfast.worker.secrets import MASK, Mask, SecretSource
from running import run
from typed_attempt import attempted, failure_of, judged, leased, outcome_of, result_of

SECRET = 's3cr€t/+ "x" & so on'
TOKEN = {"HOLDFAST_SECRET_TOKEN": SECRET}


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    factory, logged, mask, installed = (
        logging.getLogRecordFactory(),
        set(secrets._logged),
        secrets._log_mask,
        secrets._is_installed,
    )
    yield
    logging.setLogRecordFactory(factory)
    secrets._logged, secrets._log_mask, secrets._is_installed = logged, mask, installed


def call(function: Any, *, environ: dict[str, str] | None = None, **inputs: Any) -> Any:
    job = leased("python/m:f", inputs=inputs or {"token": '{{ secret("TOKEN") }}'})
    return outcome_of(job, functions={"m:f": function}, environ=TOKEN if environ is None else environ)


# finding


def test_a_secret_is_read_from_the_environment_or_from_a_file_without_its_last_newline(
    tmp_path: Path,
) -> None:
    (tmp_path / "FILED").write_text("from a file\n")
    (tmp_path / "TOKEN").write_text("shadowed")
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "key").write_text("deeper\r\n")
    source = SecretSource({**TOKEN, "HOLDFAST_SECRETS_FOLDER": str(tmp_path)})
    assert source.find("TOKEN") == SECRET
    assert source.find("FILED") == "from a file"
    assert source.find("team/key") == "deeper"


@pytest.mark.parametrize(
    "name", ["OTHER", "../TOKEN", "", "a/b", "a/../HIDDEN", "/HIDDEN", ".hidden", "x" * 300, "A\0B"]
)
def test_a_secret_that_is_not_there_is_permanent_and_no_other_is_told(name: str, tmp_path: Path) -> None:
    (tmp_path / "HIDDEN").write_text("in the folder")
    source = SecretSource({**TOKEN, "HOLDFAST_SECRETS_FOLDER": str(tmp_path)})
    with pytest.raises(PermanentError) as raised:
        source.find(name)
    assert raised.value.error_type == "secret_missing"
    told = f"{raised.value} {raised.value.guidance}"
    assert "HIDDEN" not in told.replace(name or "-", "") and SECRET not in told


def test_the_step_tells_which_secret_is_missing_and_where_to_put_it() -> None:
    told = failure_of(
        leased("type/http", config={"url": "http://x", "headers": {"A": '{{ secret("TOKEN") }}'}}), environ={}
    )
    assert told.message == "This worker has no secret TOKEN."
    assert (judged(told).error_type, judged(told).category) == ("secret_missing", Category.PERMANENT)
    assert "HOLDFAST_SECRET_TOKEN" in judged(told).guidance
    assert "HOLDFAST_SECRETS_FOLDER" in judged(told).guidance


@pytest.mark.parametrize("value", ["", "abcd"])
def test_a_secret_too_short_to_be_masked_is_refused(value: str) -> None:
    with pytest.raises(PermanentError, match="shorter than 5 characters") as raised:
        SecretSource({"HOLDFAST_SECRET_PIN": value}).find("PIN")
    assert raised.value.user_message == "A secret of the step cannot be used"


def test_bytes_of_the_environment_that_are_no_text_are_refused() -> None:
    with pytest.raises(PermanentError, match="not UTF-8") as raised:
        SecretSource({"HOLDFAST_SECRET_X": os.fsdecode(b"secret\xff")}).find("X")
    assert raised.value.error_type == "secret_invalid"


def test_a_file_that_cannot_be_a_secret_is_refused(tmp_path: Path) -> None:
    source = SecretSource({"HOLDFAST_SECRETS_FOLDER": str(tmp_path)})
    (tmp_path / "LARGE").write_bytes(b"x" * 70_000)
    (tmp_path / "BINARY").write_bytes(b"\xff\xfe\x00\x01abc")
    with pytest.raises(PermanentError, match="LARGE is larger"):
        source.find("LARGE")
    with pytest.raises(PermanentError, match="BINARY is not UTF-8"):
        source.find("BINARY")


def test_a_folder_that_cannot_be_read_may_heal(tmp_path: Path) -> None:
    (tmp_path / "DIR").mkdir()
    told = failure_of(
        leased("python/m:f", inputs={"token": '{{ secret("DIR") }}'}),
        functions={"m:f": lambda token: token},
        environ={"HOLDFAST_SECRETS_FOLDER": str(tmp_path)},
    )
    assert "the secret DIR cannot be read" in told.message
    assert judged(told).category is not Category.PERMANENT


# masking


def test_the_function_gets_the_secret_and_its_output_does_not_have_it() -> None:
    def echo(token: str) -> Any:
        assert token == SECRET
        return {"sent": f"Bearer {token}", token: [token, 1, None], "length": len(token)}

    outcome = call(echo)
    assert isinstance(outcome, Completed)
    assert json.loads(outcome.result) == {
        "sent": "Bearer ***",
        "***": ["***", 1, None],
        "length": len(SECRET),
    }


def test_a_failure_has_it_neither_in_its_message_nor_in_its_trace() -> None:
    def fail(token: str) -> None:
        raise PermanentError(
            f"refused {token}",
            error_type=f"no_{token}",
            user_message=f"not {token}",
            guidance=f"change {token}",
        )

    outcome = call(fail)
    assert isinstance(outcome, Failed)
    assert SECRET not in str(msgspec.to_builtins(outcome))
    assert outcome.failure.message == "refused ***"
    assert "PermanentError: refused ***" in outcome.failure.stack_trace


def test_inline_code_and_commands_are_masked_as_well() -> None:
    token = {"token": '{{ secret("TOKEN") }}'}
    echo = leased(
        "code/python", config={"code": "def main(token): return [token, token[::-1]]"}, inputs=token
    )
    assert result_of(echo, environ=TOKEN) == [MASK, SECRET[::-1]]
    fail = leased(
        "code/python",
        config={"code": "def main(token):\n  print(token)\n  raise ValueError(token)"},
        inputs=token,
    )
    told = failure_of(fail, environ=TOKEN)
    assert (
        told.message == MASK
        and SECRET not in told.stack_trace
        and "Printed by the code:\n***" in told.stack_trace
    )
    shell = leased("code/shell", config={"command": ["printf", "%s", '{{ secret("TOKEN") }}']})
    assert result_of(shell, environ=TOKEN)["stdout"] == MASK


def test_a_timeout_is_masked_too() -> None:
    job = leased(
        "code/python", config={"code": "while True: pass"}, inputs={"t": '{{ secret("TOKEN") }}'}, timeout=0.2
    )
    assert judged(failure_of(job, environ=TOKEN)).error_type == "timeout"


def test_a_number_that_is_the_secret_is_masked_and_one_that_holds_it_stays() -> None:
    outcome = call(
        lambda token: {"same": int(token), "longer": int(token + "5")},
        environ={"HOLDFAST_SECRET_TOKEN": "123456"},
    )
    assert isinstance(outcome, Completed)
    assert json.loads(outcome.result) == {"same": MASK, "longer": 1234565}


@given(st.text(min_size=8, max_size=60).filter(lambda text: text.isprintable() and text.strip() == text))
@example("pässwörd & more/+=")
def test_no_form_of_a_secret_survives(secret: str) -> None:
    mask = Mask([secret])
    encoded = secret.encode()
    forms = [
        secret,
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
        json.dumps(secret),
        repr(secret),
    ]
    forms += [base64.b64encode(encoded).decode(), base64.urlsafe_b64encode(encoded).decode(), encoded.hex()]
    forms += [encoded.hex().upper(), html.escape(secret), json.dumps(secret).replace("/", "\\/")]
    forms += [re.sub("%[0-9A-F]{2}", lambda escape: escape[0].lower(), quote(secret, safe=""))]
    forms += [re.sub(r"\\u[0-9a-f]{4}", lambda e: "\\u" + e[0][2:].upper(), json.dumps(secret))]
    for form in forms:
        masked = mask.text(f"before {form} after")
        assert MASK in masked
        # Of base64 what shares its last character with what may follow stays.
        assert len(masked) <= len("before  after") + len(MASK) + 4, (form, masked)


@given(
    st.text(alphabet="abcdefghijklmnop0123456789", min_size=0, max_size=20),
    st.text(alphabet="xyzXYZ-_9", min_size=12, max_size=40),
)
def test_a_secret_is_found_in_basic_auth_whatever_the_user_is_called(user: str, secret: str) -> None:
    header = base64.b64encode(f"{user}:{secret}".encode()).decode()
    masked = Mask([secret]).text(f"Basic {header}")
    assert MASK in masked
    left = masked.removeprefix("Basic ").replace(MASK, "")
    assert len(left) <= len(header) - (len(secret) * 8 // 6 - 3)


@pytest.mark.parametrize(
    ("secret", "written"),
    [
        ("pass!{word}XYZ99", "/botpass!%7Bword%7DXYZ99/send"),
        ("geheim!ö-schluessel", "/botgeheim!%C3%B6-schluessel/send"),
        ("pa'ss-word-1234", "LINE 1: WHERE 'pa''ss-word-1234' = 'x'"),
        ("pa'ss-word-1234", "<p>pa&apos;ss-word-1234</p>"),
        ("pa'ss-word-1234", r"sh -c 'echo pa'\''ss-word-1234'"),
        ("47110", f"Basic {base64.b64encode(b'u:47110').decode()}"),
        ("47110", f"Basic {base64.b64encode(b'us:47110').decode()}"),
    ],
)
def test_a_secret_is_found_as_others_write_it(secret: str, written: str) -> None:
    masked = Mask([secret]).text(written)
    assert MASK in masked and not any(part in masked for part in ("word", "schluessel", "0NzEx", "Q3MT"))


HOOK = "http://u:pw-of-u@HOST.example/services/x/../T00/B00/XXXXSECRET?wait=true#top"


@pytest.mark.parametrize(
    "written",
    [
        "GET http://host.example/services/T00/B00/XXXXSECRET failed",
        "GET http://host.example/services/T00/B00/XXXXSECRET?wait=true",
        "Cannot POST /services/T00/B00/XXXXSECRET",
        "login failed: pw-of-u",
    ],
)
def test_a_secret_that_is_an_address_is_found_however_it_is_shown(written: str) -> None:
    masked = Mask([HOOK]).text(written)
    assert MASK in masked and "SECRET" not in masked and "pw-of-u" not in masked


@pytest.mark.parametrize(
    "secret",
    [
        "https://bot:tok3n-long@api.example.com",
        "https://bot:tok3n-long@api.example.com?format=geojson",
        "https://api.example.com?key=tok3n-long",
        "https://u:tok3n-long@api.example.com/services/customers",
        "https://api.example.com/services/customers?key=tok3n-long",
    ],
)
def test_what_is_public_of_an_address_stays(secret: str) -> None:
    mask = Mask([secret])
    for public in (
        "https://api.example.com/items?page=2",
        "/services/customers/4711",
        "see https://... for more",
        "https://api.example.com/serv…",
    ):
        assert mask.text(public) == public
    assert "tok3n" not in mask.text(f"{secret} says: unknown key tok3n-long")


def test_the_password_in_an_address_is_found_alone_also_where_it_is_a_word() -> None:
    mask = Mask(["postgresql://app:correcthorse@db/app?application_name=reports"])
    assert mask.text("correcthorse is wrong for app of reports") == f"{MASK} is wrong for app of reports"


LONG_SECRET = "sk-ABCDEFGHIJKLMNOPQRSTUVWX"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("LINE 1: SELECT nocol, 'sk-ABCDEFGHIJKLMNOPQ...", "LINE 1: SELECT nocol, '***..."),
        ("...JKLMNOPQRSTUVWX' AND x", "...***' AND x"),
        ("GET http://host/a/sk-ABCDEFGHI… failed", "GET http://host/a/***… failed"),
        ("…TUVWX000", "…TUVWX000"),  # five characters of it
        ("…STUVWX000", "…***000"),
        ("x" * 600 + "sk-ABCDEF", "x" * 600 + "***"),
        ("STUVWX" + "x" * 600, "***" + "x" * 600),
        ("sk-ABC… and …VWX", "***… and …VWX"),
        ("sk-ABCDEFx… and …xSTUVWX", "sk-ABCDEFx… and …xSTUVWX"),
        ("STUVWX is no cut", "STUVWX is no cut"),
    ],
)
def test_what_a_cut_leaves_of_a_secret_is_masked(text: str, masked: str) -> None:
    assert Mask([LONG_SECRET]).text(text) == masked


@pytest.mark.parametrize("secret", ["secret-token/with", "sk-live/abc+def==99zz", "a'b c&d%e=f/g+h"])
def test_only_what_is_left_of_it_at_a_cut_is_masked(secret: str) -> None:
    mask, part, rest = Mask([secret]), secret[:9], secret[-9:]
    assert mask.text(f"xx {part}… and more that is nobody's business") == (
        f"xx {MASK}… and more that is nobody's business"
    )
    assert mask.text(f"{part}...{rest} {part}, no cut") == f"{MASK}...{MASK} {part}, no cut"
    assert mask.text(f"... {part}… {part}… end") == f"... {MASK}… {MASK}… end"


def test_what_an_earlier_step_has_stored_is_masked_in_a_later_one_that_finds_it() -> None:
    job = leased("python/m:f", secrets=("TOKEN", "MISSING"))
    outcome = outcome_of(job, functions={"m:f": lambda: [SECRET, "else"]}, environ=TOKEN)
    assert isinstance(outcome, Completed)
    assert json.loads(outcome.result) == [MASK, "else"]


def test_a_key_of_several_lines_is_masked_line_by_line() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END KEY-----"
    assert "MIIEvQ" not in Mask([key]).text("bad line: MIIEvQIBADANBgkqhkiG9w0B (2)")


def test_the_longer_of_two_secrets_leaves_no_tail_behind() -> None:
    assert Mask(["abcd", "abcdefgh"]).text("abcdefgh abcd") == "*** ***"


def test_what_is_handed_to_others_takes_no_secret() -> None:
    token = '{{ secret("TOKEN") }}'
    for job in (
        leased("type/playbook", config={"path": "x"}, inputs={"token": token}),
        leased("type/each", for_each=json.dumps([token])),
    ):
        told = failure_of(job, environ=TOKEN)
        assert "has a secret in it, and is stored" in told.message
        assert judged(told).category is Category.PERMANENT


# logs


def test_from_then_on_it_is_masked_in_everything_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def logs(token: str) -> None:
        library = logging.getLogger("some.library")
        library.warning("GET https://host/?token=%s", quote(token, safe=""))
        library.warning(f"plain {token}")
        library.warning("untouched %d", 3)
        try:
            raise ValueError(token)
        except ValueError:
            library.exception("failed")

    call(logs)
    logging.getLogger("another").error("later: %s", {"auth": SECRET})
    assert SECRET not in caplog.text and quote(SECRET, safe="") not in caplog.text
    assert "GET https://host/?token=***" in caplog.text
    assert "untouched 3" in caplog.text
    assert "ValueError: ***" in caplog.text


def test_a_wrong_log_call_is_left_to_its_author(caplog: pytest.LogCaptureFixture) -> None:
    secrets.mask_in_logs("something secret")
    record = logging.getLogRecordFactory()("x", 20, "f", 1, "%d %d", ("a",), None)
    assert record.args == ("a",)


def test_a_wrong_log_call_tells_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    secrets.mask_in_logs(SECRET)
    logger = logging.Logger("wrong")
    logger.addHandler(logging.StreamHandler(sys.stderr))
    for message, *arguments in (
        ("%d of %d", SECRET),
        (f"{SECRET} %d", "x"),
        ("%d", {"token": SECRET}),
        ("%(a)d", {"a": SECRET}),
    ):
        logger.warning(message, *arguments)
    told = capsys.readouterr().err
    assert told.count("--- Logging error ---") == 4 and "***" in told and SECRET not in told


# on the wire


class _Echo(BaseHTTPRequestHandler):
    """Sends back what it was sent, as services do in their errors."""

    def do_GET(self) -> None:
        self.send_response(500 if "fail" in self.path else 200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"headers": dict(self.headers), "path": self.path}).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    "auth",
    [
        {"type": "basic", "username": "u", "password": '{{ secret("TOKEN") }}'},
        {"type": "basic", "username": "us", "password": '{{ secret("TOKEN") }}'},
        {"type": "basic", "username": "use", "password": '{{ secret("TOKEN") }}'},
        {"type": "header", "name": "X-Key", "value": '{{ secret("TOKEN") }}'},
    ],
)
@pytest.mark.parametrize("path", ["/ok", "/fail"])
def test_a_service_that_echoes_a_secret_tells_nobody(echo: str, path: str, auth: dict[str, str]) -> None:
    token = "hunter2-hunter2-hunter2"
    config = {"url": f"{echo}{path}", "params": {"key": '{{ secret("TOKEN") }}'}, "auth": auth}

    async def scenario() -> Outcome:
        from holdfast.steps import http

        try:
            return await attempted(
                leased("type/http", config=config), environ={"HOLDFAST_SECRET_TOKEN": token}
            )
        finally:
            await http.close()

    outcome = run(scenario())
    told = str(msgspec.to_builtins(outcome))
    assert isinstance(outcome, Completed if path == "/ok" else Failed)
    assert token not in told and "hunter" not in told
    seen = base64.b64encode(f"{auth.get('username')}:{token}".encode()).decode()
    assert seen[8:-4] not in told
    if path == "/ok":
        assert MASK in told
