"""Number formats and the bytes one value of each takes in memory, scales included.

bf16, fp16, fp32, fp8 and int8 take their own width. A tensor-wide or 128 x 128 block scale adds at most 0.03 % and is
left out. Four-bit formats carry scales that count:

- mxfp4: 4 bits and one 8-bit scale per 32 values, 4.25 bits (OCP Microscaling Formats 1.0)
- nvfp4: 4 bits and one 8-bit scale per 16 values, 4.5 bits
- int4: 4 bits, a 16-bit scale and a 4-bit zero per 128 values, 4.15625 bits (AWQ and GPTQ checkpoints, group size 128);
  other whole numbers of bits: a 16-bit scale per 128 values

A checkpoint that says more about its groups is read by `servecast.specs.quantization`.
"""

from __future__ import annotations

from servecast.errors import InputError

_BYTES = {
    "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0,
    "mxfp4": 4.25 / 8, "nvfp4": 4.5 / 8, "int4": 4.15625 / 8,
    **{f"int{bits}": (bits + 16 / 128) / 8 for bits in (1, 2, 3, 5, 6, 7)},
}  # fmt: skip
_SPELLINGS = {
    **dict.fromkeys(("float32", "float"), "fp32"),
    **dict.fromkeys(("float16", "half"), "fp16"),
    **dict.fromkeys(("fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "float8_e5m2"), "fp8"),
    "bfloat16": "bf16",
}


def dtype_name(text: str, place: str) -> str:
    """The one name a number format has here, from vLLM's, torch's or Hugging Face's spelling of it."""
    name = str(text).lower().removeprefix("torch.")
    name = _SPELLINGS.get(name, name)
    if name not in _BYTES:
        raise InputError(place, f"{text!r} is no known number format; use one of {', '.join(_BYTES)}")
    return name


def bytes_per_value(dtype: str) -> float:
    """Bytes of one value of ``dtype``, a name or a common spelling of one."""
    return _BYTES[dtype_name(dtype, "dtype")]
