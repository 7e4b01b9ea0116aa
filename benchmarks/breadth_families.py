"""The networks of the breadth table: one configuration of transformers per family, few layers, small widths.

Every configuration keeps the structure of its family (heads that share keys, experts, windows, states) and makes
it small enough to be captured in seconds. The head is the one that the family is known for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Family:
    """One row: the `config.json` of a family, the size of a pass, and parameters that have no gradient."""

    kind: str
    config: dict[str, Any]
    batch: int = 2
    length: int | None = 128
    frozen: tuple[str, ...] = field(default=())


def _decoder(model_type: str, architecture: str, **own: Any) -> dict[str, Any]:
    """A decoder in the words that most of them share."""
    shared = {
        "model_type": model_type,
        "architectures": [architecture],
        "vocab_size": 8192,
        "hidden_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 704,
        "max_position_embeddings": 1024,
        "dtype": "bfloat16",
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return shared | own


def _encoder(model_type: str, architecture: str, **own: Any) -> dict[str, Any]:
    """An encoder in the words of BERT."""
    shared = {
        "model_type": model_type,
        "architectures": [architecture],
        "vocab_size": 8192,
        "hidden_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "intermediate_size": 1024,
        "max_position_embeddings": 514,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    return shared | own


def _image(model_type: str, architecture: str, **own: Any) -> dict[str, Any]:
    """A vision transformer in the words of ViT."""
    shared = {
        "model_type": model_type,
        "architectures": [architecture],
        "hidden_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "intermediate_size": 1024,
        "image_size": 224,
        "patch_size": 16,
        "id2label": {str(k): f"class {k}" for k in range(100)},
    }
    return shared | own


_SPEECH = {
    "vocab_size": 32,
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "intermediate_size": 1024,
    "conv_dim": [128] * 7,
    "num_conv_pos_embeddings": 32,
    "num_conv_pos_embedding_groups": 8,
}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
_LABELS = {"id2label": {str(k): f"class {k}" for k in range(100)}}

FAMILIES: dict[str, Family] = {
    # decoders
    "gpt2": Family(
        "decoder",
        _decoder("gpt2", "GPT2LMHeadModel", n_embd=256, n_layer=3, n_head=8, n_positions=1024, dtype="float32"),
    ),
    "gpt-neox": Family("decoder", _decoder("gpt_neox", "GPTNeoXForCausalLM")),
    "gptj": Family(
        "decoder", _decoder("gptj", "GPTJForCausalLM", n_embd=256, n_layer=3, n_head=8, n_positions=1024, rotary_dim=16)
    ),
    "opt": Family("decoder", _decoder("opt", "OPTForCausalLM", ffn_dim=1024, word_embed_proj_dim=256)),
    "bloom": Family("decoder", _decoder("bloom", "BloomForCausalLM", n_layer=3, n_head=8)),
    "falcon": Family("decoder", _decoder("falcon", "FalconForCausalLM", multi_query=True, alibi=False)),
    "llama": Family("decoder", _decoder("llama", "LlamaForCausalLM")),
    "mistral": Family("decoder", _decoder("mistral", "MistralForCausalLM", sliding_window=64)),
    "qwen2": Family("decoder", _decoder("qwen2", "Qwen2ForCausalLM")),
    "qwen3": Family("decoder", _decoder("qwen3", "Qwen3ForCausalLM", head_dim=32)),
    "gemma2": Family("decoder", _decoder("gemma2", "Gemma2ForCausalLM", head_dim=32, sliding_window=64)),
    "gemma3": Family("decoder", _decoder("gemma3_text", "Gemma3ForCausalLM", head_dim=32, sliding_window=64)),
    "phi": Family("decoder", _decoder("phi", "PhiForCausalLM")),
    "phi3": Family("decoder", _decoder("phi3", "Phi3ForCausalLM")),
    # mixtures of experts
    "mixtral": Family("experts", _decoder("mixtral", "MixtralForCausalLM", num_local_experts=8, num_experts_per_tok=2)),
    "qwen2-moe": Family(
        "experts", _decoder("qwen2_moe", "Qwen2MoeForCausalLM", shared_expert_intermediate_size=256, **_EXPERTS)
    ),
    "qwen3-moe": Family("experts", _decoder("qwen3_moe", "Qwen3MoeForCausalLM", head_dim=32, **_EXPERTS)),
    "olmoe": Family("experts", _decoder("olmoe", "OlmoeForCausalLM", **_EXPERTS)),
    "deepseek-v3": Family(
        "experts",
        _decoder(
            "deepseek_v3",
            "DeepseekV3ForCausalLM",
            n_routed_experts=8,
            n_group=2,
            topk_group=1,
            num_experts_per_tok=2,
            n_shared_experts=1,
            moe_intermediate_size=256,
            first_k_dense_replace=1,
            q_lora_rank=96,
            kv_lora_rank=64,
            qk_rope_head_dim=16,
            qk_nope_head_dim=32,
            v_head_dim=32,
            num_key_value_heads=8,
        ),
    ),
    # encoders
    "bert": Family("encoder", _encoder("bert", "BertForMaskedLM")),
    "roberta": Family("encoder", _encoder("roberta", "RobertaForMaskedLM")),
    "distilbert": Family(
        "encoder", _encoder("distilbert", "DistilBertForMaskedLM", dim=256, n_layers=3, n_heads=8, hidden_dim=1024)
    ),
    "electra": Family("encoder", _encoder("electra", "ElectraForPreTraining", embedding_size=128)),
    "albert": Family("encoder", _encoder("albert", "AlbertForMaskedLM", embedding_size=64)),
    "deberta-v2": Family(
        "encoder",
        _encoder(
            "deberta-v2",
            "DebertaV2ForMaskedLM",
            relative_attention=True,
            position_buckets=64,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type=["p2c", "c2p"],
            position_biased_input=False,
            type_vocab_size=0,
        ),
    ),
    "modernbert": Family("encoder", _encoder("modernbert", "ModernBertForMaskedLM")),
    # encoders with decoders
    "t5": Family(
        "encoder-decoder",
        {
            "model_type": "t5",
            "architectures": ["T5ForConditionalGeneration"],
            "vocab_size": 8192,
            "d_model": 256,
            "d_kv": 32,
            "d_ff": 1024,
            "num_layers": 3,
            "num_heads": 8,
            "decoder_start_token_id": 0,
        },
    ),
    "bart": Family(
        "encoder-decoder",
        {
            "model_type": "bart",
            "architectures": ["BartForConditionalGeneration"],
            "vocab_size": 8192,
            "d_model": 256,
            "encoder_layers": 3,
            "decoder_layers": 3,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "encoder_ffn_dim": 1024,
            "decoder_ffn_dim": 1024,
        },
    ),
    "marian": Family(
        "encoder-decoder",
        {
            "model_type": "marian",
            "architectures": ["MarianMTModel"],
            "vocab_size": 8192,
            "d_model": 256,
            "encoder_layers": 3,
            "decoder_layers": 3,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "encoder_ffn_dim": 1024,
            "decoder_ffn_dim": 1024,
            "pad_token_id": 8191,
            "decoder_start_token_id": 8191,
            "eos_token_id": 0,
        },
    ),
    # sound
    "whisper": Family(
        "audio",
        {
            "model_type": "whisper",
            "architectures": ["WhisperForConditionalGeneration"],
            "vocab_size": 8192,
            "d_model": 256,
            "encoder_layers": 3,
            "decoder_layers": 3,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "encoder_ffn_dim": 1024,
            "decoder_ffn_dim": 1024,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 3,
        },
    ),
    "wav2vec2": Family(
        "audio",
        {"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForSequenceClassification"], **_SPEECH, **_LABELS},
        length=32_000,
    ),
    "hubert": Family(
        "audio",
        {"model_type": "hubert", "architectures": ["HubertForSequenceClassification"], **_SPEECH, **_LABELS},
        length=32_000,
    ),
    "ast": Family(
        "audio",
        _image("audio-spectrogram-transformer", "ASTForAudioClassification", max_length=512, num_mel_bins=128),
    ),
    # images
    "vit": Family("vision", _image("vit", "ViTForImageClassification")),
    "deit": Family("vision", _image("deit", "DeiTForImageClassification")),
    "swin": Family(
        "vision",
        {
            "model_type": "swin",
            "architectures": ["SwinForImageClassification"],
            "embed_dim": 48,
            "depths": [2, 2, 2],
            "num_heads": [2, 4, 8],
            **_LABELS,
        },
    ),
    "convnext": Family(
        "vision",
        {
            "model_type": "convnext",
            "architectures": ["ConvNextForImageClassification"],
            "hidden_sizes": [48, 96, 192, 384],
            "depths": [1, 1, 3, 1],
            **_LABELS,
        },
    ),
    "resnet": Family(
        "vision",
        {
            "model_type": "resnet",
            "architectures": ["ResNetForImageClassification"],
            "embedding_size": 32,
            "hidden_sizes": [64, 128, 256, 512],
            "depths": [2, 2, 2, 2],
            **_LABELS,
        },
        length=None,
    ),
    "segformer": Family(
        "vision",
        {
            "model_type": "segformer",
            "architectures": ["SegformerForSemanticSegmentation"],
            "hidden_sizes": [16, 32, 64, 128],
            "depths": [1, 1, 1, 1],
            "decoder_hidden_size": 64,
            "image_size": 224,
            **_LABELS,
        },
    ),
    "clip": Family(
        "vision and text",
        {
            "model_type": "clip",
            "architectures": ["CLIPModel"],
            "projection_dim": 128,
            "text_config": {
                "vocab_size": 8192,
                "hidden_size": 256,
                "intermediate_size": 1024,
                "num_hidden_layers": 3,
                "num_attention_heads": 8,
            },
            "vision_config": {
                "hidden_size": 256,
                "intermediate_size": 1024,
                "num_hidden_layers": 3,
                "num_attention_heads": 8,
                "patch_size": 16,
            },
        },
        length=77,
    ),
    "llava": Family(
        "vision and text",
        {
            "model_type": "llava",
            "architectures": ["LlavaForConditionalGeneration"],
            "image_token_index": 7,
            "image_seq_length": 64,
            "text_config": _decoder("llama", "LlamaForCausalLM"),
            "vision_config": {
                "model_type": "clip_vision_model",
                "hidden_size": 256,
                "intermediate_size": 1024,
                "num_hidden_layers": 3,
                "num_attention_heads": 8,
                "image_size": 224,
                "patch_size": 28,
                "projection_dim": 128,
            },
            "dtype": "bfloat16",
        },
        frozen=("model.vision_tower.*",),  # the text reads the last layer but one; its authors freeze the tower
    ),
    # state spaces and linear attention
    "mamba": Family(
        "state space",
        _decoder("mamba", "MambaForCausalLM", state_size=16, expand=2, conv_kernel=4, dtype="float32"),
        length=32,
    ),
    "mamba2": Family(
        "state space",
        _decoder("mamba2", "Mamba2ForCausalLM", state_size=32, num_heads=8, head_dim=64, n_groups=1, chunk_size=32),
    ),
    "rwkv": Family(
        "state space",
        _decoder("rwkv", "RwkvForCausalLM", context_length=1024, attention_hidden_size=256),
        length=32,
    ),
}
