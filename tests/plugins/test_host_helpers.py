"""Conformance of the fused elementwise helpers with their references, on every instruction set here."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugins import reference
from plugins.host.library import HostLibrary
from tests.plugins.batches import ACTIVATIONS, bits
from trtforge.ground.errors import ForgeError

RANDOM = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
DTYPES = st.sampled_from(ACTIVATIONS)
#: One rounding of the output dtype (the inputs of a pair of roundings may fall on either side).
EPSILON = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = EPSILON[actual.dtype]
    torch.testing.assert_close(actual.float(), expected.float(), rtol=tolerance, atol=tolerance)


def strided(rows: int, width: int, dtype: torch.dtype, seed: int, extra: int = 5) -> torch.Tensor:
    """Rows cut out of a wider matrix."""
    return torch.randn(rows, width + extra, generator=torch.Generator().manual_seed(seed)).to(dtype)[:, 2 : width + 2]


@RANDOM
@given(rows=st.integers(0, 7), width=st.integers(1, 130), dtype=DTYPES, weights=DTYPES, offset=st.sampled_from([0, 1]))
def test_rms_norm(
    library: HostLibrary, rows: int, width: int, dtype: torch.dtype, weights: torch.dtype, offset: int
) -> None:
    x = strided(rows, width, dtype, 0)
    weight = torch.linspace(-1, 2, width).to(weights)
    actual = library.rms_norm(x, weight, eps=1e-5, weight_offset=offset)
    close(actual, reference.rms_norm(x, weight, eps=1e-5, weight_offset=offset))


@RANDOM
@given(rows=st.integers(1, 7), width=st.integers(1, 130), dtype=DTYPES)
def test_add_rms_norm(library: HostLibrary, rows: int, width: int, dtype: torch.dtype) -> None:
    x, residual = strided(rows, width, dtype, 0), strided(rows, width, dtype, 1)
    weight = torch.linspace(0.5, 2, width)
    expected_residual = residual.clone()
    expected = reference.add_rms_norm(x, expected_residual, weight, eps=1e-6)
    actual = library.rms_norm(x, weight, eps=1e-6, residual=residual)
    assert torch.equal(residual, expected_residual)
    close(actual, expected)
    in_place = x.clone()
    residual = strided(rows, width, dtype, 1)
    library.rms_norm(in_place, weight, in_place, eps=1e-6, residual=residual)
    assert torch.equal(bits(in_place), bits(actual))


@RANDOM
@given(
    tokens=st.integers(0, 9),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    head_size=st.sampled_from([64, 80, 128]),
    part=st.sampled_from([1, 2]),
    dtype=DTYPES,
)
def test_rope_on_a_packed_row(
    library: HostLibrary, tokens: int, kv_heads: int, group: int, head_size: int, part: int, dtype: torch.dtype
) -> None:
    heads = kv_heads * group
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_size).to(dtype)
    before = qkv.clone()
    angles = torch.randn(tokens, head_size // 2 // part)
    cosine, sine = angles.cos(), angles.sin()
    cut = heads * head_size, (heads + kv_heads) * head_size
    library.rope(
        qkv[:, : cut[0]], qkv[:, cut[0] : cut[1]], cosine, sine,
        num_heads=heads, num_kv_heads=kv_heads, head_size=head_size,
    )  # fmt: skip
    close(qkv[:, : cut[0]], reference.rope(before[:, : cut[0]], cosine, sine, heads=heads, head_size=head_size))
    key = before[:, cut[0] : cut[1]]
    close(qkv[:, cut[0] : cut[1]], reference.rope(key, cosine, sine, heads=kv_heads, head_size=head_size))
    assert torch.equal(qkv[:, cut[1] :], before[:, cut[1] :])


@RANDOM
@given(rows=st.integers(0, 5), width=st.integers(1, 100), dtype=DTYPES)
def test_silu_mul(library: HostLibrary, rows: int, width: int, dtype: torch.dtype) -> None:
    x = strided(rows, 2 * width, dtype, 3) * 4
    close(library.silu_mul(x), reference.silu_mul(x))


def e4m3_edges() -> torch.Tensor:
    """Every E4M3 value, every midpoint of two, their float neighbours, both signs, infinities and huge values."""
    values = torch.arange(0, 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (values[1:] + values[:-1]) / 2
    edges = torch.cat([values, middles, torch.tensor([449.0, 464.0, 465.0, 1e30, float("inf"), 1e-30])])
    around = torch.cat([edges, edges.nextafter(torch.tensor(0.0)), edges.nextafter(torch.tensor(1e38))])
    return torch.cat([around, -around])


def test_fp8_rounding_is_torchs_bit_for_bit(library: HostLibrary) -> None:
    x = torch.cat([e4m3_edges(), torch.randn(5000) * 3, torch.randn(5000) * 300])
    actual = library.fp8_fake_quant(x.clone(), 1.0, dequantize=False)
    assert torch.equal(bits(actual), bits(reference.fp8_fake_quant(x, 1.0, dequantize=False)))
    nan = library.fp8_fake_quant(torch.full((3,), float("nan")), 1.0)
    assert nan.isnan().all()


@RANDOM
@given(count=st.integers(0, 300), dtype=DTYPES, scale=st.floats(1e-4, 3.0), dequantize=st.booleans())
def test_fp8_fake_quant(library: HostLibrary, count: int, dtype: torch.dtype, scale: float, dequantize: bool) -> None:
    x = (torch.randn(count) * 2).to(dtype)
    scale = float(torch.tensor(scale))
    expected = reference.fp8_fake_quant(x, scale, dequantize=dequantize)
    other = torch.empty_like(x)
    assert torch.equal(bits(library.fp8_fake_quant(x, scale, other, dequantize=dequantize)), bits(expected))
    assert torch.equal(bits(library.fp8_fake_quant(x, scale, dequantize=dequantize)), bits(expected))


def test_every_pool_conversion_is_torchs(library: HostLibrary) -> None:
    """Stores of all float32 edge cases into each pool dtype through the op that writes pools."""
    edges = torch.cat([e4m3_edges() * factor for factor in (1.0, 2.0**-8, 2.0**-18, 140.0)])
    edges = torch.cat([edges, torch.tensor([65504.0, 65519.9, 65520.0, 3.4e38, 1e-45, 0.0, -0.0])])
    edges = torch.nn.functional.pad(edges, (0, -len(edges) % 64)).view(-1, 64)
    tokens = len(edges)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        pool = torch.zeros(-(-tokens // 16), 2, 1, 16, 64, dtype=torch.float32).to(dtype)
        library.paged_attention(
            torch.zeros_like(edges), edges, -edges, pool, torch.tensor([0, tokens], dtype=torch.int32),
            torch.tensor([tokens], dtype=torch.int32), torch.arange(len(pool), dtype=torch.int32)[None],
            num_heads=1, num_kv_heads=1, head_size=64,
        )  # fmt: skip
        for plane, expected in ((0, edges), (1, -edges)):
            stored = pool.view(torch.uint8).view(*pool.shape[:4], -1)[:, plane, 0].reshape(-1, 64 * pool.itemsize)
            want = reference.store_kv(expected, dtype, 1.0)
            assert torch.equal(stored[:tokens], bits(want).view(tokens, -1))


@RANDOM
@given(rows=st.integers(0, 4), blocks=st.integers(1, 6), dtype=DTYPES, magnitude=st.sampled_from([1e-6, 1.0, 900.0]))
def test_nvfp4_fake_quant(library: HostLibrary, rows: int, blocks: int, dtype: torch.dtype, magnitude: float) -> None:
    x = (torch.randn(rows, 16 * blocks) * magnitude).to(dtype)
    x[:, :3] = 0
    scale = float(torch.tensor(3.0 / (6 * 448)))
    expected = reference.nvfp4_fake_quant(x, scale)
    assert torch.equal(bits(library.nvfp4_fake_quant(x, scale)), bits(expected))


def test_fake_quantization_is_that_of_the_quantizer(library: HostLibrary) -> None:
    """The executor's activations and the reference model's are quantized to the same bits."""
    from trtforge.formats import elements

    generator = torch.Generator().manual_seed(4)
    x = torch.randn(40, 576, generator=generator) * torch.logspace(-7, 3, 40)[:, None]
    for amax in (1e-4, 3.0, 900.0):
        scale = float(elements.two_level_scale(torch.tensor(amax)))
        assert torch.equal(library.nvfp4_fake_quant(x.clone(), scale), elements.fake_quant_two_level(x, scale))
        scale = float(torch.tensor(amax / 448))
        assert torch.equal(library.fp8_fake_quant(x.clone(), scale), elements.fake_quant_e4m3(x, scale))


def test_nvfp4_rounds_ties_to_even(library: HostLibrary) -> None:
    """Block amax 6 and scale 1 leave the values themselves to be rounded: every E2M1 midpoint and its neighbours."""
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    middles = (values[1:] + values[:-1]) / 2
    x = torch.cat([middles, -middles, torch.tensor([6.0, 0.0])])[None].contiguous()
    expected = torch.tensor([0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0])
    assert library.nvfp4_fake_quant(x.clone(), 1.0)[0, :7].tolist() == expected.tolist()
    assert torch.equal(library.nvfp4_fake_quant(x.clone(), 1.0), reference.nvfp4_fake_quant(x, 1.0))


@RANDOM
@given(table=DTYPES, dtype=DTYPES, width=st.integers(1, 40), tokens=st.integers(0, 9))
def test_embedding(library: HostLibrary, table: torch.dtype, dtype: torch.dtype, width: int, tokens: int) -> None:
    rows = torch.randn(11, width).to(table)
    ids = torch.randint(0, 11, (tokens,))
    out = torch.empty(tokens, width, dtype=dtype)
    assert torch.equal(library.embedding(rows, ids, out), rows[ids].float().to(dtype))


@RANDOM
@given(rows=st.integers(0, 4), width=st.integers(1, 700))
def test_argmax_logsumexp(library: HostLibrary, rows: int, width: int) -> None:
    logits = (strided(rows, width, torch.float32, 5) * 9).round() / 3  # ties on purpose
    index, maximum, logsumexp = library.argmax_logsumexp(logits)
    first = [int((row == row.max()).nonzero()[0]) for row in logits]
    assert index.tolist() == first
    assert torch.equal(maximum, logits.amax(-1))
    torch.testing.assert_close(logsumexp, torch.logsumexp(logits, -1), rtol=1e-5, atol=1e-5)


def test_copy_blocks_in_order(library: HostLibrary) -> None:
    pool = torch.randn(6, 2, 1, 16, 64).to(torch.bfloat16)
    expected = pool.clone()
    pairs = [(0, 3), (3, 5), (1, 0)]
    for source, target in pairs:
        expected[target] = expected[source]
    library.copy_blocks(pool, torch.tensor(pairs))
    assert torch.equal(pool, expected)
    with pytest.raises(ForgeError, match="TF-OPS-114"):
        library.copy_blocks(pool, torch.tensor([[0, 6]]))


def test_helpers_refuse(library: HostLibrary) -> None:
    x = torch.zeros(2, 32)
    with pytest.raises(ForgeError, match="TF-OPS-111"):
        library.fp8_fake_quant(x, 0.0)
    with pytest.raises(ForgeError, match="TF-OPS-103"):
        library.nvfp4_fake_quant(torch.zeros(2, 20), 1.0)
    with pytest.raises(ForgeError, match="TF-OPS-111"):
        library.rms_norm(x, torch.ones(32), eps=-1.0)
    with pytest.raises(ForgeError, match="TF-OPS-114"):
        library.embedding(torch.zeros(4, 32), torch.tensor([0, 4]), x)
    with pytest.raises(ForgeError, match="TF-OPS-005"):
        library.rms_norm(x, torch.ones(31), eps=1e-5)
    with pytest.raises(ForgeError, match="TF-OPS-005"):
        library.silu_mul(torch.zeros(2, 31))
    with pytest.raises(ForgeError, match="TF-OPS-005"):
        library.rms_norm(x, torch.ones(32), eps=1e-5, residual=torch.zeros(2, 32, dtype=torch.bfloat16))
    with pytest.raises(ForgeError, match="TF-OPS-104"):
        library.rope(x, x, torch.zeros(2, 17), torch.zeros(2, 17), num_heads=1, num_kv_heads=1, head_size=32)


@pytest.mark.parametrize("name", ["rms_norm", "silu_mul", "nvfp4_fake_quant"])
def test_rows_do_not_depend_on_their_neighbours(library: HostLibrary, name: str) -> None:
    """Enough rows for several threads, against one row at a time: the same bits."""
    x = torch.randn(120, 576)
    ops = {
        "rms_norm": lambda rows: library.rms_norm(rows, torch.ones(576), eps=1e-5),
        "silu_mul": library.silu_mul,
        "nvfp4_fake_quant": lambda rows: library.nvfp4_fake_quant(rows, 0.002, torch.empty_like(rows)),
    }
    library.set_threads(2)
    together = ops[name](x)
    for row in (0, 59, 60, 119):
        assert torch.equal(bits(ops[name](x[row : row + 1])), bits(together[row : row + 1]))
