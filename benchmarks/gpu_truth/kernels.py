"""Hand-written CUDA kernels with known counts, compiled at run time by torch's NVRTC.

Their machine code was read with nvdisasm 13.2 for compute capability 8.0 to 12.0 (2026-11): `constants` is 16 stores,
of which 8 get their constant from HFMA2.MMA on 8.0 and 9.0, from MOV alone on 8.6 and 8.9.
"""

import importlib.util
import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

BLOCKS, THREADS, LOOPS, UNROLLED = 64, 128, 100, 16
WARP = 32
# FLOP of an m16n8k16 product, 2 per multiply-accumulate.
FLOP_PER_PRODUCT = 2 * 16 * 8 * 16
# Older compute capabilities have no product of this shape.
PRODUCT_FROM = (8, 0)
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+ )?([A-Z][A-Z0-9_.]*)")
FUNCTION = re.compile(r"^\.text\.(\w+):")

CONSTANTS = (
    *(0x3F800000, 0x40000000, 0x3C003C00, 0x12345678, 0x40490FDB, 0xBF800000, 0x3F000000, 0x7F800000),
    *(0x00FF00FF, 0x3E4CCCCD, 0x41200000, 0x42C80000, 0x33D6BF95, 0xFF7FFFFF, 0x00000001, 0x00000002),
)
_STORES = "\n".join(f"  out[{index} * stride + thread] = {value}u;" for index, value in enumerate(CONSTANTS))
_LOOP = """
extern "C" __global__ void {name}({type}* out, int loops, int factor) {{
  {type} value = threadIdx.x;
  #pragma unroll 1
  for (int loop = 0; loop < loops; ++loop) {{
{body}
  }}
  out[blockIdx.x * blockDim.x + threadIdx.x] = value;
}}
"""
_PACKED = 'asm volatile("fma.rn.f16x2 %0, %0, %1, %0;" : "+r"(value) : "r"(factor));\n' * UNROLLED
_SINGLE = 'asm volatile("fma.rn.f32 %0, %0, %0, %0;" : "+f"(value));\n' * UNROLLED
_PRODUCT = """
extern "C" __global__ void product(float* out, int loops, int factor) {
  float a = 0, b = 0, c = 0, d = 0;
  #pragma unroll 1
  for (int loop = 0; loop < loops; ++loop) {
%s
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = a + b + c + d;
}
""" % (
    'asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, '
    '{%0,%1,%2,%3};" : "+f"(a), "+f"(b), "+f"(c), "+f"(d) : "r"(factor));\n' * UNROLLED
)


@dataclass(frozen=True, kw_only=True)
class Hand:
    """A kernel of `BLOCKS` x `THREADS`; `known`: total counts of all its threads, by the counter to compare with."""

    name: str
    source: str
    known: dict[str, int]
    needs: tuple[int, int] = (7, 0)


_THREADS = BLOCKS * THREADS
HANDS = (
    Hand(
        name="constants",
        source='extern "C" __global__ void constants(unsigned* out, int stride, int factor) {\n'
        "  int thread = blockIdx.x * blockDim.x + threadIdx.x;\n" + _STORES + "\n}\n",
        known={"tensor_products": 0, "constants_at_most": _THREADS // WARP * len(CONSTANTS)},
    ),
    Hand(
        name="packed_half",
        source=_LOOP.format(name="packed_half", type="unsigned", body=_PACKED),
        known={"tensor_products": 0, "half_instructions": _THREADS * LOOPS * UNROLLED},
    ),
    Hand(
        name="single",
        source=_LOOP.format(name="single", type="float", body=_SINGLE),
        known={"tensor_products": 0, "single_instructions": _THREADS * LOOPS * UNROLLED},
    ),
    Hand(
        name="product",
        source=_PRODUCT,
        known={
            "tensor_products": _THREADS // WARP * LOOPS * UNROLLED,
            "tensor_flop": _THREADS // WARP * LOOPS * UNROLLED * FLOP_PER_PRODUCT,
        },
        needs=PRODUCT_FROM,
    ),
)


def disassembler() -> Path | None:
    """NVIDIA's nvdisasm, which comes with torch's triton; None if absent."""
    triton = importlib.util.find_spec("triton")
    places = list(triton.submodule_search_locations or ()) if triton else []
    tools = [Path(place) / "backends" / "nvidia" / "bin" / "nvdisasm" for place in places]
    return next((tool for tool in tools if tool.is_file()), None)


def instructions(cubin: bytes, scratch: Path, tool: Path) -> dict[str, int]:
    """Number of occurrences of each instruction in the machine code."""
    path = scratch / "kernel.cubin"
    path.write_bytes(cubin)
    done = subprocess.run([tool, path], capture_output=True, text=True, check=False, timeout=60)
    return dict(Counter(INSTRUCTION.findall(done.stdout)))
