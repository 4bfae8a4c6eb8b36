"""The playbook language as models: what may be written, and nothing else.

They check shapes, field by field; the JSON Schema that editors use is made from them, descriptions included.
What needs the whole playbook (names of steps, cycles, templates) is checked by compile.py on what comes out
of here. Aliases of other dialects are fields here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from holdfast.core.error_rules import ErrorRule
from holdfast.core.errors import HoldfastError
from holdfast.core.limits import check_limit_name
from holdfast.core.retry import (
    DELAYS_COUNT_MAX,
    DURATION_FORMS,
    MAX_ATTEMPTS_MAX,
    RetryPolicy,
    parse_duration,
)
from holdfast.playbook.definition import CONCURRENCY_MAX, MAX_VISITS_MAX, PRIORITY_DEFAULT
from holdfast.playbook.faults import value_shown

STEPS_MAX: Final = 10_000
EDGES_MAX: Final = 1_000
STEP_NAME: Final = "[A-Za-z_][A-Za-z0-9_.-]{0,99}"
PATH: Final = "[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}"
NAME_RULE: Final = "a letter (a-z, A-Z) or '_', then letters, digits, '_', '.' or '-'; 100 characters at most"
PATH_CHARS: Final = "letters (a-z, A-Z), digits, '_', '.', '-' and '/'"
PATH_RULE: Final = f"{PATH_CHARS}, beginning with a letter, a digit or '_'; 200 characters at most"
WORD_RULE: Final = "letters (a-z, A-Z), digits and '_', beginning with a letter; 50 characters at most"


def is_step_name(text: str) -> bool:
    return re.fullmatch(STEP_NAME, text) is not None


def is_path(text: str) -> bool:
    return re.fullmatch(PATH, text) is not None


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def refused(message: str, allowed: str = "", field: str = "") -> PydanticCustomError:
    """A fault of the author, in our own words; `field` is where, below the place it is raised at."""
    # pydantic fills in braces, and an author's value may hold some.
    return PydanticCustomError("refused", "{said}", {"said": message, "allowed": allowed, "field": field})


def _in_two(error: HoldfastError) -> tuple[str, str]:
    """The engine's own sentence as what is wrong, and what is allowed."""
    text = str(error)
    for mark in (": allowed is ", ": allowed are ", "; allowed are "):
        message, found, allowed = text.partition(mark)
        if found:
            return f"{message}.", f"{allowed}."
    return text if text.endswith(".") else f"{text}.", error.guidance


def _checked(check: Callable[[Any], object]) -> AfterValidator:
    """By the rules that the engine itself has."""

    def validate(value: Any) -> Any:
        try:
            check(value)
        except HoldfastError as error:
            raise refused(*_in_two(error)) from error
        return value

    return AfterValidator(validate)


def _longer_than_nothing(value: Any) -> Any:
    if parse_duration(value) <= 0:
        raise refused(f"It cannot be {value_shown(value)}.", f"longer than 0: {DURATION_FORMS}.")
    return value


StepName = Annotated[str, Field(pattern=f"^{STEP_NAME}$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,49}$")]
FunctionName = Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_./:-]{0,199}$")]
PlaybookPath = Annotated[str, Field(pattern=f"^{PATH}$")]


def _duration_schema(**least: float) -> WithJsonSchema:
    forms = [{"type": "number", **least}, {"type": "string"}]
    return WithJsonSchema({"anyOf": forms, "examples": [10, "90s", "15m", "2h"]})


Duration = Annotated[
    Any, _checked(lambda value: parse_duration(value, field="It")), _duration_schema(minimum=0)
]
Timeout = Annotated[Duration, AfterValidator(_longer_than_nothing), _duration_schema(exclusiveMinimum=0)]
Lane = Literal["manual", "bulk"]
Limit = Annotated[str, _checked(lambda value: check_limit_name(value, of="a step"))]
Operation = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,50}$")]
Priority = Annotated[int, Field(ge=0, le=9)]


def kind_of(value: Any) -> str | None:
    """The tag of an alternative, by the kind of what was written; in <>, as no field can be called."""
    if isinstance(value, bool):
        return "<yes or no>"
    if isinstance(value, BaseModel):
        return "<mapping>"
    kinds = {int: "<number>", float: "<number>", str: "<text>", list: "<list>", dict: "<mapping>"}
    return kinds.get(type(value))


