"""What `serve` and `worker` tell of themselves: the log on stderr, as text or JSON, and traces."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import Command
from holdfast.logs import FORMATS, LogSettings, log_to_stderr

if TYPE_CHECKING:
    from holdfast import Holdfast

LOG_FORMAT_VARIABLE = "HOLDFAST_LOG_FORMAT"
OTEL_VARIABLE = "HOLDFAST_OTEL"


def telling_options(level_default: str) -> Callable[[Command], Command]:
    """The options `log_level`, `log_format` and `otel` of a command."""
    options = (
        click.option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            default=level_default,
            show_default=True,
            help="What is told on stderr.",
        ),
        click.option(
            "--log-format",
            type=click.Choice(FORMATS),
            default="text",
            show_default=True,
            envvar=LOG_FORMAT_VARIABLE,
            help=f"json: one object a line, with the ids of its attempt. Env {LOG_FORMAT_VARIABLE}.",
        ),
        click.option(
            "--otel",
            is_flag=True,
            envvar=OTEL_VARIABLE,
            help="Send a span for each attempt to the place that the OTEL_* variables name (extra otel)."
            f" Env {OTEL_VARIABLE}=1.",
        ),
    )

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            option(command)
        return command

    return decorate


def begin_log(level: str, form: str) -> None:
    log_to_stderr(LogSettings(logging.getLevelNamesMapping()[level.upper()], form))


def check_tracing() -> None:
    from holdfast.tracing import with_extra

    with_extra("opentelemetry.sdk.trace")
    with_extra("opentelemetry.exporter.otlp.proto.http.trace_exporter")


def trace_attempts(hf: Holdfast) -> None:
    """After the program was loaded: it may have set up a tracer provider of its own."""
    check_tracing()
    from holdfast.tracing.export import exported_tracing

    hf.trace(exported_tracing())
