"""Memory that may be taken: the machine's, or the limit of the container that the process is in."""

import os

import pytest

from kbtrain.kernels import memory


@pytest.fixture
def cgroups(tmp_path, monkeypatch):
    """Write /proc/self/cgroup and limits by path, in a folder of their own."""

    def write(of_process, **limits):
        (tmp_path / "cgroup").write_text(of_process)
        for name, limit in limits.items():
            path = tmp_path / "fs" / name.replace("__", "/").replace("_max", ".max").replace("-", "_")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(limit + "\n")
        monkeypatch.setattr(memory, "_OF_PROCESS", tmp_path / "cgroup")
        monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "fs")

    return write


def test_a_containers_limit_counts_the_lowest_of_those_around_the_process(cgroups):
    cgroups("0::/pod/one\n", pod__one__memory_max="max", pod__memory_max="3000000")
    assert memory.machine_memory() == memory.available_memory() == 3_000_000


def test_the_limit_at_the_root_counts_where_a_container_sees_only_its_own(cgroups):
    cgroups("0::/../elsewhere\n", memory_max="5000000")
    assert memory.machine_memory() == 5_000_000


def test_version_1_has_a_mount_of_its_own(cgroups, tmp_path):
    cgroups("5:cpu:/a\n4:memory:/a\n0::/\n")
    folder = tmp_path / "fs" / "memory" / "a"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("4000000\n")
    assert memory.machine_memory() == 4_000_000


@pytest.mark.parametrize("of_process", ["", "0::/\n", "no such line\n"])
def test_without_a_limit_it_is_the_machines(cgroups, of_process):
    cgroups(of_process)
    assert memory.machine_memory() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < memory.available_memory() <= memory.machine_memory()
