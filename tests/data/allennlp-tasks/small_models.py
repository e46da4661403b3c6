"""The small task models that ``make.py`` and ``make_0_9.py`` make: ELMo, configs, examples, and what is recorded.

It imports only those modules of AllenNLP that both versions have, because they need different environments.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

SEED = 20
SCALE = 0.6  # of ELMo's weights
STEPS = {"ner": 30, "sst": 20, "nli": 18, "srl": 24, "coref": 0, "qa": 20}  # enough to be right now and then
LEARNING_RATE = 0.03
ELMO_DIM = 8  # both directions


def make_elmo(folder: Path) -> dict[str, str]:
    """Write a small ELMo in the published format."""
    generator = np.random.default_rng(SEED)
    char_dim, filters, projection, cells = 4, [[1, 4], [2, 4], [3, 4]], ELMO_DIM // 2, 6
    n_features = sum(count for _, count in filters)
    options = {
        "bidirectional": True,
        "char_cnn": {
            "activation": "relu",
            "embedding": {"dim": char_dim},
            "filters": filters,
            "max_characters_per_token": 50,
            "n_characters": 262,
            "n_highway": 1,
        },
        "lstm": {
            "cell_clip": 3,
            "dim": cells,
            "n_layers": 2,
            "proj_clip": 3,
            "projection_dim": projection,
            "use_skip_connections": True,
        },
    }
    (folder / "elmo_options.json").write_text(json.dumps(options))
    with h5py.File(folder / "elmo_weights.hdf5", "w") as file:

        def draw(name: str, *shape: int) -> None:
            file.create_dataset(name, data=generator.normal(0, SCALE, shape).astype(np.float32))

        draw("char_embed", 261, char_dim)
        for k, (width, count) in enumerate(filters):
            draw(f"CNN/W_cnn_{k}", 1, width, char_dim, count)
            draw(f"CNN/b_cnn_{k}", count)
        for gate in ("carry", "transform"):
            draw(f"CNN_high_0/W_{gate}", n_features, n_features)
            draw(f"CNN_high_0/b_{gate}", n_features)
        draw("CNN_proj/W_proj", n_features, projection)
        draw("CNN_proj/b_proj", projection)
        for direction in range(2):
            for layer in range(2):
                cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
                draw(f"{cell}/W_0", 2 * projection, 4 * cells)
                draw(f"{cell}/B", 4 * cells)
                draw(f"{cell}/W_P_0", cells, projection)
    return {"options_file": str(folder / "elmo_options.json"), "weight_file": str(folder / "elmo_weights.hdf5")}


def embedders(elmo: dict[str, str], words: int, chars: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"elmo": {"type": "elmo_token_embedder", **elmo, "dropout": 0.5}}
    if words:
        found["tokens"] = {"type": "embedding", "embedding_dim": words, "trainable": True}
    if chars:
        found["token_characters"] = {
            "type": "character_encoding",
            "embedding": {"embedding_dim": 3, "vocab_namespace": "token_characters"},
            "encoder": {
                "type": "cnn",
                "embedding_dim": 3,
                "num_filters": 5,
                "ngram_filter_sizes": [3],
                "conv_layer_activation": "relu",
            },
        }
    return {"token_embedders": found}


def indexers(words: bool, chars: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"elmo": {"type": "elmo_characters"}}
    if words:
        found["tokens"] = {"type": "single_id", "lowercase_tokens": True}
    if chars:
        found["token_characters"] = {"type": "characters", "min_padding_length": 3}
    return found


def lstm(input_size: int, hidden_size: int, n_layers: int = 1, **more: Any) -> dict[str, Any]:
    sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": n_layers}
    return {"type": "lstm", "bidirectional": True, **sizes, **more}


def layers(input_dim: int, dims: Any, activations: Any, n_layers: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "input_dim": input_dim,
        "num_layers": n_layers,
        "hidden_dims": dims,
        "activations": activations,
        **more,
    }


def ner(elmo: dict[str, str]) -> dict[str, Any]:
    return {
        "dataset_reader": {
            "type": "conll2003",
            "tag_label": "ner",
            "coding_scheme": "BIOUL",
            "token_indexers": indexers(words=True, chars=True),
        },
        "model": {
            "type": "crf_tagger",
            "label_encoding": "BIOUL",
            "dropout": 0.5,
            "include_start_end_transitions": False,
            "text_field_embedder": embedders(elmo, words=4, chars=True),
            "encoder": lstm(4 + 5 + ELMO_DIM, 6, 2, dropout=0.5),
            "regularizer": {"regexes": [["scalar_parameters", {"type": "l2", "alpha": 0.1}]]},
        },
    }


def recurrent(kind: str, input_size: int, hidden_size: int, n_layers: int, **more: Any) -> dict[str, Any]:
    return {"type": kind, "input_size": input_size, "hidden_size": hidden_size, "num_layers": n_layers, **more}


def tagger(found: dict[str, Any], scheme: str, encoder: dict[str, Any], chars: dict[str, Any]) -> dict[str, Any]:
    """Replace the parts of ``ner`` that other published configs and AllenNLP's own fixtures choose."""
    reader, model = found["dataset_reader"], found["model"]
    del reader["coding_scheme"]
    if scheme == "BIOUL":
        reader["convert_to_coding_scheme"] = scheme
    model |= {"label_encoding": scheme, "encoder": encoder, "include_start_end_transitions": scheme != "BIOUL"}
    embedders = model["text_field_embedder"]["token_embedders"]
    embedders["token_characters"]["encoder"] = chars
    if scheme == "IOB1":  # without ELMo, as in AllenNLP's fixture
        del embedders["elmo"], reader["token_indexers"]["elmo"], model["regularizer"]
    return found


