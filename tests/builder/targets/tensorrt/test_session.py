"""The builder's call sequence against the recorded signatures of the real bindings, version by version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from packaging.version import Version

from builder.graphs.info import GRAPH_FILE
from builder.targets.tensorrt import versions
from builder.targets.tensorrt.lowering import Network, lower
from builder.targets.tensorrt.profiles import DECODE, MIXED, Sizes
from builder.targets.tensorrt.session import BuildFailed, Spec, build_plan
from builder.targets.tensorrt.target import make_spec
from tests.builder.targets.tensorrt.conftest import network_answers
from tests.support.tensorrt_bindings import VERSIONS, Bindings, HostMemory
from trtforge.recipe.schema import Build, Limits
from trtforge.stack.tensorrt_versions import is_supported
from trtforge.targets.tensorrt import TensorRt

LIMITS = Limits(max_batch_size=8, max_num_tokens=64, max_seq_len=256)
Graphs = Callable[..., Path]


def case(tmp_path: Path, graph: Path, version: str, **options: Any) -> tuple[Bindings, Network, Spec]:
    """Bindings that take the graph, the network, and the spec that the target would write."""
    bindings = Bindings(version)
    network = lower(graph, versions.missing_operators(version))
    sizes = Sizes.of(LIMITS, block_size=32, num_blocks=100)
    build = Build(target="tensorrt", limits=LIMITS, tensorrt=TensorRt(**options))
    bindings.answers.update(network_answers(bindings, network))
    spec = make_spec(graph, tmp_path, network, sizes, build, Path("/plugins.so"), tmp_path / "timing.cache")
    return bindings, network, spec


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_whole_sequence(tmp_path: Path, graphs: Graphs, version: str) -> None:
    bindings, _, spec = case(tmp_path, graphs(), version)
    facts = build_plan(bindings, spec, lambda event: None)
    assert facts == {
        "tensorrt": version.removesuffix(".post1"),
        "layers": 42,
        "plan_bytes": 4,
        "timing_cache_used": False,
        "pool_copy_bytes": None,  # nobody answers here: see test_target
    }
    assert Path(spec.plan).read_bytes() == b"plan" and Path(spec.timing_cache).read_bytes() == b"timings"
    calls = bindings.order()
    wanted = [
        "IPluginRegistry.load_library", "Builder.__init__", "Builder.create_network", "OnnxParser.__init__",
        "OnnxParser.parse", "Builder.create_builder_config", "IBuilderConfig.set_timing_cache",
        "IOptimizationProfile.set_shape", "IBuilderConfig.add_optimization_profile",
        "IBuilderConfig.progress_monitor", "Builder.build_serialized_network", "ITimingCache.serialize",
    ]  # fmt: skip
    assert [calls.index(name) for name in wanted] == sorted(calls.index(name) for name in wanted)
    assert calls.count("IBuilderConfig.add_optimization_profile") == 2
    assert bindings.named("IPluginRegistry.load_library") == [("/plugins.so",)]
    assert not bindings.named("IBuilderConfig.set_preview_feature"), "no plugin declares an alias"
    assert bindings.named("IBuilderConfig.builder_optimization_level") == [(3,)]
    assert not bindings.named("IBuilderConfig.set_flag") and not bindings.named("IBuilderConfig.set_memory_pool_limit")


def test_networks_are_strongly_typed(tmp_path: Path, graphs: Graphs, version: str) -> None:
    bindings, _, spec = case(tmp_path, graphs(), version)
    build_plan(bindings, spec, lambda event: None)
    (flags,) = bindings.named("Builder.create_network")[0]
    if Version(version) < Version("11"):
        assert flags == 1 << int(bindings.NetworkDefinitionCreationFlag.STRONGLY_TYPED) == 2
    else:
        assert flags == 0, "11 has no other networks"


def test_the_parser_gets_the_model_and_the_graphs_folder(tmp_path: Path, graphs: Graphs, version: str) -> None:
    bindings, network, spec = case(tmp_path, graphs(), version)
    build_plan(bindings, spec, lambda event: None)
    model, path = bindings.named("OnnxParser.parse")[0]
    assert model == network.model and path == str(graphs() / GRAPH_FILE)
    parsed = onnx.load_from_string(model)
    for tensor in parsed.graph.initializer:
        for entry in tensor.external_data:
            assert entry.key != "location" or (Path(path).parent / entry.value).is_file()


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({"strip_weights": True}, ["STRIP_PLAN", "REFIT_IDENTICAL"]),
        ({"refit": True}, ["REFIT"]),
        ({"strip_weights": True, "refit": True}, ["STRIP_PLAN", "REFIT"]),
        ({"weight_streaming": True}, ["WEIGHT_STREAMING"]),
    ],
)
def test_flags(tmp_path: Path, graphs: Graphs, version: str, options: dict[str, bool], flags: list[str]) -> None:
    bindings, _, spec = case(tmp_path, graphs(), version, **options)
    build_plan(bindings, spec, lambda event: None)
    assert [flag.name for (flag,) in bindings.named("IBuilderConfig.set_flag")] == flags


def test_level_and_workspace(tmp_path: Path, graphs: Graphs, version: str) -> None:
    bindings, _, spec = case(tmp_path, graphs(), version, optimization_level=5, workspace="2GiB")
    build_plan(bindings, spec, lambda event: None)
    assert bindings.named("IBuilderConfig.builder_optimization_level") == [(5,)]
    pool, size = bindings.named("IBuilderConfig.set_memory_pool_limit")[0]
    assert (pool.name, size) == ("WORKSPACE", 2**31)


def test_profiles_cover_every_dynamic_input(tmp_path: Path, graphs: Graphs, version: str) -> None:
    bindings, network, spec = case(tmp_path, graphs(), version)
    build_plan(bindings, spec, lambda event: None)
    shapes = bindings.named("IOptimizationProfile.set_shape")
    dynamic = [value["name"] for value in network.inputs if any(isinstance(size, str) for size in value["shape"])]
    assert [name for name, *_ in shapes] == dynamic * 2
    assert [profile["name"] for profile in spec.profiles] == [DECODE, MIXED]
    for _, low, best, high in shapes:
        assert all(a <= b <= c for a, b, c in zip(low, best, high, strict=True))


def test_kept_timings_are_used_and_foreign_ones_are_not(tmp_path: Path, graphs: Graphs, version: str) -> None:
    bindings, _, spec = case(tmp_path, graphs(), version)
    Path(spec.timing_cache).write_bytes(b"kept")
    assert build_plan(bindings, spec, lambda event: None)["timing_cache_used"]
    assert bindings.named("IBuilderConfig.create_timing_cache") == [(b"kept",)]
    Path(spec.timing_cache).write_bytes(b"of another GPU")
    bindings, _, spec = case(tmp_path, graphs(), version)
    bindings.answers["IBuilderConfig.set_timing_cache"] = lambda this, cache, ignore_mismatch: False
    assert not build_plan(bindings, spec, lambda event: None)["timing_cache_used"]
    assert bindings.named("IBuilderConfig.create_timing_cache") == [(b"of another GPU",), (b"",)]
    assert all(mismatch is False for _, mismatch in bindings.named("IBuilderConfig.set_timing_cache"))


def test_progress_and_log(tmp_path: Path, graphs: Graphs, version: str) -> None:
    bindings, _, spec = case(tmp_path, graphs(), version)
    events: list[dict[str, Any]] = []

    def build(this: Any, network: Any, config: Any) -> HostMemory:
        monitor, logger = config.progress_monitor, bindings.named("Builder.__init__")[0][0]
        monitor.phase_start("Building", None, 2)
        assert monitor.step_complete("Building", 0) is True
        monitor.phase_finish("Building")
        severity = bindings.ILogger.Severity
        logger.log(severity.WARNING, "slow")
        logger.log(severity.VERBOSE, "a tactic")
        return HostMemory(b"plan")

    bindings.answers["Builder.build_serialized_network"] = build
    build_plan(bindings, spec, events.append)
    assert events == [
        {"event": "start", "phase": "Building", "parent": None, "steps": 2},
        {"event": "step", "phase": "Building", "step": 0},
        {"event": "finish", "phase": "Building"},
    ]
    assert Path(spec.log).read_text() == "WARNING: slow\n"


def test_a_parser_that_refuses(tmp_path: Path, graphs: Graphs, version: str) -> None:
    bindings, _, spec = case(tmp_path, graphs(), version)
    bindings.answers |= {
        "OnnxParser.parse": lambda this, model, path=None: False,
        "OnnxParser.num_errors": lambda this: 1,
        "OnnxParser.get_error": lambda this, index: bindings.make("ParserError"),
        "ParserError.node_operator": lambda this: "PagedAttention",
        "ParserError.node_name": lambda this: "/model/layers.0/self_attn",
        "ParserError.desc": lambda this: "Plugin not found",
    }
    with pytest.raises(BuildFailed) as caught:
        build_plan(bindings, spec, lambda event: None)
    assert caught.value.step == "parse"
    assert caught.value.messages == ["PagedAttention /model/layers.0/self_attn: Plugin not found"]
    assert not Path(spec.plan).exists()


def test_another_network_than_the_graphs(tmp_path: Path, graphs: Graphs, version: str) -> None:
    bindings, network, spec = case(tmp_path, graphs(), version)
    tensors = [bindings.make("ITensor", name=value["name"], dtype=bindings.DataType.FLOAT) for value in network.inputs]
    bindings.answers["INetworkDefinition.get_input"] = lambda this, index: tensors[index]
    bindings.answers["INetworkDefinition.num_outputs"] = lambda this: 1
    with pytest.raises(BuildFailed) as caught:
        build_plan(bindings, spec, lambda event: None)
    assert caught.value.step == "interface"
    assert "input input_ids is DataType.FLOAT, the graph says DataType.INT64" in caught.value.messages
    assert any("kv_pool_0_out is missing" in message for message in caught.value.messages)


def test_a_builder_that_fails_tells_what_was_logged(tmp_path: Path, graphs: Graphs, version: str) -> None:
    bindings, _, spec = case(tmp_path, graphs(), version)

    def build(this: Any, network: Any, config: Any) -> None:
        logger = bindings.named("Builder.__init__")[0][0]
        logger.log(bindings.ILogger.Severity.ERROR, "out of memory")

    bindings.answers["Builder.build_serialized_network"] = build
    with pytest.raises(BuildFailed) as caught:
        build_plan(bindings, spec, lambda event: None)
    assert (caught.value.step, caught.value.messages) == ("build", ["out of memory"])


def test_a_profile_that_is_not_valid(tmp_path: Path, graphs: Graphs, version: str) -> None:
    bindings, _, spec = case(tmp_path, graphs(), version)
    bindings.answers["IBuilderConfig.add_optimization_profile"] = lambda this, profile: -1
    with pytest.raises(BuildFailed, match="decode"):
        build_plan(bindings, spec, lambda event: None)


def test_what_11_removed_is_an_error_here(version: str) -> None:
    """The stand-in is as strict as the bindings: using a removed name would fail these tests."""
    bindings = Bindings(version)
    config, engine = bindings.make("IBuilderConfig"), bindings.make("ICudaEngine")
    removed = Version(version) >= Version("11")
    for thing, name in ((config, "int8_calibrator"), (engine, "device_memory_size"), (bindings.BuilderFlag, "FP16")):
        assert hasattr(thing, name) != removed
    with pytest.raises(TypeError):
        config.set_preview_feature(True, bindings.PreviewFeature.ALIASED_PLUGIN_IO_10_03)


def test_supported_versions() -> None:
    assert all(is_supported(version) for version in VERSIONS)
    assert not any(is_supported(version) for version in ("10.13.3.9", "12.0", "8.6.1", "none"))
    assert versions.missing_operators("10.14.1.48") == {"RMSNormalization", "RotaryEmbedding", "Swish"}
    assert versions.missing_operators("10.16.1.11") == {"Swish"}
    assert not versions.missing_operators("11.4.0.106")
