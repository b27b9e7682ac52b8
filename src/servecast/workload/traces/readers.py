"""The formats of traces. A new one is a file with a reader, and a line here."""

from servecast.workload.traces.aiperf import AIPERF
from servecast.workload.traces.apex import APEX
from servecast.workload.traces.azure import AZURE, AZURE_LMM
from servecast.workload.traces.bailian import BAILIAN
from servecast.workload.traces.burstgpt import BURSTGPT
from servecast.workload.traces.dynamo import DYNAMO
from servecast.workload.traces.guidellm import GUIDELLM
from servecast.workload.traces.inference_perf import INFERENCE_PERF
from servecast.workload.traces.llmperf import LLMPERF
from servecast.workload.traces.llmservingsim import LLMSERVINGSIM, LLMSERVINGSIM_BENCH, LLMSERVINGSIM_CSV
from servecast.workload.traces.mooncake import MOONCAKE, TIMED_TRACE
from servecast.workload.traces.otel import OTEL
from servecast.workload.traces.plain import PLAIN, PLAIN_JSONL, PLAIN_PARQUET
from servecast.workload.traces.rows import Reader
from servecast.workload.traces.splitwise import SPLITWISE
from servecast.workload.traces.vidur import VIDUR, VIDUR_LENGTHS
from servecast.workload.traces.vllm_result import SGLANG, VLLM

READERS: tuple[Reader, ...] = (
    AZURE,
    AZURE_LMM,
    BURSTGPT,
    MOONCAKE,
    TIMED_TRACE,
    BAILIAN,
    VIDUR,
    VIDUR_LENGTHS,
    SPLITWISE,
    APEX,
    LLMSERVINGSIM,
    LLMSERVINGSIM_CSV,
    LLMSERVINGSIM_BENCH,
    DYNAMO,
    VLLM,
    SGLANG,
    AIPERF,
    GUIDELLM,
    INFERENCE_PERF,
    LLMPERF,
    OTEL,
)
#: Files with obvious names, of no tool. They are asked last: a format with a name of its own wins.
PLAIN_READERS: tuple[Reader, ...] = (PLAIN, PLAIN_JSONL, PLAIN_PARQUET)
