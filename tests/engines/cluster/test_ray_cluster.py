import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'seeupo[cluster]'")

from seeupo.engines.cluster import ray_cluster


def test_bundles_are_listed_node_by_node(monkeypatch):
    monkeypatch.setattr(ray_cluster, "_nodes", lambda group: {0: "b", 1: "a", 2: "b", 3: "a"})
    assert ray_cluster.node_by_node(None) == [1, 3, 0, 2]
