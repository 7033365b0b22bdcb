"""Writes a GGUF checkpoint of a Llama as a Hugging Face folder, in BF16.

    python checkpoint.py FILE.gguf FOLDER

vLLM reads no GGUF. The package gguf has the forms of numbers, transformers the tokenizer.
"""

import json
import pathlib
import sys

import gguf
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

LAYER = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}
WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}


def halves(w, heads):
    """A GGUF has the two halves of each head's rotation interleaved."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, w.shape[1]).transpose(1, 2).reshape(w.shape)


source, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
reader = gguf.GGUFReader(source)
of = lambda key: reader.fields["llama." + key].contents()
heads = {"attn_q": of("attention.head_count"), "attn_k": of("attention.head_count_kv")}
weights = {}
for t in reader.tensors:
    w = torch.from_numpy(gguf.dequantize(t.data, t.tensor_type).copy())
    name = WHOLE.get(t.name)
    if name is None:
        _, layer, part, _ = t.name.split(".")
        if part in heads:
            w = halves(w, heads[part])
        name = f"model.layers.{layer}.{LAYER[part]}.weight"
    weights[name] = w.to(torch.bfloat16).contiguous()
save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
tokenizer.save_pretrained(folder)
config = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "torch_dtype": "bfloat16",
    "hidden_size": of("embedding_length"), "num_hidden_layers": of("block_count"), "intermediate_size": of("feed_forward_length"),
    "num_attention_heads": heads["attn_q"], "num_key_value_heads": heads["attn_k"], "rms_norm_eps": of("attention.layer_norm_rms_epsilon"),
    "rope_theta": of("rope.freq_base"), "max_position_embeddings": of("context_length"),
    "vocab_size": weights["model.embed_tokens.weight"].shape[0], "tie_word_embeddings": "lm_head.weight" not in weights,
    "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
}
(folder / "config.json").write_text(json.dumps(config, indent=1))
