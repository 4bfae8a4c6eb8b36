"""Who may speak with a server."""

import asyncio
import base64
from typing import Any

import pytest

from holdfast.core.errors import InvalidInput
from holdfast.engine import Engine, Submission
from holdfast.engine.tokens import Tokens
from holdfast.server import access, app, failed_logins
from holdfast.server.access import Access
from holdfast.server.failed_logins import FailedLogins
from holdfast.server.problems import Refused
from running import eventually, run
from serving import Served, on_a_server
from store_scenario import opened

TOKEN = "a-secret-of-sixteen-or-more"
FOLLOWED = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def listening_on(url: str, host: str, **options: Any) -> None:
    """Start a server there, as far as that goes before it listens."""

    async def main() -> None:
        async with opened(url) as store:
            await Access(host, Engine(store).tokens, **options).check_start()

    run(main())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_without_a_token_nobody_listens_beyond_this_machine(sqlite_url: str, host: str) -> None:
    with pytest.raises(InvalidInput, match="needs a token") as refusal:
        listening_on(sqlite_url, host)
    assert "holdfast token create NAME --role admin" in refusal.value.guidance
    listening_on(sqlite_url, host, secret=TOKEN)


async def has_ended(tokens: Tokens, token_id: str) -> bool:
    return bool(await tokens.why_not(token_id))


def test_a_token_of_the_database_lets_it_listen_as_long_as_it_counts(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            tokens = Engine(store).tokens
            ended = await tokens.create("ops", "viewer", expires=0.001)
            await eventually(lambda: has_ended(tokens, ended.token.id))
            with pytest.raises(InvalidInput):
                await Access("0.0.0.0", tokens).check_start()
            await tokens.create("ann", "admin")
            await Access("0.0.0.0", tokens).check_start()
            await tokens.revoke("ann")
            with pytest.raises(InvalidInput):
                await Access("127.0.0.1", tokens, required=True).check_start()

    run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "localhost", "::1", "[::1]"])
def test_on_this_machine_no_token_is_needed(sqlite_url: str, host: str) -> None:
    listening_on(sqlite_url, host)


@pytest.mark.parametrize(
    "token", ["short", "with\nbreaks and more of it", "ünicode-is-not-for-headers", " with-a-blank-before"]
)
def test_a_token_that_is_none_is_refused(sqlite_url: str, token: str) -> None:
    with pytest.raises(InvalidInput):
        listening_on(sqlite_url, "127.0.0.1", secret=token)


