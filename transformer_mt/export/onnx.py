"""Models as ONNX files for onnxruntime: the encoder, and the decoder with what it keeps of earlier tokens.

Letters in shapes: B batch, S source length, P tokens that the decoder has seen, N tokens that are new to it, D model
size, H heads, K key size, V vocabulary. B, S, P and N are free; P may be 0.
"""

import logging
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from transformer_mt.atomic import new_folder, write_json
from transformer_mt.data.tokenizer import BOS, EOS, PAD, UNK, VOCABULARY, Tokenizer
from transformer_mt.export.onnx_halves import Decoder, Encoder, decoder_layers, positions
from transformer_mt.export.proof import SENTENCES, Proof, probes, prove
from transformer_mt.export.readme import ASKED, write_readme
from transformer_mt.libraries import optional, quiet
from transformer_mt.model.folder import Loaded, load
from transformer_mt.model.transformer import Transformer

FORMAT = 2
"""Of config.json."""
LARGEST_FILE = 1 << 30
"""Bytes of weights that are written into a file of the graph itself; more are written beside it."""
LIBRARIES = ("onnx", "onnxscript", "onnxruntime")


def export(origin: Path, destination: Path, sentences: Sequence[str] = SENTENCES) -> Proof:
    """Writes the model of a folder as ONNX files, in float32; the new folder appears whole, and checked.

    sentences: source text for the check. Raises UserError where a library is missing, RunError where onnxruntime does
    not say what the model says.
    """
    for name in LIBRARIES:
        optional(name, "onnx")
    loaded = load(origin, torch.device("cpu"))
    with new_folder(destination, replace=False) as folder:
        opset = write_files(folder, loaded.model)
        for file in loaded.tokenizer.files:
            shutil.copyfile(file, folder / file.name)
        write_readme(loaded.origin, folder, use(loaded.tokenizer))
        facts = description(loaded, opset)
        proof = check(folder, facts, loaded, sentences)
        write_json(folder / "config.json", {**facts, "checked": proof.record()})
    return proof


def description(loaded: Loaded, opset: int) -> dict[str, Any]:
    """What config.json holds: all that a program needs to know to use the files."""
    model, tokenizer, layers = loaded.model, loaded.tokenizer, len(loaded.model.decoder)
    models = [file.name for file in tokenizer.files if file.suffix == ".model"]
    attention = decoder_layers(model)[0].self_attention
    return {
        "format": FORMAT,
        "languages": loaded.languages.model_dump(mode="json"),
        "tokenizer": {
            "source": models[0],
            "target": models[-1],
            **({"vocabulary": VOCABULARY} if tokenizer.has_vocabulary else {}),
        },
        "encoder": {"file": "encoder.onnx", "inputs": ["source"], "outputs": _of_source(layers)},
        "decoder": {
            "file": "decoder.onnx",
            "inputs": ["tokens", *_of_source(layers), *_of_layers("past", layers)],
            "outputs": ["logits", *_of_layers("present", layers)],
        },
        "layers": layers,
        "heads": attention.heads,
        "key_size": attention.key_size,
        "value_size": attention.value_size,
        "positions": positions(model),
        "start": loaded.start,
        "eos": EOS,
        "pad": PAD,
        "forbidden": [PAD, BOS] if loaded.decoding.allow_unknown else [PAD, UNK, BOS],
        "min_length": loaded.decoding.min_length,
        "max_length": loaded.decoding.max_length.model_dump(mode="json"),
        "opset": opset,
        "versions": {name: version(name) for name in ("torch", *LIBRARIES)},
    }


def _of_layers(stem: str, layers: int) -> list[str]:
    return [f"{stem}_{part}_{number}" for part in ("keys", "values") for number in range(layers)]


def _of_source(layers: int) -> list[str]:
    """What the encoder gives and the decoder takes."""
    return ["source_mask", *_of_layers("cross", layers)]


# The files


