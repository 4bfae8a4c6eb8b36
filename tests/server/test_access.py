"""Who may speak with a server."""

import pytest

from holdfast.core.errors import InvalidInput
from holdfast.server.access import Access
from serving import Served, on_a_server

TOKEN = "a-secret-of-sixteen-or-more"
FOLLOWED = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_without_a_token_nobody_listens_beyond_this_machine(host: str) -> None:
    with pytest.raises(InvalidInput, match="no token is set") as refusal:
        Access(host, None)
    assert "HOLDFAST_TOKEN" in refusal.value.guidance
    Access(host, TOKEN)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "localhost", "::1", "[::1]"])
def test_on_this_machine_no_token_is_needed(host: str) -> None:
    Access(host, None)


@pytest.mark.parametrize(
    "token", ["short", "with\nbreaks and more of it", "ünicode-is-not-for-headers", " with-a-blank-before"]
)
def test_a_token_that_is_none_is_refused(token: str) -> None:
    with pytest.raises(InvalidInput):
        Access("127.0.0.1", token)


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