def test_with_a_token_every_request_must_carry_it_but_for_those_of_watchers(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        assert (await s.get("/api/info")).status == 200
        for header in ("", "Bearer", "Bearer wrong-wrong-wrong-wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x"):
            answer = await s.send("GET", "/api/info", headers={"authorization": header})
            assert (answer.status, answer.code) == (401, "unauthorized")
            assert answer.headers["www-authenticate"].startswith("Bearer")
        for path in ("/healthz", "/readyz"):
            assert (await s.send("GET", path, headers={"authorization": ""})).status == 200
        # Of what the address is made of, the Host says nothing.
        for host in ("x/healthz?", "x/healthz#", "/healthz?", "[/healthz?"):
            answer = await s.send("GET", "/api/info", headers={"authorization": "", "host": host})
            assert answer.status == 401
        for path in ("/docs", "/openapi.json", "/metrics", "/nowhere"):
            assert (await s.send("GET", path, headers={"authorization": ""})).status == 401

    on_a_server(sqlite_url, story, token=TOKEN)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example:8083"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "127.0.0.1#evil.example"}, 403),
        ({"host": "127.0.0.1/evil.example"}, 403),
        ({"host": "evil.example@127.0.0.1"}, 403),
        ({"host": "localhost.:8083"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://[::1"}, 403),
        ({"host": "", "origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"host": "localhost:8083"}, 200),
        ({"host": "[::1]:8083"}, 200),
        ({"host": "127.0.0.1:8083", "origin": "http://127.0.0.1:8083"}, 200),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "cross-site", **FOLLOWED}, 200),
        ({"sec-fetch-site": "cross-site", **FOLLOWED, "sec-fetch-dest": "iframe"}, 403),
        ({"sec-fetch-site": "cross-site", **FOLLOWED, "origin": "http://evil.example"}, 403),
    ],
)
def test_pages_of_other_sites_cannot_use_a_server_of_this_machine(
    sqlite_url: str, headers: dict[str, str], status: int
) -> None:
    async def story(s: Served) -> None:
        assert (await s.send("GET", "/api/info", headers=headers)).status == status
        if headers.get("sec-fetch-site") == "cross-site":
            sent = await s.post("/api/pauses", {"kind": "lane", "name": "bulk"}, headers=headers)
            assert sent.status == 403

    on_a_server(sqlite_url, story)


# tokens of the database


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


def test_a_browser_asks_for_the_token_and_sends_it_as_a_password(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        made = await s.engine.tokens.create("ann", "viewer")
        page = {"accept": "text/html,application/xhtml+xml"}
        refused = await s.send("GET", "/docs", headers=page)
        assert (refused.status, refused.headers["www-authenticate"][:5]) == (401, "Basic")
        asked = await s.send("GET", "/api/info")
        assert asked.headers["www-authenticate"].startswith("Bearer")
        for name in ("", "ann", "anything"):
            shown = base64.b64encode(f"{name}:{made.text}".encode()).decode()
            for path in ("/docs", "/openapi.json", "/api/overview"):
                answer = await s.send("GET", path, headers={"authorization": f"Basic {shown}"})
                assert answer.status == 200
        for shown in (
            "",
            "x",
            "ü",
            "====",
            base64.b64encode(b"\xff:\xff").decode(),
            base64.b64encode(b"x").decode(),
        ):
            answer = await s.send(
                "GET", "/docs", headers=[(b"authorization", f"Basic {shown}".strip().encode())]
            )
            assert answer.status == 401

    on_a_server(sqlite_url, story, require_token=True)


def test_a_token_of_the_database_has_its_role_even_as_the_servers_own(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        made = await s.engine.tokens.create("ann", "viewer")
        access = Access("127.0.0.1", s.engine.tokens, secret=made.text)
        assert access.is_required and access._secret is None
        refused = await s.post("/api/pauses", {"kind": "lane", "name": "bulk"}, headers=bearer(made.text))
        assert (refused.status, refused.code) == (403, "forbidden")
        assert "viewer" in refused.json["error"]["message"]
        assert "operator or admin" in refused.json["error"]["guidance"]

    on_a_server(sqlite_url, story)


def test_what_is_shown_must_count_also_where_nothing_need_be_shown(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        assert (await s.get("/api/info")).status == 200
        assert (await s.send("GET", "/api/info", headers=bearer("nobodys-token"))).status == 401

    on_a_server(sqlite_url, story)


def test_whoever_has_a_token_that_ended_is_told_so_and_others_are_not(store_url: str) -> None:
    async def story(s: Served) -> None:
        tokens = s.engine.tokens
        ended = await tokens.create("ended", "viewer", expires=0.001)
        await eventually(lambda: has_ended(tokens, ended.token.id))
        revoked = await tokens.create("gone", "viewer")
        assert (await s.send("GET", "/api/info", headers=bearer(revoked.text))).status == 200
        await tokens.revoke("gone")
        for made, told in ((ended, "ended is expired"), (revoked, "gone is revoked")):
            refused = await s.send("GET", "/api/info", headers=bearer(made.text))
            assert refused.status == 401 and told in refused.json["error"]["message"]
            guessed = f"holdfast_{made.token.id}_{'x' * 43}"
            refused = await s.send("GET", "/api/info", headers=bearer(guessed))
            assert "not one of this server's" in refused.json["error"]["message"]

    on_a_server(store_url, story, require_token=True)


def test_the_use_of_a_token_is_noted(store_url: str) -> None:
    async def story(s: Served) -> None:
        made = await s.engine.tokens.create("ann", "viewer")
        assert (await s.send("GET", "/api/info", headers=bearer(made.text))).status == 200

        async def is_noted() -> bool:
            [_, token] = await s.engine.tokens.all()
            return token.last_used_at is not None

        await eventually(is_noted)

    on_a_server(store_url, story, require_token=True)


@pytest.fixture
def no_second_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, the next wrong token comes at once."""
    monkeypatch.setattr(failed_logins, "LOOK_SECONDS", 600.0)
    monkeypatch.setattr(failed_logins, "SECONDS", 3600.0)


@pytest.mark.usefixtures("no_second_passes")
def test_who_guesses_is_not_looked_at_for_a_while_and_who_was_let_in_is(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(s: Served) -> None:
        known = await s.engine.tokens.create("ann", "viewer")
        late = await s.engine.tokens.create("bob", "viewer")
        assert (await s.send("GET", "/api/info", headers=bearer(known.text))).status == 200
        for _ in range(failed_logins.FAILURES_MAX):
            assert (await s.send("GET", "/api/info", headers=bearer("guess"))).status == 401
        for text in ("guess", late.text):
            refused = await s.send("GET", "/api/info", headers=bearer(text))
            assert (refused.status, refused.code) == (429, "too_many_failures")
            assert 1 <= int(refused.headers["retry-after"]) <= 600
        assert (await s.send("GET", "/api/info", headers=bearer(known.text))).status == 200
        assert (await s.send("GET", "/api/info")).status == 401  # nothing was guessed
        assert (await s.send("GET", "/healthz", headers=bearer("guess"))).status == 200
        await s.engine.tokens.revoke("ann")
        assert (await s.send("GET", "/api/info", headers=bearer(known.text))).status == 401

    on_a_server(sqlite_url, story, require_token=True)
    told = [record.getMessage() for record in caplog.records if "was refused" in record.getMessage()]
    assert len(told) == failed_logins.FAILURES_MAX + 1 and not any("guess" in line for line in told)


def test_where_wrong_tokens_come_from_one_a_second_is_looked_at_until_a_minute_is_over() -> None:
    now = [0.0]
    logins = FailedLogins(clock=lambda: now[0])

    def is_refused(address: str) -> bool:
        try:
            logins.check(address, "t")
        except Refused as refusal:
            assert refusal.retry_after is not None and 0 < refusal.retry_after <= 1
            return True
        return False

    for _ in range(failed_logins.FAILURES_MAX):
        assert not is_refused("192.0.2.1")
        logins.failed("192.0.2.1")
        logins.failed("2001:db8::1")
    assert is_refused("192.0.2.1") and not is_refused("192.0.2.2")
    assert is_refused("2001:db8::2") and not is_refused("2001:db8:0:1::1")
    assert is_refused("::ffff:192.0.2.1") and not is_refused("::ffff:192.0.2.2")
    now[0] = 0.9
    assert is_refused("192.0.2.1")
    now[0] = 1.0
    assert not is_refused("192.0.2.1")  # whoever has the right one comes in
    logins.failed("::ffff:192.0.2.1")
    now[0] = 1.9
    assert is_refused("192.0.2.1")
    now[0] = 60.0
    logins.failed("192.0.2.1")
    assert not is_refused("192.0.2.1")  # the first ones are forgotten


def test_wrong_tokens_of_many_addresses_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_logins, "KEPT_MAX", 100)
    logins = FailedLogins()
    for number in range(1_000):
        logins.failed(f"192.0.{number // 256}.{number % 256}")
        logins.let_in(str(number))
    assert len(logins._failed) == len(logins._let_in) == 100


@pytest.mark.usefixtures("no_second_passes")
def test_guesses_at_the_servers_own_token_are_bounded_however_many_come_at_once(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(s: Served) -> None:
        guesses = [s.send("GET", "/api/info", headers=bearer(f"{TOKEN}{n}")) for n in range(40)]
        told = [answer.status for answer in await asyncio.gather(*guesses)]
        assert sorted(told) == [401] * failed_logins.FAILURES_MAX + [429] * (40 - failed_logins.FAILURES_MAX)
        refused = await s.get("/api/info")
        assert (refused.status, refused.code) == (429, "too_many_failures"), (
            "the right one at full speed, too"
        )

        monkeypatch.setattr(failed_logins, "LOOK_SECONDS", 0.0)
        assert (await s.get("/api/info")).status == 200
        monkeypatch.setattr(failed_logins, "LOOK_SECONDS", 600.0)
        assert (await s.get("/api/info")).status == 200, "it was let in before"

    on_a_server(sqlite_url, story, token=TOKEN)


def test_the_servers_own_token_is_no_guess_and_a_token_that_ended_neither(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        assert (await s.get("/api/info")).status == 200
        ended = await s.engine.tokens.create("old", "worker")
        await s.engine.tokens.revoke("old")
        for _ in range(2 * failed_logins.FAILURES_MAX):
            assert (await s.send("GET", "/api/info", headers=bearer(ended.text))).status == 401
        fresh = await s.engine.tokens.create("new", "worker")
        assert (await s.send("GET", "/api/info", headers=bearer(fresh.text))).status == 200
        for _ in range(failed_logins.FAILURES_MAX):
            assert (await s.send("GET", "/api/info", headers=bearer("guess"))).status == 401
        assert (await s.get("/api/info")).status == 200

    on_a_server(sqlite_url, story, token=TOKEN)


@pytest.mark.usefixtures("no_second_passes")
def test_nobody_comes_from_where_a_header_says(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        for number in range(failed_logins.FAILURES_MAX + 1):
            told = {**bearer("guess"), "x-forwarded-for": f"192.0.2.{number}"}
            answer = await s.send("GET", "/api/info", headers=told)
        assert answer.status == 429

    on_a_server(sqlite_url, story)


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        ("Bearer {}", 200),
        ("bearer\t{}", 200),
        ("BEARER   {}", 200),
        ("Bearer {} more", 401),
        ("Bearer", 401),
        ("{}", 401),
    ],
)
def test_ways_to_show_a_token(sqlite_url: str, shown: str, status: int) -> None:
    async def story(s: Served) -> None:
        made = await s.engine.tokens.create("ann", "viewer")
        headers = {"authorization": shown.format(made.text)}
        assert (await s.send("GET", "/api/info", headers=headers)).status == status
        twice = [(b"authorization", f"Bearer {made.text}".encode())] * 2
        assert (await s.send("GET", "/api/info", headers=twice)).status == 401

    on_a_server(sqlite_url, story, require_token=True)


def test_a_database_that_is_busy_keeps_nobody_waiting_who_was_let_in_a_moment_ago(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(access, "RECENT_SECONDS", 600.0)

    async def story(s: Served) -> None:
        known = await s.engine.tokens.create("ann", "viewer")
        assert (await s.send("GET", "/openapi.json", headers=bearer(known.text))).status == 200
        token, is_free = s.store.token, asyncio.Event()

        async def slow(token_id: str) -> Any:
            await is_free.wait()
            return await token(token_id)

        monkeypatch.setattr(s.store, "token", slow)
        assert (await s.send("GET", "/openapi.json", headers=bearer(known.text))).status == 200
        monkeypatch.setattr(access, "RECENT_SECONDS", 0.0)
        waiting = asyncio.create_task(s.send("GET", "/openapi.json", headers=bearer(known.text)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        is_free.set()
        assert (await waiting).status == 200

    on_a_server(sqlite_url, story, require_token=True)


# what takes long


def test_a_stream_ends_with_the_token_that_opened_it(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "ADMITTED_SECONDS", 0.0)

    async def story(s: Served) -> None:
        await s.define()
        made = await s.engine.tokens.create("ann", "viewer")
        async with s.http.stream("GET", "/api/events/stream", headers=bearer(made.text)) as stream:
            chunks = stream.aiter_raw()
            first = await anext(chunks)
            assert first
            await s.engine.tokens.revoke("ann")
            await s.engine.submit([Submission(path="p")])
            async with asyncio.timeout(60):
                rest = [chunk async for chunk in chunks]
        assert not any(b"execution_started" in chunk for chunk in rest)

    on_a_server(store_url, story, require_token=True)


def test_a_lease_that_waited_is_not_handed_to_a_token_that_was_revoked(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        made = await s.engine.tokens.create("nightly", "worker")
        lease = {"worker_id": "w1", "types": ["p/a"], "wait": 60}
        waiting = asyncio.create_task(s.post("/api/queue/lease", lease, headers=bearer(made.text)))

        async def is_waiting() -> bool:
            return s.service.services.desk.waiting == 1

        await eventually(is_waiting)
        await s.engine.tokens.revoke("nightly")
        [execution] = await s.engine.submit([Submission(path="p")])
        answer = await waiting
        assert (answer.status, answer.code) == (401, "unauthorized")
        [job] = (await s.engine.view(execution.id)).jobs
        assert (job.status, job.attempts) == ("queued", 0)

    on_a_server(store_url, story, require_token=True)


def test_an_execution_that_was_waited_for_is_not_told_to_a_token_that_was_revoked(store_url: str) -> None:
    async def story(s: Served) -> None:
        await s.define()
        made = await s.engine.tokens.create("ann", "viewer")
        [execution] = await s.engine.submit([Submission(path="p")])
        asked = s.send("GET", f"/api/executions/{execution.id}?wait=60", headers=bearer(made.text))
        waiting = asyncio.create_task(asked)

        async def was_let_in() -> bool:
            tokens = await s.engine.tokens.all()
            return any(token.name == "ann" and token.last_used_at is not None for token in tokens)

        await eventually(was_let_in)
        await s.engine.tokens.revoke("ann")
        await s.engine.cancel(execution.id)
        answer = await waiting
        assert (answer.status, answer.code) == (401, "unauthorized")

    on_a_server(store_url, story, require_token=True)


# headers


def test_every_answer_says_what_a_browser_may_do_with_it(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        for method, path in (
            *(("GET", "/docs"), ("GET", "/api/info"), ("GET", "/metrics"), ("GET", "/nowhere")),
            *(("POST", "/api/info"), ("GET", "/healthz")),
        ):
            headers = (await s.send(method, path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["content-security-policy"].startswith("default-src 'none'")
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cross-origin-resource-policy"] == "same-origin"

    on_a_server(sqlite_url, story)


def test_no_page_of_another_site_is_let_read_anything(sqlite_url: str) -> None:
    async def story(s: Served) -> None:
        asking = {"origin": "http://evil.example", "access-control-request-method": "POST"}
        for method in ("OPTIONS", "GET", "POST"):
            answer = await s.send(method, "/api/executions", headers=asking)
            assert answer.status == 403
            assert not any(name.startswith("access-control") for name in answer.headers)

    on_a_server(sqlite_url, story)
