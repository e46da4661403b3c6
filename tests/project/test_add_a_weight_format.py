"""The guide to adding a weight format works, and two files are all that it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.worked_example import follow, run_in

PAGE = ROOT / "docs" / "how-to" / "develop" / "add-a-weight-format.md"
# Run with the changed package.
USE = """
import shutil
import sys
from pathlib import Path
import numpy as np
from elmokit import PRESETS, Elmo, open_model, save_model
from elmokit.cli.main import main
from elmokit.engine.config import tensor_shapes
from elmokit.errors import ElmoError
from elmokit.formats.format import model_files
from elmokit.formats.model import PretrainedBiLM, Weights

def run(*command):
    sys.argv = ["elmokit", *command]
    try:
        main()
    except SystemExit as end:
        return end.code

def error_of(call, *arguments):
    try:
        call(*arguments)
    except ElmoError as error:
        return str(error)

Path("tiny").mkdir()
draw, config = np.random.default_rng(0), PRESETS["tiny"]
arrays = {name: draw.normal(0, 0.1, shape).astype("f") for name, shape in tensor_shapes(config).items()}
arrays["token_layer.char_embedding.weight"][0] = 0  # "no token"
save_model(PretrainedBiLM(Weights(config, arrays), "elmokit"), "my-elmo")
assert not run("convert", "my-elmo", "tiny/x_weights.safetensors")
assert {path.name for path in Path("tiny").iterdir()} == {"x_weights.safetensors", "x_options.json"}
ours = open_model("my-elmo")
shutil.make_archive("tiny", "zip", ".", "tiny")
for path in ("tiny/x_weights.safetensors", "tiny", "tiny.zip"):
    model = open_model(path)
    assert model.family == "bilm-tf-safetensors"
    assert set(model.arrays) == set(ours.arrays)
    assert all(np.array_equal(model.arrays[name], ours.arrays[name]) for name in ours.arrays)
sentence = [["The", "cat", "sat", "."]]
one, other = (Elmo(open_model(path, precision="float32"), start="zero") for path in ("my-elmo", "tiny"))
np.testing.assert_array_equal(one.embed(sentence)[0], other.embed(sentence)[0])

assert run("convert", "my-elmo", "tiny/x_weights.safetensors") == 2  # it exists
assert run("convert", "my-elmo", "y_weights.safetensors", "--storage", "int8") == 2
assert "choose a name" in error_of(save_model, ours, "z.safetensors")
assert "*_weights.safetensors" in model_files()
Path("empty").mkdir()
assert "options with safetensors weights" in error_of(open_model, "empty")
Path("tiny/x_options.json").unlink()
assert "x_options.json" in error_of(open_model, "tiny")
"""


@pytest.mark.slow
def test_a_weight_format_is_added_in_two_files_as_the_page_says(tmp_path: Path) -> None:
    assert len(follow(PAGE, tmp_path)) == 2
    run_in(tmp_path, USE)
