"""Write a model card for an ELMo, and upload the model to the Hugging Face Hub if you name a repository.

pip install '.[huggingface-hub]'
python examples/integrations/with-huggingface-hub.py [owner/name]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from elmokit import Elmo, open_model
from elmokit.integrations.huggingface_hub import HubModel

HEADER = {"license": "mit", "language": "en"}


def main() -> None:
    """Print the beginning of the model card, and upload the model or load it from its directory."""
    model = HubModel(open_model())
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "en-mini"
        model.save_pretrained(saved, model_card_kwargs=HEADER)
        print("\n".join((saved / "README.md").read_text(encoding="utf-8").splitlines()[:12]))
        source = str(saved)
        if len(sys.argv) > 1:
            source = sys.argv[1]
            print(model.push_to_hub(source, model_card_kwargs=HEADER))
        elmo = Elmo(HubModel.from_pretrained(source).model)
    print(elmo.embed([["The", "bank", "raised", "its", "rate", "."]])[0].shape)


if __name__ == "__main__":
    main()
