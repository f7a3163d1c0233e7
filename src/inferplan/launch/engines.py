"""What each engine is told: its own reading of splits, limits, caches and drafts, as wishes that its table turns into flags. Knows no text.

vLLM counts requests per data-parallel group and takes tensor ranks per group; SGLang and TensorRT-LLM count all devices of a stage as
tensor ranks and divide attention among groups; llama.cpp lays out cells for all slots together.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from inferplan.errors import Unsupported
from inferplan.launch.plan import ALONE, Plan
from inferplan.launch.table import Variable, Wish
from inferplan.memory.paging import padded
from inferplan.quantization.support import own_cache

RANK, LEADER = "NODE_RANK", "LEADER_ADDRESS"
RAY_PORT, DATA_PORT, SGLANG_PORT = 6379, 13345, 20000  # as the documentation of Ray, vLLM and SGLang has them in its examples
NGRAM_LOOKUP = 4  # tokens looked back at most, as vLLM's own examples have it
BATCH_TOKENS = 2048  # llama.cpp's logical batch unless told otherwise, which a physical one must not exceed


@dataclass(frozen=True, slots=True)
class Told:
    """Wishes of all nodes; those of the first and of the others beside them; a file of settings; commands that join nodes; remarks."""

    wishes: list[Wish]
    leader: list[Wish] = field(default_factory=list)
    worker: list[Wish] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    join: tuple[list[str], list[str]] | None = None
    remarks: list[str] = field(default_factory=list)


def vllm(p: Plan) -> Told:
    """vLLM: `vllm serve`, or the API server's module before it."""
    wishes = [*p.first(), *p.formats(), *p.split("tp", "pp", "dp"), *p.experts(), *p.split("dcp", "cp")]
    wishes += [Wish("utilization", p.utilization), Wish("max_model_len", p.length), Wish("max_num_seqs", p.requests)]
    wishes += [Wish("max_num_batched_tokens", p.step_tokens)]
    if p.e.engine.choice("core") == "v0" and p.step_tokens < p.length:
        wishes.append(Wish("chunked_prefill"))
    if p.e.load.cached:
        wishes.append(Wish("prefix_caching"))
    return _vllm_nodes(p, [*wishes, *p.host(), *_vllm_draft(p)])


def _vllm_draft(p: Plan) -> list[Wish]:
    """Speculative decoding: a JSON text from 0.8 on, flags before."""
    d = p.draft
    if d is None:
        return []
    if p.options.find("serve", "draft_tokens") is None:
        method = {"model": "draft_model"}.get(d.kind, d.kind)
        look = {"prompt_lookup_max": NGRAM_LOOKUP} if d.kind == "ngram" else {}
        said = {"method": method, **({"model": d.checkpoint} if d.checkpoint else {}), "num_speculative_tokens": d.tokens, **look}
        return [Wish("draft_config", json.dumps(said), d.kind, f"a {d.kind} draft")]
    if d.kind == "ngram":
        return [Wish("draft_ngram"), Wish("draft_ngram_max", NGRAM_LOOKUP), Wish("draft_tokens", d.tokens)]
    name = "draft_model" if d.checkpoint else f"draft_{d.kind}"
    return [Wish(name, d.checkpoint, what=f"a {d.kind} draft"), Wish("draft_tokens", d.tokens)]


def _vllm_nodes(p: Plan, wishes: list[Wish]) -> Told:
    """Ranks over several nodes: groups are dealt out; the ranks of one group run under vLLM's own launcher, or under Ray before it."""
    if p.nodes.count == 1:
        return Told(wishes)
    ranks = p.ways("tp") * p.ways("pp") * p.ways("cp")
    if p.ways("dp") > 1:
        if p.nodes.devices % ranks:
            raise Unsupported(f"vLLM deals groups out over nodes whole: {ranks} devices of one do not fill {p.nodes.devices}")
        local = p.nodes.devices // ranks
        shared = [Wish("dp_local", local), Wish("dp_leader", Variable(LEADER)), Wish("dp_port", DATA_PORT)]
        return Told([*wishes, *shared], worker=[Wish("worker"), Wish("dp_start", Variable(RANK, times=local))])
    if p.options.find("serve", "nodes") is not None:
        shared = [Wish("nodes", p.nodes.count), Wish("node_rank", Variable(RANK)), Wish("leader", Variable(LEADER))]
        return Told([*wishes, *shared], worker=[Wish("worker")])
    head, join = (p.options.needed("cluster", sets).value.split() for sets in ("head", "join"))
    address = Variable(LEADER, before=join[-1].removesuffix("{}"), after=f":{RAY_PORT}")
    return Told(
        [*wishes, Wish("ray")], join=(head, [*join[:-1], address]), remarks=["nodes: joined by Ray, which must be installed on each"]
    )


