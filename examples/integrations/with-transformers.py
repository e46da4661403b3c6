"""Save an ELMo for transformers, load it with the auto classes, and score sentences.

pip install '.[transformers]'
python examples/integrations/with-transformers.py
"""

from __future__ import annotations

import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from elmokit.integrations.transformers import ElmoForCausalLM, ElmoModel, ElmoTokenizer


def main() -> None:
    """Print similarities of "bank" in context, and the log probability of two sentences."""
    with tempfile.TemporaryDirectory() as folder:
        ElmoModel.from_elmokit().save_pretrained(f"{folder}/my-elmo")
        ElmoTokenizer.from_elmokit().save_pretrained(f"{folder}/my-elmo")
        extract = pipeline("feature-extraction", model=f"{folder}/my-elmo")
        texts = ["The bank lent him money.", "The bank raised its rate.", "The bank of the river is steep."]
        # Position 0 is the boundary <S>, so the second token is at position 2.
        money, rate, river = (torch.tensor(extract(text)[0][2]) for text in texts)
        print(f"lent and rate:  {torch.cosine_similarity(money, rate, dim=0):.2f}")
        print(f"lent and river: {torch.cosine_similarity(money, river, dim=0):.2f}")

        ElmoForCausalLM.from_elmokit().save_pretrained(f"{folder}/my-lm")
        ElmoTokenizer.from_elmokit(direction="forward").save_pretrained(f"{folder}/my-lm")
        lm, tokenizer = (cls.from_pretrained(f"{folder}/my-lm") for cls in (AutoModelForCausalLM, AutoTokenizer))
        inputs = tokenizer(["The cats sleep.</S>", "The cats sleeps.</S>"], return_tensors="pt", padding=True)
        with torch.no_grad():
            log_probabilities = lm(**inputs).logits[:, :-1].log_softmax(dim=-1)
        totals = log_probabilities.gather(2, inputs["input_ids"][:, 1:, None]).sum(dim=(1, 2))
        print("The cats sleep: {:.1f}, The cats sleeps: {:.1f}".format(*totals.tolist()))


if __name__ == "__main__":
    main()
