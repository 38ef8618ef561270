"""Comet's gateway: the cluster's topics over HTTP, server-sent events and WebSocket.

    from comet_gateway import GatewayConfig, create_app
    app = create_app(GatewayConfig(bootstrap="localhost:9092"))

Stateless: a request carries all that it needs, so any number of gateways work behind any load balancer.
"""

from comet_gateway.app import create_app
from comet_gateway.config import GatewayConfig

__all__ = ["GatewayConfig", "create_app"]
