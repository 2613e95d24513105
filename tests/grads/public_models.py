"""Networks from public libraries, from tiny configurations, dropout on; nothing is downloaded."""

import os
import warnings
from collections.abc import Callable

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

import dpvd

WORDS, LENGTH, CLASSES = 30, 6, 3
BASE = {
    "vocab_size": WORDS,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 24,
    "num_labels": CLASSES,
}
PATCHES = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "image_size": 16,
    "patch_size": 8,
    "num_labels": CLASSES,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
WINDOWS = {
    "image_size": 16,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [2, 1],
    "num_heads": [2, 2],
    "window_size": 4,
    "num_labels": CLASSES,
    "hidden_dropout_prob": 0.1,
    "drop_path_rate": 0.0,
}
SEQUENCES = {
    "vocab_size": WORDS,
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 12,
    "decoder_ffn_dim": 12,
}

Maker = Callable[[], nn.Module]


def text_loss(model: nn.Module, words: Tensor, labels: Tensor) -> Tensor:
    logits = model(input_ids=words, attention_mask=torch.ones_like(words)).logits
    return F.cross_entropy(logits, labels, reduction="none")


def language_loss(model: nn.Module, words: Tensor) -> Tensor:
    logits = model(input_ids=words).logits
    return F.cross_entropy(logits.transpose(1, 2), words, reduction="none").sum(1)


def sequence_loss(model: nn.Module, words: Tensor) -> Tensor:
    logits = model(input_ids=words, decoder_input_ids=words.flip(1)).logits
    return F.cross_entropy(logits.transpose(1, 2), words, reduction="none").sum(1)


def image_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(images).logits, labels, reduction="none")


def speech_loss(model: nn.Module, sound: Tensor, words: Tensor) -> Tensor:
    logits = model(input_features=sound, decoder_input_ids=words).logits
    return F.cross_entropy(logits.transpose(1, 2), words, reduction="none").sum(1)


def matching_loss(model: nn.Module, images: Tensor, words: Tensor) -> Tensor:
    image = model.get_image_features(images)
    text = model.get_text_features(words)
    apart = getattr(image, "pooler_output", image) - getattr(text, "pooler_output", text)
    return apart.square().sum(1)


def latent_loss(model: nn.Module, words: Tensor, labels: Tensor) -> Tensor:
    logits = model(inputs=words, attention_mask=torch.ones_like(words)).logits
    return F.cross_entropy(logits, labels, reduction="none")


def _bert() -> nn.Module:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**BASE))


def _bert_tied() -> nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(**BASE))


def _distilbert() -> nn.Module:
    config = transformers.DistilBertConfig(
        vocab_size=WORDS,
        dim=8,
        n_layers=2,
        n_heads=2,
        hidden_dim=12,
        max_position_embeddings=16,
        num_labels=CLASSES,
    )
    return transformers.DistilBertForSequenceClassification(config)


def _roberta() -> nn.Module:
    return transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**BASE))


def _albert() -> nn.Module:
    config = transformers.AlbertConfig(
        **BASE, embedding_size=6, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1
    )
    return transformers.AlbertForSequenceClassification(config)


def _deberta() -> nn.Module:
    config = transformers.DebertaV2Config(
        **BASE, relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=8
    )
    return transformers.DebertaV2ForSequenceClassification(config)


def _gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_embd=8, n_layer=2, n_head=2, n_positions=16
    )
    return transformers.GPT2LMHeadModel(config)


def _llama() -> nn.Module:
    config = transformers.LlamaConfig(**BASE, num_key_value_heads=1, attention_dropout=0.1)
    return transformers.LlamaForCausalLM(config)


def _gemma() -> nn.Module:
    config = transformers.GemmaConfig(**BASE, num_key_value_heads=1, head_dim=4)
    return transformers.GemmaForCausalLM(config)


def _t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=WORDS,
        d_model=8,
        d_kv=4,
        d_ff=12,
        num_layers=2,
        num_heads=2,
        relative_attention_num_buckets=4,
        relative_attention_max_distance=6,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def _bart() -> nn.Module:
    config = transformers.BartConfig(**SEQUENCES, max_position_embeddings=16)
    return transformers.BartForConditionalGeneration(config)


def _whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        **SEQUENCES,
        num_mel_bins=4,
        max_source_positions=6,
        max_target_positions=16,
        dropout=0.1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return transformers.WhisperForConditionalGeneration(config)


def _mamba() -> nn.Module:
    config = transformers.MambaConfig(
        vocab_size=WORDS, hidden_size=8, state_size=4, num_hidden_layers=2, time_step_rank=2
    )
    return transformers.MambaForCausalLM(config)


