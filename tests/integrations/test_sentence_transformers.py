"""ELMo in sentence-transformers, through that library's own classes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elmokit import Elmo, PretrainedBiLM, SentenceEmbedder, SentencePooling
from elmokit.errors import ConfigError
from elmokit.pretrained.sentence_pooling import SentenceHead
from tests.conftest import TABLE, random_model
from tests.helpers.hosts import need_host

need_host("sentence-transformers")
pytestmark = pytest.mark.filterwarnings("default")  # its dependencies warn on import

from sentence_transformers import MultiVectorEncoder, SentenceTransformer  # noqa: E402
from sentence_transformers.sentence_transformer.losses import (  # noqa: E402
    CachedMultipleNegativesRankingLoss,
    CosineSimilarityLoss,
)
from sentence_transformers.sentence_transformer.modules import (  # noqa: E402
    Normalize,
    Pooling,
)

from elmokit.integrations.sentence_transformers import ElmoEmbeddings, ElmoPooling  # noqa: E402

TEXTS = ["the cat sat on the mat .", "the dog ran .", "", "a cat"]
TOKENS = [text.split() for text in TEXTS]
LOAD = """
import sys
import numpy as np
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], trust_remote_code=True, device="cpu")
np.save(sys.argv[2], model.encode(["the cat sat on the mat .", "the dog ran .", "", "a cat"]))
"""


def whitened_model() -> PretrainedBiLM:
    return SentenceEmbedder(Elmo(random_model()), SentencePooling()).fit(TOKENS).elmo.model


def transformer(*modules: torch.nn.Module) -> SentenceTransformer:
    return SentenceTransformer(modules=list(modules), device="cpu")


def encode_in_another_process(model: SentenceTransformer, folder: Path) -> np.ndarray:
    model.save(str(folder / "saved"))
    result = folder / "vectors.npy"
    subprocess.run([sys.executable, "-c", LOAD, str(folder / "saved"), str(result)], check=True, cwd=folder)
    vectors: np.ndarray = np.load(result)
    return vectors


def test_mean_pooling_gives_the_mean_of_the_mix(model: PretrainedBiLM) -> None:
    elmo = ElmoEmbeddings(model)
    vectors = transformer(elmo, Pooling(elmo.get_embedding_dimension())).encode(TEXTS)
    expected = [mix.mean(axis=0) if len(mix) else 0 * vectors[0] for mix in elmo.elmo.embed(TOKENS, layers="mix")]
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


@pytest.mark.parametrize(
    "pooling",
    [
        None,
        SentencePooling(),
        SentencePooling("mean", "all"),
        SentencePooling("sif", (0, 2)),
        SentencePooling("sif", "average"),
        SentencePooling("mean", "top"),
    ],
    ids=str,
)
def test_elmo_pooling_equals_the_sentence_embedder(pooling: SentencePooling | None) -> None:
    elmo = ElmoEmbeddings(whitened_model())
    model = transformer(elmo, ElmoPooling.from_elmo(elmo.elmo, pooling))
    expected = SentenceEmbedder(elmo.elmo, pooling).embed(TOKENS)
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-5)
    assert model.get_embedding_dimension() == expected.shape[1]


def test_a_model_without_word_frequencies_has_means_as_in_the_sentence_embedder() -> None:
    elmo = ElmoEmbeddings(random_model().replace(vocabulary=None, softmax=None))
    with pytest.warns(UserWarning, match="plain means"):
        pooling = ElmoPooling.from_elmo(elmo.elmo)
    expected = SentenceEmbedder(elmo.elmo, SentencePooling("mean")).embed(TOKENS)
    np.testing.assert_allclose(transformer(elmo, pooling).encode(TEXTS), expected, atol=1e-5)


def test_the_trained_head_of_a_model_gives_the_vectors_of_the_sentence_embedder(tmp_path: Path) -> None:
    model = random_model(TABLE)
    assert model.vocabulary is not None
    with pytest.raises(ConfigError, match="has no head"):
        ElmoPooling.from_elmo(ElmoEmbeddings(model).elmo, "trained")
    mean, projection = np.zeros(96, np.float32), np.eye(96, 80, -8, np.float32)  # of layer 0 and the rows of words
    weights = np.linspace(0.5, 2, len(model.vocabulary), dtype=np.float32)
    model = model.replace(sentence_head=SentenceHead(SentencePooling(), mean, projection, weights))
    elmo = ElmoEmbeddings(model)
    network = transformer(elmo, ElmoPooling.from_elmo(elmo.elmo, "trained"))
    expected = SentenceEmbedder.by_name(Elmo(model), "trained").embed(TOKENS)
    np.testing.assert_allclose(network.encode(TEXTS), expected, atol=1e-5)
    np.testing.assert_array_equal(encode_in_another_process(network, tmp_path), network.encode(TEXTS))


def test_multi_vector_encoder_scores_documents_by_tokens(model: PretrainedBiLM) -> None:
    elmo = ElmoEmbeddings(model)
    encoder = MultiVectorEncoder(modules=[elmo, Normalize("token_embeddings")], device="cpu")
    queries, documents = encoder.encode_query(TEXTS[:2]), encoder.encode_document(TEXTS[:2])
    assert [len(vectors) for vectors in documents] == [7, 4]
    scores = encoder.similarity(queries, documents)
    # Every token of a query finds itself in the same text, with a cosine of 1.
    np.testing.assert_allclose(np.diag(scores), [7, 4], atol=1e-4)
    assert scores[0, 1] < 7


@pytest.mark.slow
def test_trained_model_encodes_equally_in_another_process(tmp_path: Path) -> None:
    elmo = ElmoEmbeddings(whitened_model(), tokenization="spaces", layers=[0, 2], max_seq_length=5, trainable=True)
    with torch.no_grad():
        for parameter in elmo.parameters():
            parameter.mul_(1.1).add_(0.01)
    model = transformer(elmo, ElmoPooling.from_elmo(elmo.elmo, SentencePooling("sif", (0, 1))))
    np.testing.assert_array_equal(encode_in_another_process(model, tmp_path), model.encode(TEXTS))


@pytest.mark.parametrize("trainable", [False, True])
def test_loss_has_gradients_for_what_is_trained(model: PretrainedBiLM, trainable: bool) -> None:
    elmo = ElmoEmbeddings(model, trainable=trainable)
    network = transformer(elmo, Pooling(elmo.get_embedding_dimension()))
    features = [network.preprocess(TEXTS[:2]), network.preprocess(TEXTS[1::-1])]
    CosineSimilarityLoss(network)(features, torch.tensor([0.0, 1.0])).backward()
    assert elmo.elmo.mixes[0].weight.grad.abs().sum() > 0
    assert all((parameter.grad is not None) == trainable for parameter in elmo.elmo.bilm.parameters())


def test_losses_that_split_batches_work(model: PretrainedBiLM) -> None:
    elmo = ElmoEmbeddings(model)
    network = transformer(elmo, ElmoPooling.from_elmo(elmo.elmo))
    elmo.elmo.mixes[0].weight.requires_grad_(False)
    whole = CachedMultipleNegativesRankingLoss(network, mini_batch_size=4)
    split = CachedMultipleNegativesRankingLoss(network, mini_batch_size=1)
    texts = [TEXTS[0], TEXTS[1]]
    with torch.no_grad():
        losses = [loss([network.preprocess(texts), network.preprocess(texts)], None) for loss in (whole, split)]
    torch.testing.assert_close(losses[0], losses[1])


def test_prompt_is_read_and_can_be_left_out_of_the_mean(model: PretrainedBiLM) -> None:
    elmo = ElmoEmbeddings(model)
    pooling = Pooling(elmo.get_embedding_dimension(), include_prompt=False)
    vector = transformer(elmo, pooling).encode("the cat sat", prompt="the dog: ")
    (mix,) = elmo.elmo.embed([["the", "dog", ":", "the", "cat", "sat"]], layers="mix")
    np.testing.assert_allclose(vector, mix[3:].mean(axis=0), atol=1e-6)


def test_texts_are_cut_after_max_seq_length(model: PretrainedBiLM) -> None:
    elmo = ElmoEmbeddings(model)
    network = transformer(elmo, Pooling(elmo.get_embedding_dimension()))
    network.max_seq_length = 2
    np.testing.assert_allclose(network.encode("the dog ran ."), network.encode("the dog"), atol=1e-6)


def test_batch_of_empty_texts_has_zero_vectors() -> None:
    elmo = ElmoEmbeddings(whitened_model())
    for pooling in (ElmoPooling.from_elmo(elmo.elmo), Pooling(elmo.get_embedding_dimension())):
        assert not transformer(elmo, pooling).encode(["", " "]).any()


@pytest.mark.slow
def test_mteb_evaluates_the_model_on_local_data() -> None:
    mteb = pytest.importorskip("mteb")
    from datasets import Dataset, DatasetDict
    from mteb.tasks.sts.eng.sts_benchmark_sts import STSBenchmarkSTSV2

    class LocalPairs(STSBenchmarkSTSV2):  # type: ignore[misc]
        metadata = STSBenchmarkSTSV2.metadata.model_copy(update={"eval_splits": ["test"]})

        def load_data(self, *args: object, **kwargs: object) -> None:
            pairs = {"sentence1": TEXTS[:2] * 2, "sentence2": TEXTS[:2] + TEXTS[1::-1], "score": [5.0, 5.0, 1.0, 1.0]}
            self.dataset = DatasetDict(test=Dataset.from_dict(pairs))
            self.data_loaded = True

    elmo = ElmoEmbeddings(whitened_model())
    network = transformer(elmo, ElmoPooling.from_elmo(elmo.elmo))
    results = mteb.evaluate(network, [LocalPairs()], cache=None)
    (scores,) = results.task_results[0].scores["test"]
    # Equal texts have the highest cosine, and the two others the same one.
    assert scores["cosine_spearman"] == pytest.approx(1)


@pytest.mark.parametrize("layers", [0, "all"])
def test_a_paragraph_has_the_vector_of_all_its_sentences(model: PretrainedBiLM, layers: Any) -> None:
    texts = ["the cat sat. the dog ran on the mat.", "", "a cat", "the dog. a cat. the mat."]
    embedder = SentenceEmbedder(Elmo(model), SentencePooling("mean", layers))
    elmo = ElmoEmbeddings(model, fold_case=layers == 0)
    encoded = transformer(elmo, ElmoPooling.from_elmo(elmo.elmo, SentencePooling("mean", layers))).encode(texts)
    np.testing.assert_allclose(encoded, embedder.embed(texts, tokenize=True), atol=2e-6)
