"""Faults of exports that were published, built small: each is found under its code, and is what is found first.

The address is the thread that reported it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantize.audit import audit_checkpoint
from quantize.forensics.hits import RULES
from tests.quantize.forensics import checkpoints as made
from tests.support.tiny import write_safetensors
from trtforge.rules.sources import thread

Q0, K0, V1 = (f"model.layers.{layer}.self_attn.{kind}_proj" for layer, kind in ((0, "q"), (0, "k"), (1, "v")))
GATE0, UP0 = "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj"
E2 = "model.layers.1.mlp.experts.2"


@dataclass(frozen=True)
class Fault:
    """``build`` writes the faulty checkpoint; ``base``: an unquantized one that it is held against."""

    reported: str
    code: str
    build: Callable[[Path], Path]
    base: dict[str, Any] | None = None
    severity: str = "error"


def changed(
    good: tuple[made.Tensors, dict[str, Any]],
    edit: Callable[[made.Tensors, dict[str, Any]], object],
    **options: Any,
) -> Callable[[Path], Path]:
    """A good checkpoint with an edit of its tensors and sections."""

    def build(folder: Path) -> Path:
        tensors, sections = dict(good[0]), json.loads(json.dumps(good[1]))
        edit(tensors, sections)
        return made.write(folder, tensors, sections, **options)

    return build


def f32(*values: float) -> tuple[str, np.ndarray]:
    return ("F32", np.array(values[0] if len(values) == 1 else values, "<f4"))


def drop(*endings: str) -> Callable[[made.Tensors, dict[str, Any]], None]:
    def edit(tensors: made.Tensors, _: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.endswith(endings)]:
            del tensors[name]

    return edit


def put(name: str, value: tuple[str, np.ndarray]) -> Callable[[made.Tensors, dict[str, Any]], None]:
    return lambda tensors, _: tensors.__setitem__(name, value)


def rename(old: str, new: str) -> Callable[[made.Tensors, dict[str, Any]], None]:
    def edit(tensors: made.Tensors, _: dict[str, Any]) -> None:
        for name in [name for name in tensors if old in name]:
            tensors[name.replace(old, new)] = tensors.pop(name)

    return edit


def record(**values: Any) -> Callable[[made.Tensors, dict[str, Any]], None]:
    """Keys of ModelOpt's record, and of config.json's copy where it has them."""

    def edit(_: made.Tensors, sections: dict[str, Any]) -> None:
        sections["hf_quant_config.json"]["quantization"].update(values)
        own = sections["quantization_config"]
        own.update({key: value for key, value in values.items() if key in own})

    return edit


def section(**values: Any) -> Callable[[made.Tensors, dict[str, Any]], None]:
    return lambda _, sections: sections["quantization_config"].update(values)


def block(byte: int, module: str = Q0, rows: int = made.HIDDEN) -> Callable[[made.Tensors, dict[str, Any]], None]:
    """One bad byte among the E4M3 scales of a linear."""

    def edit(tensors: made.Tensors, _: dict[str, Any]) -> None:
        values = tensors[f"{module}.weight_scale"][1].copy()
        values[rows // 2, 1] = byte
        tensors[f"{module}.weight_scale"] = ("F8_E4M3", values)

    return edit


def every(ending: str, value: tuple[str, np.ndarray]) -> Callable[[made.Tensors, dict[str, Any]], None]:
    def edit(tensors: made.Tensors, _: dict[str, Any]) -> None:
        tensors.update({name: value for name in tensors if name.endswith(ending)})

    return edit


def both(*edits: Callable[[made.Tensors, dict[str, Any]], object]) -> Callable[[made.Tensors, dict[str, Any]], None]:
    def edit(tensors: made.Tensors, sections: dict[str, Any]) -> None:
        for one in edits:
            one(tensors, sections)

    return edit


def quantized_head(tensors: made.Tensors, _: dict[str, Any]) -> None:
    made._modelopt_linear(tensors, "lm_head", made.VOCAB, made.HIDDEN, "NVFP4")


def quantized_router(tensors: made.Tensors, _: dict[str, Any]) -> None:
    del tensors["model.layers.0.mlp.gate.weight"]
    for leaf, value in {"qweight": (made.HIDDEN, 1), "qzeros": (2, 1), "scales": (2, 8)}.items():
        kind = "F16" if leaf == "scales" else "I32"
        tensors[f"model.layers.0.mlp.gate.{leaf}"] = (
            made.scale(kind, *value, seed=leaf) if leaf == "scales" else made.codes(kind, *value, seed=leaf)
        )


def half_scales(tensors: made.Tensors, _: dict[str, Any]) -> None:
    for name in [name for name in tensors if name.endswith("weight_scale")]:
        tensors[name] = ("F8_E4M3", tensors[name][1][:, ::2].copy())


def plain_linear(module: str, *, ignored: bool = False) -> Callable[[made.Tensors, dict[str, Any]], None]:
    """A linear that was left unquantized, listed or not."""

    def edit(tensors: made.Tensors, sections: dict[str, Any]) -> None:
        shape = made.linears(moe=".experts." in module)[module]
        drop(*(name for name in tensors if name.startswith(f"{module}.")))(tensors, sections)
        tensors[f"{module}.weight"] = made.plain(*shape)
        if ignored:
            sections["quantization_config"]["ignore"].append(module)

    return edit


def fused_experts_plain(tensors: made.Tensors, _: dict[str, Any]) -> None:
    """Experts of the draft layer of one plain tensor, which the ignore list does not name."""
    tensors["mtp.layers.0.mlp.experts.gate_up_proj"] = made.plain(made.EXPERTS, 2 * made.FFN, made.HIDDEN)
    tensors["mtp.layers.0.mlp.experts.down_proj"] = made.plain(made.EXPERTS, made.HIDDEN, made.FFN)


def index_edit(edit: Callable[[dict[str, str]], object], **options: Any) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        made.write(folder, *made.modelopt("FP8"), shards=3, **options)
        path = folder / "model.safetensors.index.json"
        index = json.loads(path.read_text())
        edit(index["weight_map"])
        path.write_text(json.dumps(index))
        return folder

    return build


def stray(folder: Path) -> Path:
    made.write(folder, *made.modelopt("FP8"), shards=3)
    write_safetensors(folder / "model.safetensors", {"model.norm.weight": made.plain(made.HIDDEN)})
    return folder


def missing_shard(folder: Path) -> Path:
    made.write(folder, *made.modelopt("FP8"), shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    return folder


def no_companion(*names: str, **options: Any) -> Callable[[Path], Path]:
    def build(folder: Path) -> Path:
        made.write(folder, *made.modelopt("FP8"), **options)
        for name in names:
            (folder / name).unlink()
        return folder

    return build


def rank_without_scales(folder: Path) -> Path:
    made.trtllm(folder)
    tensors: made.Tensors = {"transformer.vocab_embedding.weight": made.plain(made.VOCAB, made.HIDDEN)}
    write_safetensors(folder / "rank1.safetensors", tensors)
    return folder


def unscaled_trtllm(folder: Path) -> Path:
    """FP8 weights without activation scales: quantized without calibration."""
    return made.trtllm(folder, ranks=1, calibrated=False)


FP8, FP8_KV, NVFP4, MOE = (
    made.modelopt(),
    made.modelopt(kv=True),
    made.modelopt("NVFP4"),
    made.modelopt("NVFP4", moe=True),
)
CT4, CTN = made.compressed("pack-quantized"), made.compressed("nvfp4-pack-quantized")
CT8_KV = made.compressed("float-quantized", kv=True)
LLAMA3 = {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "rope_theta": 500000.0}

FAULTS: dict[str, Fault] = {
    "head quantized and excluded": Fault(thread("VL#45102"), "TF-K6-101", changed(NVFP4, quantized_head)),
    "linear left plain, not excluded": Fault(
        thread("VL!52501"), "TF-K6-102", changed(NVFP4, plain_linear(f"{V1[:-6]}o_proj"))
    ),
    "fused experts plain, not ignored": Fault(thread("VL!41994"), "TF-K6-102", changed(CTN, fused_experts_plain)),
    "router not ignored": Fault(
        thread("CT!733"),
        "TF-K6-102",
        changed(made.compressed("nvfp4-pack-quantized", moe=True), section(ignore=["lm_head"])),
    ),
    "q and k ignored, v not": Fault(
        thread("VL#47473"),
        "TF-AUD-122",
        changed(CT4, both(plain_linear(Q0, ignored=True), plain_linear(K0, ignored=True))),
    ),
    "router quantized by GPTQ": Fault(
        thread("VL#25029"),
        "TF-AUD-121",
        changed(made.awq(moe=True), both(quantized_router, section(modules_to_not_convert=None))),
        severity="warning",
    ),
    "all experts in the ignore list": Fault(
        thread("LC#2060"),
        "TF-AUD-127",
        changed(
            made.compressed("nvfp4-pack-quantized", moe=True),
            drop(
                *(
                    f"experts.{e}.{p}"
                    for e in (2, 3)
                    for p in (
                        f"{n}_proj.{leaf}"
                        for n in ("gate", "up", "down")
                        for leaf in ("weight_packed", "weight_scale", "weight_global_scale", "input_global_scale")
                    )
                )
            ),
        ),
    ),
    "scales of half size": Fault(thread("MO!2038"), "TF-AUD-131", changed(NVFP4, half_scales)),
    "quantizer's buffers leaked": Fault(
        thread("MO!2038"), "TF-AUD-134", changed(NVFP4, put(f"{Q0}.weight_quantizer._double_scale", f32(0.1)))
    ),
    "scales named as quantizers": Fault(
        thread("VL!49420"), "TF-AUD-134", changed(FP8, rename("weight_scale", "weight_quantizer.scale"))
    ),
    "NaN bytes in block scales": Fault(thread("MO#1633"), "TF-K7-103", changed(NVFP4, block(0x7F))),
    "block scales that became zero": Fault(thread("MO!1382"), "TF-K7-103", changed(NVFP4, block(0))),
    "infinite scales of GPTQ": Fault(
        thread("CT#832"),
        "TF-K7-103",
        changed(CT4, put(f"{Q0}.weight_scale", ("BF16", np.full((64, 2), 0x7F80, "<u2")))),
    ),
    "MXFP4 scales never written": Fault(
        thread("SG!33541"),
        "TF-K7-103",
        changed(made.mxfp4(), put("model.layers.0.mlp.experts.down_proj_scales", ("U8", np.zeros((4, 64, 4), "u1")))),
    ),
    "experts without input_scale": Fault(
        thread("VL#45212"), "TF-AUD-126", changed(MOE, drop(f"{E2}.up_proj.input_scale"))
    ),
    "an expert without pre_quant_scale": Fault(
        thread("MO!1354"),
        "TF-AUD-126",
        changed(
            (made.modelopt("W4A16_AWQ", moe=True)),
            drop(f"{E2}.gate_proj.pre_quant_scale", f"{E2}.up_proj.pre_quant_scale"),
        ),
    ),
    "gate and up of an expert unlike": Fault(
        thread("MO!1411"), "TF-AUD-152", changed(MOE, put(f"{E2}.up_proj.weight_scale_2", f32(0.5)))
    ),
    "q, k and v unlike": Fault(
        thread("AR#2380"),
        "TF-AUD-151",
        changed(CTN, put(f"{K0}.weight_global_scale", f32(5334.3257))),
        severity="warning",
    ),
    "gate and up unlike": Fault(
        thread("VL!47515"),
        "TF-AUD-151",
        changed(CTN, put(f"{UP0}.weight_global_scale", f32(7000.0))),
        severity="warning",
    ),
    "global scale stored as a factor": Fault(
        thread("MAX#6600"), "TF-AUD-143", changed(CTN, every("weight_global_scale", f32(0.000279)))
    ),
    "KV scales of zero": Fault(
        thread("LC#2853"), "TF-K7-107", changed(CT8_KV, put("model.layers.1.self_attn.k_scale", f32(0.0)))
    ),
    "KV scales of one": Fault(
        thread("MO#20"), "TF-K7-108", changed(FP8_KV, both(every("k_scale", f32(1.0)), every("v_scale", f32(1.0))))
    ),
    "KV scales of some layers": Fault(thread("VL!54705"), "TF-K7-106", changed(FP8_KV, drop(f"{V1}.v_scale"))),
    "KV scales beside the projections": Fault(
        thread("CT!133"),
        "TF-AUD-171",
        changed(
            CT8_KV,
            both(
                rename("self_attn.k_scale", "self_attn.k_proj.output_scale"),
                rename("self_attn.v_scale", "self_attn.v_proj.output_scale"),
            ),
        ),
    ),
    "KV scales that nothing declares": Fault(
        thread("SG!35455"), "TF-K7-105", changed(CT8_KV, section(kv_cache_scheme=None))
    ),
    "FP8 cache without scales": Fault(
        thread("SGC!237"), "TF-AUD-173", changed(FP8, record(kv_cache_quant_algo="FP8")), severity="note"
    ),
    "excludes with a wrong prefix": Fault(
        thread("MO!479"),
        "TF-AUD-114",
        changed(FP8, record(exclude_modules=["lm_head", "model.layers.visual.blocks.0.attn.qkv"])),
        severity="warning",
    ),
    "a prefix twice": Fault(
        thread("LC#2568"),
        "TF-AUD-135",
        changed(CT4, rename("model.layers", "model.language_model.language_model.layers")),
    ),
    "null algorithm": Fault(thread("MO!1375"), "TF-AUD-111", changed(FP8, record(quant_algo=None))),
    "records that disagree": Fault(thread("TL!3167"), "TF-QNT-041", changed(FP8, section(quant_algo="NVFP4"))),
    "no record at all": Fault(thread("TL!3772"), "TF-AUD-112", changed(FP8, lambda _, sections: sections.clear())),
    "mixed precision without layers": Fault(
        thread("VL!36312"), "TF-AUD-113", changed(made.modelopt("MIXED_PRECISION"), record(quantized_layers=None))
    ),
    "scale renamed": Fault(
        thread("VL!54556"), "TF-AUD-136", changed(made.fp8_blocks(), rename("weight_scale_inv", "weight_scale"))
    ),
    "missing scale of a linear": Fault(
        thread("LC#959"), "TF-K7-102", changed(made.compressed("int-quantized"), drop("0.mlp.down_proj.weight_scale"))
    ),
    "missing zero points": Fault(
        thread("LC#2255"),
        "TF-K7-102",
        changed(made.compressed("pack-quantized", symmetric=False), drop("0.mlp.down_proj.weight_zero_point")),
    ),
    "no activation scales": Fault(thread("MO#500"), "TF-K7-102", unscaled_trtllm),
    "a qweight is missing": Fault(thread("GPTQ!3077"), "TF-AUD-138", changed(made.gptq(), drop(f"{Q0}.qweight"))),
    "no g_idx with desc_act": Fault(thread("TGI#601"), "TF-AUD-137", changed(made.gptq(desc_act=True), drop("g_idx"))),
    "zero points of gptq_v2": Fault(
        thread("VL!38966"), "TF-AUD-145", changed(made.gptq(version="gptq_v2"), section(checkpoint_format="gptq"))
    ),
    "group does not divide": Fault(thread("VL!46236"), "TF-AUD-132", changed(made.awq(), section(group_size=48))),
    "tied head stored": Fault(
        thread("LC!2798"),
        "TF-K6-105",
        changed(CT4, lambda t, s: None, config={"tie_word_embeddings": True}),
        severity="warning",
    ),
    "tied head quantized": Fault(
        thread("LC#996"),
        "TF-K6-105",
        changed(
            made.compressed("float-quantized"),
            both(
                put("lm_head.weight", made.codes("F8_E4M3", made.VOCAB, made.HIDDEN, seed="h")),
                put("lm_head.weight_scale", made.scale("BF16", 1, seed="h")),
            ),
            config={"tie_word_embeddings": True},
        ),
    ),
    "head missing": Fault(thread("LF#2789"), "TF-K6-106", changed(FP8, drop("lm_head.weight"))),
    "ghost entries of the index": Fault(
        thread("RX!148"),
        "TF-AUD-102",
        index_edit(lambda m: m.__setitem__("model.mtp.weight", "model-00001-of-00003.safetensors")),
    ),
    "tensors that the index does not name": Fault(
        thread("MO!2427"), "TF-AUD-103", index_edit(lambda m: m.pop(f"{Q0}.weight_scale"))
    ),
    "a stray weight file": Fault(thread("MLX!1464"), "TF-AUD-105", stray, severity="warning"),
    "a shard is missing": Fault(thread("RX!148"), "TF-AUD-101", missing_shard),
    "ranks unlike": Fault(thread("TL#1677"), "TF-AUD-107", rank_without_scales),
    "rope scaling lost": Fault(thread("TL#1676"), "TF-AUD-183", no_companion(), base=LLAMA3),
    "rope renamed": Fault(
        thread("LC#81"),
        "TF-AUD-183",
        no_companion(config={"rope_scaling": {"type": "dynamic", "factor": 4.0}}),
        base={"rope_scaling": {"type": "su", "factor": 4.0}},
    ),
    "two ropes": Fault(
        thread("MO!917"),
        "TF-AUD-184",
        no_companion(config={"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "rope_theta": 1e4}),
    ),
    "end of a turn lost": Fault(thread("LF!10834"), "TF-AUD-182", no_companion("generation_config.json"), base={}),
    "chat template lost": Fault(thread("LF#8399"), "TF-AUD-181", no_companion("tokenizer_config.json"), base={}),
    "tokenizer not saved": Fault(thread("VL#46641"), "TF-K17-101", no_companion("tokenizer.json")),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_published_fault_is_found(tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    base = None if fault.base is None else made.write(tmp_path / "base", *made.unquantized(), config=fault.base)
    report = audit_checkpoint(fault.build(tmp_path / "made"), base=base)
    assert report.findings, "nothing was found"
    found = {finding.code: finding for finding in report.findings}
    assert fault.code in found, [finding.headline for finding in report.findings]
    assert found[fault.code].severity == fault.severity
    assert report.passed == all(finding.severity != "error" for finding in report.findings)


def test_the_threads_are_those_that_the_rules_name() -> None:
    assert len({fault.reported for fault in FAULTS.values()}) >= 40
    elsewhere = [
        f"{fault.code}: {fault.reported}"
        for fault in FAULTS.values()
        if fault.reported not in (RULES.rules[fault.code].source, *RULES.rules[fault.code].cases)
    ]
    assert elsewhere == [], "each fault's thread stands beside its rule"
