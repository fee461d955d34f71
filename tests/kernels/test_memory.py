"""Memory that may be taken: the machine's, or the limit of the container that the process is in."""

import subprocess
import sys
import warnings

import pytest

from kbtrain.kernels import memory


@pytest.fixture
def cgroups(tmp_path, monkeypatch):
    """Write /proc/self/cgroup and limits by path, in their own folder."""

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
    cgroups("0::/../elsewhere\n", memory_max="2000000")  # a container that sees only its own, at the root
    assert memory.machine_memory() == 2_000_000


def test_what_a_container_has_taken_is_not_available(cgroups, tmp_path):
    cgroups("0::/pod\n", pod__memory_max="3000000")
    (tmp_path / "fs" / "pod" / "memory.current").write_text("2000000\n")
    assert memory.available_memory() == 1_000_000
    (tmp_path / "fs" / "pod" / "memory.stat").write_text("file 900000\ninactive_file 700000\nactive_file 200000\n")
    assert memory.available_memory() == 1_700_000 and memory.machine_memory() == 3_000_000
    (tmp_path / "fs" / "pod" / "memory.current").write_text("9000000\n")
    assert memory.available_memory() == 0


def test_one_line_comes_before_the_system_has_none_left(monkeypatch):
    left = iter([10**9, 2 * 10**8, 4 * 10**8, 10**9])
    monkeypatch.setattr(memory, "available_memory", lambda: next(left))
    monkeypatch.setattr(memory, "give_back", lambda: True)
    monkeypatch.setattr(memory, "_warnings", [])
    freed = memory.FreedMemory()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [freed.check(), freed.check()] == [False, True]  # what was given back was enough
    left = iter([2 * 10**8, 2 * 10**8])
    freed = memory.FreedMemory()
    with pytest.warns(
        UserWarning, match=r"200 MB of memory are left, .* the system may end it; set fewer rows"
    ) as said:
        assert freed.check() and not memory.FreedMemory().check()  # once a process
    assert len(said) == 1 and "\n" not in str(said[0].message)


GAPS = """
from kbtrain.kernels.memory import FreedMemory, keep_freed_memory, resident_memory

assert keep_freed_memory()
freed = FreedMemory(pause=2)
assert not freed.check() and not freed.check()  # its pace is noted
before = resident_memory()
blocks = [b"x" * (2_000_000 if i % 2 else 9_000) for i in range(200)]  # the small ones stay: gaps between them
held = resident_memory()
kept = blocks[::2]
del blocks
assert resident_memory() > before + 150e6 and held > before + 150e6  # freed, and kept all the same
assert freed.check() and resident_memory() < before + 30e6
assert not freed.check()  # the next pause
print("given back")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_gaps_between_blocks_go_back_once_the_process_holds_a_fifth_more():
    done = subprocess.run([sys.executable, "-c", GAPS], capture_output=True, text=True, check=False)
    assert done.stdout == "given back\n", done.stderr


def test_a_large_process_is_held_closer_to_its_pace(monkeypatch):
    held = iter(gb * 10**9 for gb in (2.6, 2.59, 2.61, 2.7, 2.7, 2.71))
    monkeypatch.setattr(memory, "resident_memory", lambda: next(held))
    monkeypatch.setattr(memory, "give_back", lambda: True)
    freed = memory.FreedMemory(long_batches=True)
    # of the fourth batch the pace is noted, what is more is given back: 2.61; then 2.7 is the pace
    assert [freed.check() for _ in range(12)] == [False] * 5 + [True] + [False] * 5 + [True]
