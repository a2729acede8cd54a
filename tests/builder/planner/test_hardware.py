"""The hardware table: complete, sourced, and helpful when a name is not in it."""

from __future__ import annotations

import pytest

from builder.planner.communication import link_between, step_communication
from builder.planner.facts import kernel_notes
from builder.planner.hardware import Gpu, gpu, link, load_hardware
from builder.planner.precision import compute_format, kv_bits, recipe_precision, weight_bytes, weight_format
from builder.planner.types import ParallelPlan, Precision
from tests.builder.planner.models import known, llama_70b
from tests.support.refusals import refusal
from trtforge.tables import architecture_table

CARDS = load_hardware().gpus
#: how much faster than fp16: Blackwell Ultra has more FP4 and little INT8, GB10's FP8 runs as FP16
OTHER_RATES = {"b300": {"fp4": 13125 / 2250, "int8": 125 / 2250}, "gb10": {"fp8": 1.0, "int8": 1.0, "fp4": 2.0}}
#: what nvidia-smi prints, and what the table makes of it: row, architecture, MiB
PRINTED = [
    ("NVIDIA A100-SXM4-40GB", "a100-40gb", "sm_80", 40960),
    ("NVIDIA A100-SXM4-80GB", "a100-80gb", "sm_80", 81920),
    ("A100-SXM4-80GB", "a100-80gb", "sm_80", 81920),
    ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb", "sm_80", 40960),
    ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb", "sm_80", 81920),
    ("NVIDIA A10G", "a10g", "sm_86", 23028),
    ("NVIDIA L4", "l4", "sm_89", 23034),
    ("NVIDIA L40S", "l40s", "sm_89", 46068),
    ("NVIDIA H100 PCIe", "h100-pcie", "sm_90", 81559),
    ("NVIDIA H100 80GB HBM3", "h100-sxm", "sm_90", 81559),
    ("H100 80GB HBM3", "h100-sxm", "sm_90", 81559),
    ("NVIDIA H100 NVL", "h100-nvl", "sm_90", 95830),
    ("NVIDIA H20", "h20", "sm_90", 97871),
    ("NVIDIA H200", "h200", "sm_90", 143771),
    ("NVIDIA H200 NVL", "h200-nvl", "sm_90", 143771),
    ("NVIDIA B200", "b200", "sm_100", 183359),
    ("NVIDIA GB200", "gb200", "sm_100", 189471),
    ("NVIDIA B300 SXM6 AC", "b300", "sm_103", 275040),
    ("NVIDIA GB10", "gb10", "sm_121", 122583),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000", "sm_120", 97887),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-workstation", "sm_120", 97887),
    ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-max-q", "sm_120", 97887),
]


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_rows_are_plausible_and_sourced(card: Gpu) -> None:
    assert card.sources and all(source.url.startswith("https://") for source in card.sources)
    assert 0.9 < card.visible_bytes / (card.memory_gib * 2**30) <= 1
    # fp8 and int8 run at twice fp16's rate, fp4 at four times: anything else is a sparse figure by mistake
    dense = card.dense_tflops
    for format, factor in {"fp8": 2.0, "int8": 2.0, "fp4": 4.0, **OTHER_RATES.get(card.name, {})}.items():
        if format in dense:
            assert dense[format] == pytest.approx(factor * dense["fp16"], rel=0.02)
    assert (card.nvlink_gbs is None) == (card.nvlink_domain == 1)
    assert architecture_table().row(card.arch) is not None


def test_fp8_and_fp4_agree_with_the_architecture_table() -> None:
    for card in CARDS:
        row = architecture_table().row(card.arch)
        assert row is not None
        assert card.executes("fp8") == (row.formats["fp8"] == "yes")
        assert card.executes("fp4") == (row.formats["nvfp4"] == "yes")


@pytest.mark.parametrize(("printed", "name", "arch", "mib"), PRINTED)
def test_a_gpu_is_known_by_the_name_that_nvidia_smi_prints(printed: str, name: str, arch: str, mib: int) -> None:
    card = gpu(printed)
    assert (card.name, card.arch, card.visible_mib) == (name, arch, mib)


def test_every_gpu_of_the_table_has_a_name_that_is_printed() -> None:
    assert {name for card in CARDS for name in card.reported} <= {printed for printed, *_ in PRINTED}
    assert all(card.reported for card in CARDS)


@pytest.mark.parametrize(("name", "found"), [("H100", "h100-sxm"), ("NVIDIA_H200", "h200"), ("rtx pro 6000", None)])
def test_names_in_any_spelling(name: str, found: str | None) -> None:
    assert gpu(name).name == (found or "rtx-pro-6000")


