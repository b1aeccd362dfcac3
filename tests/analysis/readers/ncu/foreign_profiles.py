"""Profiles as Nsight Systems lists them, and as Nsight Compute prints them for people; figures that add up by hand."""

# Nsight Compute without --csv, which is not read.
PRINTED = """  void volta_sgemm<float, 128>(float *) (64, 2, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 7.0
    Section: GPU Speed Of Light Throughput
    Duration                      usecond        10.00
"""

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
