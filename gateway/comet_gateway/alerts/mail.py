"""Notices as e-mail, through one server (SMTP) that the operator names. Blocking parts run in threads of their own."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate, parseaddr
from pathlib import Path
from typing import Final

from comet.errors import InvalidArgument
from comet.security.files import read_secret
from comet.settings.hosts import is_loopback
from comet_gateway.alerts.journal import Notice
from comet_gateway.alerts.webhook import DeliveryFailed
from comet_gateway.config import GatewayConfig

TIMEOUT_S: Final = 10.0  # of one step of the protocol
WHOLE_S: Final = 30.0  # of one attempt
THREADS: Final = 2
PASSWORD_BYTES_MAX: Final = 4_096
SECURITY: Final = ("starttls", "tls", "none")
_PERMANENT: Final = range(500, 600)


@dataclass(frozen=True, slots=True)
class MailServer:
    """The settings of e-mail, checked."""

    host: str
    port: int
    security: str
    sender: str
    user: str
    password: str


def mail_server_of(config: GatewayConfig) -> MailServer | None:
    """None: no server is set. Raises InvalidArgument."""
    if not config.smtp_server:
        if config.smtp_user or config.smtp_password_file or config.smtp_from:
            raise InvalidArgument("smtp_user, smtp_password_file and smtp_from need smtp_server")
        return None
    host, _, port = config.smtp_server.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise InvalidArgument(f"smtp_server must be HOST:PORT, not {config.smtp_server!r}")
    if config.smtp_security not in SECURITY:
        raise InvalidArgument(f"smtp_security must be one of {', '.join(SECURITY)}, not {config.smtp_security!r}")
    if "@" not in parseaddr(config.smtp_from)[1] or not config.smtp_from.isprintable():
        raise InvalidArgument("smtp_from must be the sender's address, such as alerts@example.com")
    if bool(config.smtp_user) != bool(config.smtp_password_file):
        raise InvalidArgument("smtp_user and smtp_password_file belong together: give both or neither")
    password = ""
    if config.smtp_password_file:
        if config.smtp_security == "none" and not is_loopback(host):
            raise InvalidArgument("smtp_security none would send the password in the clear: use starttls or tls")
        password = read_secret(Path(config.smtp_password_file), PASSWORD_BYTES_MAX).decode().strip()
    return MailServer(
        host.strip("[]"), int(port), config.smtp_security, config.smtp_from, config.smtp_user, password
    )  # fmt: skip


def message_of(notice: Notice, sender: str, to: Sequence[str]) -> EmailMessage:
    """The message. Its subject is one line for any name of a rule, and the e-mail package refuses line breaks."""
    rule = notice.rule
    found = EmailMessage()
    found["From"] = sender
    found["To"] = ", ".join(to)
    found["Subject"] = " ".join(f"[{rule.severity}] {rule.name}: {notice.event}".split())
    found["Date"] = formatdate(notice.time_us / 1e6)
    found["Message-ID"] = f"<{notice.id}@alerts.comet>"
    found["Auto-Submitted"] = "auto-generated"
    lines = [
        f"{rule.name}: {notice.event}",
        "",
        f"Severity:  {rule.severity}",
        f"Watched:   {rule.target()}",
        f"Condition: {rule.words()}",
        f"Seen:      {notice.text or '-'}",
        f"Since:     {formatdate(notice.since_us / 1e6)}",
        f"Notice:    {notice.id}",
    ]
    found.set_content("\n".join(lines) + "\n")
    return found


class Mailer:
    """Sends e-mails. Closed with the gateway; a sending under way ends by its own timeouts."""

    def __init__(self, server: MailServer | None) -> None:
        self.server = server
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="alerts mail")

    async def send(self, to: Sequence[str], notice: Notice) -> None:
        """Raises DeliveryFailed."""
        server = self.server
        if server is None:
            raise DeliveryFailed("this gateway has no mail server: set smtp_server and smtp_from", again=False)
        message = message_of(notice, server.sender, to)
        try:
            async with asyncio.timeout(WHOLE_S):
                await asyncio.get_running_loop().run_in_executor(self._threads, _send, server, message, list(to))
        except TimeoutError:
            raise DeliveryFailed(f"the mail server did not answer within {WHOLE_S:g} s", again=True) from None
        except smtplib.SMTPRecipientsRefused as error:
            code, text = next(iter(error.recipients.values()))
            raise DeliveryFailed(f"recipient refused: {_reply(code, text)}", again=code not in _PERMANENT) from None
        except smtplib.SMTPResponseException as error:
            again = error.smtp_code not in _PERMANENT
            raise DeliveryFailed(_reply(error.smtp_code, error.smtp_error), again=again) from None
        except smtplib.SMTPNotSupportedError as error:
            raise DeliveryFailed(f"{error}; see smtp_security", again=False) from None
        except (smtplib.SMTPException, OSError) as error:
            raise DeliveryFailed(f"the mail server cannot be used: {error}", again=True) from None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _reply(code: int, text: bytes | str) -> str:
    plain = text.decode(errors="replace") if isinstance(text, bytes) else text
    return f"the mail server answered {code} {' '.join(plain.split())[:200]}"


def _send(server: MailServer, message: EmailMessage, to: list[str]) -> None:
    context = ssl.create_default_context()
    if server.security == "tls":
        client: smtplib.SMTP = smtplib.SMTP_SSL(server.host, server.port, timeout=TIMEOUT_S, context=context)
    else:
        client = smtplib.SMTP(server.host, server.port, timeout=TIMEOUT_S)
    with client:
        if server.security == "starttls":
            client.starttls(context=context)
        if server.user:
            client.login(server.user, server.password)
        client.send_message(message, server.sender, to)
