"""What an operator sets for downloads, and what of it is refused before anything is submitted."""

from __future__ import annotations

import pytest

from holdfast.core.errors import InvalidInput
from holdfast.pipelines.downloads.settings import (
    Credential,
    DownloadSettings,
    file_bytes_max,
    origin_of,
)
from holdfast.pipelines.registry import check_settings


def from_environment(**environ: str) -> DownloadSettings:
    return DownloadSettings.from_environment({f"HOLDFAST_DOWNLOAD_{name}": environ[name] for name in environ})


@pytest.mark.parametrize("text", [None, "", "  "])
def test_what_is_not_set_or_empty_is_as_it_is_by_default(text: str | None) -> None:
    names = ("DELAY", "MAX_RETRIES", "RETRY_DELAYS", "AUTH")
    settings = from_environment(**({} if text is None else dict.fromkeys(names, text)))
    assert settings == DownloadSettings()
    assert (settings.delay_seconds, settings.retries) == (15 * 60, 3)
    assert settings.retry_delays == (60, 180, 300)
    assert settings.credentials == ()
    environ = {} if text is None else {"HOLDFAST_DOWNLOAD_BYTES_MAX": text}
    assert file_bytes_max(environ) == 10 * 1024**3


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("90", 90), (" 2h ", 7200), ("1h30m", 5400), ("0.5", 0.5), ("500ms", 0.5)]
)
def test_the_delay_is_a_duration(text: str, seconds: float) -> None:
    assert from_environment(DELAY=text).delay_seconds == seconds


@pytest.mark.parametrize("text", ["soon", "-1", "1e3", "nan", "15 minutes", "36501d", "15m,20m"])
def test_a_delay_that_is_none_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(InvalidInput, match="HOLDFAST_DOWNLOAD_DELAY") as refused:
        from_environment(DELAY=text)
    assert refused.value.guidance == "Set HOLDFAST_DOWNLOAD_DELAY to a duration such as 15m."


@pytest.mark.parametrize(("text", "retries"), [("0", 0), (" 5 ", 5), ("007", 7), ("999", 999)])
def test_retries_are_a_number(text: str, retries: int) -> None:
    assert from_environment(MAX_RETRIES=text).retries == retries


@pytest.mark.parametrize("text", ["-1", "1000", "3.0", "many", "٣", "²", "9" * 5000])
def test_retries_that_are_no_number_are_refused_by_their_name(text: str) -> None:
    with pytest.raises(InvalidInput, match="HOLDFAST_DOWNLOAD_MAX_RETRIES") as refused:
        from_environment(MAX_RETRIES=text)
    assert "a number from 0 to 999" in refused.value.guidance


@pytest.mark.parametrize(
    ("text", "delays"),
    [("60,180,300", (60, 180, 300)), (" 1m , 2h,", (60, 7200)), ("0", (0,)), ("1.5", (1.5,))],
)
def test_retry_delays_are_durations_with_commas_between(text: str, delays: tuple[float, ...]) -> None:
    assert from_environment(RETRY_DELAYS=text).retry_delays == delays


@pytest.mark.parametrize("text", ["60;180", "60,later", ",", ",".join(["1"] * 101), "-1"])
def test_retry_delays_that_are_none_are_refused_by_their_name(text: str) -> None:
    with pytest.raises(InvalidInput, match="HOLDFAST_DOWNLOAD_RETRY_DELAYS") as refused:
        from_environment(RETRY_DELAYS=text)
    assert "HOLDFAST_DOWNLOAD_RETRY_DELAYS" in refused.value.guidance


@pytest.mark.parametrize(("text", "amount"), [("1", 1), (" 2KB ", 2048), ("10GB", 10 * 1024**3)])
def test_the_size_of_a_file_has_a_limit(text: str, amount: int) -> None:
    assert file_bytes_max({"HOLDFAST_DOWNLOAD_BYTES_MAX": text}) == amount


@pytest.mark.parametrize("text", ["0", "-1", "large", "1XB", "1 2"])
def test_a_limit_that_is_no_size_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(InvalidInput, match="HOLDFAST_DOWNLOAD_BYTES_MAX is ") as refused:
        file_bytes_max({"HOLDFAST_DOWNLOAD_BYTES_MAX": text})
    assert refused.value.guidance == "Set HOLDFAST_DOWNLOAD_BYTES_MAX to a size such as 10GB."


# Credentials


