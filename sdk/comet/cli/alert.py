"""`comet alert ...`: rules that gateways evaluate.

The brokers know nothing of alerts, so these commands talk to a gateway over HTTP: `--gateway`, or COMET_GATEWAY_API.
A token is in a file, `--token-file`, since other users of the machine can read a command's flags.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from comet.cli._guard import guarded
from comet.cli._options import Json, Yes
from comet.cli._output import print_json, print_table
from comet.errors import CometError, Forbidden, InvalidArgument, Unavailable

app = typer.Typer(help="Create, list, mute, test and delete alerts, at a gateway.", no_args_is_help=True)

TIMEOUT_S: Final = 60  # a test of delivery waits for its targets
ANSWER_BYTES_MAX: Final = 4 << 20
TOKEN_BYTES_MAX: Final = 16 * 1024
_FAILED: Final = 400
_HINT: Final = "start one: comet up, or comet gateway; or give its address: --gateway URL"
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

Gateway = Annotated[
    str, typer.Option("--gateway", envvar="COMET_GATEWAY_API", metavar="URL", help="The address of any gateway.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", envvar="COMET_GATEWAY_API_TOKEN_FILE", metavar="FILE", help="A token of the gateway."),
]
Ca = Annotated[Path | None, typer.Option("--ca", metavar="FILE", help="The authority of the gateway's certificate.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of an alert, or its id.")]
LOCAL: Final = "http://localhost:8080"


class _GatewayApi:
    """Requests to a gateway, one connection each."""

    def __init__(self, url: str, token_file: Path | None, ca: Path | None) -> None:
        from urllib.parse import urlsplit

        from comet.security.fetch import is_private
        from comet.security.files import read_secret

        if not url.startswith(("http://", "https://")):
            raise InvalidArgument(f"{url!r} is not the address of a gateway, such as {LOCAL}")
        self._url = url
        self._parts = urlsplit(url)
        self._ca = ca
        self._token = "" if token_file is None else read_secret(token_file, TOKEN_BYTES_MAX).decode().strip()
        if self._token and not is_private(url):
            raise InvalidArgument(f"the token would cross the network in the clear to {url}: use https")

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's document; None: it has none. Raises CometError."""
        from http.client import HTTPException

        try:
            status, data = self._exchange(method, path, body)
        except (OSError, HTTPException) as error:
            reason = getattr(error, "verify_message", "") or getattr(error, "strerror", "") or type(error).__name__
            raise Unavailable(f"no gateway answers at {self._url}: {reason}", details={"hint": _HINT}) from None
        try:
            found = json.loads(data) if data else None
        except ValueError:
            raise Unavailable(f"{self._url} is not a gateway", details={"hint": _HINT}) from None
        if status >= _FAILED:
            raise _error_of(status, found if isinstance(found, dict) else {})
        return found

    def alert(self, name: str) -> dict[str, Any]:
        """The alert with that id or name. Raises InvalidArgument if there are none or several."""
        items = self.call("GET", "/v1/alerts")["items"]
        found = [one for one in items if name == one["id"]] or [one for one in items if name == one["rule"]["name"]]
        if len(found) != 1:
            many = f"{len(found)} alerts are called {name!r}: give the id of one" if found else f"no alert {name!r}"
            raise InvalidArgument(many, details={"hint": "list alerts: comet alert list"})
        alert: dict[str, Any] = found[0]
        return alert

    def _exchange(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        from http.client import HTTPConnection, HTTPSConnection
        from ssl import create_default_context

        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            context = create_default_context(cafile=None if self._ca is None else str(self._ca))
            connection: HTTPConnection = HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
        else:
            connection = HTTPConnection(host, port, timeout=TIMEOUT_S)
        headers = {"accept": "application/json", "content-type": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, self._parts.path.rstrip("/") + path, data, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(ANSWER_BYTES_MAX)
        finally:
            connection.close()


def _error_of(status: int, problem: dict[str, Any]) -> CometError:
    text = problem.get("detail") or problem.get("title") or f"the gateway answered {status}"
    details = {"hint": problem["hint"]} if problem.get("hint") else {}
    if status in (401, 403):
        return Forbidden(text, details={"hint": "give a token of the gateway: --token-file FILE"})
    return InvalidArgument(text, details=details) if status < 500 else Unavailable(text, details=details)


def _seconds(text: str, flag: str) -> int:
    """A time in whole seconds.

    >>> _seconds("90", "--for"), _seconds("15m", "--for"), _seconds("1d", "--for")
    (90, 900, 86400)
    """
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS_S else (text, "s")
    if not number.isdecimal() or not number.isascii():
        raise InvalidArgument(f"{flag} takes a time such as 30s, 15m, 8h or 1d, not {text!r}")
    return int(number) * _UNITS_S[unit]


@app.command("list")
@guarded
def list_alerts(
    gateway: Gateway = LOCAL, token_file: TokenFile = None, ca: Ca = None, json_output: Json = False
) -> None:
    """List alerts with their states."""
    found = _GatewayApi(gateway, token_file, ca).call("GET", "/v1/alerts")
    if json_output:
        print_json(found)
        return
    rows = [
        (one["id"], one["rule"]["name"], _state(one), one["rule"]["severity"], one["problem"] or one["text"] or "-")
        for one in found["items"]
    ]
    print_table(("id", "name", "state", "severity", "seen"), rows)


def _state(alert: dict[str, Any]) -> str:
    if not alert["rule"]["enabled"]:
        return "disabled"
    more = [word for word, given in (("muted", "muted_until_us"), ("acknowledged", "acknowledged_by")) if alert[given]]
    return ",".join(["not-evaluated" if alert["problem"] else alert["state"], *more])


@app.command("create")
@guarded
def create(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help="value, change, count, stale, lag, lag_seconds, offline or under_replicated."
        ),
    ],
    threshold: Annotated[float, typer.Option("--threshold", help="The alert fires beyond it.")],
    topic: Annotated[str, typer.Option("--topic", help="Of records or partitions.")] = "",
    group: Annotated[str, typer.Option("--group", help="Of lag and lag_seconds.")] = "",
    field: Annotated[str, typer.Option("--field", help="The path of a number in records, such as price.")] = "",
    key: Annotated[str, typer.Option("--key", help="Only records with this key.")] = "",
    filter_: Annotated[str, typer.Option("--filter", help="Only records that match, such as 'side=buy'.")] = "",
    below: Annotated[bool, typer.Option("--below", help="Fire below the threshold, not above it.")] = False,
    window: Annotated[str, typer.Option("--window", metavar="TIME", help="Of change and count, such as 1m.")] = "0",
    held: Annotated[str, typer.Option("--for", metavar="TIME", help="Fire only after this time.")] = "0",
    cool_down: Annotated[
        str, typer.Option("--cool-down", metavar="TIME", help="Time between two notices, at least.")
    ] = "5m",
    severity: Annotated[str, typer.Option("--severity", help="info, warning or critical.")] = "warning",
    webhook: Annotated[list[str] | None, typer.Option("--webhook", metavar="URL", help="May repeat.")] = None,
    email: Annotated[list[str] | None, typer.Option("--email", metavar="ADDRESS", help="May repeat.")] = None,
    browser: Annotated[bool, typer.Option("--browser", help="Notify open pages of the dashboard.")] = False,
    gateway: Gateway = LOCAL,
    token_file: TokenFile = None,
    ca: Ca = None,
    json_output: Json = False,
) -> None:
    """Create an alert."""
    rule: dict[str, Any] = {
        "name": name,
        "kind": kind,
        "threshold": threshold,
        "topic": topic,
        "group": group,
        "field": field,
        "key": key,
        "filter": filter_,
        "operator": "below" if below else "above",
        "window_s": _seconds(window, "--window"),
        "for_s": _seconds(held, "--for"),
        "cool_down_s": _seconds(cool_down, "--cool-down"),
        "severity": severity,
        "channels": [
            *({"type": "webhook", "url": url} for url in webhook or ()),
            *([{"type": "email", "to": email}] if email else []),
            *([{"type": "browser"}] if browser else []),
        ],
    }
    found = _GatewayApi(gateway, token_file, ca).call("POST", "/v1/alerts", rule)
    if json_output:
        print_json(found)
    else:
        print(f"created alert {name} with the id {found['id']}")


