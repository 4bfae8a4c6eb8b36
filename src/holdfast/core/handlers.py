"""The keys of jobs: what a worker must offer to be given one.

A step of a program's own pipeline has `path/step`, a function that playbooks call `python/module:function`, a
built-in type `type/name`. Code and commands of playbooks have keys of their own, so that they are given only
to workers with leave for them.
"""

from __future__ import annotations

HTTP = "type/http"
SQL = "type/sql"
SLEEP = "type/sleep"
PLAYBOOK = "type/playbook"
EACH = "type/each"
CODE = "code/python"
SHELL = "code/shell"
FUNCTION_PREFIX = "python/"
"""Of the key of a registered function: `python/module:function`."""
BUILT_IN_PREFIX = f"{FUNCTION_PREFIX}holdfast."
"""Of functions of Holdfast itself, which every worker of the command line has."""

HOLDFASTS_OWN = frozenset({EACH, SLEEP, PLAYBOOK})
"""What puts an attempt aside or makes further jobs of it: that takes a worker of Holdfast's own."""


def handler_key(pipeline: str, step: str) -> str:
    """Of a step of a program's own pipeline."""
    return f"{pipeline}/{step}"
