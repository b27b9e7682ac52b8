"""A run as the ecosystem's own files: vLLM's result JSON, an llm-d benchmark report, a Perfetto (Chrome) trace."""

from servecast.report.exports.files import KINDS, write_exports
from servecast.report.exports.llmd import llmd_report, write_llmd
from servecast.report.exports.perfetto import write_perfetto
from servecast.report.exports.vllm_json import vllm_result, write_vllm

__all__ = ["KINDS", "llmd_report", "vllm_result", "write_exports", "write_llmd", "write_perfetto", "write_vllm"]
