"""The formats of traces. A new one is a file with a reader, named here."""

from servecast.workload.traces import (
    aiperf,
    apex,
    azure,
    bailian,
    burstgpt,
    dynamo,
    guidellm,
    inference_perf,
    llmperf,
    llmservingsim,
    mooncake,
    otel,
    plain,
    splitwise,
    vidur,
    vllm_result,
    weka,
)  # fmt: skip
from servecast.workload.traces.rows import Reader

FORMATS = (
    azure, burstgpt, mooncake, bailian, vidur, splitwise, apex, llmservingsim, dynamo, vllm_result, aiperf, guidellm,
    inference_perf, llmperf, otel, weka,
)  # fmt: skip
READERS = tuple(reader for form in FORMATS for reader in vars(form).values() if isinstance(reader, Reader))
#: Files with obvious names, of no tool. They are asked last: a format with a name of its own wins.
PLAIN_READERS: tuple[Reader, ...] = (plain.PLAIN, plain.PLAIN_JSONL, plain.PLAIN_PARQUET)
