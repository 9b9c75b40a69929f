import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("ray", reason="Ray is not installed: pip install 'seeupo[cluster]'")

from seeupo.distributed import ray_cluster
from seeupo.distributed.rank import interface_of
from seeupo.errors import TrainingError


def test_bundles_are_listed_node_by_node(monkeypatch):
    monkeypatch.setattr(ray_cluster, "_nodes", lambda group: {0: "b", 1: "a", 2: "b", 3: "a"})
    assert ray_cluster.node_by_node(None) == [1, 3, 0, 2]


@pytest.mark.parametrize(
    ("visible", "device", "offered"),
    [
        (None, "cuda", "1,2,3"),
        (None, "cuda:2", "0,1,3"),
        ("4,6,7", "cuda:1", "4,7"),
        ("5", "cuda", ""),
        ("5", "cpu", "5"),
    ],
)
def test_ray_does_not_offer_the_gpu_of_a_local_trainer(visible, device, offered, monkeypatch):
    seen = []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **options: seen.append(os.environ["CUDA_VISIBLE_DEVICES"]))
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setattr(ray_cluster, "_check_private", lambda: None)
    with ray_cluster.ray_cluster(None, processes=2, own_device=torch.device(device)):
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible
    assert seen == [offered]


def test_workers_start_from_an_interpreter_whose_path_has_a_space(tmp_path):
    (tmp_path / "a folder").symlink_to(sys.prefix)
    python = tmp_path / "a folder" / "bin" / Path(sys.executable).name
    code = """
import sys
from seeupo.distributed.ray_cluster import ray_cluster
with ray_cluster(None, processes=1):
    import ray
    assert ray.get(ray.remote(lambda: sys.executable).remote(), timeout=300) == sys.executable
"""
    subprocess.run([python, "-c", code], check=True, env=os.environ | {"HOME": str(tmp_path)}, timeout=600)


@pytest.mark.parametrize("named", ["ray://head:10001", "some_module://head:1"])
def test_the_environment_names_no_cluster_of_another_kind(named, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **options: pytest.fail(f"joined {options['address']}"))
    monkeypatch.setenv("RAY_ADDRESS", named)
    with pytest.raises(TrainingError, match="RAY_ADDRESS"), ray_cluster.ray_cluster("auto", processes=1):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="interfaces are looked up on Linux only")
def test_interfaces_are_found_by_their_address():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.200") is None
