"""Playbooks for the tests of commands."""

from pathlib import Path

HEAD = "apiVersion: holdfast/v1\nkind: Playbook\nmetadata: {name: flow, path: tests/flow}\n"

CHAIN = (
    HEAD
    + """workload: {who: ann, times: 2, deep: {left: 1, right: 2}}
workflow:
  - step: greet
    type: python
    code: |
      def main(input_data):
          return {"said": "hello " + input_data["who"]}
    with: {who: "{{ workload.who }}"}
    next: count
  - step: count
    type: python
    code: |
      def main(input_data):
          return {"chars": len(input_data["said"]), "deep": input_data["deep"]}
    with: {said: "{{ greet.said }}", deep: "{{ workload.deep }}"}
"""
)

BROKEN = HEAD + "workflow:\n  - step: a\n    type: htpp\n  - step: b\n    next: nowhere\n  - step: b\n"


def playbook(steps: str, *, path: str = "tests/flow", workload: str = "{}") -> str:
    """A playbook with these steps, given as YAML."""
    return HEAD.replace("tests/flow", path) + f"workload: {workload}\nworkflow:\n{steps.strip(chr(10))}\n"


def written(folder: Path, source: str, name: str = "flow.yaml") -> str:
    file = folder / name
    file.write_text(source)
    return str(file)
