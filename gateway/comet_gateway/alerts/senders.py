"""The means to reach the channels of a rule, as the gateway's settings give them."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

from comet.errors import InvalidArgument
from comet.security.files import read_secret
from comet_gateway.alerts.journal import Notice
from comet_gateway.alerts.mail import Mailer, mail_server_of
from comet_gateway.alerts.rule import BrowserChannel, Channel, EmailChannel, WebhookChannel, label
from comet_gateway.alerts.targets import networks_of
from comet_gateway.alerts.webhook import DeliveryFailed, WebhookClient
from comet_gateway.config import GatewayConfig

log = logging.getLogger(__name__)

SECRET_BYTES_MAX: Final = 4_096
SECRET_BYTES_MIN: Final = 16


class Senders:
    """The means to reach all kinds of channels."""

    def __init__(self, webhooks: WebhookClient, mailer: Mailer) -> None:
        self._webhooks = webhooks
        self._mailer = mailer

    @property
    def has_mail(self) -> bool:
        return self._mailer.server is not None

    async def send(self, channel: Channel, notice: Notice) -> None:
        """One attempt. Raises DeliveryFailed."""
        try:
            match channel:
                case WebhookChannel(url):
                    await self._webhooks.post(url, notice, int(time.time()))
                case EmailChannel(to):
                    await self._mailer.send(to, notice)
                case BrowserChannel():
                    pass  # pages have it by the journal
        except DeliveryFailed:
            raise
        except Exception as error:
            log.exception("alerts: sending to %s failed", label(channel))
            raise DeliveryFailed(f"unexpected {type(error).__name__}; see the gateway's log", again=True) from None

    async def close(self) -> None:
        self._mailer.close()


def senders_of(config: GatewayConfig) -> Senders:
    """Raises InvalidArgument."""
    secret = b""
    if config.alert_secret_file:
        secret = read_secret(Path(config.alert_secret_file), SECRET_BYTES_MAX).strip()
        if len(secret) < SECRET_BYTES_MIN:
            raise InvalidArgument(f"alert_secret_file: the secret must have {SECRET_BYTES_MIN} bytes or more")
    return Senders(WebhookClient(networks_of(config.alert_networks), secret), Mailer(mail_server_of(config)))