@pytest.mark.parametrize(
    ("name", "near"), [("h10", "h100-sxm"), ("b20", "b200"), ("l4os", "l40s"), ("a10080gb", "a100-80gb")]
)
def test_an_unknown_gpu_names_the_nearest(name: str, near: str) -> None:
    error = refusal(gpu, name)
    assert error.code == "TF-PLN-001" and f"--gpu {near}" in error.remedies
    assert "h200" in error.numbers["known"]


def test_an_unknown_gpu_without_neighbours_lists_all() -> None:
    assert len(refusal(gpu, "zzzzzz").remedies) == len(CARDS)
    assert refusal(link, "token-ring").code == "TF-PLN-002"


def test_unknown_formats_are_refused() -> None:
    for call in (weight_format, kv_bits):
        error = refusal(call, "fp7")
        assert error.code == "TF-PLN-003" and error.remedies


def test_formats_of_a_recipe() -> None:
    plain = recipe_precision("none", "none", "float16")
    assert (plain.weights, plain.base, plain.kv) == ("float16", "float16", "float16")
    served = recipe_precision("nvfp4", "fp8_cast", "bfloat16")
    assert (served.weights, served.kv) == ("nvfp4", "fp8")
    assert weight_bytes(1e9, "int4_awq", group_size=32) == 1e9 * (4 + 32 / 32) / 8


def test_what_a_gpu_computes_in() -> None:
    assert compute_format("fp8", gpu("h100")) == "fp8" and compute_format("fp8", gpu("a100")) == "fp16"
    assert compute_format("nvfp4", gpu("h100")) == "fp16" and compute_format("nvfp4", gpu("b200")) == "fp4"
    assert compute_format("int4_awq", gpu("b200")) == "fp16"


@pytest.mark.parametrize(
    ("card", "ranks", "name"),
    [
        ("h100", 8, "nvlink4"),
        ("h100", 16, "ib-ndr"),
        ("l40s", 8, "pcie4"),
        ("rtx-pro-6000", 8, "pcie5"),
        ("h100-pcie", 2, "nvlink3"),
        ("h100-pcie", 4, "pcie5"),
        ("gb200", 72, "nvlink5"),
        ("b200", 8, "nvlink5"),
    ],
)
def test_the_link_of_a_group(card: str, ranks: int, name: str) -> None:
    assert link_between(gpu(card), ranks).name == name


def test_communication_of_a_step() -> None:
    model, card = llama_70b(), gpu("h100")
    alone = step_communication(model, ParallelPlan(), card, 64)
    assert alone.total == 0 and alone.tensor_link is None
    inside = step_communication(model, ParallelPlan(8), card, 64)
    each = 2 * 7 * 500e-9 + 2 * 7 / 8 * 64 * 8192 * 2 / 450e9
    assert inside.tensor == pytest.approx(160 * each) and inside.pipeline == 0
    across = step_communication(model, ParallelPlan(8, 2), card, 64, network="ib-hdr")
    assert across.pipeline == pytest.approx(7e-6 + 64 * 8192 * 2 / 25e9) and across.pipeline_link == "ib-hdr"
    assert across.tensor == inside.tensor, "tensor parallelism stays inside the node"


def test_expert_parallelism_exchanges_instead_of_reducing() -> None:
    model, card = known("Qwen/Qwen3-235B-A22B"), gpu("h200")
    cut = step_communication(model, ParallelPlan(8), card, 64)
    whole = step_communication(model, ParallelPlan(8, 1, 8), card, 64)
    assert cut.expert == 0 and whole.expert > 0
    assert whole.tensor == pytest.approx(cut.tensor / 2), "attention still reduces"
    copies = 64 * 4096 * 2 * 8 / 8
    exchange = 2 * 7 * (500e-9 + copies / 8 / 450e9)
    assert whole.expert == pytest.approx(94 * exchange)


def test_formats_without_a_kernel_become_notes() -> None:
    assert kernel_notes(Precision("fp8", kv="fp8"), gpu("h100")) == []
    weights, cache = kernel_notes(Precision("fp8", kv="fp8"), gpu("a100"))
    assert "no kernel for fp8 weights on sm_80" in weights and "disputed" in cache
    (note,) = kernel_notes(Precision("nvfp4"), gpu("h200"))
    assert "weight-only" in note


def test_a_target_without_kernels_becomes_a_note() -> None:
    turing = gpu("a100").model_copy(update={"arch": "sm_75"})
    (note,) = kernel_notes(Precision("none"), turing, "tensorrt")
    assert "tensorrt does not build for sm_75" in note and kernel_notes(Precision("none"), turing) == []
    for arch in ("sm_103", "sm_121"):
        assert kernel_notes(Precision("none"), gpu("a100").model_copy(update={"arch": arch}), "tensorrt") == []
