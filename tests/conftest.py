"""Settings of every test process; they must be set before torch or a tokenizer is imported."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from execnet import XSpec
from hypothesis import settings
from xdist.remote import Producer
from xdist.workermanage import WorkerController

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads only slow tiny models down
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"  # a test that needs the network is a wrong test

# Hundreds of processes import the package: it is compiled once, for the workers and for all that they start.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    sys.dont_write_bytecode = False

# The same commit gives the same verdict: the suite draws the same examples every time, `make examples` new ones.
settings.register_profile("suite", derandomize=True, database=None, deadline=None)
settings.register_profile("examples", max_examples=1000, deadline=None)
settings.load_profile("suite")

from support import cpu_times, installed, schedule, scripts  # noqa: E402

from kbtrain import errors  # noqa: E402
from kbtrain.runtime import cores  # noqa: E402

HERE = Path(__file__).parent
SERVER = pytest.StashKey[scripts.Server]()
INSTALLED = pytest.StashKey[Path]()
_last_file: list[object] = []  # of the test that ran before in this process


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="skip the slow files: processes, trainings, downloads")
    parser.addoption("--cpu-times", action="store_true", help="tell the processor time of files and tests at the end")


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # keep the order of pytest_collection_modifyitems
    given = getattr(config, "workerinput", {}).get("scripts")
    scripts.shared = Path(given) if given else None
    given = getattr(config, "workerinput", {}).get("installed")
    installed.shared = Path(given) if given else None
    if config.getoption("--cpu-times"):
        config.pluginmanager.register(cpu_times.CpuTimes())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[XSpec]) -> None:
    """Fork the suite's processes, too, from the server that they ask for scripts: nothing is imported thrice."""
    if config.getoption("--cpu-times"):  # that count what each has used
        return
    config.stash[SERVER] = server = scripts.Server()
    config.add_cleanup(server.close)
    if config.args == config.getini("testpaths") and not config.getoption("--fast"):
        config.stash[INSTALLED] = server.folder / "installed"
        config.add_cleanup(installed.Making(config.stash[INSTALLED], server.folder / "python").close)
    for spec in specs:
        spec.python = f"{server.folder / 'python'} --suite"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    if SERVER in node.config.stash:
        node.workerinput["scripts"] = str(node.config.stash[SERVER].folder)
    if INSTALLED in node.config.stash:
        node.workerinput["installed"] = str(node.config.stash[INSTALLED])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> schedule.SlowFilesFirst:
    return schedule.SlowFilesFirst(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Slow files are not even imported where they are skipped; None: as any other plugin says."""
    if not config.getoption("--fast") or not collection_path.is_relative_to(HERE):
        return None
    return schedule.place(f"tests/{collection_path.relative_to(HERE).as_posix()}") < len(schedule.SLOW) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: schedule.place(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """No search for garbage while modules are imported: all of it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        cores.raise_gc_threshold()  # what 5,000 tests leave behind, too


def _keep() -> None:
    """Spare all that lives now (modules, 5,000 tests) every later collection of garbage: a training starts several."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    scripts.asked.clear()
    if _last_file != [item.path]:  # a key that one file's tests plant must not be struck from another's pages
        errors._SECRETS.clear()
        _last_file[:] = [item.path]
        _keep()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test tells the commands it ran, with their exit codes and the end of what they said."""
    report = yield
    if report.failed:
        for done in scripts.asked:
            text = f"{' '.join(done.args)}\nexit code {done.returncode}\n{done.stderr[-2000:]}"
            report.sections.append(("command", text))
    return report
