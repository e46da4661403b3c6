"""What the pages promise is on them, and is held by tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.syntax import nodes_of, tree_of

PROMISES = {
    "SECURITY.md": {
        "only numbers and text are read from them": (
            "formats/test_torch_save.py::test_code_is_not_run",
            "formats/test_torch_save.py::test_what_is_no_state_dict_and_no_matrix_is_refused",
            "formats/test_refusals.py::test_a_damaged_model_is_refused_by_name",
        ),
        "no code in pickles is run": (
            "formats/test_torch_save.py::test_code_is_not_run",
            "formats/test_archives.py::test_a_pickle_in_an_archive_is_never_loaded",
            "project/test_promises.py::test_nothing_in_the_package_can_run_code_from_a_file",
        ),
        "nothing is unpacked outside of its directory": (
            "formats/test_archives.py::test_only_model_files_are_unpacked",
            "formats/test_archives.py::test_a_member_that_leads_outside_is_never_written_there",
            "formats/test_refusals.py::test_what_is_no_model_is_named_by_what_it_looks_like",
        ),
        "can import only files from the directory of the config": (
            "tasks/test_config_table.py::test_jsonnet_that_cannot_be_evaluated_is_rejected",
            "tasks/test_config_table.py::test_a_library_next_to_the_config_is_read",
        ),
        "an error in one line": (
            "campaign/test_mutants.py::test_damaged_files_are_read_or_refused_in_one_line",
            "fuzz/test_targets.py::test_damaged_files_and_all_findings_are_read_or_refused",
        ),
        "the same command resumes and ends with the same bits": (
            "campaign/test_interruptions.py::test_a_command_that_dies_at_a_change_of_the_disk_can_be_resumed",
        ),
        "Every address of a published model is https": (
            "formats/test_sources.py::test_the_table_of_published_models_is_complete",
        ),
        "no redirect leads from https to http": (
            "formats/test_fetch.py::test_a_redirect_from_https_to_http_is_refused",
        ),
        "A checksum is verified if the URL ends in `#sha256=...`": (
            "formats/test_fetch.py::test_a_checksum_in_the_url_is_checked",
        ),
        "the checksum of the first download is recorded and verified": (
            "formats/test_fetch.py::test_the_checksum_is_recorded_and_checked",
        ),
        "accepts connections of its own machine only": (
            "serve/test_process.py::test_the_server_listens_on_a_loopback_address_only_and_shares_it_with_none",
        ),
        "answers only requests to `localhost`, `127.0.0.1` and `[::1]`": (
            "serve/test_serve.py::test_a_name_that_was_made_to_lead_here_is_refused",
            "serve/test_serve.py::test_the_hosts_that_are_accepted_depend_on_the_address",
        ),
        "unless you pass another `--host` or `--allowed-hosts`": (
            "serve/test_serve.py::test_named_hosts_are_accepted",
        ),
        "Pages of other sites cannot read from it": (
            "serve/test_serve.py::test_other_sites_may_not_use_the_server_unless_they_are_named",
            "serve/test_serve.py::test_a_body_that_is_not_declared_as_json_is_refused",
        ),
        "A token (`--token-file`) protects everything but the page and `/healthz`": (
            "serve/test_serve.py::test_a_token_protects_everything_but_the_page_and_health",
        ),
        "Bodies, texts, the queue and the time of a request are limited": (
            "serve/test_process.py::test_a_client_that_sends_too_much_or_too_slowly_does_not_keep_its_connection",
            "serve/test_serve.py::test_a_bad_request_has_a_clear_answer_and_the_next_is_served",
            "serve/test_serve.py::test_a_request_that_takes_too_long_is_answered_with_503",
            "serve/test_batcher.py::test_a_full_queue_says_when_to_try_again",
        ),
        "errors show no stack trace": ("serve/test_serve.py::test_an_unexpected_error_shows_no_stack_trace",),
        "from a directory of yours with mode 0700": (
            "engine/test_compiler.py::test_a_cache_that_cannot_be_used_is_left_alone_with_a_warning",
            "engine/test_compiler.py::test_the_library_is_compiled_once_and_then_found",
        ),
    },
    "docs/how-to/resume.md": {
        "**run the same command again**": (
            "campaign/test_interruptions.py::test_a_command_that_dies_at_a_change_of_the_disk_can_be_resumed",
            "campaign/test_interruptions.py::test_a_command_can_be_interrupted_five_times",
            "campaign/test_other_parts.py::test_a_small_share_of_a_part_of_the_campaign_has_no_failure",
        ),
        "A run with other settings is refused, and the error names what": (
            "storage/test_workspace.py::test_the_first_setting_that_differs_is_named",
            "training/test_refusals.py::test_a_call_with_other_settings_is_refused_and_says_what_differs",
            "tasks/test_run.py::test_seeds_can_be_added_when_a_run_is_resumed_and_nothing_else_can_change",
        ),
        "the resulting file is identical to that of an uninterrupted run": (
            "embedding/outputs/test_outputs.py::test_a_run_interrupted_several_times_writes_the_same_file",
        ),
        "also with another number of": (
            "embedding/test_corpus.py::test_a_run_is_resumed_with_another_number_of_threads_to_the_same_bytes",
        ),
        "the error names the one that differs": (
            "embedding/test_corpus.py::test_resuming_requires_the_same_text_and_model",
        ),
        "A run that would mix them is refused": (
            "embedding/test_corpus.py::test_a_run_is_resumed_only_by_an_equal_computation",
        ),
        "downloads of models": ("formats/test_fetch.py::test_an_interrupted_download_is_resumed_where_it_broke",),
    },
}
"""What each page says, in its words, and the tests that hold it, below ``tests/``."""
UNSAFE = {"eval", "exec", "execfile", "compile"}
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "joblib", "dill", "cloudpickle", "yaml"}


@pytest.mark.parametrize("page", PROMISES)
def test_each_promise_is_on_the_page_and_is_held_by_tests_that_exist(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    for promise, tests in PROMISES[page].items():
        assert promise in text, f"{page} does not say {promise!r}"
        assert tests
        for path, name in (test.split("::") for test in tests):
            tree = tree_of(ROOT / "tests" / path)
            functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert name in functions, f"{path} has no {name}, which holds {promise!r}"


def calls(path: Path) -> list[tuple[int, str, dict[str, ast.expr]]]:
    """Return the line, the name and the keyword arguments of each call in a file."""
    found = []
    for node in nodes_of(path):
        if isinstance(node, ast.Call):
            keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
            found.append((node.lineno, _dotted(node.func), keywords))
    return found


def _dotted(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return f"{_dotted(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def is_unsafe(name: str, keywords: dict[str, ast.expr]) -> bool:
    """Check whether a call could run code that a file contains."""
    module, _, function = name.rpartition(".")
    if name in UNSAFE or (module in UNSAFE_MODULES and function in ("load", "loads", "Unpickler", "open")):
        return True
    if name == "torch.load":
        only = keywords.get("weights_only")
        return not (isinstance(only, ast.Constant) and only.value is True)
    return function == "load" and "allow_pickle" in keywords


def test_nothing_in_the_package_can_run_code_from_a_file() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / "elmokit").rglob("*.py"))
        for line, name, keywords in calls(path)
        if is_unsafe(name, keywords)
    ]
    assert not found


def test_calls_that_could_run_code_are_recognized(tmp_path: Path) -> None:
    path, lines = tmp_path / "code.py", ("pickle.load(f)", "eval(x)", "torch.load(f)", "model.eval()", "np.load(f)")
    path.write_text("\n".join([*lines, "torch.load(f, weights_only=True)"]))
    assert [line for line, name, keywords in calls(path) if is_unsafe(name, keywords)] == [1, 2, 3]
