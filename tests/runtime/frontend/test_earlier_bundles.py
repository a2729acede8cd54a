"""What the native model of a bundle written earlier imports: one prompt, outputs of shape [1, 1]."""

import numpy as np
import pytest

from runtime.request import FinishReason, RequestOutput, SampleOutput
from runtime.triton_channel import Channel
from runtime.triton_frontend import request_from_tensors, tensors_from_output
from trtforge.ground.errors import ForgeError


def test_its_calls_still_work():
    tensors = {"text_input": np.array([[b"Hi"]], dtype=object), "max_tokens": np.array([[7]], dtype=np.int32)}
    request = request_from_tensors(tensors, eos_token_ids=(2,))
    assert (request.prompt, request.params.max_tokens, request.stream) == ("Hi", 7, False)
    sample = SampleOutput(0, text="ä", token_ids=[1], num_tokens=3, finish_reason=FinishReason.STOP)
    arrays = tensors_from_output(RequestOutput("r", [sample], True, 5), prefix="Hi ", log_probs=False)
    assert arrays["text_output"].shape == (1, 1)
    assert arrays["text_output"][0, 0].decode() == "Hi ä"
    assert arrays["finish_reason"][0, 0] == b"stop"
    assert arrays["num_output_tokens"].tolist() == [[3]]
    assert arrays["output_log_probs"].shape == (1, 1, 0)
    assert Channel(None, None).key == ""


def test_its_refusals_have_codes():
    with pytest.raises(ForgeError) as caught:
        request_from_tensors({"text_input": np.array([[b"Hi"]], dtype=object)})
    assert caught.value.code == "TF-RUN-117"
