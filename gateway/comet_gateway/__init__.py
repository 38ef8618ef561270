"""Comet's gateway: the same stream over HTTP, SSE and WebSocket.

    from comet_gateway import GatewayConfig, create_app
    app = create_app(GatewayConfig(bootstrap="localhost:9092"))

Stateless: whatever a request needs is in it, so that any number of gateways stand behind any load balancer.
"""

from comet_gateway.app import create_app
from comet_gateway.config import GatewayConfig

__all__ = ["GatewayConfig", "create_app"]
