"""Transformers, with the names and layouts of Hugging Face's models."""

from collections.abc import Iterator

Named = tuple[str, tuple[int, ...]]


def bert_large() -> Iterator[Named]:
    """BERT-large, uncased, as BertModel without the pooler: Devlin et al., BERT: Pre-training of Deep
    Bidirectional Transformers for Language Understanding, arXiv:1810.04805, section 3; the vocabulary is that
    of the released model."""
    hidden, ffn = 1024, 4096
    yield "embeddings.word_embeddings.weight", (30522, hidden)
    yield "embeddings.position_embeddings.weight", (512, hidden)
    yield "embeddings.token_type_embeddings.weight", (2, hidden)
    yield from _norm("embeddings.LayerNorm", hidden)
    for i in range(24):
        layer = f"encoder.layer.{i}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            yield from _linear(f"{layer}.attention.{part}", hidden, hidden)
        yield from _norm(f"{layer}.attention.output.LayerNorm", hidden)
        yield from _linear(f"{layer}.intermediate.dense", ffn, hidden)
        yield from _linear(f"{layer}.output.dense", hidden, ffn)
        yield from _norm(f"{layer}.output.LayerNorm", hidden)


def gpt2_xl() -> Iterator[Named]:
    """GPT-2 XL as GPT2LMHeadModel, whose output layer shares the token embedding: Radford et al., Language
    Models are Unsupervised Multitask Learners, 2019, table 2. Weights are stored as (inputs, outputs)."""
    hidden, ffn = 1600, 6400
    yield "transformer.wte.weight", (50257, hidden)
    yield "transformer.wpe.weight", (1024, hidden)
    for i in range(48):
        layer = f"transformer.h.{i}"
        yield from _norm(f"{layer}.ln_1", hidden)
        yield from _conv1d(f"{layer}.attn.c_attn", hidden, 3 * hidden)
        yield from _conv1d(f"{layer}.attn.c_proj", hidden, hidden)
        yield from _norm(f"{layer}.ln_2", hidden)
        yield from _conv1d(f"{layer}.mlp.c_fc", hidden, ffn)
        yield from _conv1d(f"{layer}.mlp.c_proj", ffn, hidden)
    yield from _norm("transformer.ln_f", hidden)


def llama_3_8b() -> Iterator[Named]:
    """Llama 3 8B as LlamaForCausalLM: Grattafiori et al., The Llama 3 Herd of Models, arXiv:2407.21783,
    table 3, and the model card of Meta-Llama-3-8B."""
    hidden, ffn, vocabulary = 4096, 14336, 128256
    key_value = hidden // 32 * 8  # 8 key-value heads for 32 heads
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for i in range(32):
        layer = f"model.layers.{i}"
        yield f"{layer}.self_attn.q_proj.weight", (hidden, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (key_value, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (key_value, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, hidden)
        yield f"{layer}.mlp.gate_proj.weight", (ffn, hidden)
        yield f"{layer}.mlp.up_proj.weight", (ffn, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, ffn)
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocabulary, hidden)


def _linear(name: str, outputs: int, inputs: int) -> Iterator[Named]:
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)


def _conv1d(name: str, inputs: int, outputs: int) -> Iterator[Named]:
    yield f"{name}.weight", (inputs, outputs)
    yield f"{name}.bias", (outputs,)


def _norm(name: str, size: int) -> Iterator[Named]:
    yield f"{name}.weight", (size,)
    yield f"{name}.bias", (size,)