def sglang(p: Plan) -> Told:
    """SGLang: `python3 -m sglang.launch_server`."""
    dp, fact = p.ways("dp"), p.options.needed
    shared_by = fact("fact", "chunk_shared_by").value
    chunk = p.step_tokens * (1 if dp == 1 else dp if shared_by == "dp" else int(shared_by))
    running = p.requests * (dp if fact("fact", "requests_of").value == "all" else 1)
    wishes = [*p.first(), *p.formats()]
    wishes += [Wish("tp", p.group)] if p.group > 1 else []
    wishes += [*p.split("pp", "dp"), *([Wish("dp_attention")] if dp > 1 else []), *p.experts(), *p.split("dcp", "cp")]
    wishes += [Wish("utilization", p.utilization), Wish("max_model_len", p.length), Wish("max_num_seqs", running)]
    wishes += [Wish("max_num_batched_tokens", chunk), *p.host(), *_sglang_draft(p)]
    if p.nodes.count > 1:
        wishes += [Wish("nodes", p.nodes.count), Wish("node_rank", Variable(RANK))]
        wishes += [Wish("leader", Variable(LEADER, after=f":{SGLANG_PORT}"))]
    return Told(wishes)


def _sglang_draft(p: Plan) -> list[Wish]:
    d = p.draft
    if d is None:
        return []
    wishes = [Wish("draft_algorithm", of=d.kind, what=f"a {d.kind} draft")]
    if d.kind not in ALONE:
        wishes.append(Wish("draft_model", d.checkpoint))
    if d.kind == "ngram":
        return [*wishes, Wish("draft_tokens", d.tokens)]
    return [*wishes, Wish("draft_steps", d.tokens), Wish("draft_topk", 1), Wish("draft_tokens", d.tokens + 1)]


def tgi(p: Plan) -> Told:
    """Text Generation Inference: `text-generation-launcher`."""
    _one_node(p)
    if p.e.utilization is not None:
        p.options.needed("serve", "utilization", what="the share of memory that the plan gives it (--utilization)")
    longest = max(p.e.load.input_tokens, p.length - p.e.load.output_tokens)
    wishes = [*p.first(), *p.formats(), *p.split("tp", "pp", "dp"), *p.experts(), *p.split("dcp", "cp")]
    wishes += [Wish("max_input_tokens", min(longest, p.length - 1)), Wish("max_model_len", p.length)]
    wishes += [Wish("max_num_batched_tokens", p.step_tokens), Wish("max_num_seqs", p.requests), *p.host()]
    if p.draft is not None:
        wishes.append(Wish(f"draft_{p.draft.kind}", p.draft.tokens, what=f"a {p.draft.kind} draft"))
    return Told(wishes)


def tensorrt_llm(p: Plan) -> Told:
    """TensorRT-LLM: `trtllm-serve`, with a YAML file for what has no flag."""
    if p.draft is not None:
        raise Unsupported("drafts under TensorRT-LLM are set in its YAML file, whose names for them changed often: not written here")
    dp = p.ways("dp")
    config: dict[str, Any] = {}
    if dp > 1 and p.ways("tp") > 1:
        raise Unsupported(f"TensorRT-LLM gives each device an attention group of its own: --tp 1 --dp {p.group}, not --tp {p.ways('tp')}")
    plain = [w for w in p.formats() if w.sets not in ("kv", "dtype")]
    if p.kv.quantised:
        row = p.options.needed("config", "kv", p.kv.name, what=f"a cache in {p.kv.name}")
        config["kv_cache_config"] = {row.flag.partition(".")[2]: row.value}
    if dp > 1:
        config[p.options.needed("config", "dp_attention").flag] = True
    if p.new_tokens > p.step_tokens:
        config[p.options.needed("config", "chunked_prefill", what="prompts longer than a step").flag] = True
    wishes = [*p.first(), *plain, *([Wish("backend")] if p.options.find("serve", "backend") else [])]
    wishes += [*([Wish("tp", p.group)] if p.group > 1 else []), *p.split("pp"), *p.experts(), *p.split("dcp", "cp")]
    wishes += [Wish("utilization", p.utilization), Wish("max_model_len", p.length), Wish("max_num_seqs", p.requests)]
    wishes += [Wish("max_num_batched_tokens", p.step_tokens), *p.host()]
    return Told(wishes, config=config)


