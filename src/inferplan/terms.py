"""The glossary as a table: name, symbol, unit and meaning of every quantity that is shown or exported. Knows no value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    """A quantity's key in JSON and CSV, its label on screens, its base unit and what it means."""

    key: str
    label: str
    unit: str
    meaning: str


_ROWS = (
    ("params", "parameters", "", "all parameters, tied matrices once, without multi-token-prediction modules"),
    ("active_params", "active parameters", "", "text parameters less the experts a token does not use"),
    ("active_read_params", "read per token", "", "active parameters less tables of which a token reads one row"),
    ("weight_bytes", "weights", "B", "stored weights with their scales"),
    ("kv_bytes_per_token", "KV per token", "B", "cache bytes one more token adds over all layers, windows not yet full"),
    ("kv_bytes_per_token_unbounded", "KV per token, no windows", "B", "the same without windowed layers"),
    ("state_bytes_per_sequence", "state per sequence", "B", "recurrent states, constant in the length"),
    ("sequence_bytes", "cache per sequence", "B", "cache of one sequence at its full length, windows capped, states included"),
    ("needed_bytes", "needed", "B", "weights and the caches of the batch, without an engine's overhead"),
    ("usable_bytes", "usable", "B", "memory the driver offers"),
    ("left_bytes", "left", "B", "usable less needed"),
    ("fits", "fits", "", "whether what is needed is at most what is usable"),
    ("max_sequences", "room for", "", "sequences of this length that fit beside the weights at the ideal cache size"),
    ("bytes_per_token", "bytes per token", "B", "bytes one decode step moves for each token it makes"),
    ("flops_per_token", "FLOP per token", "FLOP", "FLOPs one decode step does for each token it makes"),
    ("intensity", "intensity", "FLOP/B", "FLOPs per byte moved"),
    ("ridge", "ridge point", "FLOP/B", "intensity at which a part turns from memory-bound to compute-bound"),
    ("memory_s", "memory time", "s", "time to move the bytes at full bandwidth"),
    ("compute_s", "compute time", "s", "time to do the FLOPs at the dense peak"),
    ("floor_s", "floor", "s", "the slower of the two: no pass can be faster"),
    ("ttft_s", "TTFT", "s", "time to first token, queueing included; here the floor of the prefill"),
    ("tpot_s", "TPOT", "s", "mean gap between output tokens after the first"),
    ("e2e_s", "end to end", "s", "time to the last token of a request"),
    ("decode_tokens_per_s", "tokens/s per sequence", "tok/s", "output tokens per second of one sequence while it decodes"),
    ("output_tokens_per_s", "tokens/s", "tok/s", "output tokens per second of all sequences while they decode"),
    ("bound", "bound by", "", "which roof binds: memory or compute"),
)
TERMS = {row[0]: Term(*row) for row in _ROWS}
