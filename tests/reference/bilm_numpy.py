"""The biLM's formulas in slow, obvious NumPy, over tensors as they lie in a published file.

Written from the description of bilm-tf: one sentence, one token, one step at a time, in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Weights = dict[str, np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(0.5 * x))  # exp would overflow far below zero


def token_vector(weights: Weights, options: dict[str, Any], ids: Any) -> np.ndarray:
    """One token's vector; ``ids`` are its shifted character ids, or its shifted word id."""
    if "char_cnn" not in options:
        return np.zeros(weights["embedding"].shape[1]) if ids == 0 else weights["embedding"][ids - 1]
    table = weights["char_embed"]
    chars = np.array([np.zeros(table.shape[1]) if c == 0 else table[c - 1] for c in ids])
    features = []
    for k, (width, count) in enumerate(options["char_cnn"]["filters"]):
        kernel, bias = weights[f"CNN/W_cnn_{k}"][0], weights[f"CNN/b_cnn_{k}"]  # (width, char_dim, count)
        best = np.full(count, -np.inf)
        for position in range(len(chars) - width + 1):
            window = chars[position : position + width]
            best = np.maximum(best, np.einsum("wd,wdn->n", window, kernel) + bias)
        features.append(np.maximum(best, 0) if options["char_cnn"]["activation"] == "relu" else np.tanh(best))
    x = np.concatenate(features)
    for k in range(options["char_cnn"]["n_highway"]):
        layer = f"CNN_high_{k}"
        gate = sigmoid(x @ weights[f"{layer}/W_carry"] + weights[f"{layer}/b_carry"])
        changed = np.maximum(x @ weights[f"{layer}/W_transform"] + weights[f"{layer}/b_transform"], 0)
        x = gate * changed + (1 - gate) * x
    if "CNN_proj/W_proj" in weights:
        x = x @ weights["CNN_proj/W_proj"] + weights["CNN_proj/b_proj"]
    return x


def lstm_step(
    weights: Weights, options: dict[str, Any], cell_name: str, x: np.ndarray, m: np.ndarray, c: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One step of one layer: the new projected state and the new cell."""
    lstm = options["lstm"]
    z = np.concatenate([x, m]) @ weights[f"{cell_name}/W_0"] + weights[f"{cell_name}/B"]
    i, j, f, o = np.split(z, 4)
    c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j)
    if lstm.get("cell_clip") is not None:
        c = np.clip(c, -lstm["cell_clip"], lstm["cell_clip"])
    m = sigmoid(o) * np.tanh(c)
    if f"{cell_name}/W_P_0" in weights:
        m = m @ weights[f"{cell_name}/W_P_0"]
        if lstm.get("proj_clip") is not None:
            m = np.clip(m, -lstm["proj_clip"], lstm["proj_clip"])
    return m, c


def layers_of_sentence(
    weights: Weights, options: dict[str, Any], ids: Any, states: list[list[tuple[np.ndarray, np.ndarray]]]
) -> tuple[np.ndarray, list[list[tuple[np.ndarray, np.ndarray]]]]:
    """All layers of one sentence, ``(layers, tokens, dim)``, and the state of each direction and layer after it."""
    vectors = [token_vector(weights, options, token) for token in ids]
    per_layer: list[list[list[np.ndarray]]] = [[] for _ in range(options["lstm"]["n_layers"] + 1)]
    new_states = []
    for d, direction_states in enumerate(states):
        order = list(range(len(ids))) if d == 0 else list(reversed(range(len(ids))))
        inputs = vectors
        per_layer[0].append(vectors)
        after = []
        for k, (m, c) in enumerate(direction_states):
            outputs: list[np.ndarray] = [np.empty(0)] * len(ids)
            for t in order:
                m, c = lstm_step(weights, options, f"RNN_{d}/RNN/MultiRNNCell/Cell{k}/LSTMCell", inputs[t], m, c)
                outputs[t] = m + inputs[t] if k > 0 and options["lstm"]["use_skip_connections"] else m
            after.append((m, c))
            per_layer[k + 1].append(outputs)
            inputs = outputs
        new_states.append(after)
    stacked = [np.concatenate([np.array(half) for half in halves], axis=-1) for halves in per_layer]
    return np.array(stacked), new_states
