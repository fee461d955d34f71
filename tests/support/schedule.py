"""Order and places of the tests: file by file, the slow files first, so that no process waits at the end for another.

A file stays in one process, as its fixtures do; files that share a cluster or an installation share a process, and so
do those that mostly wait: the machine's cores are for the others meanwhile.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

_WAITING = (
    "llm/test_lying_servers.py", "llm/test_openai_llm.py", "push/test_hub.py", "benchmarks/test_serving_benchmark.py",
    "test_store.py",
)  # fmt: skip
# Files that take more than about 2 s of CPU or of waiting, child processes included, the dearest first.
SLOW = (
    "test_wheel.py",
    "test_chain.py",
    "test_own_data.py",
    "test_promises.py",
    "test_fit.py",
    "report/test_audit_page.py",
    "distributed/test_ray_score.py",
    "distributed/test_ray_engine.py",
    "data_gen/test_sample.py",
    "recipes/test_train_kbm.py",
    "recipes/test_train_classifiers.py",
    "recipes/test_train_ragate_peft.py",
    *_WAITING,  # as the cluster before them, these wait while others compute
    "recipes/test_deepspeed.py",
    "eval/test_write_report.py",
    "eval/test_run_seakr.py",
    "test_cli.py",
    "eval/test_end_to_end.py",
    "studies/test_ragate_responses.py",
    "recipes/test_logged_loss.py",
    "benchmarks/test_gpu_check.py",
    "data_gen/test_sample_backends.py",
    "eval/test_browser.py",
    "data_gen/test_label.py",
    "serve/test_failures.py",
    "data_gen/test_retrieve.py",
    "eval/test_score.py",
    "training/test_trackers.py",
    "tools/test_build_atlas.py",
    "benchmarks/test_sampling_benchmark.py",
    "serve/test_bad_input.py",
    "serve/test_local_model.py",
    "retrieval/test_bm25.py",
    "eval/test_cost_compare.py",
    "eval/test_imported_answers.py",
    "models/test_embedded.py",
    "questions/test_corrupted.py",
    "gates/test_one_shape.py",
    "gates/test_ragate_mha.py",
    "eval/test_learning_curve.py",
    "recipes/test_other_package.py",
    "gates/test_features.py",
    "gates/test_stack.py",
    "test_notebooks.py",
    "data_gen/test_planted_key.py",
    "studies/test_evidence.py",
    "eval/test_several_processes.py",
    "llm/test_transformers_llm.py",
    "serve/test_openapi.py",
    "llm/sampler/test_shared_prefix.py",
    "gates/test_kbm.py",
    "gates/test_probe.py",
    "test_imports.py",
    "test_config.py",
    "test_cores.py",
    "test_torture.py",
    "test_damaged_folders.py",
    "test_scripts.py",
    "distributed/test_merge.py",
    "data_gen/test_judge.py",
    "studies/test_kbm_tables.py",
    "recipes/test_fit_gate.py",
    "retrieval/test_vectors.py",
    "data_gen/test_build.py",
    "tools/test_mutants.py",
)
TOGETHER = {  # files whose slow fixture is one for the process, and files that must not wait at the same time
    "ray": ("distributed/test_ray_score.py", "distributed/test_ray_engine.py"),
    "installed": ("test_wheel.py", "test_own_data.py", "test_chain.py"),
    "waiting": _WAITING,
}
PLACE = {name: place for place, name in enumerate(SLOW)}


def place(nodeid: str) -> int:
    """Where the file of a test is in :data:`SLOW`; behind all of them if it is quick."""
    return PLACE.get(nodeid.split("::")[0].removeprefix("tests/"), len(SLOW))


class SlowFilesFirst(LoadFileScheduling):
    """Whole files to whoever is free, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0].removeprefix("tests/")
        return next((name for name, files in TOGETHER.items() if file in files), super()._split_scope(nodeid))
