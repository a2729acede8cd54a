"""Generates with OpenVINO GenAI on request; runs in OpenVINO's own environment and imports nothing of ours.

Reads JSON lines from standard input: ``{"do": "generate", "prompts": [[ids]], "lengths": [n]}``; answers with
``{"seconds": s, "made": [n]}``. Usage: openvino_worker.py MODEL_DIR THREADS.
"""

import json
import sys
import time

import numpy as np
import openvino
import openvino_genai


def main() -> None:
    """Answer until standard input ends."""
    model, threads = sys.argv[1], int(sys.argv[2])
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 2
    scheduler.max_num_batched_tokens = 2048
    scheduler.max_num_seqs = 32
    scheduler.enable_prefix_caching = False
    pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
    for line in sys.stdin:
        question = json.loads(line)
        answer = {}
        if question["do"] == "generate":
            inputs = [openvino.Tensor(np.array([ids], dtype=np.int64)) for ids in question["prompts"]]
            configs = []
            for length in question["lengths"]:
                config = openvino_genai.GenerationConfig()
                config.max_new_tokens, config.ignore_eos, config.do_sample = length, True, False
                configs.append(config)
            begin = time.perf_counter()
            results = pipeline.generate(inputs, configs)
            answer = {
                "seconds": time.perf_counter() - begin,
                "made": [len(result.m_generation_ids[0]) for result in results],
            }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
