"""Save the weighted mean of two models of one architecture: of their networks, and of the biases of their softmaxes.

    python benchmarks/average_models.py MODEL OTHER OUT --share 0.8

A model that was trained further, and the one that its training started from, can have a mean that is better than both
(Wortsman et al. 2022). The softmax is one that shares its rows with the word table.
"""

import argparse

import torch

from elmokit import open_model, save_model


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("other")
    parser.add_argument("out")
    parser.add_argument("--share", type=float, required=True, help="of OTHER, from 0 to 1")
    args = parser.parse_args()
    model, other = open_model(args.model), open_model(args.other)
    ours = [*model.bilm.state_dict().values(), model.softmax_module.bias]
    theirs = [*other.bilm.state_dict().values(), other.softmax_module.bias]
    for mean, added in zip(ours, theirs, strict=True):
        mean.lerp_(added, args.share)
    save_model(model, args.out)


if __name__ == "__main__":
    main()
