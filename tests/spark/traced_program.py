"""A program whose spans go to a collector: run with the collector's URL, the name of its service, and

    gateway WORDS                   the command `comet gateway WORDS`
    handler BOOTSTRAP FROM TO       an App that passes records on from one topic to another

"Nothing else in it knows of traces": the provider is set before the clients are made.
"""

from __future__ import annotations

import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

import comet


def provider_for(collector: str, service: str) -> TracerProvider:
    """A provider that sends each span at once."""
    provider = TracerProvider(resource=Resource({"service.name": service}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(collector)))
    return provider


def handle(bootstrap: str, source: str, target: str) -> None:
    app = comet.App(bootstrap, name=f"from-{source}")

    @app.on(source, group=f"after-{source}", start="earliest")
    async def pass_on(value: bytes) -> None:
        await app.publish(target, value)

    app.run()


def main() -> None:
    collector, service, kind, *words = sys.argv[1:]
    trace.set_tracer_provider(provider_for(collector, service))
    if kind == "handler":
        handle(*words)
    else:
        from comet.cli import main as command

        sys.argv = ["comet", kind, *words]
        command()


if __name__ == "__main__":
    main()
