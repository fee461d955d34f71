"""An environment into which the wheel was installed, and nothing else.

What kbtrain depends on is lent from the environment of the tests (a path, so that none of its own installations of
kbtrain come along); kbtrain itself, its scripts and its command come from the wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Installed:
    """An environment with the wheel; commands run in ``folder``, which is empty at first and outside the clone."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder / "work", folder / "venv" / "bin"
        self.folder.mkdir()
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
        (wheel,) = folder.glob("kbtrain-*.whl")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
        (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--no-index", "--disable-pip-version-check", str(wheel)], check=True, env=self.env())
        self.package = packages / "kbtrain"

    def env(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "PYTHONHOME"}}
        return kept | {"PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in its folder; ``more`` are environment variables."""
        program, env = str(self.bin / command[0]), self.env() | more
        return subprocess.run(
            [program, *command[1:]], cwd=self.folder, env=env, capture_output=True, text=True, check=False
        )
