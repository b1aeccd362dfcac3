"""Profiles as Nsight Compute prints them for people, and as Nsight Systems lists them; figures that add up by hand."""

MESSAGES = """==PROF== Connected to process 5268 (/usr/bin/python3.11)
==PROF== Profiling "volta_sgemm" - 0: 0%....50%....100% - 3 passes
Epoch: [0][ 1/10]  Time 9.000 (9.000)
==PROF== Profiling "vectorized_elementwise" - 1: 0%....50%....100% - 3 passes
==PROF== Disconnected from process 5268
"""

# Nsight Compute 2022.3 and newer: grid, block, device and compute capability beside the name, columns with names.
NEW_TEXT = (
    MESSAGES
    + """[5268] python3.11@127.0.0.1
  void volta_sgemm<float, 128>(const float *, float *) (64, 2, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 7.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ------------- ------------
    Metric Name               Metric Unit Metric Value
    ----------------------- ------------- ------------
    DRAM Frequency          cycle/usecond       877.04
    Duration                      usecond        10.00
    DRAM Throughput                     %         5.91
    ----------------------- ------------- ------------

    OPT   This kernel grid is too small to fill the available resources on this device.

    Section: Command line profiler metrics
    -------------------------------------------------- ----------- ------------
    Metric Name                                        Metric Unit Metric Value
    -------------------------------------------------- ----------- ------------
    dram__bytes_read.sum                                     Kbyte         3.00
    dram__bytes_write.sum                                    Kbyte         1.00
    smsp__sass_thread_inst_executed_op_fadd_pred_on.sum       inst            0
    smsp__sass_thread_inst_executed_op_ffma_pred_on.sum       inst    1,000,000
    smsp__sass_thread_inst_executed_op_fmul_pred_on.sum       inst          500
    -------------------------------------------------- ----------- ------------

  vectorized_elementwise (1, 1, 1)x(64, 1, 1), Context 1, Stream 7, Device 0, CC 7.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ------------- ------------
    Metric Name               Metric Unit Metric Value
    ----------------------- ------------- ------------
    Duration                      usecond         2.50
    ----------------------- ------------- ------------

    Section: Command line profiler metrics
    -------------------------------------------------- ----------- ------------
    Metric Name                                        Metric Unit Metric Value
    -------------------------------------------------- ----------- ------------
    dram__bytes_read.sum                                      byte          500
    dram__bytes_write.sum                                     byte            0
    smsp__sass_thread_inst_executed_op_fadd_pred_on.sum       inst           64
    smsp__sass_thread_inst_executed_op_ffma_pred_on.sum       inst            0
    smsp__sass_thread_inst_executed_op_fmul_pred_on.sum       inst            0
    -------------------------------------------------- ----------- ------------
"""
)

# Nsight Compute 2021: the date in place of the sizes, wide columns without names.
_RULER = f"    {'-' * 70} {'-' * 15} {'-' * 30}\n"
_METRICS_2021 = (
    ("dram__bytes_read.sum", "Kbyte", "3.00", "0.50"),
    ("dram__bytes_write.sum", "Kbyte", "1.00", "0"),
    ("gpu__time_duration.sum", "usecond", "10.00", "2.50"),
    ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", "inst", "0", "64"),
    ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", "inst", "1,000,000", "0"),
    ("smsp__sass_thread_inst_executed_op_fmul_pred_on.sum", "inst", "500", "0"),
)


def _launch_2021(name: str, which: int) -> str:
    rows = "".join(f"    {metric:<70} {unit:>15} {cells[which]:>30}\n" for metric, unit, *cells in _METRICS_2021)
    return (
        f"  {name}, 2021-Oct-11 22:03:4{which}, Context 1, Stream 7\n"
        f"    Section: Command line profiler metrics\n{_RULER}{rows}{_RULER}\n"
    )


OLD_TEXT = (
    MESSAGES
    + "[5268] python3.11@127.0.0.1\n"
    + _launch_2021("void volta_sgemm<float, 128>(const float *, float *)", 0)
    + _launch_2021("vectorized_elementwise", 1)
)

NSYS_HEADER = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),"
    "Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name"
)
NSYS = f"""Processing [x.sqlite] with [/opt/nsys/reports/cuda_gpu_trace.py]...
{NSYS_HEADER}
1000,10000,5,64,2,1,256,1,1,128,0.0,0.0,,,,,NVIDIA A100-SXM4-80GB (0),1,,7,"void volta_sgemm<float, 128>(float *)"
20000,700,6,,,,,,,,,,0.1,150.0,Pageable,Device,NVIDIA A100-SXM4-80GB (0),1,,7,[CUDA memcpy Host-to-Device]
30000,2500,7,1,1,1,64,1,1,16,0.0,0.0,,,,,NVIDIA A100-SXM4-80GB (0),1,,7,vectorized_elementwise
"""