def _rwkv() -> nn.Module:
    config = transformers.RwkvConfig(
        vocab_size=WORDS,
        hidden_size=8,
        attention_hidden_size=8,
        num_hidden_layers=2,
        context_length=16,
    )
    return transformers.RwkvForCausalLM(config)


def _vit() -> nn.Module:
    return transformers.ViTForImageClassification(transformers.ViTConfig(**PATCHES))


def _swin() -> nn.Module:
    return transformers.SwinForImageClassification(transformers.SwinConfig(**WINDOWS))


def _convnext() -> nn.Module:
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 8],
        depths=[1, 1],
        num_stages=2,
        num_labels=CLASSES,
        image_size=16,
        patch_size=2,
        drop_path_rate=0.1,
    )
    return transformers.ConvNextForImageClassification(config)


def _resnet() -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=CLASSES
    )
    return dpvd.fix(transformers.ResNetForImageClassification(config))


def _clip() -> nn.Module:
    text = {key: value for key, value in BASE.items() if key != "num_labels"}
    seen = {key: PATCHES[key] for key in list(PATCHES)[:6]}
    config = transformers.CLIPConfig(
        text_config=text | {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0},
        vision_config=seen,
        projection_dim=6,
    )
    return transformers.CLIPModel(config)


def _perceiver() -> nn.Module:
    config = transformers.PerceiverConfig(
        vocab_size=WORDS,
        num_latents=4,
        d_latents=8,
        d_model=8,
        num_blocks=1,
        num_self_attends_per_block=1,
        num_self_attention_heads=2,
        num_cross_attention_heads=2,
        qk_channels=8,
        v_channels=8,
        max_position_embeddings=16,
        num_labels=CLASSES,
    )
    return transformers.PerceiverForSequenceClassification(config)


MODELS: dict[str, tuple[Maker, Callable[..., Tensor], str]] = {
    "BERT": (_bert, text_loss, "words labels"),
    "BERT, tied head": (_bert_tied, language_loss, "words"),
    "DistilBERT": (_distilbert, text_loss, "words labels"),
    "RoBERTa": (_roberta, text_loss, "words labels"),
    "ALBERT, shared layers": (_albert, text_loss, "words labels"),
    "DeBERTa": (_deberta, text_loss, "words labels"),
    "GPT-2": (_gpt2, language_loss, "words"),
    "Llama": (_llama, language_loss, "words"),
    "Gemma": (_gemma, language_loss, "words"),
    "T5": (_t5, sequence_loss, "words"),
    "BART": (_bart, sequence_loss, "words"),
    "Whisper": (_whisper, speech_loss, "sound words"),
    "Mamba": (_mamba, language_loss, "words"),
    "RWKV": (_rwkv, language_loss, "words"),
    "ViT": (_vit, image_loss, "images labels"),
    "Swin": (_swin, image_loss, "images labels"),
    "ConvNeXt": (_convnext, image_loss, "images labels"),
    "ResNet": (_resnet, image_loss, "images labels"),
    "CLIP": (_clip, matching_loss, "images words"),
    "Perceiver": (_perceiver, latent_loss, "words labels"),
}
LORA_TARGETS = {
    "GPT-2": ["c_attn", "c_fc"],
    "T5": ["q", "v"],
    "Mamba": ["in_proj", "x_proj"],
    "ResNet": ["convolution"],  # adapters of convolutions
}
WITH_LORA = ["BERT", "DistilBERT", "RoBERTa", "GPT-2", "Llama", "ViT", "ResNet", "T5", "Mamba"]


def build(name: str) -> nn.Module:
    """The network in float64, in training mode."""
    make, _, _ = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().double().train()


def make_examples(name: str, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """A batch as the network's loss takes it."""
    _, _, kinds = MODELS[name]
    made = {
        "words": torch.randint(3, WORDS, (count, LENGTH), generator=generator),
        "labels": torch.randint(CLASSES, (count,), generator=generator),
        "images": torch.randn(count, 3, 16, 16, generator=generator, dtype=torch.float64),
        "sound": torch.randn(count, 4, 12, generator=generator, dtype=torch.float64),
    }
    return tuple(made[kind] for kind in kinds.split())


def with_adapters(name: str, model: nn.Module, **options) -> nn.Module:
    """The network with low-rank adapters of peft, in float64, in training mode."""
    import peft

    config = peft.LoraConfig(
        r=2, lora_dropout=0.1, target_modules=LORA_TARGETS.get(name, "all-linear"), **options
    )
    with warnings.catch_warnings():  # of what its own libraries are about to rename
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(model, config).double().train()
    with torch.no_grad():
        for key, parameter in adapted.named_parameters():
            if "lora_B" in key:  # zero at first, which would hide the gradients of lora_A
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
    return adapted
