"""Links to other clusters' dashboards: which are taken, and that each refusal says what to write."""

from __future__ import annotations

import pytest

from comet.errors import InvalidArgument
from comet_gateway.app import create_app
from comet_gateway.config import GatewayConfig
from comet_gateway.http.cluster_links import CLUSTERS_MAX, ClusterLink, cluster_links
from comet_gateway.settings import load


def test_links_keep_their_order_and_one_is_here() -> None:
    rows = ("prod=https://comet.example.com", "lab = http://10.0.0.7:8080/comet/")
    assert cluster_links(rows, "lab") == (
        ClusterLink("prod", "https://comet.example.com"),
        ClusterLink("lab", "http://10.0.0.7:8080/comet/", here=True),
    )
    assert not any(link.here for link in cluster_links(rows, ""))


@pytest.mark.parametrize(
    "row",
    [
        "prod", "=https://a.example", "a=", "a=a.example", "a=//a.example", "a=javascript:alert(1)",
        "a=data:text/html,x",
        "a=ftp://a.example", "a=https://", "a=https://u:p@a.example", "a=https://a.example?x=1",
        "a=https://a.example#x",
        "a=https://a.example:99999", "a=https://a.example:0", "a=https://a exa", "a=https://a\\b", "a=https://[::1",
        "a\x00b=https://a.example", f"{'n' * 61}=https://a.example",
    ],
)  # fmt: skip
def test_other_texts_are_refused(row: str) -> None:
    with pytest.raises(InvalidArgument, match="write name=url"):
        load({"clusters": row}, {})
    with pytest.raises(InvalidArgument, match="write name=url"):
        create_app(GatewayConfig(clusters=(row,)))


def test_a_name_belongs_to_one_cluster_and_there_are_not_too_many() -> None:
    with pytest.raises(InvalidArgument, match="a name twice"):
        cluster_links(("a=https://a.example", "a=https://b.example"), "")
    with pytest.raises(InvalidArgument, match=f"more than {CLUSTERS_MAX}"):
        cluster_links(tuple(f"c{number}=https://a.example" for number in range(CLUSTERS_MAX + 1)), "")
