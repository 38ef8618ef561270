"""Bulk in, columns out: a hundred thousand records, read as Arrow.

Needs `pip install '.[arrow]'` in a checkout of Comet, a broker (`comet up`) and a topic (`comet topic create numbers`).
"""

from __future__ import annotations

import sys

import comet.sync


def main(address: str) -> None:
    with comet.sync.Producer(address, compression="zstd") as producer:
        receipts = producer.send_many("numbers", [b"%d" % n for n in range(100_000)], partition=0).result()
    rows, size = 0, 0
    with comet.sync.Consumer(address, "numbers", start=receipts[0].first, partitions=[0]) as consumer:
        for batch in consumer.batches():
            table = batch.to_arrow()
            rows += table.num_rows
            size += table.nbytes
            if rows >= 100_000:
                break
    sys.stdout.write(f"{rows} rows, {size} bytes in Arrow columns\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092")