def _is_template(value: str) -> str:
    if "{{" not in value:
        raise refused("It is a text without a template.", "a mapping, or a template for one.")
    return value


_Template = Annotated[str, AfterValidator(_is_template)]
MappingOrTemplate = Annotated[
    Annotated[dict[str, Any], Tag("<mapping>")] | Annotated[_Template, Tag("<text>")], Discriminator(kind_of)
]
ListMappingOrTemplate = Annotated[
    Annotated[dict[str, Any], Tag("<mapping>")]
    | Annotated[list[Any], Tag("<list>")]
    | Annotated[_Template, Tag("<text>")],
    Discriminator(kind_of),
]
Inputs = dict[str, Any]
INPUT_FIELDS: Final = ("with", "data", "payload", "input", "args")
"""All the same; the first is the canonical one."""
Condition = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[bool, Tag("<yes or no>")], Discriminator(kind_of)
]


def _policy_field(name: str) -> AfterValidator:
    def check(value: Any) -> None:
        if value is not None:
            RetryPolicy(**{name: value})

    return _checked(check)


class RetryFields(Model):
    """How often, and after which delays, a step is tried again."""

    max_attempts: Annotated[
        Any,
        _policy_field("max_attempts"),
        WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_ATTEMPTS_MAX}),
    ] = Field(default=None, description="Runs in all, the first included. Default 3.")
    initial_delay: Annotated[Duration | None, _policy_field("initial_delay")] = Field(
        default=None, description="Before the first retry. Default 1 second."
    )
    backoff_multiplier: Annotated[
        Any, _policy_field("backoff_multiplier"), WithJsonSchema({"type": "number", "minimum": 1})
    ] = Field(default=None, description="Each delay is so many times the one before it. Default 2.")
    max_delay: Annotated[Duration | None, _policy_field("max_delay")] = Field(
        default=None, description="No delay is longer. Default 60 seconds."
    )
    jitter: bool | None = Field(
        default=None,
        description="Multiplies each delay by a draw from 0.5 to 1.5. Default true, with delays false.",
    )
    delays: list[Duration] | None = Field(
        default=None,
        description="The delays themselves, instead of exponential ones; the last one repeats.",
        json_schema_extra={"minItems": 1, "maxItems": DELAYS_COUNT_MAX},
    )
    retry_when: str | None = Field(
        default=None,
        description="Retry only where this expression is true.",
        json_schema_extra={"minLength": 1},
    )
    stop_when: str | None = Field(
        default=None, description="Give up where this expression is true.", json_schema_extra={"minLength": 1}
    )
    unknown_attempts: Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 1})] = Field(
        default=None,
        description="How many runs may end in an error that no rule knows. Default max_attempts.",
    )
    wave: bool | None = Field(
        default=None, description="In a batch: retry the failed jobs of the step together."
    )

    @model_validator(mode="after")
    def _as_a_whole(self) -> RetryFields:
        try:
            self.policy()
        except HoldfastError as error:
            message, allowed = _in_two(error)
            field = message.split(" ", 1)[0].partition("[")[0]
            raise refused(message, allowed, field if field in RetryFields.model_fields else "") from error
        return self

    def policy(self) -> RetryPolicy:
        return RetryPolicy.from_shorthand(self.model_dump(exclude_none=True))


Retry = Annotated[
    Annotated[bool, Tag("<yes or no>")]
    | Annotated[int, Field(ge=1, le=MAX_ATTEMPTS_MAX), Tag("<number>")]
    | Annotated[RetryFields, Tag("<mapping>")],
    Discriminator(kind_of),
]


class ErrorRuleFields(Model):
    """Names errors by exception, status or message (all that are given must hold), and says what they are."""

    error_type: str = Field(description="What the error is called from then on.")
    category: Literal["transient", "permanent", "unknown"] | None = Field(
        default=None, description="transient is retried, permanent fails at once."
    )
    exception: str | None = Field(default=None, description="The exception's name, short or with its module.")
    status: Annotated[int, Field(ge=100, le=599)] | None = Field(default=None, description="The HTTP status.")
    message: str | None = Field(default=None, description="Whole words of the message, in any case.")
    user_message: str | None = Field(default=None, description="What people are told.")
    guidance: str | None = Field(default=None, description="What people should do.")

    @model_validator(mode="after")
    def _as_a_whole(self) -> ErrorRuleFields:
        try:
            self.rule()
        except HoldfastError as error:
            raise refused(*_in_two(error)) from error
        return self

    def rule(self) -> ErrorRule:
        return ErrorRule.from_dict(self.model_dump(exclude_none=True))


