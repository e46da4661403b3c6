"""The systems that ``benchmarks/transformer.py`` compares elmokit with, each as a function from texts to word vectors.

All but one compute the same network: a BERT encoder of the shape of MiniLM with random weights. They split words into
pieces, group texts of similar length into batches, run the network, and average the pieces of each word. "static table"
is a network without context, of the shape of a model2vec model: each piece has one vector.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

Texts: TypeAlias = Sequence[Sequence[str]]
Embed: TypeAlias = Callable[[Texts, int], list[np.ndarray]]
"""Embed texts in batches of so many pieces: one float32 array ``(words, dim)`` per text."""
Network: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Compute ``(batch, time, dim)`` from ids and a mask of 0 and 1, both ``(batch, time)``."""

DIM = 384
N_LAYERS = 6
N_HEADS = 12
INNER_DIM = 1536
N_POSITIONS = 512
STATIC_DIM = 256
VOCABULARY_SIZE = 30_522  # that of BERT and MiniLM
SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
PAD, _, CLS, SEP = range(len(SPECIAL_PIECES))
N_CALIBRATION_SENTENCES = 300  # the default of NNCF

# What each system needs, by the names under which pip installs it.
PACKAGES = {
    "PyTorch float32": ("tokenizers", "transformers"),
    "PyTorch bfloat16": ("tokenizers", "transformers"),
    "ONNX Runtime float32": ("tokenizers", "transformers", "onnx", "onnxruntime"),
    "ONNX Runtime int8": ("tokenizers", "transformers", "onnx", "onnxruntime"),
    "ONNX Runtime fused int8": ("tokenizers", "transformers", "onnx", "onnxruntime", "sympy"),
    "OpenVINO float32": ("tokenizers", "transformers", "onnx", "openvino"),
    "OpenVINO bfloat16": ("tokenizers", "transformers", "onnx", "openvino"),
    "OpenVINO int8": ("tokenizers", "transformers", "onnx", "openvino", "nncf"),
    "static table 256": ("tokenizers",),
}


class Pieces(NamedTuple):
    """A run of pieces."""

    ids: np.ndarray
    """``(pieces,)``"""
    words: np.ndarray
    """``(pieces,)``: the number of the word that each piece belongs to, counted over all texts of a call."""


class WordPieceTokenizer:
    """An uncased WordPiece tokenizer like that of BERT, trained on sentences."""

    def __init__(self, sentences: Texts) -> None:
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

        self.tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        self.tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        self.tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(
            vocab_size=VOCABULARY_SIZE, special_tokens=list(SPECIAL_PIECES), show_progress=False
        )
        self.tokenizer.train_from_iterator((" ".join(sentence) for sentence in sentences), trainer)

    def split(self, texts: Texts) -> list[Pieces]:
        """Split the words of each text into pieces, without [CLS] and [SEP]."""
        encodings = self.tokenizer.encode_batch(list(texts), is_pretokenized=True, add_special_tokens=False)
        first_words = np.cumsum([0, *map(len, texts)])
        return [
            Pieces(np.array(encoding.ids, np.int64), np.array(encoding.word_ids, np.int64) + first_word)
            for encoding, first_word in zip(encodings, first_words[:-1], strict=True)
        ]


def cut_windows(text: Pieces, length: int) -> Iterator[Pieces]:
    """Cut a text into windows of at most so many pieces, between words where possible."""
    start, n_pieces = 0, len(text.ids)
    while start < n_pieces:
        end = min(start + length, n_pieces)
        if end < n_pieces:
            word_start = int(np.searchsorted(text.words, text.words[end]))
            end = word_start if word_start > start else end  # a word may be longer than a window
        yield Pieces(text.ids[start:end], text.words[start:end])
        start = end


