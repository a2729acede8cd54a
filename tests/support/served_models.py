"""Python models of a few lines for real Triton servers."""

from pathlib import Path

ECHO = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in arrays]
"""
#: decoupled, and no request is ever answered; has a child of its own, which comes and goes
HELD = """
import os, time
class TritonPythonModel:
    def initialize(self, args):
        self.senders = []
        if os.fork() == 0:
            time.sleep(2)
            os._exit(1)
    def execute(self, requests):
        self.senders += [request.get_response_sender() for request in requests]
"""
CONFIG = """
name: "NAME" backend: "python" max_batch_size: 0
input { name: "IN" data_type: TYPE_FP32 dims: 2 }
output { name: "OUT" data_type: TYPE_FP32 dims: 2 }
instance_group { count: 1 kind: KIND_CPU }
"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"


def write_model(repository: Path, name: str, code: str, more: str = "") -> Path:
    """Add a model to a repository; returns its folder."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(code)
    (version.parent / "config.pbtxt").write_text(CONFIG.replace("NAME", name) + more)
    return version.parent