def ner_fine_grained(elmo: dict[str, str]) -> dict[str, Any]:
    text_dim = 4 + 5 + ELMO_DIM
    encoder = recurrent("stacked_bidirectional_lstm", text_dim, 6, 2, recurrent_dropout_probability=0.5)
    found = tagger(ner(elmo), "BIOUL", encoder, recurrent("lstm", 3, 5, 1))
    found["model"]["feedforward"] = layers(12, 7, "tanh", dropout=0.5)
    return found


def ner_gru(elmo: dict[str, str]) -> dict[str, Any]:
    encoder = recurrent("gru", 4 + 10, 6, 2, dropout=0.0, bidirectional=True)
    return tagger(ner(elmo), "IOB1", encoder, recurrent("gru", 3, 5, 2, dropout=0.0, bidirectional=True))


def ner_alternating(elmo: dict[str, str]) -> dict[str, Any]:
    encoder = recurrent("alternating_lstm", 4 + 5 + ELMO_DIM, 6, 3)
    return tagger(ner(elmo), "BIO", encoder, recurrent("lstm", 3, 5, 1))


def sst(elmo: dict[str, str]) -> dict[str, Any]:
    return {
        "dataset_reader": {
            "type": "sst_tokens",
            "use_subtrees": True,
            "granularity": "5-class",
            "token_indexers": {"tokens": {"type": "single_id"}, "elmo": {"type": "elmo_characters"}},
        },
        "model": {
            "type": "bcn",
            "text_field_embedder": {"token_embedders": {"tokens": {"type": "embedding", "embedding_dim": 5}}},
            "embedding_dropout": 0.5,
            "pre_encode_feedforward": layers(5 + ELMO_DIM, [6], ["relu"], dropout=[0.25]),
            "encoder": lstm(6, 5),
            "integrator": lstm(30, 5),
            "integrator_dropout": 0.1,
            "elmo": {**elmo, "do_layer_norm": False, "dropout": 0.0, "num_output_representations": 2},
            "use_input_elmo": True,
            "use_integrator_output_elmo": True,
            "output_layer": {
                "input_dim": 4 * (10 + ELMO_DIM),
                "num_layers": 3,
                "output_dims": [8, 7, 5],
                "pool_sizes": 4,
                "dropout": [0.2, 0.3, 0.0],
            },
        },
    }


def nli(elmo: dict[str, str]) -> dict[str, Any]:
    return {
        "dataset_reader": {
            "type": "snli",
            "tokenizer": {"type": "just_spaces"},
            "token_indexers": indexers(words=False, chars=False),
        },
        "model": {
            "type": "esim",
            "dropout": 0.5,
            "text_field_embedder": embedders(elmo, words=0, chars=False),
            "encoder": lstm(ELMO_DIM, 6),
            "matrix_attention": {"type": "dot_product"},
            "projection_feedforward": layers(48, 6, "relu"),
            "inference_encoder": lstm(6, 6),
            "output_feedforward": layers(48, 6, "relu", dropout=0.5),
            "output_logit": layers(6, 3, "linear"),
        },
    }


def srl(elmo: dict[str, str]) -> dict[str, Any]:
    return {
        "dataset_reader": {"type": "srl", "token_indexers": indexers(words=False, chars=False)},
        "model": {
            "type": "srl",
            "text_field_embedder": embedders(elmo, words=0, chars=False),
            "initializer": {"regexes": [["tag_projection_layer.*weight", {"type": "orthogonal"}]]},
            "encoder": {
                "type": "alternating_lstm",
                "input_size": ELMO_DIM + 5,
                "hidden_size": 7,
                "num_layers": 4,
                "recurrent_dropout_probability": 0.1,
                "use_input_projection_bias": False,
            },
            "binary_feature_dim": 5,
        },
    }


