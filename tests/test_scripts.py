"""Scripts by name: found, listed, copied and launched, from any folder; texts name them as they are run."""

import re
from collections import Counter
from pathlib import Path

import pytest

from kbtrain.errors import UserError
from kbtrain.runtime import scripts
from kbtrain.runtime.scripts import FOLDERS, as_commands, home

ROOT = Path(__file__).resolve().parent.parent


def test_no_two_shipped_files_share_a_name():
    counted = Counter(name for kind in scripts.KINDS for name in scripts.shipped(kind))
    assert len(counted) >= 80
    assert [name for name, count in counted.items() if count > 1] == []


def test_every_script_and_configuration_says_in_one_line_what_it_is():
    files = scripts.shipped("stages", "recipes", "configs")
    assert [name for name, path in files.items() if len(scripts.about(path)) < 15] == []


@pytest.mark.parametrize(
    ("text", "kind", "path"),
    [
        ("collect", "stages", "data_gen/collect.py"),
        ("train_kbm", "recipes", "recipes/train_kbm.py"),
        ("recipes/train_kbm.py", "recipes", "recipes/train_kbm.py"),
        ("kbm_smollm2", "configs", "recipes/configs/kbm_smollm2.yaml"),
        ("recipes/configs/kbm_smollm2.yaml", "configs", "recipes/configs/kbm_smollm2.yaml"),
        ("zero2_4gpu", "launch", "ds_configs/accelerate_zero2_4gpu.yaml"),
        ("zero2.json", "launch", "ds_configs/zero2.json"),
    ],
)
def test_a_name_or_a_path_as_in_a_clone_is_found_from_any_folder(text, kind, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert scripts.find(text, kind, what="name") == ROOT / path


def test_a_file_of_ones_own_goes_before_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("collect").write_text("")
    assert scripts.find("collect", "stages", what="stage") == Path("collect")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colect", "unknown stage 'colect'; did you mean 'collect'?"),
        ("data_gen/colect.py", "data_gen/colect.py: no such file"),
        ("mine.py", "mine.py: no such file"),
    ],
)
def test_a_name_that_does_not_exist_gets_the_nearest(text, message):
    with pytest.raises(UserError) as caught:
        scripts.find(text, "stages", what="stage")
    assert str(caught.value) == message


def test_a_copy_is_the_same_file_and_overwrites_none(tmp_path):
    target = scripts.copy("train_kbm", tmp_path / "mine" / "my.py")
    assert target.read_bytes() == (ROOT / "recipes/train_kbm.py").read_bytes()
    assert scripts.copy("kbm_smollm2", tmp_path) == tmp_path / "kbm_smollm2.yaml"
    with pytest.raises(UserError, match="exists already; give another name"):
        scripts.copy("train_kbm", target)


def test_a_launch_names_its_files_absolutely(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script, launch = home() / "recipes/train_kbm.py", home() / "ds_configs/accelerate_zero2_4gpu.yaml"
    command = scripts.launch_command(script, launch, ["--epochs", "1"])
    assert command[3:6] == ["--quiet", "--config_file", str(launch)]
    assert command[6:8] == ["--deepspeed_config_file", str(home() / "ds_configs/zero2.json")]
    assert command[8:] == [str(script), "--epochs", "1"]


def test_options_of_the_launcher_go_to_it_and_not_to_the_script(tmp_path):
    """On the second of two machines the script did not know --machine_rank."""
    script, launch = home() / "recipes/train_kbm.py", home() / "ds_configs/accelerate_zero2_2nodes.yaml"
    words = ["--machine_rank", "1", "--epochs=2", "--main-process-ip=10.0.0.1", "main_process_port=1"]
    command = scripts.launch_command(script, launch, words)
    at = command.index(str(script))
    assert command[at - 2 : at] == ["--machine_rank=1", "--main_process_ip=10.0.0.1"]
    assert command[at + 1 :] == ["--epochs=2", "main_process_port=1"]


def test_a_launch_with_deepspeed_that_is_not_installed_is_one_line(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "kbtrain\[train\]"'):
        scripts.launch(home() / "recipes/train_kbm.py", home() / "ds_configs/accelerate_zero2_4gpu.yaml", [])


def test_a_copied_launch_file_still_finds_deepspeeds_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = scripts.copy("zero2_4gpu", tmp_path / "mine.yaml")
    scripts.copy("zero2.json", tmp_path / "ds_configs" / "zero2.json")
    command = scripts.launch_command(home() / "recipes/train_kbm.py", own, [])
    assert str(tmp_path / "ds_configs" / "zero2.json") in command


@pytest.mark.parametrize("given", [None, "3"])
def test_a_launch_on_a_cpu_gives_the_number_of_threads_that_accelerate_would_take(given, monkeypatch):
    """Given, so that accelerate prints no notice of having chosen it; OMP_NUM_THREADS goes before."""
    monkeypatch.setattr("psutil.cpu_count", lambda logical: 6)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    command = scripts.launch_command(ROOT / "x.py", home() / "ds_configs/accelerate_cpu.yaml", [])
    assert ("--num_cpu_threads_per_process" in command) is (given is None)
    assert given or command[command.index("--num_cpu_threads_per_process") + 1] == "6"


def test_a_file_that_is_no_launch_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a launch file of accelerate"):
        scripts.launch_command(ROOT / "x.py", home() / "recipes/configs/kbm_smollm2.yaml", [])


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("no such file; run eval/end_to_end.py first", "no such file; run `kbtrain run end_to_end` first"),
        ("run eval/score.py --run runs/x first", "run kbtrain run score --run runs/x first"),
        ("python data_gen/sample.py --config data_gen/configs/sample_demo.yaml",
         "kbtrain run sample --config sample_demo"),
        ("`eval/calibrate.py` chooses one", "`kbtrain run calibrate` chooses one"),
        ("runs/demo/eval/score.py and eval/mine.py are mine", "runs/demo/eval/score.py and eval/mine.py are mine"),
    ],
)  # fmt: skip
def test_a_script_is_shown_as_the_command_that_runs_it(written, shown):
    assert as_commands(written) == shown


def test_every_script_and_configuration_that_a_text_names_exists():
    """Nothing else would notice a script that was renamed and is still named in a message, a docstring or a page."""
    assert home() == ROOT
    sources = [path for folder in ("kbtrain", *FOLDERS, "docs") for path in (ROOT / folder).rglob("*.*")]
    texts = {path: path.read_text(encoding="utf-8") for path in sources if path.suffix in {".py", ".yaml", ".md"}}
    pattern = re.compile(r"(?<![\w/.-])(?:(?:data_gen|recipes|eval)/[\w/]+\.(?:py|yaml)|ds_configs/\w+\.(?:yaml|json))")
    named = {(path, name) for path, text in texts.items() for name in pattern.findall(text)}
    assert len(named) > 100
    assert sorted(f"{path}: {name}" for path, name in named if not (ROOT / name).is_file()) == []
