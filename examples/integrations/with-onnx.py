"""Export an ELMo to ONNX, run it with ONNX Runtime, and compare the vectors.

pip install '.[onnx]' onnxruntime
python examples/integrations/with-onnx.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

from elmokit import Elmo
from elmokit.integrations.onnx import export_onnx


def main() -> None:
    """Print the shape of the result, and its largest difference from elmokit's own."""
    elmo = Elmo.from_pretrained(precision="float32")  # that of the graph
    sentences = [["The", "bank", "raised", "its", "rate", "."], ["He", "sat", "on", "the", "river", "bank", "."]]
    with tempfile.TemporaryDirectory() as folder:
        path = export_onnx(None, Path(folder) / "en-mini.onnx")
        session = onnxruntime.InferenceSession(path)
        (layers,) = session.run(["layers"], {"char_ids": elmo.ids(sentences)})
    print(layers.shape)
    for number, expected in enumerate(elmo.embed(sentences)):
        # The first position is the boundary <S>.
        found = layers[:, number, 1 : 1 + expected.shape[1]]
        print(f"largest difference of sentence {number + 1}: {np.abs(found - expected).max():.0e}")


if __name__ == "__main__":
    main()