def coreference(elmo: dict[str, str], **more: Any) -> dict[str, Any]:
    text_dim = 4 + 5 + ELMO_DIM
    span_dim = 12 + 12 + 3 + text_dim
    return {
        "dataset_reader": {"type": "coref", "token_indexers": indexers(words=True, chars=True), "max_span_width": 4},
        "model": {
            "type": "coref",
            "text_field_embedder": embedders(elmo, words=4, chars=True),
            "context_layer": lstm(text_dim, 6),
            "mention_feedforward": layers(span_dim, 6, "relu", n_layers=2, dropout=0.2),
            "antecedent_feedforward": layers(3 * span_dim + 3, 6, "relu", n_layers=2, dropout=0.2),
            "lexical_dropout": 0.5,
            "feature_size": 3,
            "max_span_width": 4,
            "spans_per_word": 0.4,
            "max_antecedents": 6,
            **more,
        },
    }


def qa(elmo: dict[str, str]) -> dict[str, Any]:
    text_dim = 4 + 5 + ELMO_DIM
    characters = {"byte_encoding": "utf-8", "start_tokens": [259], "end_tokens": [260]}
    found = {
        "dataset_reader": {
            "type": "squad",
            "tokenizer": {"type": "letters_digits"},
            "token_indexers": {
                **indexers(words=True, chars=True),
                "token_characters": {
                    "type": "characters",
                    "character_tokenizer": characters,
                    "min_padding_length": 5,
                },
            },
        },
        "model": {
            "type": "bidaf",
            "text_field_embedder": embedders(elmo, words=4, chars=True),
            "num_highway_layers": 2,
            "phrase_layer": lstm(text_dim, 5),
            "matrix_attention": {
                "type": "linear",
                "combination": "x,y,x*y",
                "tensor_1_dim": 10,
                "tensor_2_dim": 10,
            },
            "modeling_layer": lstm(40, 5, 2, dropout=0.2),
            "span_end_encoder": lstm(70, 5),
            "dropout": 0.2,
        },
    }
    found["model"]["text_field_embedder"]["token_embedders"]["token_characters"]["embedding"] = {
        "embedding_dim": 3,
        "num_embeddings": 262,
    }
    return found


SUFFIXES = {"ner": "txt", "sst": "txt", "nli": "jsonl", "srl": "txt", "coref": "jsonl", "qa": "json"}


def coarse_to_fine(elmo: dict[str, str]) -> dict[str, Any]:
    return coreference(elmo, coarse_to_fine=True, inference_order=2)


CONFIGS = {
    "ner": ner,
    "ner-fine-grained": ner_fine_grained,
    "ner-gru": ner_gru,
    "ner-alternating": ner_alternating,
    "sst": sst,
    "nli": nli,
    "srl": srl,
    "coref": coreference,
    "coref-coarse-to-fine": coarse_to_fine,
    "qa": qa,
}


def read(kind: str, reader: Any, path: Path, use_subtrees: bool = False) -> list[Any]:
    """Read the examples with AllenNLP's reader; those of SRL and coreference from lines, as its predictors do."""
    from allennlp.data.tokenizers import Token

    lines = path.read_text().splitlines()
    if kind == "srl":
        instances = []
        for line in lines:
            words, tags = (part.split() for part in line.split("|||"))
            indicator = [int(tag.endswith("-V")) for tag in tags]
            instances.append(reader.text_to_instance([Token(word) for word in words[1:]], indicator, tags))
        return instances
    if kind == "coref":
        return [
            reader.text_to_instance(
                one["sentences"], [[tuple(mention) for mention in cluster] for cluster in one["clusters"]]
            )
            for one in map(json.loads, lines)
        ]
    if kind == "sst":
        reader._use_subtrees = use_subtrees
    return list(reader.read(str(path)))


def record_coref_scores(model: Any) -> None:
    """Add the scores of the antecedents, which are not part of the model's output, to it."""
    compute, forward = model._compute_coreference_scores, model.forward

    def with_scores(*arguments: Any, **more: Any) -> Any:
        model.last_scores = compute(*arguments, **more)
        return model.last_scores

    model._compute_coreference_scores = with_scores
    model.forward = lambda *arguments, **more: {**forward(*arguments, **more), "scores": model.last_scores}


def reset_elmo(model: torch.nn.Module) -> None:
    for module in model.modules():
        if type(module).__name__ == "ElmoLstm":
            module._states = None


KEPT = {
    "ner": ("logits", "tags"),
    "sst": ("logits", "label"),
    "nli": ("label_logits", "label"),
    "srl": ("logits", "tags"),
    "coref": ("top_spans", "scores", "clusters"),
    "qa": ("span_start_logits", "span_end_logits", "best_span_str"),
}


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | torch.Tensor):
        return np.round(np.asarray(value, dtype=np.float64), 7).tolist()
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def keep(kind: str, output: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(output[name]) for name in KEPT[kind] if name in output}
