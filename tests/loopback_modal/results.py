"""Outputs that the control plane writes itself: of inputs that were cancelled, ran too long, or lost."""

from __future__ import annotations

import time

from modal_proto import api_pb2

from tests.loopback_modal.inputs import Input

_Status = api_pb2.GenericResult
CANCELLED = _Status.GENERIC_STATUS_TERMINATED
TIMED_OUT = _Status.GENERIC_STATUS_TIMEOUT
LOST = _Status.GENERIC_STATUS_INTERNAL_FAILURE


def failed(one: Input, status: _Status.GenericStatus.ValueType, exception: str) -> api_pb2.FunctionGetOutputsItem:
    """An output that says only what went wrong."""
    return output(one, api_pb2.GenericResult(status=status, exception=exception))


def output(
    one: Input,
    result: api_pb2.GenericResult,
    data_format: api_pb2.DataFormat.ValueType = api_pb2.DATA_FORMAT_UNSPECIFIED,
) -> api_pb2.FunctionGetOutputsItem:
    return api_pb2.FunctionGetOutputsItem(
        idx=one.idx,
        input_id=one.id,
        result=result,
        data_format=data_format,
        task_id=one.container,
        input_started_at=one.started or 0.0,
        output_created_at=time.time(),
        retry_count=one.attempt,
    )
