"""ELMo in transformers: models and a tokenizer that its auto classes and pipelines load, and that its trainer trains.

Importing this module registers the classes, so that ``AutoModel.from_pretrained`` and ``pipeline`` find them. A saved
model also has a Python file that imports this module (``REMOTE_CODE``), for programs that pass
``trust_remote_code=True`` instead.

:class:`ElmoModel` computes token vectors. :class:`ElmoForTokenClassification` and
:class:`ElmoForSequenceClassification` classify with them. :class:`ElmoForMaskedLM` predicts a word from both of its
sides, over a closed vocabulary. :class:`ElmoForCausalLM` is one direction of the biLM as a causal language model, for
libraries that score text with such models.

The tokenizer (``transformers_tokenizer.py``) returns two kinds of ids for each token: ``char_ids``, which the biLM
reads, and ``input_ids``, the words that the softmax predicts. A word that is not in the vocabulary is ``<UNK>`` among
the ``input_ids``, and is still read by its characters.
"""

from __future__ import annotations

from elmokit.errors import needs_extra
from elmokit.integrations.transformers_heads import (
    ElmoForCausalLM,
    ElmoForMaskedLM,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
)
from elmokit.integrations.transformers_model import ElmoConfig, ElmoModel, ElmoPreTrainedModel
from elmokit.integrations.transformers_tokenizer import ElmoTokenizer

with needs_extra("elmokit.integrations.transformers", "transformers"):
    from transformers import AutoConfig, AutoTokenizer

__all__ = [
    "ElmoConfig",
    "ElmoForCausalLM",
    "ElmoForMaskedLM",
    "ElmoForSequenceClassification",
    "ElmoForTokenClassification",
    "ElmoModel",
    "ElmoTokenizer",
]

MODELS: tuple[type[ElmoPreTrainedModel], ...] = (
    ElmoModel,
    ElmoForMaskedLM,
    ElmoForTokenClassification,
    ElmoForSequenceClassification,
    ElmoForCausalLM,
)

# The names with which the auto classes find the classes of a saved directory.
AutoConfig.register(ElmoConfig.model_type, ElmoConfig, exist_ok=True)
AutoTokenizer.register(ElmoConfig, tokenizer_class=ElmoTokenizer, exist_ok=True)
for _model in MODELS:
    _model.auto_class.register(ElmoConfig, _model, exist_ok=True)
