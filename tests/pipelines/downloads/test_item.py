"""Items of downloads: their forms, what is refused of them and why, and what is stored of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidInput
from holdfast.pipelines.downloads.item import (
    DownloadPart,
    RequestPart,
    TakingIn,
    filled,
    item_of,
    places_in,
)

URL = "https://portal.example/reports"
SHA256 = "0123456789abcdefABCDEF".ljust(64, "0")


def refusal_of(workload: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as refused:
        item_of(workload)
    assert refused.value.guidance
    return refused.value


def test_an_address_alone_is_a_request_by_post() -> None:
    item = item_of({"request": URL})
    assert item.asked == RequestPart(url=URL)
    assert item.asked.method == "POST"
    assert item.fetched == DownloadPart(url=None)


def test_where_the_file_is_may_be_an_address_alone() -> None:
    assert item_of({"request": URL, "download": f"{URL}/{{ticket}}"}).fetched.url == f"{URL}/{{ticket}}"


def test_an_item_with_everything() -> None:
    workload = {
        "request": {
            "url": URL,
            "method": "PUT",
            "headers": {"X-Team": "north"},
            "params": {"page": 1},
            "json": {"report": "north"},
        },
        "download": {"url": f"{URL}/{{ticket}}/file", "headers": {"Accept": "text/csv"}},
        "file": "june/north.csv",
        "sha256": SHA256,
        "size": 0,
        "key": "june north #1",
        "note": {"for": "ann"},
    }
    assert TakingIn("june")(workload) == workload


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH"])
def test_a_portal_is_asked_with_these_methods(method: str) -> None:
    assert item_of({"request": {"url": URL, "method": method}}).asked.method == method


# What is refused


@pytest.mark.parametrize("workload", [None, [], "https://portal.example", 3, True])
def test_what_is_no_object_is_no_item(workload: Any) -> None:
    assert str(refusal_of(workload)).startswith("An item of downloads is an object, not ")


@pytest.mark.parametrize(
    ("workload", "word"),
    [
        ({}, "request"),
        ({"request": None}, "request"),
        ({"request": ""}, "request"),
        ({"request": "https://portal.example/" + "x" * 4_000}, "4000"),
        ({"request": {"json": {}}}, "url"),
        ({"request": {"url": URL, "method": "DELETE"}}, "DELETE"),
        ({"request": {"url": URL, "method": "post"}}, "post"),
        ({"request": {"url": URL, "headers": {"X-N": 1}}}, "request.headers"),
        ({"request": {"url": URL, "body": b"bytes"}}, "body"),
        ({"request": {"url": URL, "form": "a=1"}}, "form"),
        ({"request": {"url": URL, "follow_redirects": False}}, "follow_redirects"),
        ({"request": URL, "download": {"uri": URL}}, "uri"),
        ({"request": URL, "downloads": URL}, "downloads"),
        ({"request": URL, "file": ""}, "file"),
        ({"request": URL, "file": 5}, "file"),
        ({"request": URL, "file": "x" * 501}, "file"),
        ({"request": URL, "sha256": "0" * 63}, "sha256"),
        ({"request": URL, "sha256": "g" * 64}, "sha256"),
        ({"request": URL, "sha256": "0" * 64 + "\n"}, "sha256"),
        ({"request": URL, "size": -1}, "size"),
        ({"request": URL, "size": True}, "size"),
        ({"request": URL, "size": 1.5}, "size"),
        ({"request": URL, "key": ""}, "key"),
        ({"request": URL, "key": "k" * 201}, "key"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(workload: Any, word: str) -> None:
    told = str(refusal_of(workload))
    assert told.startswith("The item does not fit: ")
    assert word in told


WRONG_URLS = [
    *("portal.example", "/reports", "ftp://portal.example", "https://", "https://:80/", "https://a b/"),
    *(
        "https://a\n",
        "https://portal.example:99999",
        "https://portal.example:x",
        "http://[::1",
        "https://\ud800",
    ),
]


@pytest.mark.parametrize("url", WRONG_URLS)
def test_an_address_that_cannot_be_asked_at_is_refused_with_its_field(url: str) -> None:
    assert str(refusal_of({"request": url})).startswith("request.url: ")
    assert str(refusal_of({"request": URL, "download": url})).startswith("download.url: ")


@pytest.mark.parametrize("url", ["https://ann:hunter2@portal.example/", "https://ann@portal.example/"])
def test_a_password_in_an_address_is_refused_and_not_repeated(url: str) -> None:
    for workload in ({"request": url}, {"request": URL, "download": url}):
        refused = refusal_of(workload)
        assert "The address has a user name or a password in it." in str(refused)
        assert "hunter2" not in f"{refused} {refused.guidance}"
        assert "HOLDFAST_DOWNLOAD_AUTH" in refused.guidance


@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "authorization", "Cookie", "Proxy-Authorization", "X-Api-Key", "X-Auth-Token"),
        *("Set-Cookie", "X-Session", "Client-Secret", "apikey", "X-Password"),
    ],
)
def test_a_header_that_is_a_secret_is_refused_for_items_are_shown(name: str) -> None:
    for workload in headed({name: "s3cr3t-value"}):
        refused = refusal_of(workload)
        assert f"headers: The header {name.lower()} is a secret, and items are shown." in str(refused)
        assert "s3cr3t-value" not in f"{refused} {refused.guidance}"


@pytest.mark.parametrize("name", ["Range", "If-Range", "Accept-Encoding", "Idempotency-Key"])
def test_a_header_of_the_pipeline_itself_is_refused(name: str) -> None:
    for workload in headed({name: "bytes=0-"}):
        assert f"The header {name.lower()} is set by the pipeline itself." in str(refusal_of(workload))


@pytest.mark.parametrize(
    "headers",
    [
        {"X A": "1"},
        {"": "1"},
        {"X-A": "1\r\nX-B: 2"},
        {"X-A": "\0"},
        {"Content-Length": "5"},
        {"Transfer-Encoding": "chunked"},
        {"X-A": "1", "x-a": "2"},
    ],
)
def test_a_header_that_cannot_be_sent_is_refused(headers: dict[str, str]) -> None:
    for workload in headed(headers):
        assert "headers: " in str(refusal_of(workload))


def headed(headers: dict[str, str]) -> list[Any]:
    return [
        {"request": {"url": URL, "headers": headers}},
        {"request": URL, "download": {"headers": headers}},
    ]


@pytest.mark.parametrize(
    "bodies", [{"json": {}, "form": {}}, {"body": "", "form": {"a": 1}}, {"json": 0, "body": "x", "form": {}}]
)
def test_a_request_has_one_body(bodies: dict[str, Any]) -> None:
    refused = refusal_of({"request": {"url": URL, **bodies}})
    assert str(refused) == f"request: It has {' and '.join(bodies)}; a request has one body."


@pytest.mark.parametrize(
    "file", ["/etc/passwd", "../x", "a/../x", "a//b", ".hidden", "a\\b", "a\nb", "x" * 201]
)
def test_a_file_that_would_lie_elsewhere_is_refused(file: str) -> None:
    assert str(refusal_of({"request": URL, "file": file})).startswith("file: The name of a stored file")


@pytest.mark.parametrize("key", ["a\nb", "ключ", "a\x7f", "é"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    assert str(refusal_of({"request": URL, "key": key})) == "key: It is sent as a header."


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
FIELDS = ("request", "download", "file", "sha256", "size", "key", "note", "url", "headers", "json")


@given(ANYTHING | st.dictionaries(st.sampled_from(FIELDS), ANYTHING | st.just(URL)))
def test_whatever_is_given_it_is_an_item_or_refused(workload: Any) -> None:
    try:
        item = item_of(workload)
    except InvalidInput:
        return
    assert item_of(TakingIn()(workload)).request == item.request


# What is stored


def test_an_item_keeps_the_key_it_has() -> None:
    assert TakingIn("june")({"request": URL, "key": "mine"})["key"] == "mine"


def test_an_item_without_one_gets_a_key_of_its_own() -> None:
    take_in = TakingIn()
    keys = {take_in({"request": URL})["key"] for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) == 32 and key.isalnum() for key in keys)


def test_in_a_batch_with_a_key_what_is_submitted_again_is_the_same() -> None:
    assert TakingIn("june")({"request": URL}, 7) == TakingIn("june")({"request": URL}, 7)
    others = {
        TakingIn(key)({"request": URL}, place)["key"]
        for key in ("june", "july", "")
        for place in (1, 11, 111)
    }
    assert len(others) == 9


def test_a_batch_has_one_item_for_each_file() -> None:
    take_in = TakingIn()
    for file in ("a.csv", "b.csv", None, None):
        take_in({"request": URL, **({} if file is None else {"file": file})})
    with pytest.raises(
        InvalidInput, match=r"An item before it is to be kept in the same file, 'a\.csv'"
    ) as refused:
        take_in({"request": URL, "file": "a.csv"})
    assert refused.value.guidance
    TakingIn()({"request": URL, "file": "a.csv"})


# Addresses with places


def test_places_are_found_and_filled() -> None:
    url = "https://portal.example/{ticket}/{data.file_0.id}?t={ticket}"
    assert places_in(url) == ["ticket", "data.file_0.id", "ticket"]
    assert filled(url, {"ticket": "T1", "data.file_0.id": "9"}) == "https://portal.example/T1/9?t=T1"


@pytest.mark.parametrize(
    "url", ["https://a/{}", "https://a/{1x}", "https://a/{a b}", "https://a/{a.}", "https://a/{a"]
)
def test_what_is_no_place_stays_as_it_is(url: str) -> None:
    assert places_in(url) == []
    assert filled(url, {}) == url


def test_what_is_filled_in_is_not_looked_through_again() -> None:
    assert filled("https://a/{x}", {"x": "{y}", "y": "no"}) == "https://a/{y}"


@pytest.mark.parametrize("name", ["Host", "X-Forwarded-Host", "Forwarded"])
def test_who_submits_an_item_does_not_choose_the_host_that_credentials_go_to(name: str) -> None:
    for workload in (
        {"request": {"url": URL, "headers": {name: "evil.example"}}},
        {"request": URL, "download": {"headers": {name: "evil.example"}}},
    ):
        assert "is set by the pipeline itself" in str(refusal_of(workload))


@pytest.mark.parametrize("url", ["/{ticket", "/ticket}", "/{}", "/{report-id}", "/{ticket!r}", "/{0.a}"])
def test_a_place_that_is_none_is_told_and_not_sent(url: str) -> None:
    refused = refusal_of({"request": URL, "download": URL + url})
    assert "download.url: It has a brace that is no part of a {field}" in str(refused)


@pytest.mark.parametrize("field", ["params", "form"])
def test_what_no_request_can_carry_is_refused(field: str) -> None:
    refused = refusal_of({"request": {"url": URL, field: {"a": {"b": 1}}}})
    assert str(refused) == f"request: {field}.a must be a text or a number, not a dict."


def test_items_of_one_batch_have_files_and_keys_of_their_own() -> None:
    take_in = TakingIn()
    take_in({"request": URL, "file": "a", "key": "one"}, 0)
    for other, told in (({"file": "a"}, "the same file, 'a'"), ({"key": "one"}, "the same key, 'one'")):
        with pytest.raises(InvalidInput, match=told):
            take_in({"request": URL, **other}, 1)


def test_another_request_under_the_same_key_of_a_batch_has_another_key() -> None:
    one, other = (TakingIn("june")({"request": {"url": URL, "json": report}}) for report in ("a", "b"))
    assert one["key"] != other["key"]
    assert one == TakingIn("june")({"request": {"url": URL, "json": "a"}})