def write_files(folder: Path, model: Transformer) -> int:
    """Writes encoder.onnx and decoder.onnx, and their weights beside them where they are too large; gives the opset."""
    dim = torch.export.Dim
    batch, source, past, new = dim("batch"), dim("source"), dim("past", min=0), dim("new")
    layers, attention = len(model.decoder), decoder_layers(model)[0].self_attention
    rows, length, seen, more = 2, 5, 3, 2  # any sizes do, but 0 and 1, which torch takes for fixed

    def kept(cells: int, axis: Any) -> tuple[list[list[Tensor]], list[list[dict[int, Any]]]]:
        """Keys and values of all layers, and which of their axes are free."""
        sizes = (attention.key_size, attention.value_size)
        # Each is a tensor of its own: torch would take those that are one for one input.
        tensors = [[torch.zeros(rows, attention.heads, cells, size) for _ in range(layers)] for size in sizes]
        return tensors, [[{0: batch, 2: axis}] * layers] * 2

    ids = torch.full((rows, length), EOS)
    _write(folder / "encoder.onnx", Encoder(model), [ids], [{0: batch, 1: source}], ["source"], _of_source(layers))
    cross, cross_axes = kept(length, source)
    before, before_axes = kept(seen, past)
    return _write(
        folder / "decoder.onnx",
        Decoder(model),
        [ids[:, :more], ids != PAD, *cross, *before],
        [{0: batch, 1: new}, {0: batch, 1: source}, *cross_axes, *before_axes],
        ["tokens", *_of_source(layers), *_of_layers("past", layers)],
        ["logits", *_of_layers("present", layers)],
    )


