"""Save the weighted mean of two models of one architecture: of their networks, and of the biases of their softmaxes.

    python benchmarks/average_models.py MODEL OTHER OUT --share 0.8

A model that was trained further, and the one that its training started from, can have a mean that is better than both
(Wortsman et al. 2022). An inner layer of the softmax is that of OTHER: a mean with the random units of a new one, in
``initial`` of its run, was worse than both.
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
    for ours, theirs in ((model.bilm, other.bilm), (model.softmax_module, other.softmax_module)):
        tensors = theirs.state_dict()
        for name, mean in ours.state_dict().items():
            mean.lerp_(tensors[name], 1.0 if name.startswith("inner.") else args.share)
    save_model(model, args.out)


if __name__ == "__main__":
    main()