def plan_batches(windows: Sequence[Pieces], batch_pieces: int) -> Iterator[list[Pieces]]:
    """Group windows of similar length, so that a padded batch has at most so many pieces, or one window."""
    batch: list[Pieces] = []
    for window in sorted(windows, key=lambda window: len(window.ids)):
        if batch and (len(batch) + 1) * len(window.ids) > batch_pieces:
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def average_words(piece_vectors: np.ndarray, words: np.ndarray, vectors: np.ndarray) -> None:
    """Write the mean of the pieces of each word into its row of ``vectors``.

    Args:
        piece_vectors: ``(pieces, dim)``
        words: ``(pieces,)``: the row of each piece; the pieces of a word are neighbors.
        vectors: ``(words, dim)``; rows without a piece stay as they are.
    """
    starts = np.flatnonzero(np.diff(words, prepend=-1))
    counts = np.diff(starts, append=len(words))
    vectors[words[starts]] = np.add.reduceat(piece_vectors, starts) / counts[:, None].astype(np.float32)


def embed_words(tokenizer: WordPieceTokenizer, network: Network, texts: Texts, batch_pieces: int) -> list[np.ndarray]:
    """Compute the vectors of the words of each text with a network that reads at most 512 pieces at once."""
    lengths = [len(text) for text in texts]
    vectors = np.zeros((sum(lengths), DIM), np.float32)
    windows = [window for text in tokenizer.split(texts) for window in cut_windows(text, N_POSITIONS - 2)]
    for batch in plan_batches(windows, batch_pieces):
        n_pieces = np.array([len(window.ids) for window in batch])
        positions = np.arange(n_pieces.max() + 2)
        mask = (positions < n_pieces[:, None] + 2).astype(np.int64)
        ids = np.full(mask.shape, PAD)
        ids[:, 0] = CLS
        ids[np.arange(len(batch)), n_pieces + 1] = SEP
        is_piece = (positions > 0) & (positions <= n_pieces[:, None])
        ids[is_piece] = np.concatenate([window.ids for window in batch])
        words = np.concatenate([window.words for window in batch])
        average_words(network(ids, mask)[is_piece], words, vectors)
    return np.split(vectors, np.cumsum(lengths)[:-1])


