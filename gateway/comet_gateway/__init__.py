"""Comet's gateway: the cluster's topics over HTTP, server-sent events and WebSocket.

    from comet_gateway import GatewayConfig, create_app
    app = create_app(GatewayConfig(bootstrap="localhost:9092"))

Stateless: a request carries all that it needs, so any number of gateways work behind any load balancer.
"""

from typing import TYPE_CHECKING, Any

from comet_gateway.config import GatewayConfig

if TYPE_CHECKING:
    from comet_gateway.app import create_app

__all__ = ["GatewayConfig", "create_app"]


def __getattr__(name: str) -> Any:
    if name == "create_app":  # imported when it is used: the settings and their help do without FastAPI
        from comet_gateway.app import create_app

        return create_app
    raise AttributeError(f"module 'comet_gateway' has no attribute {name!r}")
