"""What the shared stage holds. Tests rely on it and leave it as it is; what they change they make for themselves."""

from __future__ import annotations

import comet

MARKUP = "<img src=x onerror=\"document.title='stolen'\"><b>bold</b>"


async def seed(broker: str) -> None:
    """Topic `quotes` with 40 quotes, `orders` with hostile ones, `empty` with none; group `engine` lags."""
    async with comet.Admin(broker) as admin, comet.Producer(broker) as producer:
        await admin.create_topic("quotes", partitions=3)
        await admin.create_topic("orders", partitions=1)
        await admin.create_topic("empty", partitions=2)
        for number in range(40):
            symbol = ("EURUSD", "GBPUSD", "USDJPY", "AUDUSD")[number % 4]
            value = b'{"symbol": "%s", "bid": %.2f, "ask": %.2f}' % (
                symbol.encode(),
                1 + number / 100,
                1.02 + number / 100,
            )
            await producer.send("quotes", value, key=symbol.encode())
        headers = {"source": MARKUP, "trace": "00-4bf9"}
        await producer.send("orders", MARKUP.encode(), key=MARKUP.encode(), headers=headers)
        await producer.send("orders", b'{"note": "%s"}' % MARKUP.replace('"', "'").encode(), key=b"=1+1")
        await producer.send("orders", bytes(range(256)), key=None)
        await producer.flush()
        await admin.commit_offsets(
            "engine", {comet.TopicPartition("quotes", 0): 0, comet.TopicPartition("quotes", 1): 2}
        )