class Peers:
    """Opens the systems that elmokit is compared with.

    Args:
        sentences: Text to train the tokenizer on, and to calibrate the int8 network of OpenVINO.
        folder: Directory for model files, which must exist as long as the systems are used.
        n_threads: Threads of each library.
    """

    def __init__(self, sentences: Texts, folder: Path, n_threads: int) -> None:
        self.sentences = sentences
        self.folder = folder
        self.n_threads = n_threads

    @cached_property
    def tokenizer(self) -> WordPieceTokenizer:
        """The tokenizer that all systems share."""
        return WordPieceTokenizer(self.sentences)

    def open(self, name: str) -> Embed:
        """Return the function that embeds texts with one of the systems in ``PACKAGES``."""
        if name == "static table 256":
            return self._open_static_table()
        library, _, precision = name.rpartition(" ")
        # Exporters and quantizers print their progress, which must not get into the table.
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings(action="ignore"):
            if library == "PyTorch":
                network = self._open_torch(precision)
            elif library == "OpenVINO":
                network = self._open_openvino(precision)
            else:
                network = self._open_onnxruntime(precision, fused="fused" in library)
        return lambda texts, batch_pieces: embed_words(self.tokenizer, network, texts, batch_pieces)

    def _bert(self, attention: str) -> Any:
        """Return the network in PyTorch: the same weights on every call."""
        from transformers import BertConfig, BertModel

        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=VOCABULARY_SIZE,
            hidden_size=DIM,
            num_hidden_layers=N_LAYERS,
            num_attention_heads=N_HEADS,
            intermediate_size=INNER_DIM,
            max_position_embeddings=N_POSITIONS,
            attn_implementation=attention,
        )
        return BertModel(config, add_pooling_layer=False).eval()

    def _open_torch(self, precision: str) -> Network:
        model = self._bert("sdpa").to(getattr(torch, precision))

        @torch.inference_mode()
        def network(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
            # Without padding, no mask: attention is faster then.
            attention_mask = None if mask.all() else torch.from_numpy(mask)
            output = model(input_ids=torch.from_numpy(ids), attention_mask=attention_mask)
            vectors: np.ndarray = output.last_hidden_state.float().numpy()
            return vectors

        return network

    @cached_property
    def _onnx_file(self) -> Path:
        """The network as an ONNX file."""

        class TopLayer(torch.nn.Module):
            def __init__(self, model: torch.nn.Module) -> None:
                super().__init__()
                self.model = model

            def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
                vectors: torch.Tensor = self.model(input_ids, attention_mask).last_hidden_state
                return vectors

        path = self.folder / "bert.onnx"
        axes = {0: "batch", 1: "time"}
        mask = torch.ones(2, 16, dtype=torch.int64)
        mask[1, 10:] = 0  # so that the exported graph does not leave the mask out
        # ONNX Runtime finds attention to fuse only in the graph that the older exporter makes of "eager" attention.
        torch.onnx.export(
            TopLayer(self._bert("eager")),
            (torch.full_like(mask, CLS), mask),
            str(path),
            input_names=["input_ids", "attention_mask"],
            output_names=["vectors"],
            dynamic_axes={"input_ids": axes, "attention_mask": axes, "vectors": axes},
            opset_version=17,
            dynamo=False,
        )
        return path

    def _open_onnxruntime(self, precision: str, fused: bool) -> Network:
        import onnx
        import onnxruntime
        from onnxruntime.quantization import QuantType, quantize_dynamic

        path = self._onnx_file
        if fused:
            from onnxruntime.transformers.optimizer import optimize_model

            optimized = optimize_model(str(path), model_type="bert", num_heads=N_HEADS, hidden_size=DIM)
            fusions = optimized.get_fused_operator_statistics()
            if fusions["Attention"] != N_LAYERS:
                raise RuntimeError(
                    f"ONNX Runtime fused the attention of {fusions['Attention']} layers instead of {N_LAYERS}. "
                    "Try other versions of torch, transformers or onnxruntime, or leave this row out with --only."
                )
            path = self.folder / "fused.onnx"
            optimized.save_model_to_file(str(path))
        if precision == "int8":
            source, path = path, path.with_stem(f"{path.stem}-int8")
            # Shape inference does not know the fused operators and has to be told what they compute.
            options = {"DefaultTensorType": onnx.TensorProto.FLOAT}
            quantize_dynamic(source, path, weight_type=QuantType.QInt8, extra_options=options)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.n_threads, 1
        # Waiting threads must not take time from the system that is measured next.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

        def network(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
            vectors: np.ndarray = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
            return vectors

        return network

    def _open_openvino(self, precision: str) -> Network:
        import openvino

        core = openvino.Core()
        model = core.read_model(self._onnx_file)
        settings = {
            "INFERENCE_NUM_THREADS": self.n_threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "ENABLE_CPU_PINNING": False,
        }
        if precision == "int8":
            # What is not quantized is computed in the precision that OpenVINO prefers on this processor.
            model = self._quantize(model)
        else:
            settings["INFERENCE_PRECISION_HINT"] = {"float32": "f32", "bfloat16": "bf16"}[precision]
        request = core.compile_model(model, "CPU", settings).create_infer_request()

        def network(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
            inputs = {"input_ids": ids, "attention_mask": mask}
            # The result is used up before the next call, so it need not be copied.
            vectors: np.ndarray = request.infer(inputs, share_inputs=True, share_outputs=True)[0]
            return vectors

        return network

    def _quantize(self, model: Any) -> Any:
        """Quantize weights and activations for OpenVINO."""
        import nncf

        nncf.set_log_level(logging.ERROR)
        samples = []
        for pieces in self.tokenizer.split(self.sentences[:N_CALIBRATION_SENTENCES]):
            ids = np.array([[CLS, *pieces.ids[: N_POSITIONS - 2], SEP]])
            samples.append({"input_ids": ids, "attention_mask": np.ones_like(ids)})
        return nncf.quantize(
            model, nncf.Dataset(samples), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(samples)
        )

    def _open_static_table(self) -> Embed:
        table = np.random.default_rng(0).standard_normal((VOCABULARY_SIZE, STATIC_DIM), np.float32)

        def embed(texts: Texts, batch_pieces: int) -> list[np.ndarray]:
            lengths = [len(text) for text in texts]
            vectors = np.zeros((sum(lengths), STATIC_DIM), np.float32)
            for pieces in self.tokenizer.split(texts):
                average_words(table[pieces.ids], pieces.words, vectors)
            return np.split(vectors, np.cumsum(lengths)[:-1])

        return embed
