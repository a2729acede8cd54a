"""The stages that ship, in the order in which they run."""

from __future__ import annotations

from trtforge.pipeline.pipeline import Pipeline
from trtforge.pipeline.stage import Stage
from trtforge.store.store import Store


def default_stages() -> list[Stage]:
    """A fresh instance of every stage; their modules are light."""
    from trtforge.pipeline.stages.baseline import BaselineStage
    from trtforge.pipeline.stages.bench import BenchStage
    from trtforge.pipeline.stages.build import BuildStage
    from trtforge.pipeline.stages.bundle import BundleStage
    from trtforge.pipeline.stages.evaluate import EvaluateStage
    from trtforge.pipeline.stages.graph import GraphStage
    from trtforge.pipeline.stages.intake import IntakeStage
    from trtforge.pipeline.stages.parity import ParityStage
    from trtforge.pipeline.stages.quantize import QuantizeStage
    from trtforge.pipeline.stages.repository import RepositoryStage
    from trtforge.pipeline.stages.smoke import SmokeStage
    from trtforge.pipeline.stages.speculation import SpeculationStage
    from trtforge.pipeline.stages.targets import PerTarget

    return [
        IntakeStage(),
        BaselineStage(),
        QuantizeStage(),
        EvaluateStage(),
        PerTarget(GraphStage()),
        BuildStage(),
        PerTarget(ParityStage()),
        PerTarget(SpeculationStage()),
        PerTarget(RepositoryStage()),
        PerTarget(SmokeStage()),
        PerTarget(BenchStage()),
        BundleStage(),
    ]


def default_pipeline(store: Store) -> Pipeline:
    """All stages over ``store``."""
    return Pipeline(default_stages(), store)
