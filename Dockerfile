# Broker, gateway and demo in one image: docker build -t comet . && docker run -p 9092:9092 -p 9192:9192 -v comet:/data comet
# With Spark and a Java:                 docker build -t comet:spark --target spark .
ARG PYTHON=python:3.12-slim
# The same Python in the same folder as in PYTHON, with pip and binutils.
ARG BUILDER=python:3.12

FROM ${BUILDER} AS build
ARG SOURCE_DATE_EPOCH=0
WORKDIR /src
COPY requirements requirements
# Only what has a locked version and hash is downloaded.
RUN python3 -m venv --without-pip /opt/comet \
    && python3 -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt \
    && /opt/build/bin/pip --python /opt/comet/bin/python install --no-cache-dir --no-compile --require-hashes \
        --only-binary :all: -r requirements/image.txt
COPY . .
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/build/bin/pip --python /opt/comet/bin/python install --no-cache-dir --no-compile --no-deps /wheels/*.whl \
    && find /opt/comet -name '*.so*' -exec strip --strip-unneeded {} + \
    && /opt/comet/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/comet/lib \
    && /opt/comet/bin/python scripts/sbom > /opt/comet/sbom.cdx.json

FROM build AS build-spark
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --require-hashes --wheel-dir /wheels \
        -r requirements/image-spark.txt \
    && /opt/build/bin/pip --python /opt/comet/bin/python install --no-cache-dir --no-compile --no-deps /wheels/*.whl \
    && /opt/comet/bin/python scripts/sbom > /opt/comet/sbom.cdx.json

FROM ${PYTHON} AS runtime
ARG VERSION=0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Comet" \
      org.opencontainers.image.description="Event streaming for Python teams" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN install -d -o 10001 -g 10001 -m 700 /data
ENV PATH=/opt/comet/bin:$PATH PYTHONDONTWRITEBYTECODE=1 HOME=/data
USER 10001:10001
WORKDIR /data
VOLUME /data
# gRPC, and the wire of Python clients, which they use if it is published under the same number.
EXPOSE 9092 9192
# SIGTERM drains: clients are told, what is owed is acknowledged, logs are synced.
STOPSIGNAL SIGTERM
# A container that runs something else than a broker sets COMET_HEALTH_URL.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["comet", "healthcheck"]
# Only clients with a certificate are served; /data/security has one, called admin. They reach the published port on this
# machine; for others, say their name for it, and put it into broker-1's certificate: comet security
# broker 1 /data/security --host NAME.
CMD ["comet", "up", "--secure", "--host", "0.0.0.0", "--advertised-host", "localhost", "--wire-port", "9192", "--data", "/data"]

FROM runtime AS spark
USER 0:0
# Debian keeps one version at a time.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends default-jre-headless \
    && rm -rf /var/lib/apt/lists/*
USER 10001:10001
COPY --from=build-spark /opt/comet /opt/comet

FROM runtime AS comet
COPY --from=build /opt/comet /opt/comet
