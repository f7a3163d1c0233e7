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
    ("bytes_per_token", "bytes per token", "B", "bytes one decode step moves on one device for each token it makes"),
    ("weight_bytes_by_part", "weights by part", "B", "stored weights of each part of the model"),
    ("weight_bytes_per_gpu", "weights", "B", "weights on the fullest device, with tables that the engine keeps beside them"),
    ("activation_bytes", "activations, peak", "B", "the largest working set of one step, as the engine measures it at start"),
    ("non_torch_bytes", "context, collectives", "B", "what driver, runtime and collectives hold on one device"),
    ("graph_bytes", "CUDA graphs", "B", "captured graphs of one device"),
    ("kv_cache_bytes_per_gpu", "KV cache", "B", "what the engine leaves for caches on one device; negative where it does not start"),
    ("request_bytes", "per request", "B", "cache reserved on one device for one request of the longest length"),
    ("kv_cache_tokens", "cache tokens", "", "tokens of cache, as the engine counts them"),
    ("max_concurrency", "concurrency", "", "requests of the longest length that the cache holds at once, as the engine prints it"),
    ("max_context", "longest request", "", "tokens of the longest single request that the cache and the model take"),
    ("total_bytes", "device memory", "B", "memory that a device shows to programs"),
    ("usable_bytes", "usable", "B", "memory the driver offers"),
    ("utilization", "utilization", "", "share of the device that the engine may use"),
    ("max_model_len", "longest length", "", "tokens of the longest request that the engine is started for"),
    ("max_num_seqs", "sequences at most", "", "sequences that the engine runs at once at most"),
    ("max_num_batched_tokens", "tokens per step", "", "tokens that the engine computes in one step at most"),
    (
        "max_sequences",
        "room for",
        "",
        "requests of this length that run at once under the engine, over all attention groups; null: no bound",
    ),
    ("fits", "fits", "", "whether the engine starts and holds the batch"),
    ("reason", "reason", "", "why the engine does not start, empty where it does"),
    ("needed_bytes", "needed", "B", "weights and the caches of the batch, without an engine's overhead"),
    ("left_bytes", "left", "B", "usable less needed"),
    ("flops", "work", "FLOP", "floating-point operations of a pass on one device, a multiply-add being two"),
    ("flops_per_token", "FLOP per token", "FLOP", "FLOPs one decode step does for each token it makes"),
    ("kv_bytes", "cache traffic", "B", "cache bytes that a pass reads and writes on one device"),
    ("bytes", "bytes", "B", "weights and cache bytes that a pass moves on one device"),
    ("wire_bytes", "exchanged", "B", "bytes of the messages one device holds before its collectives"),
    ("intensity", "intensity", "FLOP/B", "FLOPs per byte moved"),
    ("ridge", "ridge point", "FLOP/B", "intensity at which a part turns from memory-bound to compute-bound"),
    ("memory_s", "memory time", "s", "time to move the bytes at full bandwidth"),
    ("compute_s", "compute time", "s", "time to do the FLOPs at the dense peak"),
    ("floor_s", "floor", "s", "the slower of the two: no pass can be faster"),
    ("time_s", "estimate", "s", "operators in turn at their kernels' efficiency, collectives, engine and host"),
    ("overhead_s", "engine and host", "s", "what engine and host add to a pass"),
    ("ttft_s", "TTFT", "s", "time to first token of the batch, prefilled in one pass; queueing not included"),
    ("tpot_s", "TPOT", "s", "mean gap between output tokens after the first"),
    ("e2e_s", "end to end", "s", "time to the last token of a request"),
    ("floor_ttft_s", "floor of TTFT", "s", "the floor of the prefill"),
    ("floor_tpot_s", "floor of TPOT", "s", "the mean floor of the decode steps"),
    ("decode_tokens_per_s", "tokens/s per sequence", "tok/s", "output tokens per second of one sequence while it decodes"),
    ("output_tokens_per_s", "tokens/s", "tok/s", "output tokens per second of all sequences while they decode"),
    ("mfu", "MFU", "", "model FLOP utilisation: compute time over estimate; at the top of a record that of the prefill"),
    ("mbu", "MBU", "", "model bandwidth utilisation: memory time over estimate; at the top of a record that of the decode"),
    ("bound", "bound by", "", "which roof binds: memory or compute"),
    ("usd_per_gpu_h", "price", "USD/h", "listed on-demand price of one device; null: none is listed"),
    ("usd_per_million_tokens", "USD/Mtok", "USD", "price of a million output tokens while this batch decodes; null: no price is listed"),
    ("joules_per_million_tokens", "J/Mtok", "J", "energy of a million output tokens at rated power; null: no rating is known"),
    ("schema", "schema", "", "name and version of the record's form"),
    ("model", "model", "", "catalog name of the model, or the name in its file"),
    ("hardware", "gpu", "", "catalog name of the part, or the name in its file"),
    ("gpus", "devices", "", "devices in all"),
    ("precision", "precision", "", "weight formats by name"),
    ("kv_format", "KV format", "", "format of the KV cache"),
    ("engine", "engine", "", "serving engine whose reserve and overhead are counted"),
    ("engine_version", "engine version", "", "release of the engine"),
    ("efficiency", "calibration", "", "calibration of times"),
    ("tp", "tensor parallel", "", "ways in which each layer is divided"),
    ("pp", "pipeline stages", "", "stages in which layers are dealt out"),
    ("dp", "attention data parallel", "", "groups that hold attention and cache of their own"),
    ("ep", "expert parallel", "", "ways in which experts are dealt out"),
    ("dcp", "decode context parallel", "", "ways in which cached tokens are dealt out"),
    ("batch", "batch", "", "requests at once"),
    ("input_tokens", "tokens in", "", "input tokens per request"),
    ("output_tokens", "tokens out", "", "output tokens per request"),
    ("cached_tokens", "cached", "", "input tokens that a prefix cache already holds"),
    ("computed_in", "computed in", "", "for each number type asked for, the one in which this part multiplies"),
    ("doubts", "doubts", "", "numbers of the part whose source is of low confidence"),
    ("prefill", "prefill", "", "the pass over the prompts"),
    ("decode", "decode step", "", "one decode step, the mean over the contexts that the output runs through"),
)
TERMS = {row[0]: Term(*row) for row in _ROWS}
