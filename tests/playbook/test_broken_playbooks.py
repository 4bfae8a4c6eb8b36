"""Playbooks that are refused: each with the line, the field, and what is wrong or allowed there.

The line that must be told is the one with `# here` on it.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from holdfast.playbook.faults import PlaybookInvalid
from holdfast.playbook.load import load_playbook

HEAD = "apiVersion: holdfast/v1\nmetadata: {name: broken}\nworkload: {base_url: 'http://127.0.0.1'}\n"
FLOW = HEAD + "workflow:\n"


class Broken(NamedTuple):
    name: str
    text: str | bytes
    field: str
    says: str
    line: int | None = None


def http(*lines: str) -> str:
    """One http step with these lines more."""
    return FLOW + "\n".join(["- step: fetch", "  type: http", "  url: http://127.0.0.1/", *lines]) + "\n"


def step(*lines: str) -> str:
    return FLOW + "\n".join(["- step: one", *lines]) + "\n"


def chain(*lines: str) -> str:
    """The step `first`, then one named `second` with these lines."""
    first = ["- step: first", "  type: sleep", "  seconds: 1", "  next: second"]
    return FLOW + "\n".join([*first, "- step: second", *lines]) + "\n"


ALIAS_BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9)
)

YAML = [
    Broken("empty file", "", "", "The file is empty", 1),
    Broken("only comments", "# nothing\n", "", "The file is empty", 1),
    Broken("a text", "hello\n", "", "A playbook cannot be 'hello'. Allowed: a mapping", 1),
    Broken("a list", "- a\n- b\n", "", "A playbook cannot be a list", 1),
    Broken("null", "~\n", "", "A playbook cannot be empty", 1),
    Broken("ten megabytes", b"x" * 10_000_000, "", "The file has 10,000,000 bytes. At most 1,048,576", 1),
    Broken("alias bomb", ALIAS_BOMB, "a5[1]", "unfolds to too many values. At most 200,000", 6),
    Broken("ten thousand brackets", "[" * 10_000, "", "nested too deeply. At most 50 levels", 1),
    Broken("tab", FLOW + "- step: a\n\ttype: http # here\n", "", "indented with a tab. Indent with spaces"),
    Broken("nul", "apiVersion: holdfast/v1\nkind: a\0b # here\n", "", "U+0000 is not allowed"),
    Broken("escaped nul", step('  desc: "a\\0b" # here'), "workflow[0].desc", "holds a NUL character"),
    Broken("latin-1", FLOW.encode() + b"- step: caf\xe9 # here\n", "", "(0xe9) is no UTF-8 text"),
    Broken("odd UTF-16", b"\xff\xfea\x00\n\x00b", "", "is no UTF-16 text. Save the file as UTF-8", 2),
    Broken(
        "duplicate key", http("  timeout: 1", "  timeout: 2 # here"), "workflow[0].timeout", "given twice"
    ),
    Broken("second document", "a: 1\n--- # here\nb: 2\n", "", "second document in the file. One playbook"),
    Broken("python tag", HEAD + "x: !!python/object:os.system ls # here\n", "x", "!!python/object:os.system"),
    Broken("tag of a list", HEAD + "x: !mine [1] # here\n", "x", "The tag !mine is not allowed"),
    Broken("merge key", step("  <<: {type: http} # here"), "workflow[0]", "cannot be merged with <<"),
    Broken("unknown alias", step("  desc: *nobody # here"), "workflow[0].desc", "*nobody stands for nothing"),
    Broken("alias of itself", "a: &a [*a] # here\n", "a[0]", "*a stands for nothing that is complete"),
    Broken("number as a key", "1: x # here\n", "", "The key '1' is no text. Put it in quotes"),
    Broken("list as a key", "? [a]  # here\n: b\n", "", "A key must be a text"),
    Broken("huge number", HEAD + "x: 123456789012345678901234567890 # here\n", "x", "Numbers of 64 bits"),
    Broken("infinity", HEAD + "x: .inf # here\n", "x", "cannot be kept as it is"),
    Broken(
        "open quote", FLOW + "- step: 'a # here\n", "", "This is not YAML: while scanning a quoted scalar"
    ),
    Broken("open bracket", FLOW + "- step: a\n  next: [b # here\n", "", "This is not YAML"),
    Broken("old line ends", "a: 1\r\nb: 2\rc: 3\r\nd: [}\re: 5\n", "", "This is not YAML", 4),
    Broken("odd character behind old line ends", "a: 1\rb: \x01\r", "", "U+0001 is not allowed", 2),
    Broken("two colons", step("  desc: a: b # here"), "", "mapping values are not allowed"),
    Broken(
        "bare template", step("  type: http", "  url: {{ base_url }} # here"), "workflow[0].url", "in quotes"
    ),
    Broken("bare template and more", step("  url: {{ base_url }}/x # here"), "", 'in quotes: "{{ … }}"'),
]

HEADS = [
    Broken(
        "no apiVersion",
        "kind: Playbook\nworkflow: []\n",
        "",
        "'apiVersion' is missing. Allowed: holdfast/v1",
        1,
    ),
    Broken(
        "other apiVersion", FLOW.replace("/v1", "/v2 # here", 1), "apiVersion", "Did you mean 'holdfast/v1'?"
    ),
    Broken(
        "other kind", FLOW + "kind: Workflow # here\n", "kind", "It cannot be 'Workflow'. Allowed: Playbook"
    ),
    Broken(
        "unknown field", FLOW + "worklod: {} # here\n", "worklod", "Did you mean 'workload'? Allowed: apiV"
    ),
    Broken("no name", "apiVersion: holdfast/v1\nworkflow: [{step: a}]\n", "metadata", "has no name", 1),
    Broken(
        "name is no path", FLOW.replace("broken", "'a b' # here\n "), "metadata.name", "cannot be its path"
    ),
    Broken(
        "odd path",
        FLOW.replace("name: broken", "path: 'a b' # here\n "),
        "metadata.path",
        "letters (a-z, A-Z), digits",
    ),
    Broken(
        "workload is a list",
        "apiVersion: holdfast/v1\nworkload: [1] # here\n",
        "workload",
        "mapping of names",
    ),
    Broken(
        "template in workload",
        "apiVersion: holdfast/v1\nworkload:\n  a: ['{{ env.HOME }}'] # here\nworkflow: [{step: a}]\n",
        "workload.a[0]",
        "a template in it is never evaluated",
    ),
    Broken("no workflow", HEAD, "workflow", "'workflow' is missing. Allowed: a list of steps", 1),
    Broken("empty workflow", HEAD + "workflow: [] # here\n", "workflow", "cannot be an empty list"),
    Broken("workflow is a mapping", HEAD + "workflow: {a: 1} # here\n", "workflow", "cannot be a mapping"),
    Broken(
        "too many steps", FLOW + "- {step: a}\n" * 10_001, "workflow", "has 10,001 steps. At most 10,000", 4
    ),
    Broken(
        "workbook", FLOW + "- step: a\nworkbook: [{task: x}] # here\n", "workbook", "Write the task's fields"
    ),
    Broken(
        "bad default",
        FLOW + "- step: a\ndefaults: {retry: 0} # here\n",
        "defaults.retry",
        "true, false, a num",
    ),
    Broken(
        "unknown default",
        FLOW + "- step: a\ndefaults: {rety: 1} # here\n",
        "defaults.rety",
        "Did you mean 'retry'",
    ),
    Broken(
        "rule without condition",
        FLOW + "- step: a\nerrors: [{error_type: x}] # here\n",
        "errors[0]",
        "at least",
    ),
    Broken(
        "rule for no status",
        http("  errors:", "  - {status: 99, error_type: x} # here"),
        "step fetch, errors[0].status",
        "from 100 to 599",
    ),
    Broken(
        "rule of no category",
        http("  errors:", "  - {status: 404, error_type: x, category: bad} # here"),
        "step fetch, errors[0].category",
        "Allowed: transient, permanent, unknown",
    ),
]

STEPS = [
    Broken("odd field", http("  <text>: 3 # here"), "step fetch, <text>", "There is no field '<text>'"),
    Broken("step is a text", FLOW + "- fetch # here\n", "workflow[0]", "A step cannot be 'fetch'"),
    Broken(
        "step without name",
        FLOW + "- type: http # here\n  url: http://a/\n",
        "workflow[0]",
        "'step' is missing",
    ),
    Broken(
        "odd step name",
        FLOW + "- step: a b # here\n",
        "step a b, step",
        "It cannot be 'a b'. Allowed: a letter",
    ),
    Broken("number as step name", FLOW + "- step: 3 # here\n", "workflow[0].step", "It cannot be 3"),
    Broken("duplicate step", FLOW + "- step: a\n- step: a # here\n", "step a, step", "already, in line 5"),
    Broken(
        "reserved step name",
        FLOW + "- step: data # here\n  type: sleep\n  seconds: 1\n",
        "step data, step",
        "templates read something else",
    ),
    Broken(
        "unknown type",
        step("  type: htpp # here"),
        "step one, type",
        "Did you mean 'http'? Allowed: http, py",
    ),
    Broken("type is a number", step("  type: 3 # here"), "step one, type", "There is no type 3"),
    Broken("iterator", step("  type: iterator # here"), "step one, type", "for_each"),
    Broken("workbook step", step("  tool: workbook # here"), "step one, tool", "Write the task's fields"),
    Broken("tool with a kind", step("  tool: {kind: http} # here"), "step one, tool", "Write `type: http`"),
    Broken(
        "type and tool",
        step("  type: http", "  tool: http # here", "  url: http://a/"),
        "step one, tool",
        "one of them",
    ),
    Broken(
        "unknown field of a step", http("  retyr: 3 # here"), "step fetch, retyr", "Did you mean 'retry'?"
    ),
    Broken(
        "field of another type",
        http("  query: SELECT 1 # here"),
        "step fetch, query",
        "There is no field 'query'",
    ),
    Broken("save", http("  save: {storage: postgres} # here"), "step fetch, save", "Add a step of type sql"),
    Broken("case", http("  case: [] # here"), "step fetch, case", "when"),
    Broken(
        "field on a control step",
        step("  timeout: 3 # here"),
        "step one, timeout",
        "There is no field 'timeout'",
    ),
    Broken("for_each on a control step", step("  for_each: [1] # here"), "step one, for_each", "no field"),
    Broken(
        "bad timeout",
        http("  timeout: ten # here"),
        "step fetch, timeout",
        "It cannot be 'ten'. Allowed: seconds",
    ),
    Broken(
        "no time",
        http("  timeout: 0 # here"),
        "step fetch, timeout",
        "It cannot be 0. Allowed: longer than 0: sec",
    ),
    Broken("bad lane", http("  lane: fast # here"), "step fetch, lane", "Allowed: manual, bulk"),
    Broken(
        "bad priority", http("  priority: 10 # here"), "step fetch, priority", "a whole number from 0 to 9"
    ),
    Broken(
        "bad operation", http("  operation: a b # here"), "step fetch, operation", "50 characters at most"
    ),
    Broken(
        "the fleet's limit",
        http("  limit: max_concurrency # here"),
        "step fetch, limit",
        "the limit over everyth",
    ),
    Broken("bad max_crashes", http("  max_crashes: 0 # here"), "step fetch, max_crashes", "from 1 to 1,000"),
    Broken("bad max_visits", http("  max_visits: many # here"), "step fetch, max_visits", "a whole number"),
    Broken(
        "text as desc", http("  desc: [a] # here"), "step fetch, desc", "It cannot be a list. Allowed: a text"
    ),
    Broken(
        "two inputs", http("  with: {a: 1}", "  input: {b: 1} # here"), "step fetch, input", "are the same"
    ),
    Broken(
        "input is a text",
        http("  with: abc # here"),
        "step fetch, with",
        "It cannot be 'abc'. Allowed: a mapping",
    ),
]

POLICIES = [
    Broken(
        "no attempts",
        http("  retry:", "    max_attempts: 0 # here"),
        "step fetch, retry.max_attempts",
        "1 to 1000",
    ),
    Broken("zero retry", http("  retry: 0 # here"), "step fetch, retry", "a number of attempts from 1"),
    Broken(
        "text as retry", http("  retry: often # here"), "step fetch, retry", "Allowed: true, false, a number"
    ),
    Broken(
        "unknown policy field",
        http("  retry:", "    attempts: 3 # here"),
        "step fetch, retry.attempts",
        "max_attempts",
    ),
    Broken(
        "odd delay",
        http("  retry:", "    initial_delay: soon # here"),
        "step fetch, retry.initial_delay",
        "seconds",
    ),
    Broken(
        "odd delays",
        http("  retry:", "    delays: [1, x] # here"),
        "step fetch, retry.delays[1]",
        "It cannot be 'x'",
    ),
    Broken(
        "shrinking delays",
        http("  retry:", "    backoff_multiplier: 0.5 # here"),
        "step fetch, retry.backoff_multiplier",
        "a number from 1 up",
    ),
    Broken(
        "two kinds of delays",
        http("  retry:", "    max_delay: 5", "    delays: [1] # here"),
        "step fetch, retry.delays",
        "not both",
    ),
    Broken(
        "more unknowns than attempts",
        http("  retry:", "    unknown_attempts: 9 # here"),
        "step fetch, retry.unknown_attempts",
        "1 to 3",
    ),
    Broken(
        "retry_when is no expression",
        http("  retry:", "    retry_when: 'a ==' # here"),
        "step fetch, retry.retry_when",
        "Not an expression",
    ),
    Broken(
        "retry_when of no name",
        http("  retry:", "    retry_when: status > 1 # here"),
        "step fetch, retry.retry_when",
        "There is no variable 'status'",
    ),
    Broken(
        "stop_when calls",
        http("  retry:", "    stop_when: 'range(9)' # here"),
        "step fetch, retry.stop_when",
        "Calls are not allowed",
    ),
]

TYPES = [
    Broken(
        "endless sleep",
        step("  type: sleep", "  seconds: 400d # here"),
        "step one, seconds",
        "366 days at most",
    ),
    Broken(
        "http without url", step("  type: http").replace("one", "one # here"), "step one", "needs a `url`"
    ),
    Broken(
        "ftp",
        step("  type: http", "  url: ftp://a/ # here"),
        "step one, url",
        "Allowed: http://… or https://…",
    ),
    Broken(
        "url and endpoint", http("  endpoint: http://b/ # here"), "step fetch, endpoint", "written together"
    ),
    Broken(
        "unknown method", http("  method: FETCH # here"), "step fetch, method", "Allowed: GET, HEAD, POST"
    ),
    Broken("two bodies", http("  json: {}", "  body: x # here"), "step fetch, body", "two bodies"),
    Broken(
        "data and json",
        http("  method: POST", "  json: 1", "  data: {a: 1} # here"),
        "step fetch, data",
        "`json`",
    ),
    Broken(
        "odd auth",
        http("  auth:", "    type: digest # here"),
        "step fetch, auth.type",
        "{type: bearer, token}",
    ),
    Broken(
        "auth without token", http("  auth: {type: bearer} # here"), "step fetch, auth", "'token' is missing"
    ),
    Broken(
        "headers are a text", http("  headers: abc # here"), "step fetch, headers", "a mapping, or a template"
    ),
    Broken(
        "python without anything",
        step("  type: python").replace("one", "one # here"),
        "step one",
        "`call` or `code`",
    ),
    Broken(
        "call and code",
        step("  type: python", "  call: a:b", "  code: x").replace("one", "one # here"),
        "step one",
        "written together",
    ),
    Broken(
        "function without call",
        step("  type: function").replace("one", "one # here"),
        "step one",
        "A function step needs `call`",
    ),
    Broken(
        "function with code",
        step("  type: function", "  call: a:b", "  code: x # here"),
        "step one, code",
        "A function step has no `code`",
    ),
    Broken(
        "call is no function",
        step("  type: python", "  call: store it # here"),
        "step one, call",
        "module:function",
    ),
    Broken(
        "code is no Python",
        step("  type: python", "  code: |", "    def main():", "      return ) # here"),
        "step one, code",
        "The code is not Python",
    ),
    Broken(
        "sql without url",
        step("  type: sql", "  query: SELECT 1").replace("one", "one # here"),
        "step one",
        "needs a `url`",
    ),
    Broken(
        "sql without query",
        step("  type: duckdb").replace("one", "one # here"),
        "step one",
        "needs a `query`",
    ),
    Broken(
        "postgres without url",
        step("  type: postgres", "  query: SELECT 1").replace("one", "one # here"),
        "step one",
        "Allowed: postgresql://user@host/name; or auth: NAME",
    ),
    Broken(
        "postgres with the url of another",
        step("  type: postgres", "  query: x", "  url: sqlite:///a.db # here"),
        "step one, url",
        "It is no URL of a postgres database. Allowed: postgresql://user@host/name.",
    ),
    Broken(
        "auth of another dialect",
        step("  type: postgres", "  query: x", "  auth: {type: postgres, credential: a} # here"),
        "step one, auth",
        "It cannot be a mapping. Allowed: the name of the secret that holds the URL",
    ),
    Broken(
        "other database",
        step("  type: sql", "  query: x", "  url: mysql://a/b # here"),
        "step one, url",
        "sqlite:///",
    ),
    Broken(
        "auth is a template",
        step("  type: postgres", "  query: x", "  auth: '{{ base_url }}' # here"),
        "step one, auth",
        "name of a secret",
    ),
    Broken(
        "two queries",
        step("  type: duckdb", "  query: x", "  command: y # here"),
        "step one, command",
        "Keep one",
    ),
    Broken(
        "text for a shell",
        step("  type: shell", "  command: ls -l # here"),
        "step one, command",
        "[echo, hello]",
    ),
    Broken(
        "template for a shell",
        step("  type: shell", "  shell: true", "  command: 'ls {{ base_url }}' # here"),
        "step one, command",
        "env",
    ),
    Broken(
        "mapping as argument",
        step("  type: shell", "  command: [ls, {}] # here"),
        "step one, command",
        "argument 2",
    ),
    Broken(
        "sleep without end", step("  type: sleep").replace("one", "one # here"), "step one", "needs `seconds`"
    ),
    Broken(
        "odd sleep", step("  type: sleep", "  seconds: long # here"), "step one, seconds", "366 days at most"
    ),
    Broken(
        "child without path",
        step("  type: playbook").replace("one", "one # here"),
        "step one",
        "'path' is missing",
    ),
    Broken(
        "odd child path", step("  type: playbook", "  path: a b # here"), "step one, path", "in the catalog"
    ),
]

FLOWS = [
    Broken(
        "unknown next",
        FLOW + "- step: one\n  next: tow # here\n- step: two\n",
        "step one, next",
        "Did you mean 'two'?",
    ),
    Broken(
        "unknown next in a list",
        step("  next: [nowhere] # here"),
        "step one, next[0]",
        "There is no step 'nowhere'",
    ),
    Broken(
        "unknown next in an item",
        step("  next:", "  - step: nowhere # here"),
        "step one, next[0].step",
        "Allowed: one",
    ),
    Broken(
        "unknown on_error",
        http("  on_error: nobody # here"),
        "step fetch, on_error",
        "There is no step 'nobody'",
    ),
    Broken(
        "next is a number", step("  next: 3 # here"), "step one, next", "a step's name, a list of them, or"
    ),
    Broken(
        "item without step", step("  next: [{when: 'true'}] # here"), "step one, next[0]", "names no step"
    ),
    Broken(
        "unknown field of an item",
        step("  next: [{step: one, wehn: x}] # here"),
        "step one, next[0].wehn",
        "'when'",
    ),
    Broken(
        "else without when",
        step("  next: [{else: one}] # here"),
        "step one, next[0].else",
        "no `when` beside",
    ),
    Broken(
        "unreachable step",
        FLOW + "- step: one\n- step: two # here\n",
        "step two",
        "Write `next: two` in step one",
    ),
    Broken(
        "unreachable before start",
        FLOW + "- step: one # here\n- step: start\n",
        "step one",
        "Nothing leads to",
    ),
    Broken(
        "cycle",
        FLOW + "- step: one\n  next: two # here\n- step: two\n  next: one\n",
        "step one, next",
        "one → two → one. Give one of them `max_visits`",
    ),
    Broken("step to itself", step("  next: one # here"), "step one, next", "one → one"),
    Broken(
        "cycle by on_error",
        FLOW + "- step: one\n  next: two # here\n- {step: two, type: sleep, seconds: 1, on_error: one}\n",
        "step one, next",
        "without a bound",
    ),
    Broken(
        "condition is no expression",
        step("  next: [{step: end, when: 'a ==='}] # here"),
        "step one, next[0].when",
        "Not an expression",
    ),
    Broken(
        "barrier after nothing",
        chain("  type: sleep", "  seconds: 1", "  barrier: {after: frist} # here"),
        "step second, barrier.after",
        "Did you mean 'first'?",
    ),
    Broken(
        "barrier without after",
        chain("  type: sleep", "  seconds: 1", "  barrier: {delay: 1} # here"),
        "step second, barrier",
        "'after' is missing",
    ),
    Broken(
        "barrier on a branch",
        chain(
            "  type: sleep",
            "  seconds: 1",
            "  barrier: {after: first} # here",
            "  on_error: first",
            "  max_visits: 2",
        ),
        "step second, barrier",
        "that branches",
    ),
    Broken(
        "wave in a for_each",
        chain("  type: sleep", "  seconds: 1", "  retry: {wave: true} # here", "  for_each: [1]"),
        "step second, retry",
        "one line",
    ),
]

TEMPLATES = [
    Broken(
        "item name that is no name",
        http("  for_each: {in: [1], as: self} # here"),
        "step fetch, for_each.as",
        "used for something else",
    ),
    Broken(
        "unknown name",
        http("  params: {a: '{{ bse_url }}'} # here"),
        "step fetch, params.a",
        "Did you mean 'base_url'?",
    ),
    Broken(
        "unknown step",
        chain("  type: sleep", "  seconds: '{{ frist.seconds }}' # here"),
        "step second, seconds",
        "Did you mean 'first'?",
    ),
    Broken(
        "later step",
        FLOW
        + "- {step: one, type: sleep, next: two,\n   seconds: '{{ two.x }}'} # here\n"
        + "- {step: two, type: sleep, seconds: 1}\n",
        "step one, seconds",
        "cannot have ended by then",
    ),
    Broken(
        "step itself",
        step("  type: sleep", "  seconds: '{{ one.x }}' # here"),
        "step one, seconds",
        "cannot have ended",
    ),
    Broken(
        "through steps",
        step("  type: sleep", "  seconds: '{{ steps[\"two-b\"] }}' # here"),
        "step one, seconds",
        "There is no step 'two-b'",
    ),
    Broken(
        "control step's output",
        FLOW + "- {step: one, next: two}\n- step: two\n  type: sleep\n  seconds: '{{ one.x }}' # here\n",
        "step two, seconds",
        "is control flow",
    ),
    Broken(
        "result before it is there",
        http("  params: {a: '{{ result }}'} # here"),
        "step fetch, params.a",
        "There is no variable 'result'",
    ),
    Broken(
        "item without for_each",
        http("  params: {a: '{{ item }}'} # here"),
        "step fetch, params.a",
        "There is no variable 'item'",
    ),
    Broken(
        "item in its own list",
        http("  for_each: '{{ item }}' # here"),
        "step fetch, for_each",
        "There is no variable 'item'",
    ),
    Broken(
        "odd for_each", http("  for_each: 3 # here"), "step fetch, for_each", "a list, an expression for one"
    ),
    Broken(
        "for_each of nothing",
        http("  for_each: {as: x} # here"),
        "step fetch, for_each",
        "one of items and in",
    ),
    Broken(
        "no concurrency",
        http("  for_each: {in: [1], concurrency: 0} # here"),
        "step fetch, for_each.concurrency",
        "from 1 to 10,000",
    ),
    Broken(
        "odd item name",
        http("  for_each: {in: [1], as: a-b} # here"),
        "step fetch, for_each.as",
        "letters (a-z, A-Z), digits and '_'",
    ),
    Broken(
        "reserved item name",
        http("  for_each: {in: [1], as: input} # here"),
        "step fetch, for_each.as",
        "used for something else",
    ),
    Broken("statement", http("  body: '{% if x %}' # here"), "step fetch, body", "statement"),
    Broken("open template", http("  body: '{{ base_url' # here"), "step fetch, body", "has no end"),
    Broken(
        "method call",
        http("  body: '{{ base_url.upper() }}' # here"),
        "step fetch, body",
        "Calls are not allowed",
    ),
    Broken(
        "private name", http("  body: '{{ base_url.__class__ }}' # here"), "step fetch, body", "__class__"
    ),
    Broken("unknown filter", http("  body: '{{ base_url | evil }}' # here"), "step fetch, body", "evil"),
    Broken(
        "line of a block",
        http("  body: |", "    one", "    {{ base_url + }}"),
        "step fetch, body",
        "Not an expression",
        10,
    ),
    Broken(
        "secret in an edge",
        http("  next: [{step: end, with: {a: '{{ secret(\"X\") }}'}}] # here", "- step: end"),
        "step fetch, next[0].with.a",
        "The secret X would be kept",
    ),
    Broken(
        "secret in a list",
        http("  for_each: ['{{ secret(\"X\") }}'] # here"),
        "step fetch, for_each[0]",
        "would be kept",
    ),
    Broken(
        "secret in a condition",
        http("  next: [{step: end, when: 'secret(\"X\")'}] # here", "- step: end"),
        "step fetch, next[0].when",
        "cannot use a secret",
    ),
    Broken(
        "secret for a child",
        step("  type: playbook", "  path: child", "  with: {a: '{{ secret(\"X\") }}'} # here"),
        "step one, with.a",
        "would be kept",
    ),
]

ALL = [*YAML, *HEADS, *STEPS, *POLICIES, *TYPES, *FLOWS, *TEMPLATES]


def refused(text: str | bytes) -> PlaybookInvalid:
    with pytest.raises(PlaybookInvalid) as caught:
        load_playbook(text, name="flow.yaml")
    return caught.value


def marked_line(text: str | bytes) -> int:
    lines = (text.decode("latin-1") if isinstance(text, bytes) else text).split("\n")
    [marked] = [number for number, line in enumerate(lines, 1) if "# here" in line]
    return marked


def test_there_are_many_of_them() -> None:
    assert len(ALL) >= 60
    assert len({broken.name for broken in ALL}) == len(ALL)


@pytest.mark.parametrize("broken", ALL, ids=lambda broken: broken.name)
def test_it_is_refused_with_line_and_field_and_what_is_wrong(broken: Broken) -> None:
    error = refused(broken.text)
    line = marked_line(broken.text) if broken.line is None else broken.line
    told = [fault for fault in error.faults if broken.says in str(fault)]
    assert told, str(error)
    assert [(fault.line, fault.field) for fault in told][:1] == [(line, broken.field)], str(error)
    assert f"flow.yaml:{line}: " in str(error)
