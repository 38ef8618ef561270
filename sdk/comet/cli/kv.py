"""`comet kv`: reads, writes and follows the last values of the keys of a topic."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from comet.cli._guard import guarded
from comet.cli._options import DEFAULT_BOOTSTRAP, Bootstrap, Json, Topic, Ttl, ttl_ms_of
from comet.cli._output import note, print_json
from comet.cli._records import json_line
from comet.errors import InvalidArgument, KeyNotFound

if TYPE_CHECKING:
    from comet import KVEntry

app = typer.Typer(help="Read, write and follow the last values of keys.", no_args_is_help=True)

PAGE: Final = 1_000
Key = Annotated[str, typer.Argument(metavar="KEY", help="Text.")]
Value = Annotated[str, typer.Argument(metavar="VALUE", help="The value as text; - reads it from standard input.")]
Prefix = Annotated[str, typer.Argument(metavar="PREFIX", help="Keys that begin with this; all if it is left out.")]
Stale = Annotated[bool, typer.Option("--stale", help="Let any replica answer; it may be behind.")]


@app.command()
@guarded
async def get(
    topic: Topic,
    key: Key,
    revision: Annotated[int | None, typer.Option("--revision", min=0, help="This revision of the key.")] = None,
    stale: Stale = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Print the value of a key."""
    import comet

    async with comet.KV(bootstrap, topic) as kv:
        entry = await kv.get(key, revision=revision, stale=stale)
    if entry is None or (entry.value is None and not json_output):
        which = "" if revision is None else f" at revision {revision}"
        raise KeyNotFound(f"the key {key!r} of topic {topic!r} has no value{which}")
    if json_output:
        _print_line(entry)
    else:
        assert entry.value is not None
        sys.stdout.buffer.write(entry.value + b"\n")


@app.command()
@guarded
async def put(
    topic: Topic,
    key: Key,
    value: Value,
    revision: Annotated[int | None, typer.Option("--revision", min=0, help="Only if the key has this one.")] = None,
    ttl: Ttl = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Set a key; with --revision only if nothing has changed it since."""
    import comet

    data = _read(value)
    async with comet.KV(bootstrap, topic) as kv:
        if revision is None:
            new = await kv.put(key, data, ttl_ms=ttl_ms_of(ttl))
        else:
            new = await kv.update(key, data, revision, ttl_ms=ttl_ms_of(ttl))
    _print_revision(new, json_output)


@app.command()
@guarded
async def create(
    topic: Topic,
    key: Key,
    value: Value,
    ttl: Ttl = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Set a key that has no value."""
    import comet

    data = _read(value)
    async with comet.KV(bootstrap, topic) as kv:
        new = await kv.create(key, data, ttl_ms=ttl_ms_of(ttl))
    _print_revision(new, json_output)


@app.command()
@guarded
async def delete(
    topic: Topic,
    key: Key,
    revision: Annotated[int | None, typer.Option("--revision", min=0, help="Only if the key has this one.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Delete a key; with --revision only if nothing has changed it since."""
    import comet

    async with comet.KV(bootstrap, topic) as kv:
        gone = await kv.delete(key, revision)
    if gone is None:
        raise KeyNotFound(f"the key {key!r} of topic {topic!r} has no value")
    _print_revision(gone, json_output)


@app.command()
@guarded
async def keys(
    topic: Topic,
    prefix: Prefix = "",
    stale: Stale = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json_output: Json = False,
) -> None:
    """Print the keys that have a value, in their order; with --json also the values, an object a line."""
    import comet

    after: bytes | None = None
    async with comet.KV(bootstrap, topic) as kv:
        while page := await kv.entries(prefix, after=after, limit=PAGE, stale=stale):
            for entry in page:
                if json_output:
                    _print_line(entry)
                else:
                    sys.stdout.buffer.write(entry.key + b"\n")
            sys.stdout.buffer.flush()
            after = page[-1].key
            if len(page) < PAGE:
                break


@app.command()
@guarded
async def history(
    topic: Topic,
    key: Key,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=64, help="Revisions at most.")] = 64,
    stale: Stale = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the last revisions of a key, the newest first, a JSON object a line."""
    import comet

    async with comet.KV(bootstrap, topic) as kv:
        for entry in await kv.history(key, limit, stale=stale):
            _print_line(entry)


@app.command()
@guarded
async def watch(
    topic: Topic,
    prefix: Prefix = "",
    key: Annotated[str | None, typer.Option("--key", help="Only this key.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the last value of each key and then every change, a JSON object a line, until Ctrl-C."""
    import comet

    if key is not None and prefix:
        raise InvalidArgument("give either a prefix or --key")
    async with comet.KV(bootstrap, topic) as kv, kv.watch(prefix, key=key) as changes:
        async for entry in changes:
            if entry is None:
                note("complete: changes follow")
            else:
                _print_line(entry)


def _read(value: str) -> bytes:
    return sys.stdin.buffer.read() if value == "-" else value.encode()


def _print_revision(revision: int, as_json: bool) -> None:
    if as_json:
        print_json({"revision": revision})
    else:
        print(f"revision {revision}")


def _print_line(entry: KVEntry[Any]) -> None:
    """One entry on one line, in the form of `comet consume --json`."""
    before = {"revision": entry.revision, "timestamp_us": entry.timestamp_us}
    after = {} if entry.ended is None else {"ended": entry.ended}
    sys.stdout.buffer.write(json_line(before, entry.key, entry.value, after))
    sys.stdout.buffer.flush()