class BarrierFields(Model):
    """In a batch the step begins when all items are past another one."""

    after: str = Field(description="The step that every item must be past.")
    delay: Duration = Field(default=0, description="How long after that moment the step begins.")


class Arc(Model):
    """What leads to another step."""

    step: str | None = Field(default=None, description="The step that it leads to.")
    when: Condition | None = Field(default=None, description="Taken only where this expression is true.")
    with_: Inputs | None = Field(
        default=None, alias="with", description="Handed on: the step reads it as `input`."
    )
    data: Inputs | None = Field(default=None, description="Another word for with.")
    payload: Inputs | None = Field(default=None, description="Another word for with.")
    input: Inputs | None = Field(default=None, description="Another word for with.")
    args: Inputs | None = Field(default=None, description="Another word for with.")
    then: Then | None = Field(default=None, description="The steps that it leads to, instead of `step`.")
    else_: Then | None = Field(
        default=None,
        alias="else",
        description="The steps for when no other item of the list with a `when` is taken.",
    )

    @model_validator(mode="after")
    def _leads_somewhere(self) -> Arc:
        given = [name for name in ("step", "then", "else_") if getattr(self, name) is not None]
        if len(given) != 1:
            raise refused(
                "It names no step to lead to." if not given else "It leads to steps in several ways.",
                "{step, when, with}, {when, then: steps}, {else: steps}.",
            )
        if self.else_ is not None and self.when is not None:
            raise refused("`else` and `when` are written together.", "else alone.", "when")
        return self


NextItem = Annotated[Annotated[str, Tag("<text>")] | Annotated[Arc, Tag("<mapping>")], Discriminator(kind_of)]
NextList = Annotated[list[NextItem], Field(max_length=EDGES_MAX)]
Then = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[NextList, Tag("<list>")] | Annotated[Arc, Tag("<mapping>")],
    Discriminator(kind_of),
]
Next = Then
Arc.model_rebuild()


class ForEachFields(Model):
    """Runs the step once for each item of a list."""

    items: ForEachItems | None = Field(default=None, description="The list, or an expression for one.")
    in_: ForEachItems | None = Field(default=None, alias="in", description="Another word for items.")
    as_: Word = Field(default="item", alias="as", description="What the step's templates call the item.")
    concurrency: Annotated[int, Field(ge=1, le=CONCURRENCY_MAX)] | None = Field(
        default=None, description="How many of the items are under way at once."
    )
    fail_fast: bool = Field(default=False, description="The first item that fails for good ends the step.")

    @model_validator(mode="after")
    def _has_items(self) -> ForEachFields:
        if (self.items is None) == (self.in_ is None):
            raise refused("It needs one of items and in.", 'items: "{{ fetch.data }}".')
        return self


ForEachItems = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[Any], Tag("<list>")], Discriminator(kind_of)
]
ForEach = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[Any], Tag("<list>")]
    | Annotated[ForEachFields, Tag("<mapping>")],
    Discriminator(kind_of),
]
ForEachFields.model_rebuild()


class StepFields(Model):
    """What every step may have."""

    step: StepName = Field(description="Its name: its identity in the history, unique in the playbook.")
    desc: str | None = Field(default=None, description="For people.")
    description: str | None = Field(default=None, description="For people.")
    type: str | None = Field(default=None, description="What runs it. Without one the step is control flow.")
    tool: str | None = Field(default=None, description="Another word for type.")
    next: Next | None = Field(
        default=None,
        description="The steps that follow: a name, a list, or {step, when, with}. Without it a branch ends.",
    )
    max_visits: Annotated[int, Field(ge=1, le=MAX_VISITS_MAX)] | None = Field(
        default=None, description="How often the step may run in one execution: the bound of a cycle."
    )


class ControlStep(StepFields):
    """Without a type: it runs nothing, and only decides what comes next."""