@app.command("delete")
@guarded
def delete(name: Name, yes: Yes = False, gateway: Gateway = LOCAL, token_file: TokenFile = None, ca: Ca = None) -> None:
    """Delete an alert. Asks for confirmation."""
    api = _GatewayApi(gateway, token_file, ca)
    found = api.alert(name)
    if not yes:
        typer.confirm(f"delete alert {found['rule']['name']}?", abort=True)
    api.call("DELETE", f"/v1/alerts/{found['id']}")
    print(f"deleted alert {found['rule']['name']}")


@app.command("mute")
@guarded
def mute(
    name: Name,
    time: Annotated[str, typer.Option("--for", metavar="TIME", help="30s, 15m, 8h, 1d; 0 ends the mute.")] = "1h",
    gateway: Gateway = LOCAL,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Hold back the notices of an alert for a time."""
    api = _GatewayApi(gateway, token_file, ca)
    seconds = _seconds(time, "--for")
    found = api.alert(name)
    api.call("POST", f"/v1/alerts/{found['id']}/mute", {"seconds": seconds})
    print(f"alert {found['rule']['name']} is {f'muted for {time}' if seconds else 'no longer muted'}")


@app.command("test")
@guarded
def send_test(
    name: Name, gateway: Gateway = LOCAL, token_file: TokenFile = None, ca: Ca = None, json_output: Json = False
) -> None:
    """Send a test notice to each channel of an alert. Exit code 1 if one fails."""
    api = _GatewayApi(gateway, token_file, ca)
    found = api.call("POST", f"/v1/alerts/{api.alert(name)['id']}/test")
    deliveries = found["deliveries"]
    if json_output:
        print_json(found)
    else:
        print_table(
            ("to", "outcome", "error"), [(one["to"], one["outcome"], one["error"] or "-") for one in deliveries]
        )
    if any(one["outcome"] != "delivered" for one in deliveries):
        raise typer.Exit(1)
