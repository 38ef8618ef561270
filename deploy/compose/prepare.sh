#!/bin/sh
# Makes what the services of compose.yaml present to each other: certificates, tokens, passwords. Once; if it is killed,
# the next run makes all of it again. The authority's key stays in a volume of its own.
set -eu
umask 077

if [ -e /secrets/complete ]; then
    exit 0
fi
rm -rf /authority/* /secrets/* /edge/*

token() {
    python -c 'import secrets; print(secrets.token_urlsafe(32))'
}
gateway_token() { # NAME ROLE
    comet gateway token "$1" --role "$2" --json >/secrets/token.json
    python -c 'import json; print(json.load(open("/secrets/token.json"))["row"])' >>/secrets/tokens.toml
    python -c 'import json; print(json.load(open("/secrets/token.json"))["token"], end="")' >"/secrets/$1.token"
    rm /secrets/token.json
}

comet security init /authority --host broker-1
token >/secrets/metrics.token
for id in 1 2 3; do
    comet security broker $id /authority --host broker-$id
    {
        cat /broker.toml
        echo "id = $id"
        echo "advertised_host = \"broker-$id\""
        echo "metrics_token = \"$(cat /secrets/metrics.token)\""
        for side in clients brokers; do
            echo "${side}_cert = \"/secrets/broker-$id.pem\""
            echo "${side}_key = \"/secrets/broker-$id.key\""
        done
    } >/secrets/broker-$id.toml
done
comet security client gateway /authority --host localhost --host 127.0.0.1
comet security client demo /authority
cp /authority/*.pem /authority/*.key /secrets
rm /secrets/ca.key
gateway_token admin admin
gateway_token prometheus viewer
token >/secrets/grafana.password
cp /secrets/gateway.pem /edge/chain.pem
cp /secrets/gateway.key /edge/key.pem
chown -R 10001:10001 /secrets /edge
touch /secrets/complete
