# One broker: docker build -t comet . && docker run -p 9092:9092 -p 9192:9192 -v comet:/data comet
FROM python:3.12-slim AS build
WORKDIR /src
COPY requirements requirements
# Only what has a locked version and hash is downloaded.
RUN pip install --no-cache-dir --require-hashes -r requirements/build.txt \
    && pip wheel --no-cache-dir --require-hashes --only-binary :all: --wheel-dir /wheels -r requirements/image.txt
COPY . .
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "comet-stream[security]" \
    && rm -r /wheels \
    && useradd --system comet \
    && install -d -o comet /data
USER comet
VOLUME /data
# gRPC, and the wire of Python clients, which they use if it is published under the same number.
EXPOSE 9092 9192
# SIGTERM drains: clients are told, what is owed is acknowledged, logs are synced.
STOPSIGNAL SIGTERM
# Only clients with a certificate are served; /data/security has one, called admin. They reach the published port on this
# machine; for others, say their name for it, and put it into broker-1's certificate: comet security
# broker 1 /data/security --host NAME.
CMD ["comet", "up", "--secure", "--host", "0.0.0.0", "--advertised-host", "localhost", "--wire-port", "9192", "--data", "/data"]
