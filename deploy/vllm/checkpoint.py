"""Writes a tiny Llama checkpoint with random weights, as a Hugging Face folder.

    python checkpoint.py FOLDER [SEED]

Half a million parameters, 1.1 MB in BF16: enough for everything about an engine
but what it says. The tokenizer is trained on made-up words. The same seed gives
the same files.
"""

import json
import pathlib
import random
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HIDDEN, LAYERS, HEADS, KV_HEADS, INNER, VOCABULARY, POSITIONS = 128, 2, 4, 2, 256, 1024, 2048
HEAD = HIDDEN // HEADS
END, OPEN, CLOSE = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tokenizer():
    rng = random.Random(0)
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    word = lambda: "".join(rng.choice(syllables) for _ in range(rng.randint(1, 4)))
    text = [" ".join(word() for _ in range(12)) for _ in range(600)]
    text += ["user\nassistant\nsystem\nhello world, what is thaw? the quick brown fox jumps over the lazy dog"] * 50
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(text, trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END, OPEN, CLOSE], initial_alphabet=alphabet, show_progress=False))
    return t


def weights(seed):
    g = torch.Generator().manual_seed(seed)
    noise = lambda *shape: (torch.randn(*shape, generator=g) * 0.3).to(torch.bfloat16)
    ones = lambda: torch.ones(HIDDEN, dtype=torch.bfloat16)
    w = {"model.embed_tokens.weight": noise(VOCABULARY, HIDDEN), "model.norm.weight": ones(), "lm_head.weight": noise(VOCABULARY, HIDDEN)}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for name, shape in {
            "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
            "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
        }.items():
            w[f"{layer}{name}.weight"] = noise(*shape)
        w[f"{layer}input_layernorm.weight"] = ones()
        w[f"{layer}post_attention_layernorm.weight"] = ones()
    return w


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    t = tokenizer()
    t.save(str(folder / "tokenizer.json"))
    ids = {"bos_token_id": t.token_to_id(END), "eos_token_id": t.token_to_id(CLOSE)}
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": END, "eos_token": CLOSE, "unk_token": END, "pad_token": CLOSE,
            "model_max_length": POSITIONS, "clean_up_tokenization_spaces": False, "chat_template": TEMPLATE,
        },
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER,
            "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
            "vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "attention_bias": False, "mlp_bias": False, **ids,
        },
        "generation_config.json": ids,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    save_file(weights(int(sys.argv[2]) if len(sys.argv) > 2 else 1), folder / "model.safetensors", {"format": "pt"})


main()
