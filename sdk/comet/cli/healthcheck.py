"""`comet healthcheck`: asks the server on this machine whether it is alive. For images, which have no curl."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from comet.cli._guard import guarded

if TYPE_CHECKING:
    import ssl

DEFAULT_URL: Final = "http://127.0.0.1:9095/livez"
BODY_BYTES_MAX: Final = 64 * 1024


@guarded
def healthcheck(
    url: Annotated[
        str, typer.Argument(metavar="URL", envvar="COMET_HEALTH_URL", help="What to ask.", show_default=True)
    ] = DEFAULT_URL,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Time to answer.")] = 3.0,
) -> None:
    """Exit code 0 if a broker or gateway answers with status 200, else 1 or 4, with the reason.

    Ask /livez of a broker's metrics port or of a gateway, or /readyz. A certificate is verified, but not on loopback,
    where a server has no name of its own.
    """
    import http.client
    from urllib.parse import urlsplit

    from comet.errors import InvalidArgument, Unavailable

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgument(f"{url!r} is not an http or https URL: {DEFAULT_URL}")
    try:
        port = parts.port
    except ValueError:
        raise InvalidArgument(f"{url!r} has a port that is not one: {DEFAULT_URL}") from None
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = _tls(parts.hostname)
        connection = http.client.HTTPSConnection(parts.hostname, port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(parts.hostname, port, timeout=timeout_s)
    try:
        connection.request("GET", parts.path or "/")
        answer = connection.getresponse()
        body = answer.read(BODY_BYTES_MAX).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"no answer from {url}: {str(error) or type(error).__name__}") from None
    finally:
        connection.close()
    print(body.strip())
    if answer.status != http.client.OK:
        raise typer.Exit(1)


def _tls(host: str) -> ssl.SSLContext:
    import ssl

    from comet.settings.hosts import is_loopback

    context = ssl.create_default_context()
    if is_loopback(host):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