@pytest.mark.parametrize(
    ("text", "credential"),
    [
        (
            "https://portal.example=TOKEN",
            Credential("https://portal.example:443", "authorization", "TOKEN", True),
        ),
        (
            "https://portal.example=X-Api-Key:KEY",
            Credential("https://portal.example:443", "x-api-key", "KEY", False),
        ),
        (
            "http://Portal.Example.:8080/ = Authorization : team/portal.key ",
            Credential("http://portal.example:8080", "authorization", "team/portal.key", False),
        ),
        ("http://[::1]:9000=T", Credential("http://[::1]:9000", "authorization", "T", True)),
    ],
)
def test_a_credential_names_an_origin_a_header_and_a_secret(text: str, credential: Credential) -> None:
    assert from_environment(AUTH=text).credentials == (credential,)


def test_several_credentials_have_commas_between() -> None:
    found = from_environment(AUTH="https://a=ONE, https://a=X-Key:TWO,https://b=ONE,").credentials
    assert [(one.origin, one.header, one.secret) for one in found] == [
        ("https://a:443", "authorization", "ONE"),
        ("https://a:443", "x-key", "TWO"),
        ("https://b:443", "authorization", "ONE"),
    ]


@pytest.mark.parametrize(
    "origin",
    [
        *(
            "",
            "portal.example",
            "ftp://portal.example",
            "https://",
            "https:///x",
            "https://portal.example/path",
        ),
        *("https://portal.example?x", "https://portal.example#x", "https://user@portal.example"),
        *("https://portal.example:99999", "https://portal.example:port", "https://[::1"),
        *('https://a"b', "https://a\\b", "https://a b", "https://{{x}}", "https://bücher.example"),
    ],
)
def test_what_is_more_or_less_than_an_origin_is_refused(origin: str) -> None:
    with pytest.raises(InvalidInput, match=r"HOLDFAST_DOWNLOAD_AUTH: .* is no origin of a portal") as refused:
        from_environment(AUTH=f"{origin}=TOKEN")
    assert "https://portal.example=SECRET" in refused.value.guidance


@pytest.mark.parametrize(
    "named", ["", "=TOKEN", ":TOKEN", "X Key:TOKEN", "X-Key:", "a b", "/etc/passwd", "x'y"]
)
def test_what_names_no_secret_is_refused(named: str) -> None:
    with pytest.raises(InvalidInput, match="HOLDFAST_DOWNLOAD_AUTH: what stands behind https://a= does not"):
        from_environment(AUTH=f"https://a={named}")


def test_a_credential_without_a_secret_is_refused() -> None:
    with pytest.raises(InvalidInput, match="does not name a secret"):
        from_environment(AUTH="https://portal.example")


def test_a_header_of_an_origin_is_named_once() -> None:
    with pytest.raises(InvalidInput, match="named twice"):
        from_environment(AUTH="https://a=ONE,https://A:443/=authorization:TWO")


def test_a_password_in_the_place_of_an_origin_is_not_told() -> None:
    with pytest.raises(InvalidInput) as refused:
        from_environment(AUTH="https://ann:hunter22@portal.example=TOKEN")
    assert "hunter22" not in f"{refused.value} {refused.value.guidance}"


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://portal.example/a?b#c", "https://portal.example:443"),
        ("HTTP://Portal.EXAMPLE.:8080", "http://portal.example:8080"),
        ("http://[::1]/", "http://[::1]:80"),
        ("http://ann:secret@portal.example", "http://portal.example:80"),
    ],
)
def test_an_origin_is_scheme_host_and_port_written_in_one_way(url: str, origin: str) -> None:
    assert origin_of(url) == origin


def test_wrong_settings_are_told_when_a_process_starts_and_not_by_the_first_item(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, of_worker in (("HOLDFAST_DOWNLOAD_DELAY", False), ("HOLDFAST_DOWNLOAD_BYTES_MAX", True)):
        check_settings(of_worker=of_worker)
        monkeypatch.setenv(name, "soon")
        with pytest.raises(InvalidInput, match=name):
            check_settings(of_worker=of_worker)
        check_settings(of_worker=not of_worker)
        monkeypatch.delenv(name)


def test_a_storage_that_is_none_is_told_when_a_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORAGE", "ftp://files.example")
    with pytest.raises(InvalidInput, match=r"HOLDFAST_STORAGE: .* is no address") as refused:
        check_settings(of_worker=True)
    assert refused.value.guidance