class ActionFields(StepFields):
    """What every step may have that does something."""

    with_: Inputs | None = Field(
        default=None, alias="with", description="The step's input, over what was handed on to it."
    )
    data: Inputs | None = Field(default=None, description="Another word for with.")
    payload: Inputs | None = Field(default=None, description="Another word for with.")
    input: Inputs | None = Field(default=None, description="Another word for with.")
    args: Inputs | None = Field(default=None, description="Another word for with.")
    for_each: ForEach | None = Field(
        default=None, description="Runs once for each item of a list, and joins."
    )
    on_error: str | None = Field(
        default=None, description="The step that follows where this one fails for good."
    )
    retry: Retry | None = Field(
        default=None,
        description="true, false, a number of attempts, or a policy. Default: defaults.retry, else once.",
    )
    timeout: Timeout | None = Field(default=None, description="Of one attempt. Default 1 hour.")
    lane: Lane | None = Field(
        default=None, description="manual goes before bulk. Default: that of the execution."
    )
    operation: Operation | None = Field(
        default=None, description="A word for the kind of work; request goes first."
    )
    priority: Priority | None = Field(
        default=None, description=f"0 first, 9 last, among the work of a lane. Default {PRIORITY_DEFAULT}."
    )
    limit: Limit | None = Field(default=None, description="The named limit that it runs under.")
    barrier: BarrierFields | None = Field(default=None, description="In a batch: wait for all items.")
    max_crashes: Annotated[int, Field(ge=1, le=1_000)] | None = Field(
        default=None, description="How often its worker may die before it is given up. Default 3."
    )
    errors: list[ErrorRuleFields] | None = Field(
        default=None, description="What its errors are; asked first."
    )


class BearerAuth(Model):
    type: Literal["bearer"]
    token: str = Field(description="Such as \"{{ secret('API_TOKEN') }}\".")


class BasicAuth(Model):
    type: Literal["basic"]
    username: str
    password: str


class HeaderAuth(Model):
    type: Literal["header"]
    name: str
    value: str


def _auth_kind(value: Any) -> str | None:
    written = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"<{written}>" if isinstance(written, str) else None


HttpAuth = Annotated[
    Annotated[BearerAuth, Tag("<bearer>")]
    | Annotated[BasicAuth, Tag("<basic>")]
    | Annotated[HeaderAuth, Tag("<header>")],
    Discriminator(_auth_kind),
]


class HttpStep(ActionFields):
    """An HTTP request. A status of 400 or more is an error."""

    method: str | None = Field(default=None, description="Default GET.")
    url: str | None = Field(default=None, description="http:// or https://.")
    endpoint: str | None = Field(default=None, description="Another word for url.")
    headers: MappingOrTemplate | None = Field(default=None, description="Of the request.")
    params: MappingOrTemplate | None = Field(default=None, description="Of the URL's query.")
    json_: Any = Field(default=None, alias="json", description="The body, sent as JSON.")
    body: str | None = Field(default=None, description="The body, sent as it is.")
    form: MappingOrTemplate | None = Field(default=None, description="The body, sent as a form.")
    data: Inputs | None = Field(
        default=None, description="{query, body}; or the query of a GET and the JSON body of others."
    )
    payload: Inputs | None = Field(default=None, description="Another word for data.")
    auth: HttpAuth | None = Field(default=None, description="Bearer token, basic, or a header of your own.")
    follow_redirects: bool | None = Field(default=None, description="Default true.")
    response_bytes_max: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="A longer answer is an error."
    )
    save_to: str | None = Field(default=None, description="Keeps the body in the storage under this name.")


class PythonStep(ActionFields):
    """A function, or Python code where the worker has leave to run it."""

    call: FunctionName | None = Field(
        default=None, description="module:function, or the name that a program registered its function by."
    )
    code: str | None = Field(default=None, description="Python with def main(input_data). Not a template.")


Statements = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[str], Field(min_length=1), Tag("<list>")],
    Discriminator(kind_of),
]


class SqlStep(ActionFields):
    """Statements on SQLite, PostgreSQL or DuckDB."""

    url: str | None = Field(
        default=None, description="sqlite:///file, postgresql://…, duckdb:///file or duckdb://."
    )
    auth: str | None = Field(
        default=None, description="For PostgreSQL: the name of the secret that holds the URL."
    )
    database: str | None = Field(default=None, description="For DuckDB and SQLite: the file, instead of url.")
    query: str | None = Field(default=None, description="The statement; several, where it has no params.")
    sql: str | None = Field(default=None, description="Another word for query.")
    command: str | None = Field(default=None, description="Another word for query.")
    commands: Statements | None = Field(default=None, description="Several statements.")
    params: ListMappingOrTemplate | None = Field(
        default=None, description="Values for :name and $name (a mapping) or ? (a list): bound, never pasted."
    )
    rows_max: Annotated[int, Field(ge=1)] | None = Field(default=None, description="More rows are an error.")


