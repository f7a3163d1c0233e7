"""Write readers/huggingface/class_defaults.json from a table of configuration-class defaults (model type -> declared fields).

The table is made outside the project from the configuration classes of a transformers release; only fields that a class
declares are kept, not those it derives from others. Usage: class_defaults.py TABLE.json RELEASE
"""

import json
import sys
from pathlib import Path

table = json.loads(Path(sys.argv[1]).read_text())
DROP = {
    "hidden_act",
    "hidden_activation",
    "activation",
    "rope_parameters",
    "rope_theta",
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "output_router_logits",
    "final_logit_softcapping",
    "attn_logit_softcapping",
    "pretraining_tp",
    "norm_topk_prob",
    "topk_group",
    "n_group",
    "routed_scaling_factor",
}


def flat(value):
    """A scalar, a list of scalars, or the model type a nested configuration defaults to."""
    if isinstance(value, dict):
        return value.get("$config")
    return value


out = {}
for kind, entry in sorted(table.items()):
    derived = {k for k, v in entry["filled_in_post_init"].items() if v.get("declared") is None and not isinstance(v.get("resolved"), dict)}
    kept = {k: flat(v) for k, v in entry["defaults"].items() if k not in DROP and k not in derived}
    kept = {k: v for k, v in kept.items() if v is not None and not (isinstance(v, list) and len(v) > 64)}
    if entry.get("tie_word_embeddings") is not None:
        kept["tie_word_embeddings"] = entry["tie_word_embeddings"]
    if any(k in kept for k in ("hidden_size", "d_model", "n_embd", "text_config", "num_hidden_layers", "embed_dim", "vision_config")):
        out[kind] = kept
lines = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in out.items())
head = f'"source": "configuration classes of transformers {sys.argv[2]}: declared defaults of fields that decide shapes"'
target = Path(__file__).parents[1] / "src/inferplan/readers/huggingface/class_defaults.json"
target.write_text("{\n" + head + ',\n"defaults": {\n' + lines + "\n}\n}\n")
print(len(out), "model types,", target.stat().st_size, "bytes")
