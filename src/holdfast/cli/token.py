"""`holdfast token`: who may use a server, made, seen and ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import by_option, database_option, json_option, opened
from holdfast.core.access import Role
from holdfast.wire import TOKEN_VARIABLE

if TYPE_CHECKING:
    from holdfast.core.access import TokenRow
    from holdfast.engine.tokens import NewToken


@click.group(short_help="Make, show and revoke the tokens that a server asks for.")
def token() -> None:
    """A server that listens beyond this machine lets in whoever shows a token.

    \b
    viewer    looks at everything
    worker    leases work and reports it, and sees nothing else
    operator  looks, works, submits, retries, cancels, pauses, sets limits, adds playbooks
    admin     all of that, and tokens

    Whoever has the database may make tokens; through a server, an admin may.
    """


@token.command(epilog="Example:  holdfast token create nightly-workers --role worker --expires 90d")
@click.argument("name")
@click.option(
    "--role", type=click.Choice([role.value for role in Role]), required=True, help="What it may do."
)
@click.option(
    "--expires", metavar="DURATION", help='How long it counts: "90d". Without it, until it is revoked.'
)
@by_option
@database_option
@json_option
def create(name: str, role: str, expires: str | None, by: str, url: str, as_json: bool) -> None:
    """Make a token. It is shown this once: only a hash of it is kept."""
    from holdfast.cli.output import hint, say, show_json, span

    async def run() -> NewToken:
        async with opened(url, create=True) as engine:
            return await engine.tokens.create(name, role, expires=expires, by=by)

    made = asyncio.run(run())
    if as_json:
        show_json({"token": made.token, "text": made.text})
        return
    until = "until it is revoked"
    if made.token.expires_at is not None:
        until = f"for {span(made.token.expires_at - made.token.created_at)}"
    say(f"Token {made.token.name}, role {made.token.role.value}, counts {until}. It is shown this once:")
    click.echo(f"\n{made.text}\n")
    hint(f"Give it to whoever is to use it, as {TOKEN_VARIABLE} in the environment.")


@token.command("list", epilog="Example:  holdfast token list --all")
@click.option("--all", "with_ended", is_flag=True, help="Revoked and expired ones too.")
@database_option
@json_option
def list_tokens(with_ended: bool, url: str, as_json: bool) -> None:
    """Show the tokens that count, and when each was used last."""
    from holdfast.cli.going_on import typed
    from holdfast.cli.output import hint, say, show_json

    async def look() -> tuple[list[TokenRow], float]:
        async with opened(url) as engine:
            return await engine.tokens.all(), await engine.now()

    found, now = asyncio.run(look())
    shown = [one for one in found if with_ended or not one.why_not(now)]
    if as_json:
        show_json({"items": shown, "next": None})
    elif not shown:
        say("No tokens." if not found else "No token counts; --all shows those that did.")
        hint(f"Make one:  {typed('holdfast token create NAME --role operator')}")
    else:
        _show(shown, now)


@token.command(epilog="Example:  holdfast token revoke nightly-workers")
@click.argument("name")
@by_option
@database_option
@json_option
def revoke(name: str, by: str, url: str, as_json: bool) -> None:
    """End a token, by its name or its id. It lets nobody in from the next request on; streams that it opened
    end within 20 seconds."""
    from holdfast.cli.output import say, show_json

    async def run() -> TokenRow:
        async with opened(url) as engine:
            return await engine.tokens.revoke(name, by=by)

    ended = asyncio.run(run())
    if as_json:
        show_json(ended)
    else:
        say(f"Token {ended.name}, role {ended.role.value}, is revoked.")


def _show(found: list[TokenRow], now: float) -> None:
    from holdfast.cli.output import WAITING, ago, span, table

    rows, styles = [], []
    for one in found:
        why = one.why_not(now)
        left = "-" if one.expires_at is None else f"in {span(max(one.expires_at - now, 0))}"
        rows.append(
            (
                one.name,
                one.role.value,
                f"{one.created_by or '?'}, {ago(one.created_at, now)}",
                why or left,
                "never" if one.last_used_at is None else ago(one.last_used_at, now),
                one.id,
            )
        )
        styles.append(WAITING if why else "")
    table(("token", "role", "made by", "ends", "used", "id"), rows, styles=styles)
