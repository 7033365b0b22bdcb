"""Writes a LoRA adapter with random weights for a Llama checkpoint, as peft does.

    python adapter.py CHECKPOINT FOLDER [SEED [RANK [MODULE…]]]

Modules are q_proj and o_proj unless named: an adapter of k_proj or v_proj would
change what the KV cache holds.
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file


def main():
    base, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    seed, rank = (int(v) for v in (sys.argv[3:5] + ["1", "8"][len(sys.argv[3:5]):]))
    modules = sys.argv[5:] or ["q_proj", "o_proj"]
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    hidden, heads = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    kv_heads = config["num_key_value_heads"] * config["head_dim"]
    shapes = {"q_proj": (heads, hidden), "k_proj": (kv_heads, hidden), "v_proj": (kv_heads, hidden), "o_proj": (hidden, heads)}
    g = torch.Generator().manual_seed(seed)
    w = {}
    for layer in range(config["num_hidden_layers"]):
        for module in modules:
            out, into = shapes[module]
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            w[f"{name}.lora_A.weight"] = torch.randn(rank, into, generator=g) * 0.3
            w[f"{name}.lora_B.weight"] = torch.randn(out, rank, generator=g) * 0.3
    folder.mkdir(parents=True, exist_ok=True)
    save_file(w, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": 16, "target_modules": modules, "lora_dropout": 0.0,
        "bias": "none", "base_model_name_or_path": base.name, "fan_in_fan_out": False, "inference_mode": True, "modules_to_save": None,
    }, indent=1) + "\n", encoding="utf-8")


main()