def _write(
    path: Path,
    half: nn.Module,
    arguments: Sequence[Any],
    axes: Sequence[Any],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> int:
    """Traces one half and writes it; returns its opset."""
    # The exporter warns of its own code and of what it skips: nothing to act on, and what it writes is checked.
    with quiet("torch.onnx", "onnxscript", "onnx_ir", level=logging.ERROR):
        program = torch.onnx.export(
            half.eval(), tuple(arguments), dynamo=True, dynamic_shapes=tuple(axes), input_names=list(inputs),
            output_names=list(outputs), optimize=False, verbose=False,
        )  # fmt: skip
        assert program is not None
        # Without limits, so that of a projection that is used in part only that part is written.
        optional("onnxscript.optimizer", "onnx").optimize(
            program.model, input_size_limit=sys.maxsize, output_size_limit=sys.maxsize
        )
        # Where in the source code each node comes from: paths of this machine.
        optional("onnx_ir.passes.common", "onnx").ClearMetadataAndDocStringPass()(program.model)
        tensors = [value.const_value for value in program.model.graph.initializers.values()]
        size = sum(int(tensor.nbytes) for tensor in tensors if tensor is not None)
        program.save(path, external_data=size > LARGEST_FILE)
    return int(program.model.opset_imports[""])


# Whether onnxruntime says what the model says

TOGETHER = 7
"""Sentences of a batch, of unequal lengths; once they were two."""
ALONE = 5
"""Sentences that are checked by themselves too, token by token."""


def check(folder: Path, facts: dict[str, Any], loaded: Loaded, sentences: Sequence[str] = SENTENCES) -> Proof:
    """Compares the files with the model: in padded batches, some tokens a step, and alone, token by token.

    Raises RunError if anything differs.
    """
    room = positions(loaded.model)
    sources = probes(loaded.tokenizer, sentences, room - 1)
    files = Files(folder, facts)
    proofs = [
        prove(loaded.model, loaded.start, InBatches(files, *sizes), some, facts["forbidden"], room, "the ONNX model")
        for sizes, some in (((TOGETHER, TOGETHER), sources), ((1, 1), sources[:ALONE]))
    ]
    return Proof(
        sum(proof.outputs for proof in proofs),
        sum(proof.pieces for proof in proofs),
        sum(proof.ties for proof in proofs),
        max(proof.largest_difference for proof in proofs),
    )


Arrays = dict[str, Any]
"""Inputs or outputs of a file, by name."""


class Files:
    """An exported folder under onnxruntime."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        """`facts`: what config.json holds."""
        self.facts = facts
        runtime = optional("onnxruntime", "onnx")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        self._encoder, self._decoder = (
            runtime.InferenceSession(str(folder / facts[half]["file"]), options, ["CPUExecutionProvider"])
            for half in ("encoder", "decoder")
        )

    def encode(self, sources: Sequence[Sequence[int]]) -> Arrays:
        """Sources without `</s>` -> what the decoder needs of them, before its first token."""
        ids = _padded([[*source, self.facts["eos"]] for source in sources], self.facts["pad"])
        found = dict(zip(self.facts["encoder"]["outputs"], self._encoder.run(None, {"source": ids}), strict=True))
        sizes = [self.facts["key_size"]] * self.facts["layers"] + [self.facts["value_size"]] * self.facts["layers"]
        empty = [np.zeros((len(sources), self.facts["heads"], 0, size), np.float32) for size in sizes]
        return found | dict(zip(_of_layers("past", self.facts["layers"]), empty, strict=True))

    def step(self, tokens: Any, state: Arrays) -> tuple[Any, Arrays]:
        """tokens (B, N) -> logits (B, N, V), and the state after them."""
        logits, *present = self._decoder.run(None, {"tokens": tokens, **state})
        return logits, state | dict(zip(_of_layers("past", self.facts["layers"]), present, strict=True))


class InBatches:
    """What `prove` compares: so many sentences in a batch, and so many tokens of a given target in a step."""

    def __init__(self, files: Files, together: int, tokens: int) -> None:
        self.files, self.together, self.tokens = files, together, tokens

    def logits(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
        """See `proof.Other`."""
        found: list[Tensor] = []
        for first in range(0, len(sources), self.together):
            some = targets[first : first + self.together]
            given = _padded([[self.files.facts["start"], *target] for target in some], self.files.facts["pad"])
            state, parts = self.files.encode(sources[first : first + self.together]), []
            for begin in range(0, given.shape[1], self.tokens):
                logits, state = self.files.step(given[:, begin : begin + self.tokens], state)
                parts.append(logits)
            rows = torch.from_numpy(np.concatenate(parts, 1))
            found += [row[: len(target) + 1] for row, target in zip(rows, some, strict=True)]
        return found

    def greedy(self, sources: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
        """See `proof.Other`."""
        found: list[list[int]] = []
        facts = self.files.facts
        for first in range(0, len(sources), self.together):
            state = self.files.encode(sources[first : first + self.together])
            tokens = np.full((len(state["source_mask"]), 1), facts["start"])
            columns: list[Any] = []
            while len(columns) < limit and not (columns and (np.stack(columns) == facts["eos"]).any(0).all()):
                logits, state = self.files.step(tokens, state)
                logits[:, -1, facts["forbidden"]] = -np.inf
                tokens = logits[:, -1:].argmax(-1)
                columns.append(tokens[:, 0])
            for row in np.stack(columns, 1).tolist():
                found.append(row[: row.index(facts["eos"])] if facts["eos"] in row else row)
        return found


def _padded(rows: Sequence[Sequence[int]], pad: int) -> Any:
    ids = np.full((len(rows), max(map(len, rows))), pad, np.int64)
    for row, given in zip(ids, rows, strict=True):
        row[: len(given)] = given
    return ids


USE = """\
## Use

`encoder.onnx` and `decoder.onnx` are this model in float32, for onnxruntime and other programs that read ONNX.
`config.json` names their inputs and outputs, the special ids and the limits. All batch sizes and lengths are free.

- The encoder takes `source`, ids (batch, source) that end with `eos`, padded with `pad`. It gives `source_mask`, and
  `cross_keys_*` and `cross_values_*` (batch, heads, source, size) for each layer of the decoder.
- The decoder takes `tokens` (batch, new), one or several at a time, beginning with `start`; what the encoder gave; and
  `past_keys_*` and `past_values_*` (batch, heads, past, size), of which past is 0 at first. It gives `logits`
  (batch, new, vocabulary) and `present_keys_*` and `present_values_*`, which are the past of the next step.

This program translates the lines of standard input together, by greedy search. It needs
`pip install onnxruntime sentencepiece numpy`.{asked}

```python
import json
import sys
import unicodedata

import numpy as np
import onnxruntime
import sentencepiece

config = json.load(open("config.json", encoding="utf-8"))
encoder, decoder = (onnxruntime.InferenceSession(config[half]["file"]) for half in ("encoder", "decoder"))
source, target = (
    sentencepiece.SentencePieceProcessor(model_file=config["tokenizer"][side]) for side in ("source", "target")
)

{tokenizer}

def translate(lines):
    texts = [" ".join(unicodedata.normalize("NFC", line).split()) for line in lines]
    rows = [encode(text)[: config["positions"] - 1] for text in texts]
    ids = np.full((len(rows), max(map(len, rows)) + 1), config["pad"])
    for row, pieces in zip(ids, rows):
        row[: len(pieces) + 1] = [*pieces, config["eos"]]
    encoded = dict(zip(config["encoder"]["outputs"], encoder.run(None, {"source": ids})))
    past = {
        f"past_{part}_{layer}": np.zeros((len(rows), config["heads"], 0, config[size]), np.float32)
        for part, size in (("keys", "key_size"), ("values", "value_size")) for layer in range(config["layers"])
    }
    most = config["max_length"]
    limits = [min(int(most["factor"] * len(row)) + most["extra"], config["positions"] - 1) for row in rows]
    outputs, alive = [[] for _ in rows], [bool(row) for row in rows]
    tokens = np.full((len(rows), 1), config["start"])
    for step in range(max(limits)):
        logits, *present = decoder.run(None, {"tokens": tokens, **encoded, **past})
        past = dict(zip(past, present))
        logits[:, -1, config["forbidden"]] = -np.inf
        if step < config["min_length"]:
            logits[:, -1, config["eos"]] = -np.inf
        tokens = logits[:, -1:].argmax(-1)
        for number, token in enumerate(tokens[:, 0].tolist()):
            alive[number] = alive[number] and token != config["eos"] and step < limits[number]
            if alive[number]:
                outputs[number].append(token)
        if not any(alive):
            break
    return [decode(output).replace("\\n", " ") for output in outputs]


sys.stdin.reconfigure(encoding="utf-8")
sys.stdout.reconfigure(encoding="utf-8")
print("\\n".join(translate(list(sys.stdin))))
```

`transformer-mt translate` does more: beam search, long lines sentence by sentence, and it drops characters that show
nothing.
"""


def use(tokenizer: Tokenizer) -> str:
    """The README's part on how to use the files."""
    languages = tokenizer.languages()
    asked = f" {ASKED.replace('{example}', languages[0])}" if languages else ""
    return USE.replace("{tokenizer}", NUMBERED if tokenizer.has_vocabulary else PLAIN).replace("{asked}", asked)


PLAIN = """
def encode(text):
    return source.encode(text)


def decode(ids):
    return target.decode(ids)
"""
NUMBERED = """
vocabulary = json.load(open(config["tokenizer"]["vocabulary"], encoding="utf-8"))
source_pieces, target_pieces = (vocabulary.get(side) or vocabulary["shared"] for side in ("source", "target"))
numbers = {piece: number for number, piece in enumerate(source_pieces)}
unknown = numbers["<unk>"]


def encode(text):
    language = [text[: text.index("<<") + 2]] if text.startswith(">>") and "<<" in text else []
    language = [piece for piece in language if piece in numbers]  # such as >>deu<<, for a model of several languages
    pieces = source.encode(text[len("".join(language)) :].lstrip(), out_type=str)
    return [numbers.get(piece, unknown) for piece in [*language, *pieces]]


def decode(ids):
    return target.decode([target_pieces[number] for number in ids]).replace("\u2581", " ").strip()
"""
