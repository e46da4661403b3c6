"""ELMo in lm-eval: :class:`ElmoLM`, a model that scores texts by their log probability.

``lm_eval --model elmokit`` finds it by an entry point, from the release after lm-eval 0.4.13 on. Earlier releases have
no plugins: importing this module registers the model, and ``python -m elmokit.integrations.lm_eval`` is their command.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from tqdm import tqdm

from elmokit.config import check_choice
from elmokit.errors import ConfigError, needs_extra
from elmokit.formats.model import PretrainedBiLM
from elmokit.formats.open import as_model
from elmokit.lm.language_model import LanguageModel
from elmokit.lm.surprisal import Surprisal, surprisals
from elmokit.network.devices import parse_device
from elmokit.text.tokenize import Tokenization, get_tokenizer

with needs_extra("elmokit.integrations.lm_eval", "lm-eval"):
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model


@register_model("elmokit")
class ElmoLM(LM):  # type: ignore[misc]
    """A biLM as a model of lm-eval, for tasks that compare log probabilities or measure perplexity.

    It does not generate text.

    Args:
        pretrained: A path, address or name, as in :meth:`LanguageModel.from_pretrained`, or an opened model, with its
            softmax and vocabulary. None: the small English model in the package.
        direction: "forward"; "backward"; or "both", which adds the log probabilities of both directions. Only
            "forward" computes the probability of a continuation given its context. The others return the probability of
            both together, which ranks the continuations of a context in the same way.
        tokenization: How a text is split into tokens: "treebank", as the English models were trained; or "spaces" for
            text that is tokenized already, with spaces between the tokens.
        sentence_end: Include the end of the sentence in the log probability of a continuation.
        device: Where to compute, such as "cuda". None: the CPU. So is "cuda" on a machine without a GPU, because the
            command line of lm-eval always passes a device.
        batch_size, max_batch_size: Not used, because batches are made by number of tokens. lm-eval passes them.

    Raises:
        ModelError: The model was not found, cannot be opened, or has no softmax or vocabulary.
        ConfigError: The model does not read in this direction, or another argument is not valid.

    Example:
        >>> import lm_eval
        >>> results = lm_eval.simple_evaluate(ElmoLM(direction="both"), tasks=["blimp"])
    """

    def __init__(
        self,
        pretrained: str | PretrainedBiLM | None = None,
        direction: Literal["forward", "backward", "both"] = "forward",
        tokenization: Tokenization = "treebank",
        sentence_end: bool = True,
        device: str | None = None,
        batch_size: Any = None,
        max_batch_size: Any = None,
    ) -> None:
        super().__init__()
        if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
            device = None
        self.lm = LanguageModel(as_model(pretrained))
        if device is not None:
            self.lm = self.lm.to(parse_device(device))
        names = self.lm.model.config.direction_names
        choices = [*names, "both"] if len(names) == 2 else names
        check_choice("direction", direction, choices)
        self._rows = [0, 1] if direction == "both" else [names.index(direction)]
        self.direction, self.sentence_end = direction, sentence_end
        self._split = get_tokenizer(tokenization)

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Compute the log probability of continuations.

        Args:
            requests: Instances of lm-eval whose ``args`` are a context and a continuation. They are tokenized
                separately and read as one sentence.
            disable_tqdm: Show no progress bar.

        Returns:
            For each its log probability in nats, and whether each of its words is the most probable one; the latter is
            False for other directions than "forward".
        """
        texts = [tuple(map(self._split, request.args)) for request in requests]
        scored = self._surprisals([[*context, *continuation] for context, continuation in texts], disable_tqdm)
        results = []
        for request, (context, _), sentence in zip(requests, texts, scored, strict=True):
            is_forward = self.direction == "forward"
            # Position 0 is <S>, and the last one </S>.
            start = 1 + len(context) if is_forward else 0
            stop = len(sentence.tokens) - (is_forward and not self.sentence_end)
            nats = float(np.nansum(sentence.nats[self._rows, start:stop], dtype=np.float64))
            result = (-nats, is_forward and self._is_greedy(sentence, start))
            self.cache_hook.add_partial("loglikelihood", request.args, result)
            results.append(result)
        return results

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Compute the log probability of texts, with one sentence per line.

        Args:
            requests: Instances of lm-eval whose ``args`` are one text. A sentence does not depend on those before it.
            disable_tqdm: Show no progress bar.

        Returns:
            The sum of the log probabilities of the sentences of each text, in nats.

        Raises:
            ConfigError: The direction is "both": the sum of two directions has no perplexity.
        """
        check_choice("direction", self.direction, ("forward", "backward"))
        texts = [[self._split(line) for line in request.args[0].splitlines() if line.strip()] for request in requests]
        scored = self._surprisals([sentence for text in texts for sentence in text], disable_tqdm)
        results = []
        for request, text in zip(requests, texts, strict=True):
            result = -sum(next(scored).total_nats[self._rows[0]] for _ in text)
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, result)
            results.append(result)
        return results

    def generate_until(self, requests: Sequence[Any]) -> NoReturn:
        """Refuse to generate text.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("The task generates text, but an ELMo only scores it. Choose tasks that compare texts.")

    def _surprisals(self, sentences: list[list[str]], disable_tqdm: bool) -> Any:
        scored = surprisals(self.lm.model, sentences, self.lm.start)
        return iter(tqdm(scored, "Scoring", len(sentences), disable=disable_tqdm))

    def _is_greedy(self, sentence: Surprisal, start: int) -> bool:
        """Check that the forward direction predicts each token from a position to the end of a sentence."""
        stop = len(sentence.tokens) - 1
        nats = sentence.nats[0, start:stop]
        # A word below the average probability of all words is not the most probable one. Few texts get past this line.
        if sentence.is_unknown[start:stop].any() or (nats > math.log(len(self.lm.model.vocabulary or ()))).any():
            return False
        tokens = sentence.tokens[1:stop]
        # The most surprising token first, since it is the one that most likely differs.
        for position in start - 1 + np.argsort(-nats):
            (best,) = self.lm.substitutes(tokens, int(position), "forward", n=1, special_words=True)
            if best.word != tokens[position]:
                return False
        return True


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
