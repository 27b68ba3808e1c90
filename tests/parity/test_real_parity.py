"""Real models against transformers: same weights, float32 arithmetic there, int8 activations here.

Rounding activations to int8 alone moves the first choice of 1.8 % (Qwen2.5-Coder-0.5B) and 5.6 %
(SmolLM2) of the positions, so the bounds are statistical: top-1 agreement and Kullback-Leibler
divergence over 500 tokens of real text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from parity.logits import all_logits
from parity.reference import GgufModel, build

TOKENS = 500
PIECE = 8192  # vocabulary rows of the head that are dequantized at a time

TEXT = '''\
The ferry to the island leaves at seven, when the harbour is still grey and the gulls have the
quay to themselves. Marta has taken it every working day for eleven years. She knows which of the
two diesel engines coughs in cold weather, she knows that the captain whistles when the tide is
against him, and she knows that the best seat is on the left, behind the funnel, where the deck is
warm and the wind can't reach. In winter she reads. In summer she counts seals.

The laboratory on the island is small: four rooms, a shed for the boats, and a tank in which sea
water runs day and night. Its instruments measure temperature, salt and oxygen every ten minutes and
write the numbers into a file. Once a month somebody looks at the file, finds that a sensor has
drifted, and swears. That somebody is usually Marta, so last spring she wrote a short program that
looks every hour instead:

```python
from dataclasses import dataclass
from statistics import median


@dataclass
class Reading:
    minute: int
    temperature: float
    salinity: float


def drifted(readings: list[Reading], window: int = 6, limit: float = 0.5) -> list[int]:
    """Return the minutes at which the temperature left the median of its neighbours."""
    result = []
    for i, reading in enumerate(readings):
        start = max(0, i - window)
        neighbours = [r.temperature for r in readings[start : i + window + 1]]
        if abs(reading.temperature - median(neighbours)) > limit:
            result.append(reading.minute)
    return result


def report(readings: list[Reading]) -> str:
    minutes = drifted(readings)
    if not minutes:
        return "no drift"
    first, last = minutes[0], minutes[-1]
    return f"{len(minutes)} readings drifted between minute {first} and minute {last}"
```

It isn't much, she says, but it has found two broken sensors and one curious crab. The crab had
settled on the probe because the housing is a little warmer than the sea around it. Since then there
is a second rule in the program: if the temperature rises by less than one degree and stays there
for more than an hour, send a photograph before sending a technician. The list of things to do is
still long. 1. Replace the cable of the northern buoy. 2. Compare the new oxygen sensor with the old
one for at least two weeks. 3. Explain to the accountant why a crab appears in the yearly report.
'''


@dataclass(frozen=True)
class Agreement:
    top1: float
    mean_kl: float  # nats, KL(reference || ours)


def reference_hidden(model: GgufModel, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """float32 [n, hidden] behind the final norm. Only the embedding rows in use are dequantized."""
    lm = build(model.spec, model.weights(with_vocabulary=False), torch.float32)
    used, where = np.unique(ids, return_inverse=True)
    rows = torch.from_numpy(model.rows("token_embd.weight", used)[where])
    with torch.no_grad():
        out: NDArray[np.float32] = lm.model(inputs_embeds=rows[None]).last_hidden_state[0].numpy()
    return out


def reference_logits(model: GgufModel, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 [n, vocab], the head taken piece by piece to keep memory small."""
    head = "token_embd.weight" if model.spec.tied else "output.weight"
    logits = np.empty((len(hidden), model.spec.vocab), np.float32)
    for start in range(0, model.spec.vocab, PIECE):
        piece = slice(start, min(start + PIECE, model.spec.vocab))
        logits[:, piece] = hidden @ model.rows(head, piece).T
    return logits


def _log_softmax(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = rows.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    shifted: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return shifted


def compare(expected: NDArray[np.float32], got: NDArray[np.float32]) -> Agreement:
    assert got.shape == expected.shape
    divergences: list[float] = []
    for start in range(0, len(got), 50):
        p, q = (_log_softmax(x[start : start + 50]) for x in (expected, got))
        divergences += list((np.exp(p) * (p - q)).sum(axis=1))
    top1 = float((expected.argmax(axis=1) == got.argmax(axis=1)).mean())
    return Agreement(top1, float(np.mean(divergences)))


def text_ids(loaded: Any) -> NDArray[np.int64]:
    ids = np.array(loaded.tokenizer.encode(TEXT, parse_special=False)[:TOKENS], dtype=np.int64)
    assert len(ids) == TOKENS, "the text is too short for this tokenizer"
    return ids


def measure(path: Path, load: Any) -> Agreement:
    loaded = load(path, kv_type="f32", ctx=512, threads=2)
    ids = text_ids(loaded)
    got = all_logits(loaded, ids.astype(np.int32), 64)
    model = GgufModel(path)
    expected = reference_logits(model, reference_hidden(model, ids))
    # The reference itself must read the text well, or agreeing with it means nothing.
    assert (expected.argmax(axis=1)[:-1] == ids[1:]).mean() > 0.3
    agreement = compare(expected, got)
    print(f"{path.name}: top-1 {agreement.top1:.1%}, mean KL {agreement.mean_kl:.5f}")
    return agreement


def test_qwen25_coder_agrees_with_transformers(qwen05: Path, load: Any) -> None:
    agreement = measure(qwen05, load)
    assert agreement.top1 >= 0.97
    assert agreement.mean_kl < 0.01


def test_smollm2_agrees_with_transformers(smollm2: Path, load: Any) -> None:
    agreement = measure(smollm2, load)
    assert agreement.top1 >= 0.93
    assert agreement.mean_kl < 0.01


def test_default_theta_would_fail(smollm2: Path, load: Any) -> None:
    """A setting not read from the file exceeds the bounds. Smaller mistakes (an epsilon, a theta a
    tenth off) stay below them: those are for test_tiny_parity.py."""
    ids = text_ids(load(smollm2, kv_type="f32", ctx=512, threads=2))[:150]
    model = GgufModel(smollm2)
    expected = reference_logits(model, reference_hidden(model, ids))
    model.spec = replace(model.spec, theta=10000.0)
    agreement = compare(expected, reference_logits(model, reference_hidden(model, ids)))
    assert agreement.top1 < 0.93
    assert agreement.mean_kl > 0.01
