"""Logs as known trainers print them, made after their programs' sources: a slow first iteration, then steady ones."""

import json


def pytorch_examples(*, first_index: int = 1, epochs: int = 2, every: int = 10) -> str:
    """100 iterations an epoch, the first of 2 s and the others of 0.25 s; `first_index` 0 is the older form."""
    lines = ["=> creating model 'resnet50'"]
    for epoch in range(epochs):
        total_s = 0.0
        for index in range(100):
            time_s = 0.25 if index else 2.0
            total_s += time_s
            if index % every == 0:
                lines.append(
                    f"Epoch: [{epoch}][{index + first_index:3d}/100]\tTime {time_s:6.3f} ({total_s / (index + 1):6.3f})"
                    "\tData  0.010 ( 0.030)\tLoss 6.9000e+00 (7.0000e+00)\tAcc@1   0.00 (  0.12)\tAcc@5   0.39 (  0.52)"
                )
        lines.append("Test: [ 0/10]\tTime  1.000 ( 1.000)\tLoss 6.9000e+00 (6.9000e+00)")
    return "\n".join([*lines, ""])


def timm(*, batch_size: int = 128) -> str:
    """Iterations 0, 50, … 500: the first takes 3 s, the others 0.32 s."""
    lines = ["Model resnet50 created, param count:25557032"]
    for index in range(0, 501, 50):
        time_s = 0.32 if index else 3.0
        mean_s = (3.0 + 0.32 * index) / (index + 1)
        lines.append(
            f"Train: 0 [{index:>4d}/1251 ({100 * index / 1250:>3.0f}%)]  Loss: 6.946 (6.95)  "
            f"Time: {time_s:.3f}s, {batch_size / time_s:>7.2f}/s  ({mean_s:.3f}s, {batch_size / mean_s:>7.2f}/s)  "
            "LR: 1.000e-06  Data: 0.010 (0.020)"
        )
    return "\n".join([*lines, ""])


def dllogger_json() -> str:
    """The options, 40 iterations of 0.18 s and 0.02 s of waiting that end 0.2 s apart, and the summary."""
    entries: list[tuple[float, object, dict[str, object]]] = [
        (1600180153.0, "PARAMETER", {"arch": "resnet50", "batch_size": 256, "amp": True, "gpu": 0})
    ]
    for index in range(40):
        data: dict[str, object] = {
            "train.loss": 7.0,
            "train.total_ips": 1280.0,
            "train.data_time": 0.02,
            "train.compute_time": 0.18,
        }
        entries.append((1600180158.0 + 0.2 * index, [0, index], data))
    entries.append((1600180170.0, [], {"train.total_ips": 1200.0}))
    return "".join(
        "DLLL " + json.dumps({"timestamp": f"{at_s:.6f}", "type": "LOG", "step": step, "data": data}) + "\n"
        for at_s, step, data in entries
    )


def dllogger_text() -> str:
    """30 iterations that end 0.5 s apart, at 512 images/s by the log's rates."""
    lines = ["RUNNING EPOCHS FROM 0 TO 1"]
    for index in range(30):
        rate = 512.0 if index else 100.0
        lines.append(
            f"DLL 2020-09-15 14:29:{13 + 0.5 * index:09.6f} - Epoch: 0 Iteration: {index + 1}  train.loss : 7.09304 "
            f" train.total_ips : {rate} img/s"
        )
    return "\n".join([*lines, "DLL 2020-09-15 14:30:13.473765 - Summary: train.total_ips : 500 img/s", ""])


def mlperf(*, epochs: int = 2, samples: int = 1_281_167) -> str:
    """Epochs of 500 s that begin 600 s apart, between which the model is evaluated."""
    begin_ms = 1594520079000
    events: list[tuple[str, int, str, object]] = [
        ("", begin_ms, "submission_benchmark", "resnet"),
        ("", begin_ms, "global_batch_size", 256),
        ("", begin_ms, "train_samples", samples),
    ]
    for epoch in range(epochs):
        events.append(("[0] ", begin_ms + 600_000 * epoch, "epoch_start", None))
        events.append(("0: ", begin_ms + 600_000 * epoch + 500_000, "epoch_stop", None))
    return "".join(
        prefix
        + ":::MLLOG "
        + json.dumps({"namespace": "", "time_ms": at_ms, "event_type": "x", "key": key, "value": value, "metadata": {}})
        + "\n"
        for prefix, at_ms, key, value in events
    )


EVERY = (pytorch_examples, timm, dllogger_json, dllogger_text, mlperf)
