"""requirements.lock: all that `make setup` installs, in one version each."""

import re
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

LOCK = Path(__file__).parent.parent / "requirements.lock"


def locked() -> list[Requirement]:
    """What the lock names, of that which is for this machine."""
    lines = re.findall(r"^([a-z][^\\\n]*)", LOCK.read_text(), re.MULTILINE)
    requirements = [Requirement(line.strip()) for line in lines]
    return [each for each in requirements if each.marker is None or each.marker.evaluate()]


def test_an_extra_that_a_package_asks_for_is_named_in_the_lock() -> None:
    # Else pip takes the newest version with that extra, and fails once it is not the locked one.
    extras = {each.name: each.extras for each in locked()}
    missing = [
        f"{package} asks for {needed}"
        for package, own in extras.items()
        for needed in map(Requirement, distribution(package).requires or [])
        if any(needed.marker is None or needed.marker.evaluate({"extra": extra}) for extra in ("", *own))
        and not needed.extras <= extras.get(needed.name, set())
    ]
    assert missing == []


def test_the_lock_names_one_version_with_hashes_and_no_address() -> None:
    text = LOCK.read_text()
    for requirement in locked():
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), requirement
    entries = re.split(r"^(?=[a-z])", text, flags=re.MULTILINE)[1:]
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    assert "://" not in text