def llama_cpp(p: Plan) -> Told:
    """llama.cpp: `llama-server`."""
    _one_node(p)
    if p.ways("tp") > 1 and p.ways("pp") > 1:
        raise Unsupported("llama.cpp splits tensors or layers over devices, not both")
    cells = int(padded(p.length, p.e.engine.number_or("cell_multiple", 1)))
    wishes = [*p.first(), Wish("gpu_layers", gpu_layers(p)), *_experts_on_host(p), *llama_split(p), *p.split("dp", "dcp", "cp")]
    wishes += [*p.experts(), Wish("cells", cells * p.requests), Wish("max_num_seqs", p.requests)]
    wishes += [Wish("batch_tokens", p.step_tokens)] if p.step_tokens > BATCH_TOKENS else []
    wishes += [Wish("max_num_batched_tokens", p.step_tokens), Wish("flash_attention"), *llama_cache(p)]
    if p.e.utilization is not None:
        wishes.append(Wish("utilization", p.utilization, what="a share of memory (--utilization)"))
    return Told([*wishes, *_llama_draft(p)])


def gpu_layers(p: Plan) -> int:
    """What `-ngl` says: layers on the devices, one more for the output projection."""
    layers, off = len(p.e.model.order), p.e.capacity.offload
    if p.e.hardware.is_cpu:
        return 0
    return layers - int(off.layers) if off.layers else layers + 1 - int(off.head)


def _experts_on_host(p: Plan) -> list[Wish]:
    experts = p.e.capacity.offload.experts
    return [Wish("cpu_experts", experts, what=f"experts of {experts} layers in host memory (--cpu-experts)")] if experts else []


def llama_split(p: Plan) -> list[Wish]:
    """How llama.cpp spreads a model over devices."""
    if p.ways("tp") > 1 and p.kv.quantised:
        raise Unsupported("llama.cpp splits tensors over devices only with a 16-bit cache")
    how = "tp" if p.ways("tp") > 1 else "pp" if p.ways("pp") > 1 else ""
    return [Wish("split", of=how, what=f"a split of {'tensors' if how == 'tp' else 'layers'} (--{how})")] if how else []


def llama_cache(p: Plan) -> list[Wish]:
    """Types of keys and values where they are not llama.cpp's own, which is fp16."""
    key, _, value = own_cache(p.e.engine, p.kv).name.partition("/")
    if (key, value) == ("fp16", ""):
        return []
    return [Wish("kv_key", of=key, what=f"keys in {key}"), Wish("kv_value", of=value or key, what=f"values in {value or key}")]


def _llama_draft(p: Plan) -> list[Wish]:
    d = p.draft
    if d is None:
        return []
    of = "file" if d.checkpoint.lower().endswith(".gguf") else "hub"
    name = "draft_model" if d.kind == "model" else f"draft_{d.kind}"
    return [Wish(name, d.checkpoint, of, f"a {d.kind} draft"), Wish("draft_tokens", d.tokens)]


def _one_node(p: Plan) -> None:
    if p.nodes.count > 1:
        raise Unsupported(f"{p.options.title} runs on one node: {p.e.gpus} devices are {p.nodes.count} nodes of {p.nodes.devices}")


TELLING = {"vllm": vllm, "sglang": sglang, "tgi": tgi, "tensorrt-llm": tensorrt_llm, "llama.cpp": llama_cpp}
