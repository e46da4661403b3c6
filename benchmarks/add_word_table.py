"""Give a model that reads characters a word table, which is tied to its softmax, without changing what it computes.

    python benchmarks/add_word_table.py MODEL OUT

The rows are those of the softmax, and the matrix that maps them into layer 0 starts at zero; ``elmokit finetune``
trains both.
"""

import argparse
from dataclasses import replace

import torch

from elmokit import open_model, save_model
from elmokit.engine.config import WordFeaturesConfig
from elmokit.engine.softmax import SoftmaxConfig
from elmokit.network.bilm import BiLM
from elmokit.network.softmax_module import build_softmax


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out")
    args = parser.parse_args()
    model = open_model(args.model)
    old, softmax = model.bilm.state_dict(), model.softmax_module
    rows, bias = softmax.weight, softmax.bias
    dim = rows.shape[1]
    config = replace(model.config, word_features=WordFeaturesConfig(len(rows), dim))
    new = {
        name.replace("token_layer.", "token_layer.chars.") if "projection" not in name else name: tensor
        for name, tensor in old.items()
        if name.startswith("token_layer.")
    } | {name: tensor for name, tensor in old.items() if not name.startswith("token_layer.")}
    projection = new["token_layer.projection.weight"]
    new["token_layer.projection.weight"] = torch.cat([torch.zeros(dim, dim), projection], dim=1)
    new["token_layer.word_embedding.weight"] = torch.cat([torch.zeros(1, dim), rows])
    bilm = BiLM(config)
    bilm.load_state_dict(new)
    tied = build_softmax(SoftmaxConfig("tied"), len(rows), dim, bilm.token_layer)
    tied.load_state_dict({"bias": bias})
    # A whitening and a head belong to the old layer 0.
    save_model(model.replace(weights=bilm, softmax=tied, whitening=None, sentence_head=None), args.out)


if __name__ == "__main__":
    main()