class ShellStep(ActionFields):
    """A program, where the worker has leave to run it."""

    command: Annotated[
        Annotated[str, Tag("<text>")] | Annotated[list[Any], Field(min_length=1), Tag("<list>")],
        Discriminator(kind_of),
    ] = Field(description="A list of arguments; a text with `shell: true`.")
    shell: bool | None = Field(default=None, description="Gives the text to a shell.")
    env: MappingOrTemplate | None = Field(default=None, description="Its environment, over the worker's.")
    cwd: str | None = Field(default=None, description="The folder it runs in.")
    stdin: Any = Field(
        default=None, description="What it reads: a text, or a value that it is given as JSON."
    )


class SleepStep(ActionFields):
    """Waits, and holds no place on a worker meanwhile."""

    seconds: Annotated[Any, WithJsonSchema({"type": ["number", "string"]})] = Field(
        default=None, description="How long: seconds, or a text such as 15m."
    )
    duration: Annotated[Any, WithJsonSchema({"type": ["number", "string"]})] = Field(
        default=None, description="Another word for seconds."
    )


class PlaybookStep(ActionFields):
    """Another playbook, as an execution of its own; the step's input is its workload."""

    path: str = Field(description="Its path in the catalog.")
    version: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Default: the newest.")


FUNCTION: Final = "function"
"""Another word for python where a step has a `call`: a worker in any language may have the function."""

STEP_MODELS: Final[dict[str, type[StepFields]]] = {
    "control": ControlStep,
    "http": HttpStep,
    "python": PythonStep,
    "sql": SqlStep,
    "shell": ShellStep,
    "sleep": SleepStep,
    "playbook": PlaybookStep,
}
TYPES: Final = {
    **{name: name for name in ("http", "python", "sql", "shell", "sleep", "playbook")},
    FUNCTION: "python",
    **dict.fromkeys(("duckdb", "postgres", "sqlite"), "sql"),
    **dict.fromkeys(("start", "end", "router"), "control"),
}
"""What may be written as type, and what it is."""


class Metadata(Model):
    """What the playbook is called."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str | None = Field(default=None, description="For people; and its path, where none is given.")
    path: PlaybookPath | None = Field(default=None, description="Its place in the catalog.")
    description: str | None = Field(default=None, description="For people.")
    about: Literal["documents"] | None = Field(
        default=None,
        description="Where its work is about documents that people upload: its errors speak of them.",
    )


class Defaults(Model):
    """What holds for every step that does not say it."""

    retry: Retry | None = Field(default=None, description="See retry of a step.")
    timeout: Timeout | None = Field(default=None, description="See timeout of a step.")
    lane: Lane | None = Field(default=None, description="See lane of a step.")
    operation: Operation | None = Field(default=None, description="See operation of a step.")
    priority: Priority | None = Field(default=None, description="See priority of a step.")
    limit: Limit | None = Field(default=None, description="See limit of a step.")
    max_crashes: Annotated[int, Field(ge=1, le=1_000)] | None = Field(
        default=None, description="See max_crashes of a step."
    )


class Head(Model):
    """A playbook, but for its workflow."""

    api_version: Literal["holdfast/v1", "noetl.io/v1"] = Field(
        alias="apiVersion", description="The language: holdfast/v1."
    )
    kind: Literal["Playbook"] | None = Field(default=None, description="Playbook.")
    metadata: Metadata | None = Field(
        default=None, description="Name, path and description; more is allowed."
    )
    name: str | None = Field(default=None, description="Another place for metadata.name.")
    path: PlaybookPath | None = Field(default=None, description="Another place for metadata.path.")
    description: str | None = Field(default=None, description="Another place for metadata.description.")
    version: Any = Field(default=None, description="For people: the catalog counts versions itself.")
    workload: dict[str, Any] | None = Field(
        default=None, description="What the playbook works on: defaults, which a start may override."
    )
    defaults: Defaults | None = Field(
        default=None, description="What holds for every step that does not say it."
    )
    errors: list[ErrorRuleFields] | None = Field(
        default=None, description="What the errors of its steps are."
    )
