"""Training configs as AllenNLP 0.8 published them for the six tasks, from their description."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MODELS = "https://allennlp.s3.amazonaws.com/models/elmo/2x4096_512_2048cnn_2xhighway/elmo_2x4096_512_2048cnn_2xhighway"
ELMO = {"options_file": f"{MODELS}_options.json", "weight_file": f"{MODELS}_weights.hdf5", "do_layer_norm": False}


def by_characters() -> dict[str, Any]:
    return {"type": "elmo_characters"}


def elmo(dropout: float) -> dict[str, Any]:
    return {"type": "elmo_token_embedder", **ELMO, "dropout": dropout}


def glove(name: str, dim: int, train: bool) -> dict[str, Any]:
    address = f"https://example.org/glove/{name}.txt.gz"
    return {"type": "embedding", "embedding_dim": dim, "pretrained_file": address, "trainable": train}


def characters(dim: int, width: int, count: int, **more: Any) -> dict[str, Any]:
    encoder = {"type": "cnn", "embedding_dim": dim, "num_filters": count, "ngram_filter_sizes": [width]}
    return {"type": "character_encoding", "embedding": {"embedding_dim": dim}, "encoder": encoder, **more}


def lstm(input_size: int, hidden_size: int, n_layers: int = 1, **more: Any) -> dict[str, Any]:
    sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": n_layers}
    return {"type": "lstm", **sizes, "bidirectional": True, **more}


def ner() -> dict[str, Any]:
    return {
        "dataset_reader": {
            "type": "conll2003",
            "tag_label": "ner",
            "coding_scheme": "BIOUL",
            "token_indexers": {
                "tokens": {"type": "single_id", "lowercase_tokens": True},
                "token_characters": {"type": "characters", "min_padding_length": 3},
                "elmo": by_characters(),
            },
        },
        "train_data_path": "eng.train",
        "validation_data_path": "eng.testa",
        "model": {
            "type": "crf_tagger",
            "label_encoding": "BIOUL",
            "dropout": 0.5,
            "include_start_end_transitions": False,
            "text_field_embedder": {
                "token_embedders": {
                    "tokens": glove("glove.6B.50d", 50, True),
                    "elmo": elmo(0.0),
                    "token_characters": characters(16, 3, 128),
                }
            },
            "encoder": lstm(1202, 200, 2, dropout=0.5),
            "regularizer": [["scalar_parameters", {"type": "l2", "alpha": 0.1}]],
        },
        "iterator": {"type": "basic", "batch_size": 64},
        "trainer": {
            "optimizer": {"type": "adam", "lr": 0.001},
            "validation_metric": "+f1-measure-overall",
            "num_serialized_models_to_keep": 3,
            "num_epochs": 75,
            "grad_norm": 5.0,
            "patience": 25,
            "cuda_device": 0,
        },
    }


def sst() -> dict[str, Any]:
    def reader(subtrees: bool) -> dict[str, Any]:
        indexers = {"tokens": {"type": "single_id"}, "elmo": by_characters()}
        return {"type": "sst_tokens", "use_subtrees": subtrees, "granularity": "5-class", "token_indexers": indexers}

    return {
        "dataset_reader": reader(True),
        "validation_dataset_reader": reader(False),
        "train_data_path": "https://example.org/sst/train.txt",
        "validation_data_path": "https://example.org/sst/dev.txt",
        "test_data_path": "https://example.org/sst/test.txt",
        "model": {
            "type": "bcn",
            "text_field_embedder": {"token_embedders": {"tokens": glove("glove.840B.300d", 300, False)}},
            "embedding_dropout": 0.5,
            "pre_encode_feedforward": {
                "input_dim": 1324,
                "num_layers": 1,
                "hidden_dims": [300],
                "activations": ["relu"],
                "dropout": [0.25],
            },
            "encoder": lstm(300, 300),
            "integrator": lstm(1800, 300),
            "integrator_dropout": 0.1,
            "elmo": {**ELMO, "dropout": 0.0, "num_output_representations": 1},
            "use_input_elmo": True,
            "use_integrator_output_elmo": False,
            "output_layer": {
                "input_dim": 2400,
                "num_layers": 3,
                "output_dims": [1200, 600, 5],
                "pool_sizes": 4,
                "dropout": [0.2, 0.3, 0.0],
            },
        },
        "iterator": {"type": "bucket", "sorting_keys": [["tokens", "num_tokens"]], "batch_size": 100},
        "trainer": {
            "num_epochs": 40,
            "patience": 5,
            "grad_norm": 5.0,
            "validation_metric": "+accuracy",
            "cuda_device": 0,
            "optimizer": {"type": "adam", "lr": 0.001},
        },
    }


def nli() -> dict[str, Any]:
    def layer(input_dim: int, dim: int, activation: str, **more: Any) -> dict[str, Any]:
        return {"input_dim": input_dim, "num_layers": 1, "hidden_dims": dim, "activations": activation, **more}

    return {
        "dataset_reader": {"type": "snli", "token_indexers": {"elmo": by_characters()}},
        "train_data_path": "train.jsonl",
        "validation_data_path": "dev.jsonl",
        "model": {
            "type": "esim",
            "dropout": 0.5,
            "text_field_embedder": {"token_embedders": {"elmo": elmo(0.0)}},
            "encoder": lstm(1024, 300),
            "similarity_function": {"type": "dot_product"},
            "projection_feedforward": layer(2400, 300, "relu"),
            "inference_encoder": lstm(300, 300),
            "output_feedforward": layer(2400, 300, "relu", dropout=0.5),
            "output_logit": layer(300, 3, "linear"),
            "initializer": [
                [".*linear_layers.*weight", {"type": "xavier_uniform"}],
                [".*linear_layers.*bias", {"type": "zero"}],
                [".*weight_ih.*", {"type": "xavier_uniform"}],
                [".*weight_hh.*", {"type": "orthogonal"}],
                [".*bias_ih.*", {"type": "zero"}],
                [".*bias_hh.*", {"type": "lstm_hidden_bias"}],
            ],
        },
        "data_loader": {"batch_sampler": {"type": "bucket", "batch_size": 32}},
        "trainer": {
            "optimizer": {"type": "adam", "lr": 0.0004},
            "validation_metric": "+accuracy",
            "num_epochs": 75,
            "grad_norm": 10.0,
            "patience": 5,
            "cuda_device": 0,
            "learning_rate_scheduler": {"type": "reduce_on_plateau", "factor": 0.5, "mode": "max", "patience": 0},
        },
    }


def qa() -> dict[str, Any]:
    marks = {"byte_encoding": "utf-8", "start_tokens": [259], "end_tokens": [260]}
    return {
        "dataset_reader": {
            "type": "squad",
            "token_indexers": {
                "tokens": {"type": "single_id", "lowercase_tokens": True},
                "elmo": by_characters(),
                "token_characters": {"type": "characters", "character_tokenizer": marks, "min_padding_length": 5},
            },
        },
        "train_data_path": "train.json",
        "validation_data_path": "dev.json",
        "model": {
            "type": "bidaf",
            "text_field_embedder": {
                "token_embedders": {
                    "tokens": glove("glove.6B.100d", 100, False),
                    "elmo": elmo(0.0),
                    "token_characters": characters(16, 5, 100, dropout=0.2),
                }
            },
            "num_highway_layers": 2,
            "phrase_layer": lstm(1224, 100),
            "similarity_function": {
                "type": "linear",
                "combination": "x,y,x*y",
                "tensor_1_dim": 200,
                "tensor_2_dim": 200,
            },
            "modeling_layer": lstm(800, 100, 2, dropout=0.2),
            "span_end_encoder": lstm(1400, 100),
            "dropout": 0.2,
        },
        "iterator": {
            "type": "bucket",
            "sorting_keys": [["passage", "num_tokens"], ["question", "num_tokens"]],
            "batch_size": 40,
        },
        "trainer": {
            "num_epochs": 20,
            "grad_norm": 5.0,
            "patience": 10,
            "validation_metric": "+em",
            "cuda_device": 0,
            "learning_rate_scheduler": {"type": "reduce_on_plateau", "factor": 0.5, "mode": "max", "patience": 2},
            "optimizer": {"type": "adam", "betas": [0.9, 0.9]},
        },
    }


def srl() -> dict[str, Any]:
    return {
        "dataset_reader": {"type": "srl", "token_indexers": {"elmo": by_characters()}},
        "train_data_path": "conll-2012/train",
        "validation_data_path": "conll-2012/dev",
        "model": {
            "type": "srl",
            "text_field_embedder": {"token_embedders": {"elmo": elmo(0.1)}},
            "initializer": [["tag_projection_layer.*weight", {"type": "orthogonal"}]],
            "encoder": {
                "type": "alternating_lstm",
                "input_size": 1124,
                "hidden_size": 300,
                "num_layers": 8,
                "recurrent_dropout_probability": 0.1,
                "use_input_projection_bias": False,
            },
            "binary_feature_dim": 100,
            "regularizer": [[".*scalar_parameters.*", {"type": "l2", "alpha": 0.001}]],
        },
        "iterator": {
            "type": "bucket",
            "sorting_keys": [["tokens", "num_tokens"]],
            "padding_noise": 0.1,
            "batch_size": 80,
        },
        "trainer": {
            "num_epochs": 500,
            "grad_clipping": 1.0,
            "patience": 200,
            "num_serialized_models_to_keep": 10,
            "validation_metric": "+f1-measure-overall",
            "cuda_device": 0,
            "optimizer": {"type": "adadelta", "rho": 0.95},
        },
    }


def coref() -> dict[str, Any]:
    def scorer(input_dim: int) -> dict[str, Any]:
        return {
            "input_dim": input_dim,
            "num_layers": 2,
            "hidden_dims": 150,
            "activations": "relu",
            "dropout": 0.2,
        }

    return {
        "dataset_reader": {
            "type": "coref",
            "token_indexers": {
                "tokens": {"type": "single_id", "lowercase_tokens": False},
                "token_characters": {"type": "characters", "min_padding_length": 5},
            },
            "max_span_width": 10,
        },
        "train_data_path": "train.v4_gold_conll",
        "validation_data_path": "dev.v4_gold_conll",
        "model": {
            "type": "coref",
            "text_field_embedder": {
                "token_embedders": {
                    "tokens": glove("glove.6B.300d", 300, False),
                    "token_characters": characters(16, 5, 100),
                }
            },
            "context_layer": lstm(400, 200),
            "mention_feedforward": scorer(1220),
            "antecedent_feedforward": scorer(3680),
            "initializer": [
                [".*linear_layers.*weight", {"type": "xavier_normal"}],
                ["_context_layer._module.weight_hh.*", {"type": "orthogonal"}],
            ],
            "lexical_dropout": 0.5,
            "feature_size": 20,
            "max_span_width": 10,
            "spans_per_word": 0.4,
            "max_antecedents": 100,
        },
        "iterator": {
            "type": "bucket",
            "sorting_keys": [["text", "num_tokens"]],
            "padding_noise": 0.0,
            "batch_size": 1,
        },
        "trainer": {
            "num_epochs": 150,
            "grad_norm": 5.0,
            "patience": 10,
            "cuda_device": 0,
            "validation_metric": "+coref_f1",
            "learning_rate_scheduler": {"type": "reduce_on_plateau", "factor": 0.5, "mode": "max", "patience": 2},
            "optimizer": {"type": "adam"},
        },
    }


PUBLISHED = {"ner": ner, "sst": sst, "nli": nli, "srl": srl, "coref": coref, "qa": qa}


def as_version_2(content: dict[str, Any]) -> dict[str, Any]:
    """Return a config in the spelling of AllenNLP 1.0 and later."""
    content = json.loads(json.dumps(content))
    model, trainer = content["model"], content["trainer"]
    for name in ("regularizer", "initializer"):
        if name in model:
            model[name] = {"regexes": model[name]}
    if "similarity_function" in model:
        model["matrix_attention"] = model.pop("similarity_function")
    if "iterator" in content:
        iterator = content.pop("iterator")
        iterator.pop("sorting_keys", None)
        is_bucket = iterator["type"] == "bucket"
        content["data_loader"] = {"batch_sampler": iterator} if is_bucket else {"batch_size": iterator["batch_size"]}
    if "num_serialized_models_to_keep" in trainer:
        trainer["checkpointer"] = {"keep_most_recent_by_count": trainer.pop("num_serialized_models_to_keep")}
    return content


def written(folder: Path, content: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path
