"""The user's own rules: when they are asked, what they match, and which are refused."""

import json

import pytest

from holdfast.core.catalogue import Category
from holdfast.core.error_rules import ErrorRule
from holdfast.core.errors import DefinitionInvalid
from holdfast.core.failures import Failure, classify

T, P, U = Category.TRANSIENT, Category.PERMANENT, Category.UNKNOWN

RULES = (
    ErrorRule(error_type="bad_login", category=P, message="login  failed", user_message="Wrong password"),
    ErrorRule(error_type="not_ready", status=404),
    ErrorRule(error_type="odd", exception="KeyError", status=500),
    ErrorRule(error_type="timeout", exception="holdfast.Slow", category=P, guidance="Do less."),
)


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (Failure(message="the Login failed."), ("bad_login", P, "errors rule 1: message 'login  failed'")),
        (Failure(message="x", status_code=404), ("not_ready", T, "errors rule 2: status 404")),
        (
            Failure(message="x", exception_types=("a.Sub", "builtins.KeyError"), status_code=500),
            ("odd", U, "errors rule 3: exception KeyError, status 500"),
        ),
        (
            Failure(message="x", exception="holdfast.Slow"),
            ("timeout", P, "errors rule 4: exception holdfast.Slow"),
        ),
        (Failure(message="x", exception="KeyError", status_code=503), ("validation_error", P, None)),
        (Failure(message="login failedly"), ("unknown", U, None)),
        (Failure(message="x", status_code=404, category=P), ("permanent_error", P, None)),
        (Failure(message="x", status_code=404, error_type="invalid_file"), ("not_ready", T, None)),
    ],
)
def test_own_rules_come_after_declarations_and_before_everything_else(
    failure: Failure, expected: tuple[str, Category, str | None]
) -> None:
    found = classify(failure, RULES)
    assert (found.error_type, found.category) == expected[:2]
    assert expected[2] in (None, found.rule)


def test_a_rule_may_have_words_of_its_own() -> None:
    assert classify(Failure(message="login failed"), RULES).user_message == "Wrong password"
    assert classify(Failure(message="x", exception="holdfast.Slow"), RULES).guidance == "Do less."


def test_a_rule_survives_its_plain_form() -> None:
    for rule in RULES:
        assert ErrorRule.from_dict(json.loads(json.dumps(rule.to_dict()))) == rule


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"error_type": "x"}, "no condition"),
        ({"status": 404}, "error_type"),
        ({"error_type": "", "status": 404}, "error_type"),
        ({"error_type": "x", "status": "404"}, "status"),
        ({"error_type": "x", "status": True}, "status"),
        ({"error_type": "x", "status": 99}, "status"),
        ({"error_type": "x", "message": " "}, "message"),
        ({"error_type": "x", "exception": 5}, "exception"),
        ({"error_type": "x", "status": 404, "category": "maybe"}, "transient, permanent, unknown"),
        ({"error_type": "x", "status": 404, "category": []}, "category"),
        ({"error_type": "x", "words": "y"}, "'words'.*allowed are error_type"),
        ("404", "mapping"),
    ],
)
def test_a_wrong_rule_is_refused(data: object, named: str) -> None:
    with pytest.raises(DefinitionInvalid, match=named):
        ErrorRule.from_dict(data)
