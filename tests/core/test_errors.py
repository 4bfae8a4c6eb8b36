"""The exception tree: codes, guidance, and that all of it crosses a process boundary."""

import pickle

import pytest

from holdfast.core import errors

CODES = {
    "HoldfastError": "holdfast_error",
    "TransientError": "transient_error",
    "PermanentError": "permanent_error",
    "InvalidInput": "invalid_input",
    "PayloadInvalid": "payload_invalid",
    "PayloadTooLarge": "payload_too_large",
    "PolicyInvalid": "policy_invalid",
    "DefinitionInvalid": "definition_invalid",
    "UnknownName": "unknown_name",
    "UnknownPipeline": "unknown_pipeline",
    "UnknownStep": "unknown_step",
    "UnknownExecution": "unknown_execution",
    "IdempotencyConflict": "idempotency_conflict",
    "StaleLease": "stale_lease",
    "StoreError": "store_error",
    "StoreUrlInvalid": "store_url_invalid",
    "StoreUnavailable": "store_unavailable",
    "StoreUnusable": "store_unusable",
    "SchemaTooNew": "schema_too_new",
    "SchemaTooOld": "schema_too_old",
}

PARENTS = {
    "InvalidInput": ["PayloadInvalid", "PayloadTooLarge", "PolicyInvalid", "DefinitionInvalid"],
    "UnknownName": ["UnknownPipeline", "UnknownStep", "UnknownExecution"],
    "StoreError": ["StoreUrlInvalid", "StoreUnavailable", "StoreUnusable", "SchemaTooNew", "SchemaTooOld"],
}


class PortalDown(errors.TransientError):
    """As a user would write it: presets on the class, a constructor of its own."""

    error_type = "portal_down"
    guidance = "Look at the portal's status page."

    def __init__(self, portal: str, *, region: str) -> None:
        super().__init__(f"{portal} is down in {region}")
        self.region = region


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_every_error_has_its_code_a_message_and_guidance(name: str, code: str) -> None:
    kind = getattr(errors, name)
    error = kind("what and which", guidance="what next")
    assert isinstance(error, errors.HoldfastError)
    assert (error.code, str(error), error.guidance) == (code, "what and which", "what next")


@pytest.mark.parametrize(("parent", "children"), PARENTS.items())
def test_related_errors_can_be_caught_together(parent: str, children: list[str]) -> None:
    assert all(issubclass(getattr(errors, child), getattr(errors, parent)) for child in children)


def test_the_docstring_draws_every_error() -> None:
    assert all(name in (errors.__doc__ or "") for name in [*CODES, "RetryRefused"])


def test_guidance_is_empty_when_none_is_given() -> None:
    assert errors.StaleLease("gone").guidance == ""


@pytest.mark.parametrize("kind", [errors.TransientError, errors.PermanentError])
def test_a_handler_may_say_everything_or_nothing(kind: type[errors.TransientError]) -> None:
    silent = kind()
    assert (str(silent), silent.error_type, silent.user_message, silent.guidance, silent.retry_after) == (
        "",
        None,
        None,
        None,
        None,
    )
    told = kind("m", error_type="t", user_message="u", guidance="g", retry_after=2.5)
    assert (str(told), told.error_type, told.user_message, told.guidance, told.retry_after) == (
        "m",
        "t",
        "u",
        "g",
        2.5,
    )


def test_a_subclass_may_preset_what_it_says_on_its_class() -> None:
    error = PortalDown("north", region="eu")
    assert error.error_type == "portal_down"
    assert error.guidance == "Look at the portal's status page."


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("not_failed", 409),
        ("child_execution", 409),
        ("permanent_error", 409),
        ("retry_cap", 429),
        ("cooldown", 429),
        ("confirmation_required", 409),
    ],
)
def test_a_refused_retry_knows_its_http_status(code: errors.RefusalCode, status: int) -> None:
    error = errors.RetryRefused("no", code=code, guidance="wait", retry_after=12.0)
    assert (error.code, error.http_status, error.guidance, error.retry_after) == (code, status, "wait", 12.0)


def test_a_retry_cannot_be_refused_for_an_unheard_of_reason() -> None:
    with pytest.raises(ValueError, match="cooldown"):
        errors.RetryRefused("no", code="mood")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [
        errors.PolicyInvalid("m", guidance="g"),
        errors.PermanentError("m", error_type="t", retry_after=1.0),
        errors.RetryRefused("m", code="cooldown", retry_after=3.0),
        PortalDown("north", region="eu"),
    ],
)
def test_errors_survive_pickling(error: errors.HoldfastError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.code, copy.__dict__) == (str(error), error.code, error.__dict__)
